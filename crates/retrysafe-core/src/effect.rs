//! What may happen next to an effect?
//!
//! An effect is something to be done outside the database: a receipt to be sent, a webhook to be delivered. It is
//! staged with the business rows, in their transaction, and a worker delivers it. This is the worker's rule book:
//! pure functions over what is known of one effect, the event, and the store's clock.
//!
//! ```text
//! waiting ──▶ ready ◀──▶ leased ──▶ delivered
//!               │          ├──────▶ unknown    sent, and nobody can know; only evidence leads out
//!               │          └──────▶ dead       surely without an effect, and given up
//!               └─────────────────▶ cancelled  before it was sent, or surely without an effect
//! ```
//!
//! Each rule closes one way to an effect that happens twice, is lost, or is hidden:
//!
//! * A worker writes its *sent mark* before the first byte leaves. So "died before it was sent" and "died after it may
//!   have been sent" are told apart.
//! * An effect with a mark is sent again only while its receiver remembers the key, and never where the receiver takes
//!   none. Past that it is unknown.
//! * Every write names the fence of the claim. A worker that was too slow changes nothing, except that while nobody
//!   has decided it still tells how its own delivery ended.
//! * "No effect" clears the mark only for the worker that has set it: bytes of an earlier one may be on their way.
//! * Nothing with a mark is dead or cancelled, unless its receiver has refused it for good.
//! * Immediately before the first byte [`may_send`] has the last word. A fence stops a slow worker's next write, not its
//!   next packet.

use std::time::Duration;

use crate::fence::Fence;
use crate::time::Time;

/// What the rules know of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Effect {
    /// Where it stands.
    pub state: EffectState,
    /// Rises with every claim and every decision, so that a late worker loses.
    pub fence: Fence,
    /// What was written before its first byte left, while that may matter.
    pub mark: Option<SentMark>,
    /// How many deliveries have failed since it was staged or requeued.
    pub failures: u32,
    /// How many leases have ended without a word after their mark: it may be what kills its workers.
    pub crashes: u32,
}

/// Where an effect stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EffectState {
    /// Another effect of its lane comes before it.
    Waiting,
    /// A worker may claim it from this time on.
    Ready(Time),
    /// A worker has claimed it, until this time.
    Leased(Time),
    /// Done.
    Delivered,
    /// It may have been done. Unknown since this time.
    Unknown(Time),
    /// Taken back: it was not sent, or it is sure that it had no effect.
    Cancelled,
    /// Given up, and surely not done.
    Dead,
}

/// What is written before an effect's first byte leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SentMark {
    /// The claim under which it was set.
    pub set_by: Fence,
    /// The last claim that was about to send it, the one that set it or a later one.
    pub last_by: Fence,
    /// Until when the same effect may be sent again. None where its receiver takes no key.
    pub resend_until: Option<Time>,
}

/// How often an effect is tried.
#[derive(Clone, Copy, Debug)]
pub struct DeliveryLimits {
    /// After so many failed deliveries it is given up.
    pub failures_max: u32,
    /// After so many leases that ended without a word after their mark it is given up.
    pub crashes_max: u32,
}

/// How a delivery ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectEnd {
    /// Its receiver has confirmed it.
    Delivered,
    /// Its receiver has refused it for good, and nothing was done: by this delivery, or by an earlier one.
    Rejected,
    /// This delivery had no effect and cannot have one any more: not a byte has left, or its receiver has said
    /// that it did nothing.
    NoEffect {
        /// How long to wait before the next delivery.
        retry_after: Duration,
    },
    /// It was sent, and nobody knows how it ended.
    NoAnswer {
        /// How long to wait before the next delivery.
        retry_after: Duration,
    },
}

/// What becomes of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// It is the worker's, under the new fence.
    Leased(Effect),
    /// Its receiver has forgotten the key by now: it is unknown.
    Unknown(Effect),
    /// It is not to be claimed, or not yet.
    NotReady,
}

/// What becomes of a worker's sent mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marked {
    /// The mark stands, this worker's or an earlier one.
    Stands(Effect),
    /// It was sent before and must not be sent again: it is unknown.
    Unknown(Effect),
    /// The effect is not this worker's any more.
    Lost,
}

