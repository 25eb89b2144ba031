//! When does what happen, and when is it repaired?
//!
//! Calls come in bursts around their keys, and blows fall around calls. After the last one everything
//! heals, each key is called once more with patience, and the history goes on until nothing is under
//! way. At last every process is told to stop.

use std::time::Duration;

use retrysafe::client::Patience;
use retrysafe_core::Engine;
use retrysafe_core::machine::{Evidence, Proof, Verdict};
use retrysafe_core::record::{Answer, Judge, Standing};
use retrysafe_core::store::{Filter, Query, Store as _};
use tokio::task::JoinSet;

use super::caller::{self, Call};
use super::effects;
use super::options::{Kind, Options};
use super::process::{Gateways, Process, schedule};
use super::reports::report_again_and_again;
use super::stage::Stage;
use super::store::SimStore;
use super::witness::Asker;
use crate::chance::Chance;
use crate::history::{Found, Role, What};
use crate::options::NAMES;

/// A blow of the nemesis.
#[derive(Clone, Copy)]
enum Blow {
    Crash { gateway: u8, down_ms: u64 },
    Pause { gateway: u8, ms: u64 },
    Drain { gateway: u8, patience_ms: u64, linger_ms: u64, down_ms: u64 },
    Reload { gateway: u8, number: u64 },
    CutOff { gateway: u8, ms: u64 },
    Jump { by: i64 },
    Expire,
}

/// Plays a whole history.
pub async fn play(stage: &Stage) {
    let options = stage.options();
    if let Some(plan) = options.effects {
        return effects::play(stage, plan).await;
    }
    let gateways = &Gateways::default();
    for gateway in 0..options.gateways {
        boot(stage, gateways, gateway);
    }
    let mut chance = stage.chance(&[70]);
    let mut calls = JoinSet::new();
    let starts = plan_calls(stage, gateways, &mut chance, &mut calls);
    let mut last = starts.iter().copied().max().unwrap_or_default();
    for (at, blow) in plan_blows(options, &mut chance, &starts) {
        last = last.max(at);
        let stage = stage.clone();
        let gateways = gateways.clone();
        tokio::spawn(async move {
            stage.sleep(at).await;
            strike(&stage, &gateways, blow).await;
        });
    }
    if options.operator {
        tokio::spawn(operate_again_and_again(stage.clone()));
    }
    if options.reports {
        tokio::spawn(report_again_and_again(stage.clone(), gateways.clone()));
    }
    stage.sleep(last + chance.between(1, 2 * options.lease_ms)).await;
    heal(stage, gateways);
    plan_last_calls(stage, gateways, &mut chance, &mut calls);
    rest(stage, calls).await;
    end(stage, gateways).await;
}

fn boot(stage: &Stage, gateways: &Gateways, gateway: u8) {
    let process = Process::boot(stage, gateway);
    gateways.with(|all| {
        while all.len() <= usize::from(gateway) {
            all.push(None);
        }
        if let Some(slot) = all.get_mut(usize::from(gateway)) {
            *slot = Some(process);
        }
    });
}

/// Calls in bursts: at once, within a lease, after it, around the end of the retention.
fn plan_calls(
    stage: &Stage,
    gateways: &Gateways,
    chance: &mut Chance,
    calls: &mut JoinSet<()>,
) -> Vec<u64> {
    let options = stage.options();
    let lease = options.lease_ms;
    let ttl = options.ttl_ms;
    let mut last_of = [None::<u64>; 32];
    let mut starts = Vec::new();
    for number in 0..u16::from(options.calls) {
        let scope = chance.below(options.scopes.into()) as u8;
        let key = scope * NAMES + chance.below(options.names.into()) as u8;
        let Some(last) = last_of.get_mut(usize::from(key)) else { continue };
        let start = match *last {
            None => chance.below(lease),
            Some(last) => {
                last + match chance.below(10) {
                    0..4 => chance.below(20),
                    4..6 => chance.below(lease),
                    6..8 => lease + chance.below(3 * lease),
                    8 => ttl.saturating_sub(lease) + chance.below(2 * lease),
                    _ => chance.scaled(1, ttl),
                }
            }
        };
        *last = Some(start);
        starts.push(start);
        let print = u8::from(stage.strikes(chance, Kind::OtherRequest, 30));
        let patience = Patience {
            attempts_max: chance.between(1, 5) as u32,
            pause: Duration::from_millis(chance.scaled(20, lease)),
            pause_max: Duration::from_millis(2 * lease),
            deadline: Duration::from_millis(12 * lease),
        };
        let attempt_ms = chance.scaled(300, 3 * lease);
        call_at(stage, gateways, calls, start, Call { number, key, print, patience, attempt_ms });
    }
    starts
}

