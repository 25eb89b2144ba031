//! What does a write make of a record?
//!
//! A [`Write`] says what is to become of a record that was read, in lengths and requests; the store
//! fills in its clock and its sequence, inside whatever makes its writes atomic.

use std::time::Duration;

use super::{Answer, AnswerHead, Doubt, Fence, Happened, Moment, Record, State};
use crate::flow::{FlowMove, FlowProgress};
use crate::scope::CredentialMark;
use crate::time::Time;

/// A change to a record that was read. The store names its clock and its sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// What the state becomes.
    pub becomes: Becomes,
    /// Whether ownership changes, which raises the fence.
    pub new_fence: bool,
    /// What the timeline says about it; renewals leave no trace.
    pub what: Option<Happened>,
    /// Another time to live, where the handler asked for one.
    pub ttl: Option<Duration>,
}

/// What a [`Write`] makes of a record's state. Lengths count from the moment of the write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Becomes {
    /// As it is; only the timeline or a counter grows.
    Same,
    /// A new owner executes.
    Begun {
        /// The owner's own random number.
        owner: u64,
        /// How long it may be silent.
        lease: Duration,
        /// Which credential its caller showed. It replaces the former attempt's.
        mark: Option<CredentialMark>,
    },
    /// The same owner goes on, until the lease ends or, at the latest, `lease_max` after it began.
    Renewed {
        /// How long it may be silent from now on.
        lease: Duration,
        /// How long one attempt may be renewed in all.
        lease_max: Duration,
    },
    /// The same owner goes on, as if renewed, and the head of its answer is known.
    HeadKept {
        /// The head.
        head: AnswerHead,
        /// How long it may be silent from now on.
        lease: Duration,
        /// How long one attempt may be renewed in all.
        lease_max: Duration,
    },
    /// The flow goes on: its recovery point moves, and the lease is as it was. From `unknown` it is
    /// in progress again, with its lease over.
    Advanced(FlowMove),
    /// Still in progress, and nobody is believed to execute it any more.
    LeaseEnded,
    /// Executed, with this answer. Its flow is over.
    Completed(Answer),
    /// Free to be tried again, from its flow's recovery point on. A first-sent mark is cleared.
    FailedRetryable,
    /// In doubt.
    Unknown(Doubt),
    /// Still in doubt, and asked about once more.
    LookedUp,
    /// Its retention ends now.
    Expired,
}

impl Write {
    /// The record that a store keeps after this write to `record`, at its clock's `now`, with its
    /// next `version`.
    pub fn onto(&self, record: &Record, now: Time, version: u64) -> Record {
        self.over(record.clone(), now, version)
    }

    /// The same, where nobody needs the former record any more.
    pub fn over(&self, mut next: Record, now: Time, version: u64) -> Record {
        next.version = version;
        if self.new_fence {
            next.fence = Fence(version);
        }
        if let Some(ttl) = self.ttl {
            next.ttl = ttl;
        }
        if let Becomes::Begun { mark, .. } = self.becomes {
            next.attempts = next.attempts.saturating_add(1);
            next.mark = mark;
        }
        self.becomes.move_flow(&next.state, &mut next.flow);
        next.state = self.becomes.state(&next, now);
        if let Some(what) = &self.what {
            next.remember(Moment { at: now, fence: next.fence, what: what.clone() });
        }
        next
    }

    /// What this write makes of the flow of `record`, for stores that keep fields apart.
    pub fn flow_after(&self, record: &Record) -> Option<Box<FlowProgress>> {
        let mut flow = record.flow.clone();
        self.becomes.move_flow(&record.state, &mut flow);
        flow
    }
}

impl Becomes {
    /// What the write makes of a record's flow.
    fn move_flow(&self, state: &State, flow: &mut Option<Box<FlowProgress>>) {
        match self {
            Self::Advanced(moved) => match state {
                State::InProgress { .. } | State::Unknown { .. } => FlowProgress::make(flow, moved),
                // A settled flow does not move; the machine never asks for it.
                State::Completed { .. } | State::FailedRetryable { .. } => {}
            },
            Self::Completed(_) => *flow = None,
            Self::FailedRetryable => {
                if let Some(flow) = flow {
                    flow.clear_mark();
                }
            }
            Self::Same
            | Self::Begun { .. }
            | Self::Renewed { .. }
            | Self::HeadKept { .. }
            | Self::LeaseEnded
            | Self::Unknown(_)
            | Self::LookedUp
            | Self::Expired => {}
        }
    }

    /// What the write makes of the state of `record`, whose flow and time to live are the new ones
    /// already.
    fn state(&self, record: &Record, now: Time) -> State {
        let end_of_retention = if record.holds_work() { Time::NEVER } else { now.plus(record.ttl) };
        match (self, &record.state) {
            (Self::Begun { owner, lease, .. }, _) => State::InProgress {
                owner: *owner,
                begun_at: now,
                lease_until: now.plus(*lease),
                head: None,
            },
            (
                Self::Renewed { lease, lease_max },
                State::InProgress { owner, begun_at, head, .. },
            ) => State::InProgress {
                owner: *owner,
                begun_at: *begun_at,
                lease_until: now.plus(*lease).min(begun_at.plus(*lease_max)),
                head: head.clone(),
            },
            (
                Self::HeadKept { head, lease, lease_max },
                State::InProgress { owner, begun_at, .. },
            ) => State::InProgress {
                owner: *owner,
                begun_at: *begun_at,
                lease_until: now.plus(*lease).min(begun_at.plus(*lease_max)),
                head: Some(head.clone()),
            },
            (Self::Completed(answer), _) => State::Completed {
                answer: answer.clone(),
                settled_at: now,
                expires_at: end_of_retention,
            },
            (Self::FailedRetryable, _) => {
                State::FailedRetryable { settled_at: now, expires_at: end_of_retention }
            }
            (Self::LeaseEnded, State::InProgress { owner, begun_at, head, .. }) => {
                State::InProgress {
                    owner: *owner,
                    begun_at: *begun_at,
                    lease_until: now,
                    head: head.clone(),
                }
            }
            // Nobody is known to have begun a salvaged record. A number that is nobody's is as good:
            // the lease is over.
            (Self::Advanced(_), State::Unknown { since, owner, head, .. }) => State::InProgress {
                owner: owner.unwrap_or_default(),
                begun_at: *since,
                lease_until: now,
                head: head.clone(),
            },
            (Self::Unknown(doubt), from) => State::Unknown {
                since: now,
                doubt: *doubt,
                lookups: 0,
                owner: from.owner(),
                head: from.head().cloned(),
            },
            (Self::LookedUp, State::Unknown { since, doubt, lookups, owner, head }) => {
                State::Unknown {
                    since: *since,
                    doubt: *doubt,
                    lookups: lookups.saturating_add(1),
                    owner: *owner,
                    head: head.clone(),
                }
            }
            (Self::Expired, State::Completed { answer, settled_at, .. }) => State::Completed {
                answer: answer.clone(),
                settled_at: *settled_at,
                expires_at: now,
            },
            (Self::Expired, State::FailedRetryable { settled_at, .. }) if !record.holds_work() => {
                State::FailedRetryable { settled_at: *settled_at, expires_at: now }
            }
            // The machine never asks for these; a record that is not what it was taken for stays.
            (
                Self::Same
                | Self::Renewed { .. }
                | Self::HeadKept { .. }
                | Self::Advanced(_)
                | Self::LeaseEnded
                | Self::LookedUp
                | Self::Expired,
                state,
            ) => state.clone(),
        }
    }
}
