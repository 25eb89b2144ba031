//! Does the promise hold in every order of events?
//!
//! An exhaustive check over the real [`machine::decide`], [`First::record`] and [`Write::onto`]: two
//! owners and two keys, every interleaving up to a bound on writes and time. A write is two steps,
//! as it is over a network: somebody reads and decides, and later the store compares the version
//! and swaps, or not, and the acknowledgement arrives, or not. In between anybody may move: owners
//! send, renew, crash and settle late, effects happen late, leases end, the sweeper, a judge with
//! evidence and the reaper go about their work. What an owner had sent when it crashed still
//! arrives.
//!
//! Two faults are planted, to see that the check would find them.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_enum_variant,
    clippy::result_large_err,
    reason = "a test fails by panicking, and its states are copied, not boxed"
)]

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use http::StatusCode;
use retrysafe_core::fingerprint::{Fingerprint, RulesId};
use retrysafe_core::machine::{self, Decision, Event, Evidence, Proof, Reply, Verdict};
use retrysafe_core::record::{
    About, Answer, Becomes, Doubt, Fence, First, Judge, Outcome, Record, Standing, State, Write,
};
use retrysafe_core::time::Time;
use retrysafe_core::{Id, Key, Scope};
use stateright::{Checker, HasDiscoveries, Model, Property};

/// Time passes in ticks of one millisecond; a lease takes one, a retention or all renewals two.
const LEASE: Duration = Duration::from_millis(1);
const TTL: Duration = Duration::from_millis(2);

/// What is explored, and which fault is planted.
struct Bounds {
    keys: u8,
    owners: u8,
    begins_max: u8,
    versions_max: u8,
    ticks_max: u8,
    fault: Option<Fault>,
    /// What some step has reached. It is no part of a state: the same state reached in another way
    /// is still the same.
    reached: Arc<AtomicU8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The next caller executes when a lease is over.
    EndedLeaseRuns,
    /// An owner uses the same number for all its begins.
    NumberReused,
}

/// A record, or a write, as a part of a state. Timelines are left out: nothing is decided by them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept(Record);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pending {
    key: u8,
    version: u64,
    write: Write,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Everything {
    now: u8,
    version: u8,
    /// How many begins there were: each has a number of its own.
    begins: u8,
    places: Vec<Place>,
    owners: Vec<Owner>,
    sweeper: Option<Pending>,
    judge: TheJudge,
    /// What a crashed owner had sent to the store.
    orphan: Option<Pending>,
    broken: Option<Broken>,
}

/// A key: its record, and what the world behind the handlers knows of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct Place {
    record: Option<Kept>,
    generation: u8,
    fence_max: u8,
    /// Requests that were sent and may still take effect: fence and generation.
    under_way: Vec<(u8, u8)>,
    effects: Vec<(u8, u8)>,
    burnt: u8,
    /// Until when the completed record must be there.
    promised_until: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Owner {
    Idle,
    Beginning {
        number: u8,
        pending: Pending,
    },
    /// A begin may have been applied; the owner has not executed and will not.
    Doubtful {
        key: u8,
        number: u8,
        pending: Option<Pending>,
    },
    Holding {
        key: u8,
        generation: u8,
        lease: Kept,
        phase: Phase,
        pending: Option<Pending>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Granted,
    Sent,
    Knows(End),
}

/// How an execution ended, for its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum End {
    Executed,
    NotExecuted,
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum TheJudge {
    Free,
    Knows { key: u8, fence: u8, executed: bool },
    Writing { key: u8, fence: u8, executed: bool, pending: Pending },
}

/// What must never happen, where it shows in a step and not in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Broken {
    FenceDidNotRise,
    RunningOrUnknownExecuted,
    DecisionFlipped,
}

