//! What shows how a charge ended that nobody has heard of?
//!
//! The provider's own ledger: it has made the charge, declined it, refused its fence for good, or knows
//! nothing of it, which is proof after a settle time where the route says so. Of a record whose flow has
//! never committed anything the application's own tables are proof enough: no late owner can start it.

use std::time::Duration;

use retrysafe_core::machine::{Evidence, Proof};
use retrysafe_core::policy::Absence;
use retrysafe_core::record::Record;

use super::charge::declined_answer;
use super::provider::Known;
use super::tables;
use crate::history::Found;
use crate::world::gate::Gate;

/// What a reconciler finds; none if it learned nothing final. `waited` counts up to the question.
pub async fn find_evidence(
    gate: &Gate,
    record: &Record,
    rule: Absence,
    waited: Duration,
) -> Option<(Found, Evidence)> {
    let key = gate.tables.key(&record.id)?;
    let Some(flow) = record.flow.as_deref().filter(|flow| flow.mark().is_some()) else {
        return Some((Found::NoRows, Evidence::NotExecuted(Proof::rolled_back())));
    };
    let (phase, fence) = (flow.recovery_point().phase() as u8, record.fence.0 as u32);
    let (there, back, burn) = gate.sim.with(|world| {
        let takes_keys = world.options.flow.is_some_and(|plan| plan.window_ms.is_some());
        let burn = takes_keys && world.options.burns && world.chance.percent(60);
        (world.chance.between(1, 10), world.provider_thinks_ms(), burn)
    });
    gate.sim.sleep(there).await;
    let known = gate.sim.with(|world| world.ask_provider(key, phase, fence, burn));
    gate.sim.sleep(back).await;
    match known? {
        Known::Made(charge) => Some(made(charge, Found::Effect)),
        Known::Declined(charge) => Some(declined(charge)),
        Known::Burnt => Some((Found::Burnt, Evidence::NotExecuted(Proof::burnt()))),
        Known::Absent => {
            let settle = Duration::from_millis(gate.options.settle_ms());
            Proof::absence(rule, waited, settle)
                .map(|proof| (Found::Absence, Evidence::NotExecuted(proof)))
        }
    }
}

/// What a person finds who looks now. What has not been made by now may still be.
pub fn operators_evidence(gate: &Gate, record: &Record, key: u8) -> (Found, Evidence) {
    let flow = record.flow.as_deref().filter(|flow| flow.mark().is_some());
    let known = flow.and_then(|flow| {
        let phase = flow.recovery_point().phase() as u8;
        gate.sim.with(|world| world.ask_provider(key, phase, 0, false))
    });
    match known {
        Some(Known::Made(charge)) => made(charge, Found::OperatorSaysDone),
        Some(Known::Declined(charge)) => declined(charge),
        Some(Known::Absent | Known::Burnt) | None => {
            (Found::OperatorSaysNot, Evidence::NotExecuted(Proof::operator()))
        }
    }
}

fn made(charge: u16, found: Found) -> (Found, Evidence) {
    (found, Evidence::CallExecuted(tables::body(charge)))
}

fn declined(charge: u16) -> (Found, Evidence) {
    (Found::Declined, Evidence::Executed(declined_answer(charge)))
}
