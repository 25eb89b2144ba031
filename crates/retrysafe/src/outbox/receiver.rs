//! What does a receiver promise, and how is it treated?

use std::num::NonZeroU32;
use std::time::Duration;

use retrysafe_core::machine::flows::KeyMemory;
use sha2::{Digest as _, Sha256};

use super::backoff::Backoff;

/// How long a packet may be on its way, and clocks be apart, unless a receiver says otherwise.
const MARGIN: Duration = Duration::from_secs(5 * 60);

/// How long one delivery may take, unless a receiver says otherwise.
const DEADLINE: Duration = Duration::from_secs(20);

/// How many times a delivery's deadline fits into its lease: leases are renewed when a third of them has passed.
const DEADLINES_PER_LEASE: u32 = 3;

/// The shortest lease: what a worker needs to claim, mark and finish on a slow day.
const LEASE_MIN: Duration = Duration::from_secs(15);

/// The longest deadline: what takes longer is better told in two effects.
const DEADLINE_MAX: Duration = Duration::from_secs(60 * 60);

/// How many deliveries are under way at once, unless a receiver says otherwise.
const AT_ONCE: usize = 32;

/// After how many failed deliveries an effect is given up: with the default pauses that is most of a day.
const FAILURES_MAX: u32 = 20;

/// After how many leases that ended without a word an effect is given up. It may be what kills its workers.
pub(super) const CRASHES_MAX: u32 = 5;

/// What is known of whoever is sent the effects of one kind: whether it takes our key, for how long it remembers it, and
/// how it wants to be treated.
///
/// ```
/// use std::time::Duration;
/// use retrysafe::outbox::Receiver;
///
/// let mails = Receiver::remembers_keys_for(Duration::from_secs(24 * 60 * 60)).at_once(8);
/// let pager = Receiver::takes_no_key().deadline(Duration::from_secs(5));
/// # let _ = (mails, pager);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Receiver {
    remembers_for: Option<Duration>,
    margin: Duration,
    deadline: Duration,
    pub(super) at_once: usize,
    pub(super) per_second: Option<NonZeroU32>,
    pub(super) failures_max: u32,
    pub(super) backoff: Backoff,
    identity: Option<ReceiverIdentity>,
}

/// Which receiver it is, for effects that name a destination of their own and for all others. Digests: the store compares
/// them and knows no more.
#[derive(Clone, Copy, Debug)]
struct ReceiverIdentity {
    with_destination: i64,
    without_destination: i64,
}

impl Receiver {
    const fn new(remembers_for: Option<Duration>) -> Self {
        Self {
            remembers_for,
            margin: MARGIN,
            deadline: DEADLINE,
            at_once: AT_ONCE,
            per_second: None,
            failures_max: FAILURES_MAX,
            backoff: Backoff::USUAL,
            identity: None,
        }
    }

    /// It takes a key with each delivery, and for this long from its first use on a second delivery with the same key
    /// has no second effect. From this time the lease, the deadline and the [margin](Self::margin) are taken off; if
    /// nothing is left, it is as good as one that [takes no key](Self::takes_no_key).
    pub const fn remembers_keys_for(window: Duration) -> Self {
        Self::new(Some(window))
    }

    /// It takes no key: a second delivery is a second effect.
    pub const fn takes_no_key() -> Self {
        Self::new(None)
    }

    /// Which receiver this is, so that another one is noticed: by its words for `how` it is reached, such as the method and the
    /// header of the key, and by where effects go that name no destination of their own. An effect that may have been sent is
    /// sent again to the same receiver alone: another one has never seen the key. For another one it is unknown.
    ///
    /// Without this whoever is sent the effects of a kind counts as one and the same receiver, whatever becomes of its address.
    #[must_use]
    pub fn identity(mut self, how: &str, otherwise_to: Option<&str>) -> Self {
        self.identity = Some(ReceiverIdentity {
            with_destination: digest(how, None),
            without_destination: digest(how, otherwise_to),
        });
        self
    }

    /// How long a packet may be on its way to it, together with the difference between its clock and the
    /// database's: five minutes unless it is set.
    #[must_use]
    pub const fn margin(mut self, margin: Duration) -> Self {
        self.margin = margin;
        self
    }