fn call_at(stage: &Stage, gateways: &Gateways, calls: &mut JoinSet<()>, at: u64, call: Call) {
    let stage = stage.clone();
    let gateways = gateways.clone();
    calls.spawn(async move {
        stage.sleep(at).await;
        // Time may leap. A call that was to meet faults and comes after them is owed an answer as the last ones are.
        let is_healed = stage.with(|state| state.healed);
        let call = if is_healed { call.without_end(stage.options()) } else { call };
        caller::make(&stage, &gateways, call).await;
    });
}

/// Every key is called once more.
fn plan_last_calls(
    stage: &Stage,
    gateways: &Gateways,
    chance: &mut Chance,
    calls: &mut JoinSet<()>,
) {
    let options = stage.options();
    let lease = options.lease_ms;
    let mut number = u16::from(options.calls);
    for scope in 0..options.scopes {
        for name in 0..options.names {
            let key = scope * NAMES + name;
            let patience = Patience::default();
            let call = Call { number, key, print: 0, patience, attempt_ms: 6 * lease };
            call_at(stage, gateways, calls, chance.below(lease), call);
            number += 1;
        }
    }
}

/// Blows around calls.
fn plan_blows(options: &Options, chance: &mut Chance, starts: &[u64]) -> Vec<(u64, Blow)> {
    let lease = options.lease_ms;
    let ttl = options.ttl_ms;
    let mut blows = Vec::new();
    for kind in Kind::ALL.iter().copied() {
        let number = chance.between(1, 2);
        for _ in 0..number {
            let gateway = chance.below(options.gateways.into()) as u8;
            let ms = chance.scaled(50, 4 * lease);
            let far = chance.pick(2 * lease, &[2 * ttl]);
            let by = chance.scaled(1, far) as i64;
            let at = chance.below(starts.len() as u64) as usize;
            let spread = chance.scaled(2, 4 * lease);
            let at = starts.get(at).copied().unwrap_or_default() + spread;
            let blow = match kind {
                Kind::Crash => Blow::Crash { gateway, down_ms: ms },
                Kind::Pause => Blow::Pause { gateway, ms },
                Kind::Drain => Blow::Drain {
                    gateway,
                    patience_ms: chance.scaled(10, 4 * lease),
                    linger_ms: chance.scaled(1, 2 * lease),
                    down_ms: ms,
                },
                Kind::Reload => Blow::Reload { gateway, number: chance.next() },
                Kind::CutOff => Blow::CutOff { gateway, ms },
                Kind::StoreForward => Blow::Jump { by },
                Kind::StoreBack => Blow::Jump { by: -by },
                Kind::Expire => Blow::Expire,
                Kind::StoreLost
                | Kind::StoreErrors
                | Kind::StoreSlow
                | Kind::StoreTwice
                | Kind::UpstreamRefuses
                | Kind::UpstreamLost
                | Kind::UpstreamSlow
                | Kind::UpstreamErrors
                | Kind::Truncated
                | Kind::LongAnswer
                | Kind::Panic
                | Kind::Busy
                | Kind::HandlerTtl
                | Kind::ClientLost
                | Kind::RequestTwice
                | Kind::Disconnect
                | Kind::ClientCrash
                | Kind::OtherRequest
                | Kind::BadLookup => continue,
            };
            if options.kinds.has(kind) {
                blows.push((at, blow));
            }
        }
    }
    blows
}

