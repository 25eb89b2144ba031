//! Can the checker fail about effects?
//!
//! One effect that is staged, claimed, marked, sent and finished, written by hand; and for every promise about effects a
//! history that breaks it. Effect 0, worker 0, fence 1, packet 0, unless a story says otherwise.

use super::{LEASE_MS, Story};
use crate::chance::Chance;
use crate::checker::{Checker, Sometimes};
use crate::effect_plan::EffectPlan;
use crate::history::{
    EffectEvent, EffectMark, EffectRole, EffectWrote, EndSeen, EvidenceSeen, Place, STORE_EPOCH_MS,
    What,
};
use crate::invariant::Invariant as I;

/// For how long a marked effect may be sent again.
const RESEND_MS: u64 = 50_000;

/// When the first lease of these stories ends, by the store's clock.
const LEASED_UNTIL: u64 = STORE_EPOCH_MS + LEASE_MS;

/// A mark that permits another delivery, of this fence.
fn remembered(set_by: u32) -> EffectMark {
    EffectMark { set_by, until: Some(STORE_EPOCH_MS + RESEND_MS) }
}

/// A mark for a receiver without keys.
fn unkeyed(set_by: u32) -> EffectMark {
    EffectMark { set_by, until: None }
}

impl Story {
    fn of_effects() -> Self {
        let plan = EffectPlan {
            deadline_ms: LEASE_MS / 3,
            failures_max: 3,
            crashes_max: 3,
            operator: true,
            ..EffectPlan::draw(&mut Chance::of(0, 0), LEASE_MS)
        };
        Self::new().under(|rules| rules.effects = Some(plan))
    }

    fn outbox(self, event: EffectEvent) -> Self {
        self.then(What::Outbox(event))
    }

    fn stages(self, effect: u8, lane: Option<u8>, is_waiting: bool) -> Self {
        self.outbox(EffectEvent::Staged { effect, kind: 0, lane, is_waiting })
    }

    /// The store writes about an effect.
    fn puts(
        self,
        effect: u8,
        by: EffectRole,
        place: Place,
        fence: u32,
        mark: Option<EffectMark>,
    ) -> Self {
        let now = STORE_EPOCH_MS + self.now + 10;
        let at = if place == Place::Leased { now.max(LEASED_UNTIL) } else { now };
        self.outbox(EffectEvent::Wrote(EffectWrote {
            effect,
            by,
            place,
            at,
            fence,
            mark,
            failures: 0,
            crashes: 0,
            now,
        }))
    }

    fn claims_effect(self, effect: u8) -> Self {
        let role = EffectRole::Claim { worker: 0, epoch: 1 };
        self.puts(effect, role, Place::Leased, 1, None)
    }

    fn marks(self, effect: u8, mark: EffectMark) -> Self {
        self.puts(effect, EffectRole::Mark { fence: 1 }, Place::Leased, 1, Some(mark))
    }

    fn sends_effect(self, packet: u16, effect: u8, fence: u32) -> Self {
        self.outbox(EffectEvent::Sent { packet, effect, fence, worker: 0, epoch: 1 })
    }

    fn happens(self, packet: u16, effect: u8) -> Self {
        self.outbox(EffectEvent::Happened { packet, effect })
    }

    fn finishes(self, effect: u8, end: EndSeen, place: Place, mark: Option<EffectMark>) -> Self {
        let fence = if place == Place::Ready { 2 } else { 1 };
        self.puts(effect, EffectRole::Finish { fence: 1, end }, place, fence, mark)
    }

    /// Staged, claimed, marked and sent.
    fn comes_to_the_wire(self, effect: u8, lane: Option<u8>, mark: EffectMark) -> Self {
        self.stages(effect, lane, false).claims_effect(effect).marks(effect, mark).sends_effect(
            effect.into(),
            effect,
            1,
        )
    }
}

/// Delivered as it should be.
fn delivered(effect: u8, lane: Option<u8>) -> Story {
    Story::of_effects()
        .comes_to_the_wire(effect, lane, remembered(1))
        .happens(effect.into(), effect)
        .finishes(effect, EndSeen::Delivered, Place::Delivered, Some(remembered(1)))
}

fn swept_to_unknown() -> Story {
    Story::of_effects()
        .comes_to_the_wire(0, None, unkeyed(1))
        .then(What::Crashed { gateway: 0 })
        .later(LEASE_MS)
        .puts(0, EffectRole::Sweep, Place::Unknown, 1, Some(unkeyed(1)))
}

