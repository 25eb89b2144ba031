//! Was it applied?
//!
//! A connection that ends between a commit and its answer leaves a write in doubt. What is stored
//! decides: an insert is recognised by its owner's random number, a swap by being exactly what it
//! would have made of the record that it was read from.

use retrysafe_core::codec::DecodeError;
use retrysafe_core::record::{Record, State, Write};
use retrysafe_core::store::{Inserted, Stamped, Swapped};
use retrysafe_core::time::Time;

use super::job::{Ask, Reply};
use super::row::Found;

/// What a look at the record says about a write in doubt.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it lives for one match")]
pub(super) enum Verdict {
    /// This is its answer.
    Decided(Reply),
    /// The record is as it was before the write: the write may go again.
    StillToDo,
    /// What is there cannot be read.
    Damaged(DecodeError),
}

/// Judges a write in doubt by the record that is there now, if there is one.
pub(super) fn judge(ask: &Ask, found: Option<&Found>, now: Time) -> Verdict {
    let current = match found {
        Some(Found::Record(record)) => Some(&**record),
        Some(Found::Damaged(_, what)) => return Verdict::Damaged(*what),
        // Only a load says what it knows, and it changes nothing.
        Some(Found::AsKnown) => return Verdict::StillToDo,
        None => None,
    };
    match ask {
        Ask::Insert(first) => match current.filter(|record| !record.is_expired(now)) {
            None => Verdict::StillToDo,
            Some(record) => {
                let is_mine = record.attempts == 1
                    && matches!(record.state, State::InProgress { owner, .. } if owner == first.owner);
                let record = record.clone();
                let value = if is_mine { Inserted::New(record) } else { Inserted::Exists(record) };
                Verdict::Decided(Reply::Inserted(Stamped { now, value }))
            }
        },
        Ask::Swap(swap) => {
            let (from, write) = &**swap;
            let value = match current {
                Some(record) if record.version == from.version => return Verdict::StillToDo,
                Some(record) if is_made_by(record, from, write) => Swapped::Done(record.clone()),
                Some(record) => Swapped::Lost(Some(record.clone())),
                None => Swapped::Lost(None),
            };
            Verdict::Decided(Reply::Swapped(Stamped { now, value }))
        }
        Ask::Load(..) => Verdict::StillToDo,
    }
}

/// Whether `record` is what `write` makes of `from` at some moment. Two writers that would have made
/// the very same record are both told that they did: nothing they do next depends on which one it was.
fn is_made_by(record: &Record, from: &Record, write: &Write) -> bool {
    let moments = match &record.state {
        State::InProgress { begun_at, .. } => [Some(*begun_at), None],
        State::Completed { settled_at, expires_at, .. }
        | State::FailedRetryable { settled_at, expires_at } => {
            [Some(*settled_at), Some(*expires_at)]
        }
        State::Unknown { since, .. } => [Some(*since), None],
    };
    let told = record.timeline.last().map(|moment| moment.at);
    moments
        .into_iter()
        .chain([told])
        .flatten()
        .any(|at| write.onto(from, at, record.version) == *record)
}
