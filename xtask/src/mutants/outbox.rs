//! Which breakages of the outbox must be caught?

use super::catcher::Catcher::{Fast, Shipped, Test};
use super::table::Mutant;

/// The unit tests of the rules.
const RULES: &[&str] = &["-p", "retrysafe-core", "--lib"];

/// The tests of the outbox, on a real server.
const OUTBOX: &[&str] =
    &["-p", "retrysafe", "--features", "axum,phases,outbox", "--test", "postgres"];

/// The unit tests of the worker.
const WORKER: &[&str] = &["-p", "retrysafe", "--features", "outbox", "--lib"];

pub(crate) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "claim-floor-for-ever",
        file: "crates/retrysafe/src/outbox/claim_floor.rs",
        old: ".filter(|floor| now < floor.whole_look_at)",
        new: ".filter(|floor| floor.whole_look_at < now + 2 * WHOLE_LOOK_EVERY)",
        breaks: "an effect whose transaction was long is never delivered while others keep coming",
        caught: Test(WORKER, "everything_is_looked_at_once_a_second_however_many_claims_there_are"),
    },
    Mutant {
        name: "claim-floor-above-lanes",
        file: "crates/retrysafe/src/outbox/claim_floor.rs",
        old: "self.by_kind.clear();",
        new: "",
        breaks: "each effect of a lane waits for a second behind the one before it",
        caught: Test(WORKER, "after_the_end_of_an_effect_with_a_lane_everything_is_looked_at"),
    },
    Mutant {
        name: "effect-check-without-deadline",
        file: "crates/retrysafe-core/src/effect.rs",
        old: "let is_live = before.elapsed.saturating_add(before.deadline) < before.lease_left;",
        new: "let is_live = before.elapsed < before.lease_left;",
        breaks: "a delivery may end after its lease, and beside its successor's",
        caught: Fast("20000"),
    },
    Mutant {
        name: "effect-dead-after-sending",
        file: "crates/retrysafe-core/src/effect.rs",
        old: "(Some(_), _) => self.with(EffectState::Unknown(now)),",
        new: "(Some(_), _) => self.with(EffectState::Dead),",
        breaks: "an effect that may have happened is listed as dead",
        caught: Fast("20000"),
    },
    Mutant {
        name: "effect-finish-unfenced",
        file: "crates/retrysafe-core/src/effect.rs",
        old: "if self.fence != fence {\n            return Finished::Lost;",
        new: "if self.fence < fence {\n            return Finished::Lost;",
        breaks: "a worker that was overtaken says how its successor's delivery ended",
        caught: Fast("20000"),
    },
    Mutant {
        name: "effect-foreign-mark-cleared",
        file: "crates/retrysafe-core/src/effect.rs",
        old: ") if self.mark.is_none_or(|mark| mark.set_by == fence) => {",
        new: ") if self.mark.is_none_or(|mark| mark.set_by <= fence) => {",
        breaks: "\"no effect\" clears a mark whose worker's bytes may be on their way",
        caught: Fast("20000"),
    },
    Mutant {
        name: "effect-requeue-past-memory",
        file: "crates/retrysafe-core/src/effect.rs",
        old: "if !self.is_sendable(now) {\n            return Err(EffectRefusal::PastMemory);",
        new: "if self.mark.is_none() {\n            return Err(EffectRefusal::PastMemory);",
        breaks: "a dead effect is requeued after its receiver has forgotten the key",
        caught: Fast("20000"),
    },
    Mutant {
        name: "effect-ended-lease-revived",
        file: "crates/retrysafe-core/src/effect.rs",
        old: "EffectState::Leased(until) if self.fence == fence && now < until => {",
        new: "EffectState::Leased(until) if self.fence == fence => {",
        breaks: "a renewal on its way revives a lease that has ended",
        caught: Fast("20000"),
    },
    Mutant {
        name: "effect-mark-keeps-no-time",
        file: "crates/retrysafe-core/src/effect.rs",
        old: "Some(mark) if mark.permits(now) && resend_for.is_some() => {",
        new: "Some(mark) if resend_for.is_some() => {",
        breaks: "an effect is marked for a receiver that has forgotten its key",
        caught: Test(RULES, "a_receiver_that_forgets_ends_the_resending"),
    },
    Mutant {
        name: "outbox-no-check-before-the-wire",
        file: "crates/retrysafe/src/outbox/kind.rs",
        old: "if !may_send(&before) {",
        new: "if !may_send(&before) && before.deadline.is_zero() {",
        breaks: "a worker that was too slow sends all the same",
        caught: Shipped("8000"),
    },
    Mutant {
        name: "outbox-error-is-no-effect",
        file: "crates/retrysafe/src/outbox/kind.rs",
        old: "Err(error) => (EndCode::NoAnswer, pause(None), None, Some(error)),",
        new: "Err(error) => (EndCode::NoEffect, pause(None), None, Some(error)),",
        breaks: "an error after the packet, or a panic, frees the effect",
        caught: Shipped("2000"),
    },
    Mutant {
        name: "outbox-deadline-not-kept",
        file: "crates/retrysafe/src/outbox/kind.rs",
        old: "let ended = tokio::time::timeout(deadline, deliver(delivery)).await;",
        new: "let ended = tokio::time::timeout(deadline * 100, deliver(delivery)).await;",
        breaks: "a delivery that hangs outlives its lease",
        caught: Shipped("2000"),
    },
    Mutant {
        name: "outbox-hints-are-the-truth",
        file: "crates/retrysafe/src/outbox/kind.rs",
        old: "() = tokio::time::sleep_until(next_look.min(renew_at)) => {}",
        new: "() = std::future::pending() => {}",
        breaks: "an effect whose hint was lost is never delivered",
        caught: Shipped("2000"),
    },
    Mutant {
        name: "outbox-resends-to-unkeyed",
        file: "crates/retrysafe/src/outbox/receiver.rs",
        old: "window: self.remembers_for?,",
        new: "window: self.remembers_for.unwrap_or(DEADLINE_MAX),",
        breaks: "an effect whose receiver takes no key is sent twice",
        caught: Shipped("2000"),
    },
    Mutant {
        name: "outbox-nobody-sweeps",
        file: "crates/retrysafe/src/outbox/sweeper.rs",
        old: "let swept = within_time(store.sweep(CRASHES_MAX, SWEPT_MAX)).await?;",
        new: "let swept = super::store::SweptEffects::default();",
        breaks: "effects of dead workers are lost",
        caught: Shipped("2000"),
    },
    Mutant {
        name: "outbox-sweeper-may-hang",
        file: "crates/retrysafe/src/outbox/sweeper.rs",
        old: "*lane = within_time(store.sweep_lanes(lane.as_deref(), LANES_MAX)).await?;",
        new: "*lane = store.sweep_lanes(lane.as_deref(), LANES_MAX).await?;",
        breaks: "a database that never answers ends the sweeper in silence",
        caught: Shipped("2000"),
    },
    Mutant {
        name: "sql-effect-mark-moves",
        file: "crates/retrysafe/src/stores/postgres/migrations/0004_outbox.sql",
        old: "WHEN n.is_sendable AND e.marked_by <> e.fence THEN least(e.resend_until, forget) ELSE e.resend_until END",
        new: "ELSE forget END",
        breaks: "each delivery moves the time of the first one, and the receiver has forgotten the key",
        caught: Test(OUTBOX, "the_server_and_the_rules_decide_alike"),
    },
    Mutant {
        name: "sql-effect-dead-after-sending",
        file: "crates/retrysafe/src/stores/postgres/migrations/0004_outbox.sql",
        old: "WHEN j.marked_by IS NULL AND j.failures >= $6 THEN 4",
        new: "WHEN j.failures >= $6 THEN 4",
        breaks: "an effect that may have happened is listed as dead",
        caught: Test(OUTBOX, "the_server_and_the_rules_decide_alike"),
    },
    Mutant {
        name: "sql-effect-fence-stays",
        file: "crates/retrysafe/src/stores/postgres/migrations/0004_outbox.sql",
        old: "fence = CASE WHEN b.state = 3 OR b.ended = 1 THEN e.fence ELSE nextval('retrysafe.version') END",
        new: "fence = e.fence",
        breaks: "a worker that has failed still holds the fence of the effect",
        caught: Test(OUTBOX, "the_server_and_the_rules_decide_alike"),
    },
    Mutant {
        name: "sql-effect-sent-to-another",
        file: "crates/retrysafe/src/stores/postgres/migrations/0004_outbox.sql",
        old: "l.is_first OR (l.is_same_receiver AND $4 IS NOT NULL AND",
        new: "l.is_first OR ($4 IS NOT NULL AND",
        breaks: "an effect that may have been sent is sent to another receiver, which has never seen the key",
        caught: Test(OUTBOX, "the_server_and_the_rules_decide_alike"),
    },
    Mutant {
        name: "sql-effect-fence-counted",
        file: "crates/retrysafe/src/stores/postgres/migrations/0004_outbox.sql",
        old: "fence = nextval('retrysafe.version'), lookups = 0",
        new: "fence = e.fence + 1, lookups = 0",
        breaks: "a claim that was lost in a fail-over gives its fence to another worker",
        caught: Test(OUTBOX, "a_lost_claim_gives_its_fence_to_nobody"),
    },
    Mutant {
        name: "sql-effect-held-is-waited-for",
        file: "crates/retrysafe/src/stores/postgres/migrations/0004_outbox.sql",
        old: "ORDER BY e.id FOR UPDATE OF e SKIP LOCKED\n    )\n    UPDATE retrysafe.effect e SET at = greatest",
        new: "ORDER BY e.id FOR UPDATE OF e\n    )\n    UPDATE retrysafe.effect e SET at = greatest",
        breaks: "an effect that somebody holds keeps the renewal of all others waiting",
        caught: Test(OUTBOX, "an_effect_that_somebody_holds_keeps_no_other_one_waiting"),
    },
];
