//! When is a record due after a write, as far as the server must know?
//!
//! The server cannot read a record's bytes. So each write says beside them which index the record goes
//! to and when it is due there, in lengths: only the server knows the clock.

use std::time::Duration;

use retrysafe_core::record::{Becomes, First, Record, State, Write};

/// The latest time that a script is told: Lua counts exactly up to 2^53, and a lease may be added.
const LATEST_MS: u64 = 1 << 52;

/// What a script is told of a record's due time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    /// `L` for a lease, `U` for unknown, `E` for an expiry, `=` for "as it was".
    pub(super) kind: &'static str,
    /// How long from the write on.
    pub(super) length_ms: u64,
    /// Not later than this.
    pub(super) latest_ms: u64,
}

impl Due {
    const SAME: Self = Self { kind: "=", length_ms: 0, latest_ms: LATEST_MS };

    fn after(kind: &'static str, length: Duration) -> Self {
        Self { kind, length_ms: ms(length), latest_ms: LATEST_MS }
    }

    /// Of a new record.
    pub(super) fn of_first(first: &First) -> Self {
        Self::after("L", first.lease)
    }

    /// Of what a write makes of `from`.
    pub(super) fn of_write(from: &Record, write: &Write) -> Self {
        let renewed = |lease: Duration, lease_max: Duration| match from.state {
            State::InProgress { begun_at, .. } => {
                let latest_ms = begun_at.plus(lease_max).as_ms().min(LATEST_MS);
                Self { latest_ms, ..Self::after("L", lease) }
            }
            State::Completed { .. } | State::FailedRetryable { .. } | State::Unknown { .. } => {
                Self::SAME
            }
        };
        match write.becomes {
            Becomes::Begun { lease, .. } => Self::after("L", lease),
            Becomes::Renewed { lease, lease_max } | Becomes::HeadKept { lease, lease_max, .. } => {
                renewed(lease, lease_max)
            }
            Becomes::Completed(_) => Self::after("E", write.ttl.unwrap_or(from.ttl)),
            // What a flow has committed is kept until the flow is completed.
            Becomes::FailedRetryable => match write.flow_after(from) {
                Some(flow) if flow.holds_work() => Self::after("E", Duration::MAX),
                Some(_) | None => Self::after("E", write.ttl.unwrap_or(from.ttl)),
            },
            Becomes::LeaseEnded if from.lease_until().is_some() => Self::after("L", Duration::ZERO),
            Becomes::Advanced(_) if from.unknown_since().is_some() => {
                Self::after("L", Duration::ZERO)
            }
            Becomes::Unknown(_) => Self::after("U", Duration::ZERO),
            Becomes::Expired if from.expires_at().is_some() && !from.holds_work() => {
                Self::after("E", Duration::ZERO)
            }
            Becomes::LeaseEnded
            | Becomes::Advanced(_)
            | Becomes::Expired
            | Becomes::LookedUp
            | Becomes::Same => Self::SAME,
        }
    }
}

/// Whether a write lets somebody execute.
pub(super) fn is_grant(write: &Write) -> bool {
    matches!(write.becomes, Becomes::Begun { .. })
}

/// A length in whole milliseconds, rounded up, as records count it.
pub(super) fn ms(length: Duration) -> u64 {
    u64::try_from(length.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).min(LATEST_MS)
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use retrysafe_core::fingerprint::{Fingerprint, RulesId};
    use retrysafe_core::flow::{FlowMove, FlowVersion};
    use retrysafe_core::key::Key;
    use retrysafe_core::record::{About, Answer, AnswerHead, Doubt};
    use retrysafe_core::scope::{Id, Scope};
    use retrysafe_core::time::Time;

    use super::*;

    const LEASE: Duration = Duration::from_micros(59_999_500);
    const TTL: Duration = Duration::from_secs(3_600);

    fn first() -> First {
        let (scope, key) = (Scope::anonymous(), Key::new("k").unwrap().digest());
        First {
            id: Id::of(&scope, &key),
            scope,
            key,
            fingerprint: Fingerprint::from_parts(1, RulesId::from_bytes([0; 8]), [0; 32]),
            mark: None,
            about: About::default(),
            ttl: TTL,
            lease: LEASE,
            owner: 7,
            request_id: None,
            flow: None,
        }
    }

    fn every_write() -> Vec<Becomes> {
        let head = AnswerHead { status: StatusCode::OK, location: None };
        let renewed = |lease_max| Becomes::Renewed { lease: LEASE, lease_max };
        vec![
            Becomes::Same,
            Becomes::Begun { owner: 8, lease: LEASE, mark: None },
            renewed(Duration::from_secs(1)),
            renewed(TTL),
            renewed(Duration::MAX),
            Becomes::HeadKept { head, lease: LEASE, lease_max: TTL },
            Becomes::Completed(Answer::NotKept { status: None, location: None }),
            Becomes::FailedRetryable,
            Becomes::Unknown(Doubt::Said),
            Becomes::LookedUp,
            Becomes::Expired,
            Becomes::LeaseEnded,
            Becomes::Advanced(FlowMove::Started {
                flow: FlowVersion::new("f", 1),
                input: "i".into(),
            }),
            Becomes::Advanced(FlowMove::PhaseDone("o".into())),
        ]
    }

    /// What the record itself says, as a script would be told to count it.
    fn as_counted(due: Due, before: (&'static str, u64), now: Time) -> (&'static str, u64) {
        match due.kind {
            "=" => before,
            kind => (kind, (now.as_ms() + due.length_ms).min(due.latest_ms)),
        }
    }

    fn of_record(record: &Record) -> (&'static str, u64) {
        let lease = record.lease_until().map(|at| ("L", at));
        let unknown = record.unknown_since().map(|at| ("U", at));
        let expiry = record.expires_at().map(|at| ("E", at));
        let (kind, at) = lease.or(unknown).or(expiry).unwrap();
        (kind, at.as_ms().min(LATEST_MS))
    }

    /// Two writes after each other, of every kind: what the index says is what the record says.
    #[test]
    fn the_index_says_what_the_record_says() {
        let now = |secs: u64| Time::from_ms(1_700_000_000_000 + secs * 1_000);
        let begun = first().record(now(0), 1);
        let due = as_counted(Due::of_first(&first()), ("", 0), now(0));
        assert_eq!(due, of_record(&begun));
        two_writes_onto(&begun, due, now);
        // The same for a flow, which is kept once a phase of it is committed.
        let mut flow = begun;
        for becomes in every_write().into_iter().filter(|it| matches!(it, Becomes::Advanced(_))) {
            let write = Write { becomes, new_fence: false, what: None, ttl: None };
            flow = write.onto(&flow, now(0), 1);
            two_writes_onto(&flow, due, now);
        }
    }

    fn two_writes_onto(begun: &Record, due: (&'static str, u64), now: impl Fn(u64) -> Time) {
        for one in every_write() {
            for ttl in [None, Some(TTL * 2)] {
                let write = Write { becomes: one.clone(), new_fence: false, what: None, ttl };
                let next = write.onto(begun, now(30), 2);
                let due_next = as_counted(Due::of_write(begun, &write), due, now(30));
                assert_eq!(due_next, of_record(&next), "{one:?}");
                for two in every_write() {
                    let write = Write { becomes: two.clone(), new_fence: true, what: None, ttl };
                    let last = write.onto(&next, now(90), 3);
                    let due_last = as_counted(Due::of_write(&next, &write), due_next, now(90));
                    assert_eq!(due_last, of_record(&last), "{one:?}, {two:?}");
                }
            }
        }
    }
}