/// What must be reached, or the check proves nothing.
#[derive(Clone, Copy)]
enum Reached {
    LateSettle = 1,
    LateSettleRefused = 2,
    UnknownExecuted = 4,
    ReleasedRuns = 8,
    SecondGeneration = 16,
    OrphanApplied = 32,
    Withdrawn = 64,
    StaleVerdictRefused = 128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Tick,
    Begin { owner: u8, key: u8, acknowledged: bool },
    Withdraw { owner: u8 },
    Send { owner: u8 },
    GiveUp { owner: u8 },
    DoNotSend { owner: u8 },
    Renew { owner: u8 },
    Settle { owner: u8 },
    Swap { owner: u8, acknowledged: bool },
    Crash { owner: u8 },
    Effect { key: u8, at: u8, told: bool },
    Refuse { key: u8, at: u8 },
    Sweep { key: u8 },
    SweeperSwaps,
    LookUp { key: u8 },
    Rule,
    JudgeSwaps,
    OrphanArrives,
    Reap { key: u8 },
}

impl Hash for Kept {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.0.version, self.0.fence, self.0.attempts).hash(hasher);
        match &self.0.state {
            State::InProgress { owner, begun_at, lease_until } => {
                (0, *owner, *begun_at, *lease_until).hash(hasher);
            }
            State::Completed { answer, expires_at, .. } => {
                (1, answer.status(), *expires_at).hash(hasher);
            }
            State::FailedRetryable { expires_at, .. } => (2, *expires_at).hash(hasher),
            State::Unknown { since, .. } => (3, *since).hash(hasher),
        }
    }
}

impl Hash for Pending {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.key, self.version, self.write.new_fence).hash(hasher);
        match &self.write.becomes {
            Becomes::Begun { owner, .. } => (0, *owner).hash(hasher),
            Becomes::Renewed { .. } => 1.hash(hasher),
            Becomes::Completed(answer) => (2, answer.status()).hash(hasher),
            Becomes::FailedRetryable => 3.hash(hasher),
            Becomes::Unknown(_) => 4.hash(hasher),
            Becomes::Same | Becomes::LookedUp | Becomes::Expired => 5.hash(hasher),
        }
    }
}

/// The answer of the execution that began with a fence: its status tells the fence.
fn answer(fence: u8) -> Answer {
    let status = StatusCode::from_u16(200 + u16::from(fence)).unwrap();
    Answer::NotKept { status: Some(status), location: None }
}

fn first(key: u8, owner: u8) -> First {
    let scope = Scope::of([]);
    let digest = Key::new(&format!("k{key}")).unwrap().digest();
    First {
        id: Id::of(&scope, &digest),
        scope,
        key: digest,
        fingerprint: Fingerprint::from_parts(1, RulesId::from_bytes([0; 8]), [0; 32]),
        about: About::default(),
        ttl: TTL,
        lease: LEASE,
        owner: u64::from(owner),
    }
}

impl Everything {
    fn clock(&self) -> Time {
        Time::from_ms(u64::from(self.now))
    }

    fn record(&self, key: u8) -> Option<&Record> {
        self.places[usize::from(key)].record.as_ref().map(|kept| &kept.0)
    }

    /// The store's swap. The record after it, if the version had not changed.
    fn swap(&mut self, pending: &Pending) -> Option<Record> {
        let now = self.clock();
        let before = self.record(pending.key).filter(|it| it.version == pending.version)?.clone();
        self.version += 1;
        let mut after = pending.write.onto(&before, now, u64::from(self.version));
        after.timeline.clear();
        let begun = matches!(pending.write.becomes, Becomes::Begun { .. });
        match before.standing() {
            Standing::Completed if after.state != before.state => {
                self.broken = Some(Broken::DecisionFlipped);
            }
            Standing::FailedRetryable if !begun => self.broken = Some(Broken::DecisionFlipped),
            Standing::InProgress | Standing::Unknown if begun => {
                self.broken = Some(Broken::RunningOrUnknownExecuted);
            }
            Standing::Completed
            | Standing::FailedRetryable
            | Standing::InProgress
            | Standing::Unknown => {}
        }
        let promised = after.expires_at().map_or(0, |at| at.as_ms() as u8);
        let place = &mut self.places[usize::from(pending.key)];
        if after.standing() == Standing::Completed {
            place.promised_until = promised;
        }
        place.record = Some(Kept(after.clone()));
        if begun {
            self.grant(pending.key, after.fence);
        }
        Some(after)
    }