#[test]
fn good_histories_of_effects_are_accepted() {
    let resent = Story::of_effects()
        .comes_to_the_wire(0, None, remembered(1))
        .happens(0, 0)
        .finishes(0, EndSeen::NoAnswer, Place::Ready, Some(remembered(1)))
        .puts(0, EffectRole::Claim { worker: 0, epoch: 1 }, Place::Leased, 3, Some(remembered(1)))
        .puts(0, EffectRole::Mark { fence: 3 }, Place::Leased, 3, Some(remembered(1)))
        .sends_effect(1, 0, 3)
        .puts(
            0,
            EffectRole::Finish { fence: 3, end: EndSeen::Delivered },
            Place::Delivered,
            3,
            Some(remembered(1)),
        );
    let found = swept_to_unknown().happens(0, 0).puts(
        0,
        EffectRole::Decide { fence: 1, found: EvidenceSeen::Happened },
        Place::Delivered,
        2,
        Some(unkeyed(1)),
    );
    let in_order = delivered(0, Some(1))
        .stages(1, Some(1), true)
        .puts(1, EffectRole::FollowLate, Place::Ready, 0, None)
        .claims_effect(1)
        .marks(1, unkeyed(1))
        .sends_effect(1, 1, 1)
        .happens(1, 1)
        .finishes(1, EndSeen::Delivered, Place::Delivered, Some(unkeyed(1)));
    for (name, story) in [
        ("delivered", delivered(0, None)),
        ("resent", resent),
        ("found", found),
        ("in order", in_order),
    ] {
        assert_eq!(story.ends().judged(), [], "{name}");
    }
}

/// A history that breaks a promise about effects.
pub(super) fn bad_effect(invariant: I) -> Story {
    let on_the_wire = || Story::of_effects().comes_to_the_wire(0, None, remembered(1));
    match invariant {
        I::O1 => delivered(0, None).happens(1, 0),
        // Staged, and nobody has looked at it.
        I::O2 => Story::of_effects().stages(0, None, false),
        I::O3 => {
            on_the_wire().finishes(0, EndSeen::Delivered, Place::Delivered, Some(remembered(1)))
        }
        I::O4 => on_the_wire().happens(0, 0).finishes(
            0,
            EndSeen::NoAnswer,
            Place::Dead,
            Some(remembered(1)),
        ),
        // It may be sent again.
        I::O5 => on_the_wire().finishes(0, EndSeen::NoAnswer, Place::Unknown, Some(remembered(1))),
        I::O6 => Story::of_effects().stages(0, Some(1), false).comes_to_the_wire(
            1,
            Some(1),
            remembered(1),
        ),
        // A second claim of a live lease, under the same fence.
        I::O7 => Story::of_effects().stages(0, None, false).claims_effect(0).claims_effect(0),
        // Without a mark.
        I::O8 => Story::of_effects().stages(0, None, false).claims_effect(0).sends_effect(0, 0, 1),
        // No answer is no proof that nothing was done.
        I::O9 => on_the_wire().finishes(0, EndSeen::NoAnswer, Place::Ready, None),
        // Its worker is well.
        _ => on_the_wire().later(LEASE_MS).puts(
            0,
            EffectRole::Sweep,
            Place::Ready,
            2,
            Some(remembered(1)),
        ),
    }
}

#[test]
fn further_ways_to_break_a_promise_about_effects_are_rejected_too() {
    let marked =
        || Story::of_effects().stages(0, None, false).claims_effect(0).marks(0, remembered(1));
    for (name, invariant, story) in [
        ("sent although its transaction was rolled back", I::O2, {
            let rolled_back = EffectEvent::RolledBack { effect: 0 };
            Story::of_effects().outbox(rolled_back).sends_effect(0, 0, 1)
        }),
        ("sent when the lease is almost over", I::O8, marked().later(800).sends_effect(0, 0, 1)),
        ("sent twice under one claim", I::O8, {
            marked().sends_effect(0, 0, 1).sends_effect(1, 0, 1)
        }),
        ("claimed after its receiver has forgotten the key", I::O8, {
            let no_answer = EndSeen::NoAnswer;
            let failed = marked().finishes(0, no_answer, Place::Ready, Some(remembered(1)));
            let role = EffectRole::Claim { worker: 0, epoch: 1 };
            failed.later(RESEND_MS).puts(0, role, Place::Leased, 3, Some(remembered(1)))
        }),
        ("finished under a lost fence", I::O7, {
            let taken = EffectRole::Finish { fence: 9, end: EndSeen::NoEffect };
            marked().puts(0, taken, Place::Ready, 2, Some(remembered(1)))
        }),
        ("a mark that moves", I::O9, {
            let moved = EffectMark { set_by: 1, until: Some(STORE_EPOCH_MS + 2 * RESEND_MS) };
            marked().marks(0, moved)
        }),
        ("cancelled after it was sent", I::O4, {
            marked().puts(0, EffectRole::Cancel, Place::Cancelled, 2, Some(remembered(1)))
        }),
        ("happens after it was cancelled", I::O4, {
            let staged = Story::of_effects().stages(0, None, false);
            staged.puts(0, EffectRole::Cancel, Place::Cancelled, 1, None).happens(0, 0)
        }),
        ("evidence about another delivery", I::O7, {
            let role = EffectRole::Decide { fence: 9, found: EvidenceSeen::Absence };
            swept_to_unknown().puts(0, role, Place::Ready, 2, None)
        }),
    ] {
        let judged = story.judged();
        assert!(judged.contains(&invariant), "{name}: {judged:?}");
    }
}

#[test]
fn what_effects_have_reached_is_noticed() {
    let mut checker = Checker::new();
    let story = swept_to_unknown();
    let reached = checker.judge(story.rules, &story.log).reached;
    assert!(reached.has(Sometimes::EffectUnkeyedUnknown));
    assert!(!reached.has(Sometimes::EffectForgotten));
}
