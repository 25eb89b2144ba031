//! Who looks after the records?
//!
//! Sweeper, reaper, reconciler, webhook and operator, as tasks of whichever gateway runs them, over
//! the engine's own verbs. The reconciler decides by evidence only: an effect that the upstream
//! remembers, a fence that it has burnt, or an absence, if the route says that this is proof, after
//! the settle time. It measures that time on its own clock, from the moment at which it first saw
//! the fence unknown: the store's clock may leap, and its leap must not turn into evidence.

use std::future::poll_fn;
use std::time::Duration;

use retrysafe_core::Id;
use retrysafe_core::engine::Ruled;
use retrysafe_core::machine::{Evidence, Proof, Verdict};
use retrysafe_core::policy::Absence;
use retrysafe_core::record::{Answer, Fence, Judge, Record, Standing, State};
use retrysafe_core::store::{Filter, Query, Store};

use super::gate::Gate;
use super::upstream::Looked;
use super::{Tick, World, flows, notices};
use crate::fault::Fault;
use crate::history::{Found, Role, STORE_EPOCH_MS, What};
use crate::options::Kind;

/// More records than any history has.
const ALL: usize = 100;

/// One round of upkeep.
pub async fn round(gate: Gate, tick: Tick) {
    match tick {
        Tick::Sweep => {
            // What a sweep could not do the next one will.
            let _ = gate.sim.engine(gate.by(Role::Sweeper)).sweep(ALL).await;
        }
        Tick::Reap => {
            let _ = gate.sim.engine(gate.by(Role::Reaper)).reap(ALL).await;
        }
        Tick::Reconcile => reconcile(gate).await,
        Tick::Operate => operate(gate).await,
        Tick::Complete => flows::complete(gate).await,
    }
}

/// The records of a standing, as far as the store can be read.
async fn scan(gate: &Gate, standing: Standing) -> Vec<Record> {
    let filter = Filter { standing: Some(standing), ..Filter::default() };
    let query = Query { filter, after: None, limit: ALL };
    let engine = gate.sim.engine(gate.by(Role::Reader));
    engine.store().scan(query).await.map(|page| page.value.records).unwrap_or_default()
}

async fn reconcile(gate: Gate) {
    notices::match_inbox(&gate).await;
    for record in scan(&gate, Standing::Unknown).await {
        reconcile_one(&gate, &record).await;
    }
}

async fn reconcile_one(gate: &Gate, record: &Record) {
    let State::Unknown { since, lookups, .. } = record.state else { return };
    let Some(key) = gate.tables.key(&record.id) else { return };
    let fence = record.fence.0 as u32;
    let asked_at = gate.clock();
    let since_ms = gate.sim.with(|world| world.first_seen(gate.number, fence, asked_at));
    let waited = match gate.options.fault {
        Some(Fault::AbsenceAtOnce) => gate.options.settle_ms(),
        Some(Fault::AbsenceByStoreClock) => gate.sim.with(|world| {
            (STORE_EPOCH_MS + world.now)
                .saturating_add_signed(world.store.offset())
                .saturating_sub(since.as_ms())
        }),
        Some(_) | None => asked_at.saturating_sub(since_ms),
    };
    let rule = match gate.options.fault {
        Some(Fault::AbsenceAtOnce) => Absence::Proof,
        Some(_) | None => gate.options.absence,
    };
    let waited = Duration::from_millis(waited);
    let found = match gate.options.flow {
        None => find_evidence(gate, key, fence, rule, waited).await,
        Some(_) => flows::find_evidence(gate, record, rule, waited).await,
    };
    match found {
        Some((found, evidence)) => {
            resolve(gate, record, found, evidence, Judge::Reconciler).await;
        }
        None => {
            let engine = gate.sim.engine(gate.by(Role::Reader));
            let more = lookups < gate.options.lookups_max;
            // An absence that has to ripen is asked about until it is ripe.
            let waits = gate.options.absence == Absence::Proof;
            if more || waits {
                let _ = engine.looked_up(record, "").await;
            }
            if gate.fault(Fault::LastLookupCloses) && !more {
                let evidence = Evidence::NotExecuted(Proof::operator());
                return resolve(gate, record, Found::Absence, evidence, Judge::Reconciler).await;
            }
            if lookups + 1 >= gate.options.lookups_max && !waits {
                gate.sim.with(|world| {
                    world.record(What::DeadLettered { key, fence });
                    world.dead_letters.push(fence);
                });
            }
        }
    }
}

