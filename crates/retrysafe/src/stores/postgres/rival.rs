//! Why was it not written, and what follows?
//!
//! The common statement writes what is as it was read, and says nothing of the rest. The rest is
//! read, and what is there decides:
//!
//! | asked | found | told |
//! | --- | --- | --- |
//! | insert | a live record | it exists |
//! | insert | a record that is over | the record is reaped, and the insert goes again |
//! | insert | nothing | a rival has come and gone: the insert goes again |
//! | swap | another version, or nothing | lost |
//! | swap | the version it was read at | it was moved, or its unchanging part is damaged: mended, and it goes again |
//! | either | what cannot be read | damaged |
//! | a grant, in a quarantine | nothing in its way | held |

use std::collections::HashMap;
use std::time::{Duration, Instant};

use retrysafe_core::record::{Becomes, Write};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{Inserted, Stamped, Swapped};
use retrysafe_core::time::Time;

use super::carry::{damaged, refuse};
use super::columns::Changes;
use super::fault::Fault;
use super::job::{Ask, Job, Reply};
use super::lane::{Batch, Lane};
use super::readback::{self, Verdict};
use super::row::Found;
use crate::stores::quarantine::{Server, held};

/// How long an id counts as held by a transaction of the application after it was seen to be. Whoever
/// asks for it meanwhile goes alone, and does not wait in the middle of everybody else's batch.
const HELD_FOR: Duration = Duration::from_secs(2);

/// How many ids a lane remembers as held. One more is waited for again, and no worse.
const HELD_MAX: usize = 1_024;

/// Why a write was not done.
#[expect(clippy::large_enum_variant, reason = "it lives for one match")]
enum Finding {
    Told(Reply),
    Damaged(retrysafe_core::codec::DecodeError),
    /// It would be a grant, and nothing new is granted before this time.
    Held(Time),
    /// The record in its way is over.
    Over,
    /// The unchanging part of the record is not what the writer holds.
    Mend,
    Again,
}

impl Lane {
    /// Finds out what became of writes that were surely not done.
    pub(super) async fn tell_unwritten(
        &mut self,
        jobs: Vec<Job>,
        mut followers: HashMap<Id, Vec<Job>>,
        held_until: Option<Time>,
    ) {
        let ids: Vec<(Id, Option<u64>)> = jobs.iter().map(|job| (job.id(), None)).collect();
        let loaded = match self.load(&ids).await {
            Ok(loaded) => loaded,
            Err(fault) => {
                for job in jobs.iter().filter(|job| !job.doubtful) {
                    job.ticket.unsend();
                }
                return self.unread(Batch { jobs, followers, ..Batch::default() }, fault);
            }
        };
        let (mut over, mut mends) = (Vec::new(), Changes::none());
        let mut again = Vec::new();
        for job in jobs {
            let behind = followers.remove(&job.id()).unwrap_or_default();
            match look_into(&job, loaded.found.get(&job.id()), loaded.now, held_until) {
                Finding::Told(reply) => {
                    self.tell_followers(behind, Some(&reply));
                    job.answer(Ok(reply));
                    continue;
                }
                Finding::Damaged(what) => {
                    self.tell_followers(behind, None);
                    job.answer(Err(damaged(what)));
                    continue;
                }
                Finding::Held(until) => {
                    for job in [job].into_iter().chain(behind) {
                        refuse(job, held(until, Server::Postgres));
                    }
                    continue;
                }
                Finding::Over => over.push(job.id()),
                Finding::Mend => {
                    if let Ask::Swap(swap) = &job.ask {
                        mends.push(&swap.0, &swap.1);
                    }
                }
                Finding::Again => {}
            }
            again.push((job, behind));
        }
        self.make_way(&over, mends).await;
        for (job, behind) in again {
            self.again(job);
            self.requeue(behind.into_iter());
        }
    }

    /// Reaps what is over and mends what is damaged. Whether that was done shows when the writes go
    /// again.
    async fn make_way(&mut self, over: &[Id], mends: Changes) {
        let Some(wire) = &self.wire else { return };
        let settings = &self.shared.settings;
        let made = async {
            if !over.is_empty() {
                wire.reap_these(over, settings.expiry).await?;
            }
            if !mends.is_empty() {
                wire.mend(mends).await?;
            }
            Ok::<_, tokio_postgres::Error>(())
        };
        match wire.within(settings.send_within(), made).await {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::warn!(%error, "a record that is in the way stays there");
                if matches!(Fault::of(&error), Fault::Lost) {
                    self.wire = None;
                }
            }
            None => self.wire = None,
        }
    }

    /// Remembers that somebody else's transaction holds this id.
    pub(super) fn note_held(&mut self, id: Id) {
        if self.held.len() >= HELD_MAX {
            self.held.retain(|_, since| since.elapsed() < HELD_FOR);
        }
        if self.held.len() < HELD_MAX {
            self.held.insert(id, Instant::now());
        }
    }

    /// Whether this id was seen to be held a moment ago.
    pub(super) fn is_held(&self, id: &Id) -> bool {
        self.held.get(id).is_some_and(|since| since.elapsed() < HELD_FOR)
    }
}

fn look_into(job: &Job, found: Option<&Found>, now: Time, held_until: Option<Time>) -> Finding {
    // What a write meets that may have been applied before may be its own first sending.
    if job.doubtful {
        match readback::judge(&job.ask, found, now) {
            Verdict::Decided(reply) => return Finding::Told(reply),
            Verdict::Damaged(what) => return Finding::Damaged(what),
            Verdict::StillToDo => {}
        }
    }
    match (&job.ask, found) {
        (Ask::Insert(_), Some(Found::Record(record))) => {
            if record.is_expired(now) {
                return held_until.map_or(Finding::Over, Finding::Held);
            }
            let value = Inserted::Exists((**record).clone());
            Finding::Told(Reply::Inserted(Stamped { now, value }))
        }
        (Ask::Insert(_), None) => held_until.map_or(Finding::Again, Finding::Held),
        (Ask::Swap(swap), Some(Found::Record(record))) => {
            if record.version == swap.0.version {
                let held_until = held_until.filter(|_| is_grant(&swap.1));
                return held_until.map_or(Finding::Again, Finding::Held);
            }
            let value = Swapped::Lost(Some((**record).clone()));
            Finding::Told(Reply::Swapped(Stamped { now, value }))
        }
        (Ask::Swap(_), None) => {
            Finding::Told(Reply::Swapped(Stamped { now, value: Swapped::Lost(None) }))
        }
        (Ask::Swap(swap), Some(Found::Damaged(version, _))) if *version == swap.0.version => {
            Finding::Mend
        }
        (Ask::Insert(_) | Ask::Swap(_), Some(Found::Damaged(_, what))) => Finding::Damaged(*what),
        (Ask::Insert(_) | Ask::Swap(_), Some(Found::AsKnown)) | (Ask::Load(..), _) => {
            Finding::Again
        }
    }
}

/// Whether a write lets somebody execute who did not before.
pub(super) fn is_grant(write: &Write) -> bool {
    match write.becomes {
        Becomes::Begun { .. } => true,
        Becomes::Same
        | Becomes::Renewed { .. }
        | Becomes::HeadKept { .. }
        | Becomes::Advanced(_)
        | Becomes::LeaseEnded
        | Becomes::Completed(_)
        | Becomes::FailedRetryable
        | Becomes::Unknown(_)
        | Becomes::LookedUp
        | Becomes::Expired => false,
    }
}
