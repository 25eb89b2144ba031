//! What state does a write make, as far as it is known before the server has its say?

use retrysafe_core::flow::FlowProgress;
use retrysafe_core::record::{Answer, AnswerHead, Becomes, Doubt, Record, State, Write};
use retrysafe_core::scope::CredentialMark;

use super::fields::{Detail, length_ms, ms};

/// The state that [`Write::onto`] makes, with the times that only the server knows left open.
#[derive(Default)]
pub(super) struct Next<'a> {
    pub(super) state: i16,
    /// None is the moment of the write.
    pub(super) since: Option<i64>,
    /// Counts from the moment of the write, up to `until`.
    pub(super) length: Option<i64>,
    pub(super) until: Option<i64>,
    pub(super) answer: Option<&'a Answer>,
    attempts: u32,
    ttl_ms: i64,
    owner: Option<u64>,
    doubt: Option<(Doubt, u32)>,
    mark: Option<CredentialMark>,
    flow: Option<Box<FlowProgress>>,
    head: Option<&'a AnswerHead>,
}

impl<'a> Next<'a> {
    pub(super) fn of(from: &'a Record, write: &'a Write) -> Self {
        let ttl_ms = length_ms(write.ttl.unwrap_or(from.ttl));
        let flow = write.flow_after(from);
        let holds_work = flow.as_ref().is_some_and(|flow| flow.holds_work());
        let kept_ms = if holds_work { i64::MAX } else { ttl_ms };
        let next = Self { flow, ..Self::state_of(from, write, kept_ms) };
        match &write.becomes {
            Becomes::Begun { mark, .. } => {
                Self { attempts: from.attempts.saturating_add(1), mark: *mark, ttl_ms, ..next }
            }
            Becomes::Same
            | Becomes::Renewed { .. }
            | Becomes::HeadKept { .. }
            | Becomes::Advanced(_)
            | Becomes::LeaseEnded
            | Becomes::Completed(_)
            | Becomes::FailedRetryable
            | Becomes::Unknown(_)
            | Becomes::LookedUp
            | Becomes::Expired => Self { attempts: from.attempts, mark: from.mark, ttl_ms, ..next },
        }
    }

    /// What stands in the column of the same name.
    pub(super) fn detail(&self) -> Detail {
        Detail {
            attempts: self.attempts,
            ttl_ms: self.ttl_ms,
            owner: self.owner,
            doubt: self.doubt,
            mark: self.mark,
            flow: self.flow.clone(),
            head: self.head.cloned(),
        }
    }

    /// `kept_ms` is how long a settled record is kept.
    fn state_of(from: &'a Record, write: &'a Write, kept_ms: i64) -> Self {
        let same = || Self::same(&from.state);
        match (&write.becomes, &from.state) {
            (Becomes::Begun { owner, lease, .. }, _) => {
                Self { length: Some(length_ms(*lease)), owner: Some(*owner), ..Self::default() }
            }
            (Becomes::Renewed { lease, lease_max }, State::InProgress { begun_at, .. }) => Self {
                length: Some(length_ms(*lease)),
                until: Some(ms(begun_at.plus(*lease_max))),
                ..same()
            },
            (Becomes::HeadKept { head, lease, lease_max }, State::InProgress { begun_at, .. }) => {
                Self {
                    length: Some(length_ms(*lease)),
                    until: Some(ms(begun_at.plus(*lease_max))),
                    head: Some(head),
                    ..same()
                }
            }
            (Becomes::Completed(answer), _) => {
                Self { state: 1, length: Some(kept_ms), answer: Some(answer), ..Self::default() }
            }
            (Becomes::FailedRetryable, _) => {
                Self { state: 2, length: Some(kept_ms), ..Self::default() }
            }
            (Becomes::Unknown(doubt), from) => Self {
                state: 3,
                doubt: Some((*doubt, 0)),
                owner: from.owner(),
                head: from.head(),
                ..Self::default()
            },
            (Becomes::LookedUp, State::Unknown { doubt, lookups, .. }) => {
                Self { doubt: Some((*doubt, lookups.saturating_add(1))), ..same() }
            }
            (Becomes::Expired, State::Completed { .. } | State::FailedRetryable { .. })
                if !from.holds_work() =>
            {
                Self { length: Some(0), until: None, ..same() }
            }
            (Becomes::LeaseEnded, State::InProgress { .. }) => {
                Self { length: Some(0), until: None, ..same() }
            }
            (Becomes::Advanced(_), State::Unknown { since, owner, head, .. }) => Self {
                since: Some(ms(*since)),
                length: Some(0),
                owner: Some(owner.unwrap_or_default()),
                head: head.as_ref(),
                ..Self::default()
            },
            (
                Becomes::Same
                | Becomes::Renewed { .. }
                | Becomes::HeadKept { .. }
                | Becomes::Advanced(_)
                | Becomes::LeaseEnded
                | Becomes::LookedUp
                | Becomes::Expired,
                State::InProgress { .. }
                | State::Completed { .. }
                | State::FailedRetryable { .. }
                | State::Unknown { .. },
            ) => same(),
        }
    }

    fn same(state: &'a State) -> Self {
        match state {
            State::InProgress { owner, begun_at, lease_until, head } => Self {
                state: 0,
                since: Some(ms(*begun_at)),
                until: Some(ms(*lease_until)),
                owner: Some(*owner),
                head: head.as_ref(),
                ..Self::default()
            },
            State::Completed { answer, settled_at, expires_at } => Self {
                state: 1,
                since: Some(ms(*settled_at)),
                until: Some(ms(*expires_at)),
                answer: Some(answer),
                ..Self::default()
            },
            State::FailedRetryable { settled_at, expires_at } => Self {
                state: 2,
                since: Some(ms(*settled_at)),
                until: Some(ms(*expires_at)),
                ..Self::default()
            },
            State::Unknown { since, doubt, lookups, owner, head } => Self {
                state: 3,
                since: Some(ms(*since)),
                doubt: Some((*doubt, *lookups)),
                owner: *owner,
                head: head.as_ref(),
                ..Self::default()
            },
        }
    }
}