/// What becomes of a worker's word on how its delivery ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// It counts.
    Changed(Effect),
    /// It was said before, and holds.
    Repeated,
    /// The effect is not this worker's any more. Its word is evidence and no more.
    Lost,
}

/// What somebody knows about an effect that is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectEvidence {
    /// It was done.
    Delivered,
    /// It was not done and cannot be any more: its receiver says so, or a person does, with a reason.
    NoEffect,
    /// The same, and nobody wants it done: it is not sent again.
    Unwanted,
    /// Its receiver does not know it. That counts only so long after it became unknown: its packet may be on its way.
    Absent {
        /// How long after.
        settle_time: Duration,
    },
}

/// Why an operator's word changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectRefusal {
    /// It is in another state.
    WrongState,
    /// It may have been sent.
    MayHaveBeenSent,
    /// Its receiver may have forgotten the key: sent again it could have a second effect.
    PastMemory,
    /// "Not known" is no proof yet.
    TooEarly,
}

impl SentMark {
    /// Whether the same effect may be sent again at this time.
    pub fn permits(&self, now: Time) -> bool {
        self.resend_until.is_some_and(|end| now < end)
    }
}

impl Effect {
    /// An effect as it is staged.
    pub const fn staged(state: EffectState) -> Self {
        Self { state, fence: Fence(0), mark: None, failures: 0, crashes: 0 }
    }

    /// Whether it was never sent, or may be sent again at this time.
    pub fn is_sendable(&self, now: Time) -> bool {
        self.mark.is_none_or(|mark| mark.permits(now))
    }

    fn with(self, state: EffectState) -> Self {
        Self { state, ..self }
    }

    fn raised(self) -> Self {
        Self { fence: Fence(self.fence.0.saturating_add(1)), ..self }
    }

    /// A worker asks for it.
    pub fn claim(&self, lease: Duration, now: Time) -> Claimed {
        match self.state {
            EffectState::Ready(due) if due <= now => {
                if self.is_sendable(now) {
                    Claimed::Leased(self.raised().with(EffectState::Leased(now.plus(lease))))
                } else {
                    Claimed::Unknown(self.with(EffectState::Unknown(now)))
                }
            }
            EffectState::Waiting
            | EffectState::Ready(_)
            | EffectState::Leased(_)
            | EffectState::Delivered
            | EffectState::Unknown(_)
            | EffectState::Cancelled
            | EffectState::Dead => Claimed::NotReady,
        }
    }

    /// Its worker is about to send it. `resend_for` is how long after this the same effect may be sent again; none
    /// where its receiver takes no key, or is another one than the one that was sent it before: that one has never
    /// seen the key, so it is as good as one that takes none.
    pub fn mark(&self, fence: Fence, resend_for: Option<Duration>, now: Time) -> Marked {
        let EffectState::Leased(_) = self.state else { return Marked::Lost };
        if self.fence != fence {
            return Marked::Lost;
        }
        match self.mark {
            None => {
                let resend_until = resend_for.map(|length| now.plus(length));
                let mark = Some(SentMark { set_by: fence, last_by: fence, resend_until });
                Marked::Stands(Self { mark, ..*self })
            }
            // The acknowledgement was lost; nothing was sent without it.
            Some(mark) if mark.set_by == fence => Marked::Stands(*self),
            // Not where its receiver is said to take no key by now, whatever was said when it was sent first.
            Some(mark) if mark.permits(now) && resend_for.is_some() => {
                // Nor for longer than it is said to remember by now.
                let end = resend_for.map(|length| now.plus(length));
                let resend_until = mark.resend_until.min(end);
                let mark = SentMark { last_by: fence, resend_until, ..mark };
                Marked::Stands(Self { mark: Some(mark), ..*self })
            }
            Some(_) => Marked::Unknown(self.with(EffectState::Unknown(now))),
        }
    }