async fn strike(stage: &Stage, gateways: &Gateways, blow: Blow) {
    let is_over = stage.with(|state| {
        state.faults += u64::from(!state.healed);
        state.healed
    });
    if is_over {
        return;
    }
    let until = |ms| stage.now_ms() + ms;
    match blow {
        Blow::Crash { gateway, down_ms } => {
            if crash(stage, gateways, gateway) {
                come_back(stage, gateways, gateway, down_ms).await;
            }
        }
        Blow::Pause { gateway, ms } => {
            if let Some(life) = gateways.life(gateway) {
                stage.record(What::Paused { gateway });
                life.pause_until(until(ms));
            }
        }
        Blow::Drain { gateway, patience_ms, linger_ms, down_ms } => {
            if drain(stage, gateways, gateway, patience_ms).await {
                // What would begin after this begins within this time.
                stage.sleep(linger_ms).await;
                // The healing has replaced it by then.
                let is_healed = stage.with(|state| state.healed);
                if !is_healed && crash(stage, gateways, gateway) {
                    come_back(stage, gateways, gateway, down_ms).await;
                }
            }
        }
        Blow::Reload { gateway, number } => {
            let reloaded =
                gateways.alive(gateway, |process| process.reload(stage.options(), number));
            if reloaded.is_some() {
                stage.record(What::Reloaded { gateway });
            }
        }
        Blow::CutOff { gateway, ms } => {
            if let Some(life) = gateways.life(gateway) {
                stage.record(What::CutOff { gateway });
                life.cut_off_until(until(ms));
            }
        }
        Blow::Jump { by } => stage.with(|state| {
            state.records.jump(by);
            state.record(What::Jumped { by });
        }),
        Blow::Expire => expire(stage).await,
    }
}

/// Kills a process, if it is alive.
fn crash(stage: &Stage, gateways: &Gateways, gateway: u8) -> bool {
    let process = gateways.with(|all| all.get_mut(usize::from(gateway)).and_then(Option::take));
    // Dropped outside of the lock: its upkeep ends with it.
    let Some(process) = process else { return false };
    stage.record(What::Crashed { gateway });
    process.life.die();
    true
}

async fn come_back(stage: &Stage, gateways: &Gateways, gateway: u8, down_ms: u64) {
    stage.sleep(down_ms).await;
    let is_down = gateways.with(|all| matches!(all.get(usize::from(gateway)), Some(None)))
        && !stage.with(|state| state.healed);
    if is_down {
        boot(stage, gateways, gateway);
    }
}

/// Tells a process to take nothing more, and waits as its owner would. False if it died meanwhile.
async fn drain(stage: &Stage, gateways: &Gateways, gateway: u8, patience_ms: u64) -> bool {
    let draining = gateways.alive(gateway, |process| {
        process.stop();
        (process.life.clone(), process.drain.clone())
    });
    let Some((life, drain)) = draining else { return false };
    stage.record(What::Drains { gateway });
    let waited = drain.wait(Duration::from_millis(patience_ms)).await;
    if life.is_dead() {
        return false;
    }
    let open = waited.err().map_or(0, |open| open as u16);
    stage.record(What::Drained { gateway, epoch: life.epoch, open });
    true
}

/// An operator ends the retention of what is completed.
async fn expire(stage: &Stage) {
    let engine = Engine::new(SimStore::new(stage, Asker::Outside(Role::Expirer)));
    let filter = Filter { standing: Some(Standing::Completed), ..Filter::default() };
    let query = Query { filter, after: None, limit: 100 };
    let Ok(page) = engine.store().scan(query).await else { return };
    for record in page.value.records {
        // What was reaped meanwhile is gone as well.
        let _ = engine.expire(record.id, None, "simulated").await;
    }
}

/// A person looks at what is unknown, asks around, and decides, rightly or not.
async fn operate_again_and_again(stage: Stage) {
    let lease = stage.options().lease_ms;
    let mut chance = stage.chance(&[80]);
    loop {
        let pause =
            if stage.with(|state| state.healed) { lease } else { lease * chance.between(2, 6) };
        stage.sleep(pause).await;
        operate(&stage, &mut chance).await;
    }
}