    fn grant(&mut self, key: u8, fence: Fence) {
        let place = &mut self.places[usize::from(key)];
        if fence.0 <= u64::from(place.fence_max) {
            self.broken = Some(Broken::FenceDidNotRise);
        }
        place.fence_max = fence.0 as u8;
    }

    /// The store's insert: the new record, or the one that is there.
    fn insert(&mut self, key: u8, owner: u8, model: &Bounds) -> Result<Record, Record> {
        let now = self.clock();
        if let Some(record) = self.record(key).filter(|record| !record.is_expired(now)) {
            return Err(record.clone());
        }
        self.version += 1;
        let mut record = first(key, owner).record(now, u64::from(self.version));
        record.timeline.clear();
        let place = &mut self.places[usize::from(key)];
        place.record = Some(Kept(record.clone()));
        place.generation += 1;
        place.promised_until = 0;
        if place.generation > 1 {
            model.reach(Reached::SecondGeneration);
        }
        self.grant(key, record.fence);
        Ok(record)
    }

    fn holds(&self, key: u8, record: Record) -> Owner {
        let generation = self.places[usize::from(key)].generation;
        let (lease, phase) = (Kept(record), Phase::Granted);
        Owner::Holding { key, generation, lease, phase, pending: None }
    }

    /// What an owner does with the answer to its swap.
    fn answered(&mut self, owner: u8, acknowledged: bool, model: &Bounds) {
        let at = usize::from(owner);
        let was = std::mem::replace(&mut self.owners[at], Owner::Idle);
        self.owners[at] = match was {
            Owner::Idle => Owner::Idle,
            Owner::Beginning { number, pending } => match (self.swap(&pending), acknowledged) {
                (Some(record), true) if record.standing() == Standing::InProgress => {
                    model.reach(Reached::ReleasedRuns);
                    self.holds(pending.key, record)
                }
                (Some(_) | None, true) => Owner::Idle,
                (_, false) => Owner::Doubtful { key: pending.key, number, pending: None },
            },
            Owner::Doubtful { key, number, pending } => {
                let done = pending.is_some_and(|pending| self.swap(&pending).is_some());
                if done {
                    model.reach(Reached::Withdrawn);
                }
                match done && acknowledged {
                    true => Owner::Idle,
                    false => Owner::Doubtful { key, number, pending: None },
                }
            }
            Owner::Holding { key, generation, lease, phase, pending } => {
                let late = self.record(key).is_some_and(|it| it.standing() == Standing::Unknown);
                let swapped = pending.as_ref().and_then(|pending| self.swap(pending));
                let settled = !matches!(
                    pending.map(|pending| pending.write.becomes),
                    Some(Becomes::Renewed { .. })
                );
                match (swapped, acknowledged) {
                    (Some(_), true) if settled => {
                        if late {
                            model.reach(Reached::LateSettle);
                        }
                        Owner::Idle
                    }
                    (Some(record), true) => Owner::Holding {
                        key,
                        generation,
                        lease: Kept(record),
                        phase,
                        pending: None,
                    },
                    // It looks again at what is there now.
                    (None, true) => match self.record(key).cloned() {
                        Some(current) => {
                            let lease = Kept(Record { fence: lease.0.fence, ..current });
                            Owner::Holding { key, generation, lease, phase, pending: None }
                        }
                        None => Owner::Idle,
                    },
                    (_, false) => Owner::Holding { key, generation, lease, phase, pending: None },
                }
            }
        };
    }
}

impl Bounds {
    fn new(
        keys: u8,
        begins_max: u8,
        versions_max: u8,
        ticks_max: u8,
        fault: Option<Fault>,
    ) -> Self {
        Self {
            keys,
            owners: 2,
            begins_max,
            versions_max,
            ticks_max,
            fault,
            reached: Arc::default(),
        }
    }

    fn reach(&self, what: Reached) {
        self.reached.fetch_or(what as u8, Ordering::Relaxed);
    }