    /// Its worker renews its lease.
    pub fn renew(&self, fence: Fence, lease: Duration, now: Time) -> Option<Self> {
        match self.state {
            // What has ended is not revived: somebody may have looked at it since.
            EffectState::Leased(until) if self.fence == fence && now < until => {
                Some(self.with(EffectState::Leased(until.max(now.plus(lease)))))
            }
            EffectState::Leased(_)
            | EffectState::Waiting
            | EffectState::Ready(_)
            | EffectState::Delivered
            | EffectState::Unknown(_)
            | EffectState::Cancelled
            | EffectState::Dead => None,
        }
    }

    /// Its worker says how the delivery ended.
    pub fn finish(
        &self,
        fence: Fence,
        end: EffectEnd,
        limits: &DeliveryLimits,
        now: Time,
    ) -> Finished {
        if self.fence != fence {
            return Finished::Lost;
        }
        match (self.state, end) {
            (EffectState::Leased(_) | EffectState::Unknown(_), EffectEnd::Delivered) => {
                Finished::Changed(self.with(EffectState::Delivered))
            }
            (EffectState::Leased(_) | EffectState::Unknown(_), EffectEnd::Rejected) => {
                Finished::Changed(self.with(EffectState::Dead))
            }
            (
                EffectState::Leased(_) | EffectState::Unknown(_),
                EffectEnd::NoEffect { retry_after },
            ) if self.mark.is_none_or(|mark| mark.set_by == fence) => {
                let free = Self { mark: None, ..*self };
                Finished::Changed(free.failed(retry_after, limits, now))
            }
            (
                EffectState::Leased(_),
                EffectEnd::NoEffect { retry_after } | EffectEnd::NoAnswer { retry_after },
            ) => Finished::Changed(self.failed(retry_after, limits, now)),
            // An earlier delivery may have had an effect, or this one: it stays unknown.
            (EffectState::Unknown(_), EffectEnd::NoEffect { .. } | EffectEnd::NoAnswer { .. })
            | (EffectState::Delivered, EffectEnd::Delivered)
            | (EffectState::Dead, EffectEnd::Rejected) => Finished::Repeated,
            (
                EffectState::Waiting
                | EffectState::Ready(_)
                | EffectState::Delivered
                | EffectState::Cancelled
                | EffectState::Dead,
                EffectEnd::Delivered
                | EffectEnd::Rejected
                | EffectEnd::NoEffect { .. }
                | EffectEnd::NoAnswer { .. },
            ) => Finished::Lost,
        }
    }

    /// After a failed delivery: ready again, given up, or unknown.
    fn failed(self, retry_after: Duration, limits: &DeliveryLimits, now: Time) -> Self {
        let failures = self.failures.saturating_add(1);
        let counted = Self { failures, ..self };
        counted.again_at(now.plus(retry_after), failures >= limits.failures_max, now)
    }

    /// Ready again at a time, unless it is given up or its receiver has forgotten the key. What becomes unknown keeps
    /// its fence: its worker may still tell how the delivery ended.
    fn again_at(self, due: Time, is_given_up: bool, now: Time) -> Self {
        match (self.mark, is_given_up) {
            (None, true) => self.raised().with(EffectState::Dead),
            (None, false) => self.raised().with(EffectState::Ready(due)),
            (Some(mark), false) if mark.permits(now) => self.raised().with(EffectState::Ready(due)),
            (Some(_), _) => self.with(EffectState::Unknown(now)),
        }
    }

    /// Its worker gives it back: none of its bytes has left under this claim. That is no failure. It counts also
    /// after the lease, while nobody has decided: the worker knows what it has not done.
    pub fn hand_back(&self, fence: Fence, now: Time) -> Option<Self> {
        let foreign = self.mark.filter(|mark| mark.set_by != fence);
        let is_its_own = match self.state {
            EffectState::Leased(_) => true,
            EffectState::Unknown(_) => foreign.is_none(),
            EffectState::Waiting
            | EffectState::Ready(_)
            | EffectState::Delivered
            | EffectState::Cancelled
            | EffectState::Dead => false,
        };
        (is_its_own && self.fence == fence)
            .then(|| Self { mark: foreign, ..*self }.again_at(now, false, now))
    }