    /// How long one delivery may take: 20 seconds unless it is set, and an hour at the most. It is cut off then, and nobody
    /// knows how it ended.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline.min(DEADLINE_MAX);
        self
    }

    /// How many deliveries one worker has under way at once: 32 unless it is set, and at least one.
    #[must_use]
    pub const fn at_once(mut self, deliveries: usize) -> Self {
        self.at_once = if deliveries == 0 { 1 } else { deliveries };
        self
    }

    /// How many deliveries one worker begins in a second: as many as it can unless it is set, and at least one. After a
    /// quiet second so many may begin at once.
    #[must_use]
    pub const fn per_second(mut self, deliveries: u32) -> Self {
        let at_least_one = if deliveries == 0 { 1 } else { deliveries };
        self.per_second = NonZeroU32::new(at_least_one);
        self
    }

    /// After how many failed deliveries an effect is given up: 20 unless it is set, and at least one. One that may have
    /// been sent is unknown then, any other one is dead.
    #[must_use]
    pub const fn failures_max(mut self, failures: u32) -> Self {
        self.failures_max = if failures == 0 { 1 } else { failures };
        self
    }

    /// How long a failed effect waits: a random time up to `base`, then up to twice as long each time, up to `cap`. One
    /// second and an hour unless it is set.
    #[must_use]
    pub const fn backoff(mut self, base: Duration, cap: Duration) -> Self {
        self.backoff = Backoff { base, cap };
        self
    }

    /// Who is sent an effect, as a digest; none where nobody has said which receiver this is.
    pub(super) fn identity_for(&self, destination: Option<&str>) -> Option<i64> {
        let identity = self.identity?;
        Some(match destination {
            Some(_) => identity.with_destination,
            None => identity.without_destination,
        })
    }

    pub(super) fn deadline_of_one(&self) -> Duration {
        self.deadline
    }

    pub(super) fn lease(&self) -> Duration {
        self.deadline.saturating_mul(DEADLINES_PER_LEASE).max(LEASE_MIN)
    }

    /// How long after an effect became unknown its last packet may still arrive: the lease, the deadline and the margin. That its
    /// receiver does not know it proves nothing before.
    pub fn doubt_lasts(&self) -> Duration {
        let parts = [self.lease(), self.deadline, self.margin];
        parts.into_iter().fold(Duration::ZERO, Duration::saturating_add)
    }

    /// For how long after it was first sent an effect may be sent again. None if it is never sent again: the receiver takes
    /// no key, or remembers keys for less time than the lease, the deadline and the margin take.
    pub fn resend_for(&self) -> Option<Duration> {
        let memory = KeyMemory {
            window: self.remembers_for?,
            lease_max: self.lease(),
            deadline: self.deadline,
            longest_way: self.margin,
            skew: Duration::ZERO,
        };
        memory.repeatable_for()
    }
}

/// The first 64 bits of a digest: enough to tell receivers apart that nobody has made to be mixed up.
fn digest(how: &str, otherwise_to: Option<&str>) -> i64 {
    let digest = Sha256::new()
        .chain_update(b"retrysafe receiver\0")
        .chain_update(how.as_bytes())
        .chain_update([0, u8::from(otherwise_to.is_some())])
        .chain_update(otherwise_to.unwrap_or_default().as_bytes())
        .finalize();
    let first = digest.first_chunk::<8>().copied().unwrap_or_default();
    i64::from_be_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(60 * 60);

    #[test]
    fn an_effect_is_sent_again_for_less_time_than_its_key_is_remembered() {
        let day = Receiver::remembers_keys_for(HOUR * 24);
        let taken_off = DEADLINE * DEADLINES_PER_LEASE + DEADLINE + MARGIN;
        assert_eq!(day.resend_for(), Some(HOUR * 24 - taken_off));
        assert_eq!(Receiver::remembers_keys_for(taken_off).resend_for(), None, "as good as no key");
        assert_eq!(Receiver::takes_no_key().resend_for(), None);
    }

    #[test]
    fn a_receiver_is_told_apart_by_what_its_effects_meet() {
        let known = |how: &str, url: &str| Receiver::takes_no_key().identity(how, Some(url));
        let one = known("POST", "https://a.example");
        let other = known("POST", "https://b.example");
        let put = known("PUT", "https://a.example");
        assert_eq!(one.identity_for(None), known("POST", "https://a.example").identity_for(None));
        assert_ne!(one.identity_for(None), other.identity_for(None));
        assert_ne!(one.identity_for(None), put.identity_for(None));
        // An effect with a destination of its own does not go where the others go.
        let destination = Some("https://c.example");
        assert_eq!(one.identity_for(destination), other.identity_for(destination));
        assert_ne!(one.identity_for(destination), put.identity_for(destination));
        assert_eq!(Receiver::takes_no_key().identity_for(None), None);
    }

    #[test]
    fn nothing_can_be_set_to_none_at_all() {
        let none = Receiver::takes_no_key().at_once(0).failures_max(0).per_second(0);
        assert_eq!((none.at_once, none.failures_max), (1, 1));
        assert_eq!(none.per_second, NonZeroU32::new(1));
    }
}