async fn operate(stage: &Stage, chance: &mut Chance) {
    let reader = SimStore::new(stage, Asker::Outside(Role::Reader));
    let filter = Filter { standing: Some(Standing::Unknown), ..Filter::default() };
    let Ok(page) = reader.scan(Query { filter, after: None, limit: 100 }).await else { return };
    for record in page.value.records {
        let fence = record.fence.0 as u32;
        let Some(key) = stage.with(|state| state.key_of(&record.id)) else { continue };
        let is_sure = stage.with(|state| state.healed);
        if !is_sure && chance.percent(60) {
            continue;
        }
        let effect = stage.with(|state| state.effect_of(key, fence));
        // People take their time between looking and deciding.
        stage.sleep(chance.scaled(1, stage.options().lease_ms)).await;
        let (evidence, found) = match effect {
            Some(exec) => {
                let status = stage.with(|state| state.remembered(exec)).status();
                let answer = Answer::NotKept { status, location: None };
                (Evidence::Executed(answer), Found::OperatorSaysDone)
            }
            None => (Evidence::NotExecuted(Proof::operator()), Found::OperatorSaysNot),
        };
        let role = Role::Judge { fence, evidence: found };
        let engine = Engine::new(SimStore::new(stage, Asker::Outside(role)));
        let verdict =
            Verdict { fence: record.fence, evidence, judge: Judge::Operator, reason: "".into() };
        // Somebody may have been faster.
        let _ = engine.resolve(record.id, &verdict).await;
    }
}

/// Everything is repaired.
fn heal(stage: &Stage, gateways: &Gateways) {
    stage.with(|state| {
        state.record(What::Healed);
        state.healed = true;
        let by = state.records.steady();
        if by != 0 {
            state.record(What::Jumped { by });
        }
    });
    let down: Vec<_> = gateways.with(|all| {
        for process in all.iter().flatten() {
            process.life.resume();
        }
        // A process that was told to stop is replaced as well.
        let serves = |slot: &Option<Process>| slot.as_ref().is_some_and(|it| it.accepts);
        let slots = all.iter().enumerate();
        slots.filter(|(_, slot)| !serves(slot)).map(|(at, _)| at as u8).collect()
    });
    for gateway in down {
        crash(stage, gateways, gateway);
        boot(stage, gateways, gateway);
    }
}

/// Waits until nothing is under way, or until it should have been long ago.
async fn rest(stage: &Stage, mut calls: JoinSet<()>) {
    let options = stage.options();
    let patience = Duration::from_millis(options.liveness_ms());
    let quiet = async {
        stage.sleep(options.lease_ms).await;
        while calls.join_next().await.is_some() {}
        // A second copy of a begin may arrive when its record is long gone, and makes another one.
        while !stage.with(|state| state.writes_on_the_way == 0 && is_decided(state, options)) {
            stage.sleep(options.lease_ms).await;
        }
    };
    // What is not quiet by then the checker finds.
    let _ = tokio::time::timeout(patience, quiet).await;
}

fn is_decided(state: &super::stage::State, options: &Options) -> bool {
    state.records.iter().all(|(_, record)| match record.standing() {
        Standing::Completed | Standing::FailedRetryable => true,
        Standing::InProgress => false,
        Standing::Unknown => !options.operator && is_dead_letter(record, options),
    })
}

fn is_dead_letter(record: &retrysafe_core::record::Record, options: &Options) -> bool {
    match record.state {
        retrysafe_core::record::State::Unknown { lookups, .. } => lookups >= options.lookups_max,
        retrysafe_core::record::State::InProgress { .. }
        | retrysafe_core::record::State::Completed { .. }
        | retrysafe_core::record::State::FailedRetryable { .. } => false,
    }
}

/// The last look: what is left to a person, and whether every process can stop.
async fn end(stage: &Stage, gateways: &Gateways) {
    let options = stage.options();
    let reader = SimStore::new(stage, Asker::Outside(Role::Reader));
    let dead = retrysafe::upkeep::dead_letters(&reader, &schedule(options), 100).await;
    for record in dead.unwrap_or_default() {
        stage.with(|state| {
            if let Some(key) = state.key_of(&record.id) {
                state.record(What::DeadLettered { key, fence: record.fence.0 as u32 });
            }
        });
    }
    for gateway in 0..options.gateways {
        drain(stage, gateways, gateway, options.liveness_ms()).await;
    }
    stage.record(What::Ended);
}