    fn decide(&self, record: Option<&Record>, event: &Event<'_>, now: Time) -> Decision {
        let decision = machine::decide(record, event, now);
        match (self.fault, event, &decision, record) {
            (
                Some(Fault::EndedLeaseRuns),
                Event::Begin { owner, lease, .. },
                Decision::Write(Write { becomes: Becomes::Unknown(Doubt::LeaseEnded), .. }),
                _,
            ) => Decision::Write(Write {
                becomes: Becomes::Begun { owner: *owner, lease: *lease },
                new_fence: true,
                what: None,
                ttl: None,
            }),
            _ => decision,
        }
    }

    /// What somebody decides about a record that it has read, as a write under way.
    fn pend(
        &self,
        record: &Record,
        key: u8,
        event: &Event<'_>,
        now: Time,
    ) -> Result<Pending, Reply> {
        match self.decide(Some(record), event, now) {
            Decision::Write(mut write) => {
                write.what = None;
                Ok(Pending { key, version: record.version, write })
            }
            Decision::Stands(reply) => Err(reply),
            Decision::Insert => Err(Reply::Absent),
        }
    }

    fn begin(&self, state: &mut Everything, owner: u8, key: u8, acknowledged: bool) -> Option<()> {
        let at = usize::from(owner);
        state.begins += 1;
        // A number that is used twice would withdraw what another attempt is executing.
        let number = match self.fault {
            Some(Fault::NumberReused) => owner,
            Some(_) | None => state.begins,
        };
        match state.insert(key, number, self) {
            Ok(record) => {
                state.owners[at] = match acknowledged {
                    true => state.holds(key, record),
                    false => Owner::Doubtful { key, number, pending: None },
                };
            }
            Err(record) => {
                if !acknowledged {
                    return None;
                }
                let event =
                    Event::Begin { same_request: true, owner: u64::from(number), lease: LEASE };
                let pending = self.pend(&record, key, &event, state.clock()).ok()?;
                state.owners[at] = Owner::Beginning { number, pending };
            }
        }
        Some(())
    }

    fn settle(&self, state: &mut Everything, owner: u8) -> Option<()> {
        let now = state.clock();
        let at = usize::from(owner);
        let Owner::Holding { key, lease, phase: Phase::Knows(end), pending, .. } =
            &mut state.owners[at]
        else {
            return None;
        };
        let fence = lease.0.fence;
        let outcome = match end {
            End::Executed => Outcome::Completed(answer(fence.0 as u8)),
            End::NotExecuted => Outcome::Retryable(None),
            End::Unknown => Outcome::Unknown(Doubt::AnswerLost),
        };
        let event = Event::Settle { fence, outcome: &outcome, ttl: None };
        // What it read last may have another fence by now; its own is the one it began with.
        let current = state.places[usize::from(*key)].record.as_ref().map(|kept| &kept.0);
        let seen = current.filter(|it| it.version == lease.0.version).unwrap_or(&lease.0);
        match self.pend(seen, *key, &event, now) {
            Ok(write) => *pending = Some(write),
            Err(reply) => {
                state.owners[at] = Owner::Idle;
                if reply != Reply::Repeated {
                    self.reach(Reached::LateSettleRefused);
                }
            }
        }
        Some(())
    }

    fn rule(&self, state: &mut Everything) -> Option<()> {
        let TheJudge::Knows { key, fence, executed } = state.judge else { return None };
        let evidence = match executed {
            true => Evidence::Executed(answer(fence)),
            false => Evidence::NotExecuted(Proof::burnt()),
        };
        let about = Fence(u64::from(fence));
        let verdict =
            Verdict { fence: about, evidence, judge: Judge::Reconciler, reason: "".into() };
        let now = state.clock();
        let pending = state
            .record(key)
            .map(|record| (record.clone(), self.pend(record, key, &Event::Resolve(&verdict), now)));
        state.judge = match pending {
            Some((_, Ok(pending))) => TheJudge::Writing { key, fence, executed, pending },
            Some((record, Err(_))) => {
                if record.standing() == Standing::Unknown {
                    self.reach(Reached::StaleVerdictRefused);
                }
                TheJudge::Free
            }
            None => TheJudge::Free,
        };
        Some(())
    }