    /// The sweeper looks at it: a lease that ended without a word, and an effect that waits for its next delivery
    /// until its receiver has forgotten the key. None where nothing is to be done.
    ///
    /// A lease without a mark of its own is not held against the effect: nobody was called with it. The answer to the claim
    /// was lost, or its worker died over something else.
    pub fn sweep(&self, limits: &DeliveryLimits, now: Time) -> Option<Self> {
        match self.state {
            EffectState::Leased(until) if until <= now => {
                let is_crash = self.mark.is_some_and(|mark| mark.last_by == self.fence);
                let crashes = self.crashes.saturating_add(u32::from(is_crash));
                let over = Self { crashes, ..*self };
                Some(over.again_at(now, is_crash && crashes >= limits.crashes_max, now))
            }
            EffectState::Ready(_) if !self.is_sendable(now) => {
                Some(self.with(EffectState::Unknown(now)))
            }
            EffectState::Leased(_)
            | EffectState::Waiting
            | EffectState::Ready(_)
            | EffectState::Delivered
            | EffectState::Unknown(_)
            | EffectState::Cancelled
            | EffectState::Dead => None,
        }
    }

    /// Takes it back before it is sent, or puts one away that was given up.
    ///
    /// # Errors
    ///
    /// Why it cannot be.
    pub fn cancel(&self) -> Result<Self, EffectRefusal> {
        match (self.state, self.mark) {
            (EffectState::Waiting | EffectState::Ready(_) | EffectState::Leased(_), None)
            | (EffectState::Dead, _) => Ok(self.raised().with(EffectState::Cancelled)),
            (EffectState::Ready(_) | EffectState::Leased(_), Some(_)) => {
                Err(EffectRefusal::MayHaveBeenSent)
            }
            (EffectState::Waiting, Some(_))
            | (EffectState::Delivered | EffectState::Unknown(_) | EffectState::Cancelled, _) => {
                Err(EffectRefusal::WrongState)
            }
        }
    }

    /// Gives one that was given up another chance.
    ///
    /// # Errors
    ///
    /// Why it cannot be.
    pub fn requeue(&self, now: Time) -> Result<Self, EffectRefusal> {
        let EffectState::Dead = self.state else { return Err(EffectRefusal::WrongState) };
        if !self.is_sendable(now) {
            return Err(EffectRefusal::PastMemory);
        }
        let ready = self.raised().with(EffectState::Ready(now));
        Ok(Self { failures: 0, crashes: 0, ..ready })
    }

    /// Decides one that is unknown, by evidence.
    ///
    /// # Errors
    ///
    /// Why it decides nothing.
    pub fn resolve(&self, evidence: EffectEvidence, now: Time) -> Result<Self, EffectRefusal> {
        let EffectState::Unknown(since) = self.state else { return Err(EffectRefusal::WrongState) };
        let raised = self.raised().with(EffectState::Ready(now));
        let ready = Self { mark: None, failures: 0, crashes: 0, ..raised };
        match evidence {
            EffectEvidence::Delivered => Ok(self.raised().with(EffectState::Delivered)),
            EffectEvidence::NoEffect => Ok(ready),
            EffectEvidence::Unwanted => Ok(self.raised().with(EffectState::Cancelled)),
            EffectEvidence::Absent { settle_time } if now.since(since) >= settle_time => Ok(ready),
            EffectEvidence::Absent { .. } => Err(EffectRefusal::TooEarly),
        }
    }
}

/// What a worker knows immediately before an effect's first byte.
#[derive(Clone, Copy, Debug)]
pub struct BeforeFirstByte {
    /// How much of the lease was left when the store answered.
    pub lease_left: Duration,
    /// For how long the effect might be sent from then on; none where its receiver takes no key.
    pub resend_left: Option<Duration>,
    /// How long ago the store was asked: counted from before the question was sent, on a clock that runs
    /// through suspend.
    pub elapsed: Duration,
    /// How long the delivery may take at the most.
    pub deadline: Duration,
}

