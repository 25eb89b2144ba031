//! What does a provider promise, and how may a call to it end?

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use retrysafe_core::Policy;
use retrysafe_core::machine::flows::KeyMemory;

use super::PhaseError;

/// How long a packet may be on its way, and clocks be apart, unless a provider says otherwise.
const MARGIN: Duration = Duration::from_secs(5 * 60);

/// How long one call may take, unless a provider says otherwise.
const DEADLINE: Duration = Duration::from_secs(20);

/// How many times a call's deadline fits into a lease. Leases are renewed when a third of them has
/// passed, so that two thirds are left for the call and for what comes before it.
const DEADLINES_PER_LEASE: u32 = 3;

/// What is known of whoever is called: whether it takes our key, and for how long it remembers it.
///
/// Read it in the provider's documents, and declare less rather than more. Within that time a call whose
/// answer was lost is sent once more, with the same key and the same content. After it nobody sends it
/// again, and its record is unknown. The time counts for calls that are sent first from then on. A
/// provider that is declared anew to take no key is not sent a call again that was sent before.
///
/// ```
/// use std::time::Duration;
/// use retrysafe::phases::Provider;
///
/// // It remembers an `Idempotency-Key` for a day.
/// let payments = Provider::remembers_keys_for(Duration::from_secs(24 * 60 * 60));
/// // It has no such thing: a call whose answer is lost stays unknown.
/// let bank = Provider::takes_no_key().deadline(Duration::from_secs(10));
/// # let _ = (payments, bank);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Provider {
    remembers_for: Option<Duration>,
    margin: Duration,
    deadline: Duration,
}

impl Provider {
    /// It takes a key with each call, and for this long from its first use on it answers a second call with the
    /// same key as it has answered the first one.
    ///
    /// From this time `lease_max`, the deadline and the [margin](Self::margin) are taken off. If nothing is
    /// left, the provider is as good as one that [takes no key](Self::takes_no_key).
    pub const fn remembers_keys_for(window: Duration) -> Self {
        Self { remembers_for: Some(window), margin: MARGIN, deadline: DEADLINE }
    }

    /// It takes no key: a second call is a second effect.
    pub const fn takes_no_key() -> Self {
        Self { remembers_for: None, margin: MARGIN, deadline: DEADLINE }
    }

    /// How long a packet may be on its way to it, together with the difference between its clock and
    /// the database's: five minutes unless it is set.
    #[must_use]
    pub const fn margin(mut self, margin: Duration) -> Self {
        self.margin = margin;
        self
    }

    /// How long one call may take: 20 seconds unless it is set, and never more than a third of the
    /// policy's lease. A call that takes longer is [unknown](CallEnd::Unknown).
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How long one call may take under this policy.
    pub(super) fn deadline_under(&self, policy: &Policy) -> Duration {
        self.deadline.min(policy.lease / DEADLINES_PER_LEASE)
    }

    /// For how long after its first-sent mark a call may be repeated.
    pub(super) fn repeatable_for(&self, policy: &Policy) -> Option<Duration> {
        let memory = KeyMemory {
            window: self.remembers_for?,
            lease_max: policy.lease_max.max(policy.lease),
            deadline: self.deadline_under(policy),
            longest_way: self.margin,
            skew: Duration::ZERO,
        };
        memory.repeatable_for()
    }
}

/// One call that is to be made now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub(super) key: Box<str>,
    pub(super) deadline: Duration,
}

impl Call {
    /// The key to send along: the same on every attempt, and of this call alone. It says nothing about the
    /// caller's own key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// How long the call may take. It is cut off then.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }
}

/// How a call ended.
///
/// An `Err` of the phase is [`Unknown`](Self::Unknown): "not sent" must be said.
#[derive(Debug)]
pub enum CallEnd<T> {
    /// It was made, and this is what later phases need of its answer.
    Done(T),
    /// It was made, and the flow ends here with this answer: a card that was declined, for instance.
    Respond(Response<Bytes>),
    /// Not a byte of it has left, for this reason. The flow may be tried again.
    NotSent(PhaseError),
    /// It may have been made, and nobody here knows. That is also what a provider's "this key is in use"
    /// means, and a 5xx of most providers.
    Unknown(PhaseError),
}

#[cfg(feature = "reqwest")]
impl<T> CallEnd<T> {
    /// What an error of reqwest proves: a connection that was refused, a name that was not found and a
    /// request that could not be built have sent nothing. Everything else may have been sent, a timeout
    /// among it.
    ///
    /// The client must send a request once: built with `redirect::Policy::none()` and `retry::never()`. After a
    /// redirect, a refused connection says nothing about the first one.
    pub fn of_reqwest(error: reqwest::Error) -> Self {
        let is_unsent = error.is_builder() || (error.is_connect() && !error.is_timeout());
        if is_unsent { Self::NotSent(error.into()) } else { Self::Unknown(error.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(60 * 60);

    #[test]
    fn a_call_is_repeated_for_less_time_than_its_key_is_remembered() {
        let policy = Policy::default();
        let day = Provider::remembers_keys_for(HOUR * 24);
        let taken_off = policy.lease_max + DEADLINE + MARGIN;
        assert_eq!(day.repeatable_for(&policy), Some(HOUR * 24 - taken_off));
        let short = Provider::remembers_keys_for(taken_off);
        assert_eq!(short.repeatable_for(&policy), None, "as good as no key");
        assert_eq!(Provider::takes_no_key().repeatable_for(&policy), None);
    }

    #[test]
    fn a_calls_deadline_ends_before_its_lease() {
        let policy = Policy { lease: Duration::from_secs(9), ..Policy::default() };
        let slow = Provider::takes_no_key().deadline(HOUR);
        assert_eq!(slow.deadline_under(&policy), Duration::from_secs(3));
    }
}