    fn step(&self, state: &mut Everything, step: Step) -> Option<()> {
        match step {
            Step::Tick => state.now += 1,
            Step::Begin { owner, key, acknowledged } => {
                return self.begin(state, owner, key, acknowledged);
            }
            Step::Withdraw { owner } => {
                let Owner::Doubtful { key, number, .. } = state.owners[usize::from(owner)] else {
                    return None;
                };
                let event = Event::Withdraw { owner: u64::from(number) };
                let write = self.pend(state.record(key)?, key, &event, state.clock()).ok()?;
                state.owners[usize::from(owner)] =
                    Owner::Doubtful { key, number, pending: Some(write) };
            }
            Step::Send { owner } => {
                let Owner::Holding { key, generation, lease, phase, .. } =
                    &mut state.owners[usize::from(owner)]
                else {
                    return None;
                };
                *phase = Phase::Sent;
                let sent = (lease.0.fence.0 as u8, *generation);
                state.places[usize::from(*key)].under_way.push(sent);
            }
            Step::DoNotSend { owner } => self.learn(state, owner, End::NotExecuted)?,
            Step::GiveUp { owner } => self.learn(state, owner, End::Unknown)?,
            Step::Renew { owner } => {
                let now = state.clock();
                let Owner::Holding { key, lease, pending, .. } =
                    &mut state.owners[usize::from(owner)]
                else {
                    return None;
                };
                let event = Event::Renew { fence: lease.0.fence, lease: LEASE, lease_max: TTL };
                *pending = Some(self.pend(&lease.0, *key, &event, now).ok()?);
            }
            Step::Settle { owner } => return self.settle(state, owner),
            Step::Swap { owner, acknowledged } => state.answered(owner, acknowledged, self),
            Step::Crash { owner } => {
                let crashed = std::mem::replace(&mut state.owners[usize::from(owner)], Owner::Idle);
                state.orphan = match crashed {
                    Owner::Idle => return None,
                    Owner::Beginning { pending, .. } => Some(pending),
                    Owner::Doubtful { pending, .. } | Owner::Holding { pending, .. } => pending,
                };
            }
            Step::Effect { key, at, told } => {
                let place = &mut state.places[usize::from(key)];
                let sent = place.under_way.remove(usize::from(at));
                let bounces = sent.0 <= place.burnt;
                if !bounces {
                    place.effects.push(sent);
                }
                let end = if bounces { End::NotExecuted } else { End::Executed };
                if told {
                    self.tell(state, key, sent.0, end);
                }
            }
            Step::Refuse { key, at } => {
                let sent = state.places[usize::from(key)].under_way.remove(usize::from(at));
                self.tell(state, key, sent.0, End::NotExecuted);
            }
            Step::Sweep { key } => {
                let now = state.clock();
                state.sweeper =
                    Some(self.pend(state.record(key)?, key, &Event::LeaseCheck, now).ok()?);
            }
            Step::SweeperSwaps => {
                let pending = state.sweeper.take()?;
                state.swap(&pending);
            }
            Step::LookUp { key } => {
                let fence = state.record(key)?.fence.0 as u8;
                let place = &mut state.places[usize::from(key)];
                let executed = place.effects.iter().any(|(with, _)| *with == fence);
                if !executed {
                    place.burnt = place.burnt.max(fence);
                }
                state.judge = TheJudge::Knows { key, fence, executed };
            }
            Step::Rule => return self.rule(state),
            Step::JudgeSwaps => {
                let TheJudge::Writing { key, fence, executed, pending } = state.judge.clone()
                else {
                    return None;
                };
                state.judge = match state.swap(&pending) {
                    Some(_) => TheJudge::Free,
                    None => TheJudge::Knows { key, fence, executed },
                };
                if executed && state.judge == TheJudge::Free {
                    self.reach(Reached::UnknownExecuted);
                }
            }
            Step::OrphanArrives => {
                let pending = state.orphan.take()?;
                if state.swap(&pending).is_some() {
                    self.reach(Reached::OrphanApplied);
                }
            }
            Step::Reap { key } => {
                let now = state.clock();
                state.record(key).filter(|record| record.is_expired(now))?;
                let place = &mut state.places[usize::from(key)];
                (place.record, place.promised_until) = (None, 0);
            }
        }
        Some(())
    }