/// Whether an effect may be sent, immediately before its first byte. A pause between this and the packet is what no
/// check can exclude; the margin of the receiver's memory is there for it.
pub fn may_send(before: &BeforeFirstByte) -> bool {
    let is_live = before.elapsed.saturating_add(before.deadline) < before.lease_left;
    is_live && before.resend_left.is_none_or(|left| before.elapsed < left)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_ms(1_000_000);
    const SECOND: Duration = Duration::from_secs(1);
    const LEASE: Duration = Duration::from_secs(60);
    const MEMORY: Option<Duration> = Some(Duration::from_secs(3_600));
    const LIMITS: DeliveryLimits = DeliveryLimits { failures_max: 3, crashes_max: 2 };
    const NO_EFFECT: EffectEnd = EffectEnd::NoEffect { retry_after: SECOND };
    const NO_ANSWER: EffectEnd = EffectEnd::NoAnswer { retry_after: SECOND };

    fn ready() -> Effect {
        Effect::staged(EffectState::Ready(NOW))
    }

    fn claimed(effect: &Effect, now: Time) -> Effect {
        match effect.claim(LEASE, now) {
            Claimed::Leased(effect) => effect,
            other => panic!("{other:?}"),
        }
    }

    fn marked(effect: &Effect, resend_for: Option<Duration>) -> Effect {
        match effect.mark(effect.fence, resend_for, NOW) {
            Marked::Stands(effect) => effect,
            other => panic!("{other:?}"),
        }
    }

    fn finished(effect: &Effect, end: EffectEnd) -> Effect {
        match effect.finish(effect.fence, end, &LIMITS, NOW) {
            Finished::Changed(effect) => effect,
            other => panic!("{other:?}"),
        }
    }

    /// A receiver was said to remember keys, and takes none. Who corrects that must not send a second time what was sent.
    #[test]
    fn a_receiver_that_takes_no_key_after_all_is_sent_nothing_again() {
        let sent = marked(&claimed(&ready(), NOW), MEMORY);
        let again = finished(&sent, EffectEnd::NoAnswer { retry_after: Duration::ZERO });
        let again = claimed(&again, NOW);
        assert!(matches!(again.mark(again.fence, MEMORY, NOW), Marked::Stands(_)));
        let Marked::Unknown(unknown) = again.mark(again.fence, None, NOW) else {
            panic!("it is sent again")
        };
        assert_eq!(unknown.state, EffectState::Unknown(NOW));
    }

    #[test]
    fn an_effect_is_claimed_when_it_is_due_and_by_one_worker() {
        let later = Effect::staged(EffectState::Ready(NOW.plus(SECOND)));
        assert_eq!(later.claim(LEASE, NOW), Claimed::NotReady);
        assert_eq!(Effect::staged(EffectState::Waiting).claim(LEASE, NOW), Claimed::NotReady);
        let first = claimed(&ready(), NOW);
        assert_eq!(first.claim(LEASE, NOW), Claimed::NotReady);
        assert_eq!(first.fence, Fence(1));
    }

    #[test]
    fn a_receiver_that_forgets_ends_the_resending() {
        let sent = finished(&marked(&claimed(&ready(), NOW), MEMORY), NO_ANSWER);
        let before = NOW.plus(Duration::from_secs(3_599));
        assert!(matches!(sent.claim(LEASE, before), Claimed::Leased(_)));
        let after = NOW.plus(Duration::from_secs(3_600));
        assert!(matches!(sent.claim(LEASE, after), Claimed::Unknown(_)));
        assert_eq!(sent.sweep(&LIMITS, after).unwrap().state, EffectState::Unknown(after));
        // Claimed in time, and marked too late.
        let slow = claimed(&sent, before);
        assert!(matches!(slow.mark(slow.fence, MEMORY, after), Marked::Unknown(_)));
    }

    #[test]
    fn a_receiver_without_keys_is_sent_to_once() {
        let sent = marked(&claimed(&ready(), NOW), None);
        assert_eq!(finished(&sent, NO_ANSWER).state, EffectState::Unknown(NOW));
        let over = NOW.plus(LEASE);
        assert_eq!(sent.sweep(&LIMITS, over).unwrap().state, EffectState::Unknown(over));
    }

    #[test]
    fn the_mark_keeps_the_time_of_the_first_sending() {
        let sent = finished(&marked(&claimed(&ready(), NOW), MEMORY), NO_ANSWER);
        let again = claimed(&sent, NOW.plus(SECOND));
        let Marked::Stands(again) = again.mark(again.fence, MEMORY, NOW.plus(SECOND)) else {
            panic!("{again:?}");
        };
        let first = sent.mark.unwrap();
        assert_eq!(again.mark, Some(SentMark { last_by: again.fence, ..first }));
    }

    #[test]
    fn no_effect_clears_the_mark_of_its_own_worker_alone() {
        let own = marked(&claimed(&ready(), NOW), MEMORY);
        assert_eq!(finished(&own, NO_EFFECT).mark, None);
        let again = claimed(&finished(&own, NO_ANSWER), NOW.plus(SECOND));
        let foreign = finished(&marked(&again, MEMORY), NO_EFFECT);
        let first = own.mark.unwrap();
        assert_eq!(foreign.mark, Some(SentMark { last_by: again.fence, ..first }));
        assert_eq!(foreign.state, EffectState::Ready(NOW.plus(SECOND)));
    }

    #[test]
    fn what_may_have_been_sent_is_never_given_up() {
        let mut unsent = ready();
        let mut sent = ready();
        for _ in 0..3 {
            unsent = finished(&claimed(&unsent, NOW.plus(SECOND)), NO_EFFECT);
            sent = finished(&marked(&claimed(&sent, NOW.plus(SECOND)), MEMORY), NO_ANSWER);
        }
        assert_eq!(unsent.state, EffectState::Dead);
        assert_eq!(sent.state, EffectState::Unknown(NOW));
        assert_eq!(
            marked(&claimed(&ready(), NOW), None).cancel(),
            Err(EffectRefusal::MayHaveBeenSent)
        );
    }

    #[test]
    fn leases_that_end_after_their_mark_are_counted_apart() {
        let mut effect = ready();
        let mut now = NOW;
        let unknown = EffectState::Unknown(NOW.plus(LEASE * 2));
        for state in [EffectState::Ready(NOW.plus(LEASE)), unknown] {
            // The second time the mark is that of the first delivery, and its worker has died all the same.
            effect = marked(&claimed(&effect, now), MEMORY);
            now = now.plus(LEASE);
            effect = effect.sweep(&LIMITS, now).unwrap();
            assert_eq!(effect.state, state);
        }
        assert_eq!((effect.failures, effect.crashes), (0, 2));
        assert_eq!(claimed(&ready(), NOW).sweep(&LIMITS, NOW), None, "its lease is live");
    }

    /// Nobody was called: the answer to the claim was lost, or its worker died over something else.
    #[test]
    fn leases_that_end_before_their_mark_are_not_held_against_an_effect() {
        let sent = marked(&claimed(&ready(), NOW), MEMORY).sweep(&LIMITS, NOW.plus(LEASE)).unwrap();
        for (mut effect, crashes) in [(ready(), 0), (sent, 1)] {
            let mut now = NOW.plus(LEASE);
            for _ in 0..5 {
                effect = claimed(&effect, now);
                now = now.plus(LEASE);
                effect = effect.sweep(&LIMITS, now).unwrap();
                assert_eq!(effect.state, EffectState::Ready(now));
            }
            assert_eq!((effect.failures, effect.crashes), (0, crashes));
        }
    }

    #[test]
    fn a_late_worker_changes_nothing_unless_nobody_has_decided() {
        let slow = marked(&claimed(&ready(), NOW), MEMORY);
        let over = NOW.plus(LEASE);
        let swept = slow.sweep(&LIMITS, over).unwrap();
        let late = |effect: &Effect| effect.finish(slow.fence, EffectEnd::Delivered, &LIMITS, over);
        assert_eq!(late(&swept), Finished::Lost);
        assert_eq!(late(&claimed(&swept, over)), Finished::Lost);
        assert_eq!(slow.renew(slow.fence, LEASE, over), None, "an ended lease is not revived");
        // Unknown by the end of its lease: its own word still counts, and is counted once.
        let unkeyed = marked(&claimed(&ready(), NOW), None);
        let unknown = unkeyed.sweep(&LIMITS, over).unwrap();
        let told = finished(&unknown, EffectEnd::Delivered);
        assert_eq!(told.state, EffectState::Delivered);
        assert_eq!(
            told.finish(told.fence, EffectEnd::Delivered, &LIMITS, over),
            Finished::Repeated
        );
        assert_eq!(told.finish(told.fence, EffectEnd::Rejected, &LIMITS, over), Finished::Lost);
    }

    #[test]
    fn a_requeue_past_the_receivers_memory_is_refused() {
        let dead = finished(&marked(&claimed(&ready(), NOW), MEMORY), EffectEnd::Rejected);
        assert_eq!(dead.state, EffectState::Dead);
        let again = dead.requeue(NOW.plus(SECOND)).unwrap();
        assert_eq!((again.state, again.mark), (EffectState::Ready(NOW.plus(SECOND)), dead.mark));
        assert_eq!(dead.requeue(NOW.plus(SECOND * 3_600)), Err(EffectRefusal::PastMemory));
        assert_eq!(ready().requeue(NOW), Err(EffectRefusal::WrongState));
    }

    #[test]
    fn only_evidence_leads_out_of_unknown_and_absence_needs_its_time() {
        let unknown = finished(&marked(&claimed(&ready(), NOW), None), NO_ANSWER);
        let absent = EffectEvidence::Absent { settle_time: SECOND };
        assert_eq!(unknown.resolve(absent, NOW), Err(EffectRefusal::TooEarly));
        let free = unknown.resolve(absent, NOW.plus(SECOND)).unwrap();
        assert_eq!((free.state, free.mark), (EffectState::Ready(NOW.plus(SECOND)), None));
        assert!(free.fence > unknown.fence);
        let unwanted = unknown.resolve(EffectEvidence::Unwanted, NOW).unwrap();
        assert_eq!(unwanted.state, EffectState::Cancelled);
        assert_eq!(unwanted.requeue(NOW), Err(EffectRefusal::WrongState), "it is over");
        assert!(unwanted.fence > unknown.fence);
        let done = unknown.resolve(EffectEvidence::Delivered, NOW).unwrap();
        assert_eq!(done.resolve(EffectEvidence::NoEffect, NOW), Err(EffectRefusal::WrongState));
        assert_eq!(unknown.claim(LEASE, NOW), Claimed::NotReady);
        assert_eq!(unknown.sweep(&LIMITS, Time::NEVER), None);
    }

    #[test]
    fn a_worker_that_stops_gives_back_what_it_has_not_sent() {
        let held = claimed(&ready(), NOW);
        let back = held.hand_back(held.fence, NOW).unwrap();
        assert_eq!((back.state, back.failures), (EffectState::Ready(NOW), 0));
        let stopped = marked(&held, MEMORY);
        assert_eq!(stopped.hand_back(held.fence, NOW).unwrap().mark, None, "it has sent nothing");
        let again = claimed(&finished(&stopped, NO_ANSWER), NOW.plus(SECOND));
        assert_eq!(again.hand_back(again.fence, NOW).unwrap().mark, stopped.mark, "another has");
        assert_eq!(again.hand_back(held.fence, NOW), None);
    }

    #[test]
    fn nothing_is_sent_that_could_outlive_its_lease_or_its_key() {
        let before = BeforeFirstByte {
            lease_left: SECOND * 10,
            resend_left: Some(SECOND * 20),
            elapsed: Duration::ZERO,
            deadline: SECOND * 5,
        };
        assert!(may_send(&before));
        assert!(!may_send(&BeforeFirstByte { elapsed: SECOND * 5, ..before }));
        assert!(!may_send(&BeforeFirstByte { deadline: SECOND * 10, ..before }));
        assert!(!may_send(&BeforeFirstByte { resend_left: Some(Duration::ZERO), ..before }));
        assert!(may_send(&BeforeFirstByte { resend_left: None, ..before }));
        assert!(!may_send(&BeforeFirstByte { elapsed: Duration::MAX, ..before }));
    }
}