/// What the upstream tells about a plain request. `waited` counts up to the question.
async fn find_evidence(
    gate: &Gate,
    key: u8,
    fence: u32,
    rule: Absence,
    waited: Duration,
) -> Option<(Found, Evidence)> {
    let lookup = gate.sim.with(|world| {
        let burn = world.options.burns && world.chance.percent(75);
        world.look_up(key, fence, burn)
    });
    let settle = match gate.options.fault {
        Some(Fault::SettleWithoutLag) => gate.options.settle_without_lag_ms(),
        Some(_) | None => gate.options.settle_ms(),
    };
    let settle = Duration::from_millis(settle);
    match poll_fn(|_| gate.sim.with(|world| world.looked(lookup))).await {
        Looked::Found(exec) => {
            let answer = gate.sim.with(|world| world.remembered(exec));
            Some((Found::Effect, Evidence::Executed(answer)))
        }
        Looked::Burnt => Some((Found::Burnt, Evidence::NotExecuted(Proof::burnt()))),
        Looked::Absent => Proof::absence(rule, waited, settle)
            .map(|proof| (Found::Absence, Evidence::NotExecuted(proof))),
        Looked::Lost => None,
    }
}

async fn resolve(gate: &Gate, record: &Record, found: Found, evidence: Evidence, judge: Judge) {
    let fence = record.fence.0 as u32;
    let role = Role::Judge { fence, evidence: found };
    let mut about = record.fence;
    if gate.options.fault == Some(Fault::StaleVerdict)
        && let Ok(found) = gate.sim.engine(gate.by(Role::Reader)).look(record.id).await
        && let Some(present) = found.value
    {
        about = present.fence;
    }
    let verdict = Verdict { fence: about, evidence, judge, reason: "".into() };
    rule(gate, record.id, role, &verdict).await;
}

async fn rule(gate: &Gate, id: Id, role: Role, verdict: &Verdict) {
    // If it fails, the next round will see.
    let ruled = gate.sim.engine(gate.by(role)).resolve(id, verdict).await;
    if let (Ok(ruled), Role::Judge { fence, .. }, Some(key)) = (ruled, role, gate.tables.key(&id)) {
        let done = matches!(ruled, Ruled::Done(_));
        gate.sim.with(|world| world.record(What::Ruled { key, fence, done }));
    }
}

/// The upstream reports an effect by itself.
pub async fn webhook(gate: Gate, exec: u16) {
    let Some((key, fence, answer)) = gate.sim.with(|world| {
        let (key, fence, _) = world.exec_about(exec)?;
        Some((key, fence, world.remembered(exec)))
    }) else {
        return;
    };
    let Some(id) = gate.tables.id(key) else { return };
    let role = Role::Judge { fence, evidence: Found::Effect };
    let verdict = Verdict {
        fence: Fence(u64::from(fence)),
        evidence: Evidence::Executed(answer),
        judge: Judge::Webhook,
        reason: "".into(),
    };
    rule(&gate, id, role, &verdict).await;
}

/// A person looks at what is unknown, asks around, and decides, rightly or not: what has not taken
/// effect by now may still do so. Sometimes they also end a retention.
async fn operate(gate: Gate) {
    for record in scan(&gate, Standing::Unknown).await {
        let Some(key) = gate.tables.key(&record.id) else { continue };
        let State::Unknown { lookups, .. } = record.state else { continue };
        let fence = record.fence.0 as u32;
        let (decides, effect) = gate.sim.with(|world| {
            let dead = lookups >= world.options.lookups_max;
            (dead || world.chance.percent(20), world.effect_of(key, fence))
        });
        if !decides {
            continue;
        }
        let of_flow = gate.options.flow.map(|_| flows::operators_evidence(&gate, &record, key));
        // People take their time between looking and deciding.
        let ms = gate.sim.with(|world| world.chance.scaled(1, world.options.lease_ms));
        gate.sim.sleep(ms).await;
        let (found, evidence) = match (of_flow, effect) {
            (Some(of_flow), _) => of_flow,
            (None, Some(exec)) => {
                let status = gate.sim.with(|world| world.remembered(exec)).status();
                let answer = Answer::NotKept { status, location: None };
                (Found::OperatorSaysDone, Evidence::Executed(answer))
            }
            (None, None) => (Found::OperatorSaysNot, Evidence::NotExecuted(Proof::operator())),
        };
        resolve(&gate, &record, found, evidence, Judge::Operator).await;
    }
    if gate.sim.with(|world| world.strike(Kind::Expire, 60)) {
        let mut settled = scan(&gate, Standing::Completed).await;
        if gate.options.flow.is_some() {
            // A flow that holds work is refused.
            settled.append(&mut scan(&gate, Standing::FailedRetryable).await);
        }
        for record in settled {
            if gate.sim.with(|world| world.chance.percent(50)) {
                let engine = gate.sim.engine(gate.by(Role::Expirer));
                let _ = engine.expire(record.id, None, "").await;
            }
        }
    }
}

impl World {
    /// Since when, by its own clock, a gateway's reconciler has known a fence to be unknown.
    fn first_seen(&mut self, gateway: u8, fence: u32, now: u64) -> u64 {
        let Some(process) = self.gateways.get_mut(usize::from(gateway)) else { return now };
        match process.seen.iter().find(|(seen, _)| *seen == fence) {
            Some((_, at)) => *at,
            None => {
                process.seen.push((fence, now));
                now
            }
        }
    }
}