    fn learn(&self, state: &mut Everything, owner: u8, end: End) -> Option<()> {
        let Owner::Holding { phase, .. } = &mut state.owners[usize::from(owner)] else {
            return None;
        };
        *phase = Phase::Knows(end);
        Some(())
    }

    /// The upstream's answer reaches whoever waits for it, if anybody does.
    fn tell(&self, state: &mut Everything, key: u8, fence: u8, end: End) {
        for owner in &mut state.owners {
            if let Owner::Holding { key: of, lease, phase: phase @ Phase::Sent, .. } = owner
                && (*of, lease.0.fence.0) == (key, u64::from(fence))
            {
                *phase = Phase::Knows(end);
            }
        }
    }

    fn steps_of(&self, owner: u8, state: &Everything, steps: &mut Vec<Step>) {
        let mut may_swap = |pending: &Option<Pending>| {
            if pending.is_some() {
                steps.extend([true, false].map(|acknowledged| Step::Swap { owner, acknowledged }));
            }
            pending.is_some()
        };
        match &state.owners[usize::from(owner)] {
            Owner::Idle => {
                for key in 0..self.keys {
                    steps.extend([true, false].map(|acknowledged| Step::Begin {
                        owner,
                        key,
                        acknowledged,
                    }));
                }
                return;
            }
            Owner::Beginning { .. } => {
                steps.extend([true, false].map(|acknowledged| Step::Swap { owner, acknowledged }));
            }
            Owner::Doubtful { pending, .. } => {
                if !may_swap(pending) {
                    steps.push(Step::Withdraw { owner });
                }
            }
            Owner::Holding { phase, pending, .. } => {
                let busy = may_swap(pending);
                match phase {
                    Phase::Granted => {
                        steps.extend([Step::Send { owner }, Step::DoNotSend { owner }]);
                    }
                    Phase::Sent if !busy => {
                        steps.extend([Step::GiveUp { owner }, Step::Renew { owner }]);
                    }
                    Phase::Knows(_) if !busy => steps.push(Step::Settle { owner }),
                    Phase::Sent | Phase::Knows(_) => {}
                }
            }
        }
        steps.push(Step::Crash { owner });
    }
}

impl Model for Bounds {
    type State = Everything;
    type Action = Step;

    fn init_states(&self) -> Vec<Everything> {
        vec![Everything {
            now: 0,
            version: 0,
            begins: 0,
            places: vec![Place::default(); usize::from(self.keys)],
            owners: vec![Owner::Idle; usize::from(self.owners)],
            sweeper: None,
            judge: TheJudge::Free,
            orphan: None,
            broken: None,
        }]
    }

    fn actions(&self, state: &Everything, steps: &mut Vec<Step>) {
        steps.push(Step::Tick);
        for owner in 0..self.owners {
            self.steps_of(owner, state, steps);
        }
        for key in 0..self.keys {
            let place = &state.places[usize::from(key)];
            for at in 0..place.under_way.len() as u8 {
                steps.extend([true, false].map(|told| Step::Effect { key, at, told }));
                steps.push(Step::Refuse { key, at });
            }
            match state.record(key).map(Record::standing) {
                Some(Standing::InProgress) if state.sweeper.is_none() => {
                    steps.push(Step::Sweep { key });
                }
                Some(Standing::Unknown) if state.judge == TheJudge::Free => {
                    steps.push(Step::LookUp { key });
                }
                Some(_) => steps.push(Step::Reap { key }),
                None => {}
            }
        }
        if state.sweeper.is_some() {
            steps.push(Step::SweeperSwaps);
        }
        match state.judge {
            TheJudge::Free => {}
            TheJudge::Knows { .. } => steps.push(Step::Rule),
            TheJudge::Writing { .. } => steps.push(Step::JudgeSwaps),
        }
        if state.orphan.is_some() {
            steps.push(Step::OrphanArrives);
        }
    }

    fn next_state(&self, last: &Everything, step: Step) -> Option<Everything> {
        let mut next = last.clone();
        self.step(&mut next, step)?;
        Some(next)
    }

    fn within_boundary(&self, state: &Everything) -> bool {
        state.version <= self.versions_max
            && state.now <= self.ticks_max
            && state.begins <= self.begins_max
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "at most one effect per generation",
                |_: &Self, state: &Everything| {
                    state.places.iter().all(|place| {
                        let of = |generation| {
                            place.effects.iter().filter(move |(_, of)| *of == generation).count()
                        };
                        (1..=place.generation).all(|generation| of(generation) <= 1)
                    })
                },
            ),
            Property::always(
                "a completed record is kept until it expires",
                |_: &Self, state: &Everything| {
                    state.places.iter().all(|place| {
                        let completed = |kept: &Kept| kept.0.standing() == Standing::Completed;
                        place.promised_until <= state.now
                            || place.record.as_ref().is_some_and(completed)
                    })
                },
            ),
            Property::always("a decision is never flipped", |_: &Self, state: &Everything| {
                state.broken != Some(Broken::DecisionFlipped)
            }),
            Property::always(
                "no caller gets from running or unknown to execution",
                |_: &Self, state: &Everything| {
                    state.broken != Some(Broken::RunningOrUnknownExecuted)
                },
            ),
            Property::always("fences rise", |_: &Self, state: &Everything| {
                state.broken != Some(Broken::FenceDidNotRise)
            }),
        ]
    }
}

/// The promise above all.
const ONE_EFFECT: &str = "at most one effect per generation";

/// As many as the machines have that run this; more would only take turns.
const THREADS: usize = 2;

/// Explores everything within the bounds, and says how much that was and what was broken first.
fn explore(bounds: Bounds, until: HasDiscoveries) -> (usize, Vec<&'static str>, u8) {
    let reached = Arc::clone(&bounds.reached);
    let checker = bounds.checker().threads(THREADS).finish_when(until).spawn_bfs().join();
    let broken: Vec<&'static str> = checker.discoveries().into_keys().collect();
    let states = checker.unique_state_count();
    println!("{states} states, {} steps deep, broken: {broken:?}", checker.max_depth());
    (states, broken, reached.load(Ordering::Relaxed))
}

#[test]
fn nothing_is_broken_in_any_order_of_two_owners_and_two_keys() {
    let (states, broken, _) = explore(Bounds::new(2, 2, 3, 1, None), HasDiscoveries::AnyFailures);
    assert_eq!(broken, Vec::<&str>::new());
    assert!(states >= 100_000, "{states} states");
}

#[test]
fn nothing_is_broken_when_leases_end_and_records_expire_and_all_of_it_is_reached() {
    let (states, broken, reached) =
        explore(Bounds::new(1, 2, 5, 2, None), HasDiscoveries::AnyFailures);
    assert_eq!(broken, Vec::<&str>::new());
    assert!(states >= 100_000, "{states} states");
    assert_eq!(reached, u8::MAX, "something was never reached: {reached:08b}");
}

/// The double execution itself, whatever else a fault breaks on the way to it.
fn twice() -> HasDiscoveries {
    HasDiscoveries::AllOf([ONE_EFFECT].into())
}

#[test]
fn an_ended_lease_that_runs_again_is_found_to_execute_twice() {
    let (_, broken, _) = explore(Bounds::new(1, 2, 5, 2, Some(Fault::EndedLeaseRuns)), twice());
    assert!(broken.contains(&ONE_EFFECT), "{broken:?}");
}

#[test]
fn a_number_used_for_two_begins_is_found_to_execute_twice() {
    let (_, broken, _) = explore(Bounds::new(1, 3, 6, 2, Some(Fault::NumberReused)), twice());
    assert!(broken.contains(&ONE_EFFECT), "{broken:?}");
}
