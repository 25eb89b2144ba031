//! Does the promise survive everything at once?
//!
//! Callers, owners, a sweeper, a reaper, a judge and an operator act at random over a store that
//! fails at random. The case knows the truth, which no record knows: who is executing, and what has
//! happened. It plays one step at a time, so that a seed repeats a run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::samples::*;
use super::stand::{AnyStore, Stand};
use super::verdicts::{executed, not_executed};
use super::{Chance, Fault, Faulty, chance};
use crate::engine::{Begun, Engine, Lease, Ruled, Settled};
use crate::record::{Answer, Doubt, Fence, Outcome, Record, Standing};
use crate::store::Store as _;
use crate::time::Time;

/// How many steps one storm has. Every kind of fault and turn occurs dozens of times in it.
const STEPS: usize = 3_000;

/// How many keys there are: few, so that everybody meets.
const KEYS: usize = 5;

/// How many operations in a thousand fail.
const FAULTS_PER_MILLE: usize = 150;

/// All faults that leave the one task of a storm running.
const FAULTS: [Fault; 5] =
    [Fault::Refused, Fault::AnswerLost, Fault::RequestLost, Fault::RequestLate, Fault::Delayed];

/// At random over a faulty store, no generation executes more often than it was released, no effect
/// happens twice, every replay is the effect's answer, and in the end nothing is stuck.
pub(super) async fn a_storm_permits_no_second_effect(bench: Stand) {
    let seed = chance::seed();
    chance::repeatable(seed, async move { Storm::new(bench, seed).rage().await }).await;
}

/// A generation of a key, by the fence with which it was born.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Generation(usize, Fence);

/// What is true of a generation.
#[derive(Debug, Default)]
struct Story {
    granted: usize,
    released: usize,
    effects: Vec<Answer>,
}

/// The generation that a key was last seen in.
struct Latest {
    generation: Generation,
    /// From when on it may have expired, if it may have been settled.
    may_end: Option<Time>,
    /// Whether an operator has tried to end it early.
    by_hand: bool,
}

/// An owner and what it knows.
struct Owner {
    key: usize,
    generation: Generation,
    lease: Lease,
    /// None while it has not executed yet.
    outcome: Option<Outcome>,
}

struct Storm {
    bench: Stand,
    chance: Chance,
    engine: Engine<Arc<Faulty<AnyStore>>>,
    requests: Vec<Request>,
    owners: Vec<Owner>,
    /// Callers whose begin was ambiguous. They do not execute.
    withdrawing: Vec<(usize, u64)>,
    stories: BTreeMap<Generation, Story>,
    latest: BTreeMap<usize, Latest>,
    fences: BTreeMap<usize, Fence>,
    owner_numbers: u64,
    replays: usize,
    verdicts: usize,
}

impl Storm {
    fn new(bench: Stand, seed: u64) -> Self {
        let store = Faulty::seeded(bench.store(), seed, FAULTS_PER_MILLE, &FAULTS);
        Self {
            bench,
            chance: Chance::new(!seed),
            engine: Engine::new(Arc::new(store)),
            requests: (0..KEYS).map(|n| Request::new(&format!("storm{n}"))).collect(),
            owners: Vec::new(),
            withdrawing: Vec::new(),
            stories: BTreeMap::new(),
            latest: BTreeMap::new(),
            fences: BTreeMap::new(),
            owner_numbers: 0,
            replays: 0,
            verdicts: 0,
        }
    }

    async fn rage(&mut self) {
        for _ in 0..STEPS {
            let key = self.chance.below(KEYS);
            match self.chance.below(20) {
                0..=5 => self.begin(key).await,
                6..=8 => self.execute(),
                9..=11 => self.settle().await,
                12 => self.die(),
                13 => self.withdraw().await,
                14 => self.renew().await,
                15 => self.pass_time().await,
                16 => drop(self.engine.sweep(100).await),
                17 => drop(self.engine.reap(100).await),
                18 => self.judge(key).await,
                _ => self.expire(key).await,
            }
        }
        self.calm().await;
        for fault in FAULTS {
            assert!(self.engine.store().met(fault) > 0, "{fault:?} never struck");
        }
        assert!(self.replays > 0 && self.verdicts > 0, "nothing was replayed or judged");
        assert!(self.stories.len() > KEYS, "no key had a second generation");
        assert!(self.stories.values().any(|story| story.granted > 1), "nothing ran again");
    }

    /// When the faults end, every record leaves `in_progress`, and every unknown is decided.
    async fn calm(&mut self) {
        self.engine.store().heal();
        self.engine.store().land().await.expect("the store is healed");
        while !self.withdrawing.is_empty() {
            self.withdraw().await;
        }
        self.owners.clear();
        self.bench.advance(LEASE * 2).await;
        self.engine.sweep(100).await.expect("the store is healed");
        for key in 0..KEYS {
            self.judge(key).await;
            let request = self.requests[key].clone();
            let begun = request.begin(&self.engine, 0).await;
            assert!(matches!(begun, Begun::Execute(_) | Begun::Replay(..)), "stuck: {begun:?}");
        }
    }

    /// What is really stored, past all faults.
    async fn truth(&self, key: usize) -> (Option<Record>, Time) {
        let id = self.requests[key].id();
        let loaded = self.bench.store().load(id).await.expect("the store itself works");
        (loaded.value, loaded.now)
    }

    async fn generation(&self, key: usize) -> Option<Generation> {
        let (record, _) = self.truth(key).await;
        record.map(|record| Generation(key, record.timeline[0].fence))
    }

    async fn begin(&mut self, key: usize) {
        self.owner_numbers += 1;
        let owner = self.owner_numbers;
        let request = self.requests[key].clone();
        match self.engine.begin(&request.ask(owner)).await {
            Ok(Begun::Execute(lease)) => self.granted(key, lease).await,
            Ok(Begun::Replay(answer, _)) => {
                let generation = self.generation(key).await.expect("it was replayed");
                assert_eq!(self.stories[&generation].effects, [answer], "of {generation:?}");
                self.replays += 1;
            }
            Ok(Begun::InProgress(_) | Begun::Unknown(_)) => {}
            Ok(Begun::Mismatch | Begun::CredentialChanged | Begun::Held(_)) => {
                panic!("it is the same request")
            }
            Err(error) if error.may_have_applied() => self.withdrawing.push((key, owner)),
            Err(_) => {}
        }
    }

    async fn granted(&mut self, key: usize, lease: Lease) {
        let generation = self.generation(key).await.expect("it was granted");
        let now = self.truth(key).await.1;
        let executing =
            self.owners.iter().find(|owner| owner.key == key && owner.outcome.is_none());
        assert!(executing.is_none(), "two owners execute {generation:?} at once");
        if let Some(Latest { generation: before, may_end, by_hand }) = self.latest.get(&key)
            && *before != generation
        {
            let ended = *by_hand || may_end.is_some_and(|at| at <= now);
            assert!(ended, "{before:?} ended before {may_end:?}, at {now:?}");
        }
        let last = self.fences.insert(key, lease.fence());
        assert!(last.is_none_or(|fence| fence < lease.fence()), "a fence did not rise");
        let story = self.stories.entry(generation).or_default();
        story.granted += 1;
        assert!(story.granted <= 1 + story.released, "{generation:?} was not released: {story:?}");
        assert_eq!(story.effects, [], "{generation:?} has happened already");
        self.latest.insert(key, Latest { generation, may_end: None, by_hand: false });
        self.owners.push(Owner { key, generation, lease, outcome: None });
    }

    /// An owner executes: something happens or not, and it learns what, or not.
    fn execute(&mut self) {
        let Some(at) = self.some_owner() else { return };
        let turn = self.chance.below(4);
        let owner = &mut self.owners[at];
        if owner.outcome.is_some() {
            return;
        }
        let kept = answer(format!("{:?}", owner.lease.fence()));
        let story = self.stories.entry(owner.generation).or_default();
        if turn != 0 {
            story.effects.push(kept.clone());
            assert_eq!(story.effects.len(), 1, "{:?} happened twice", owner.generation);
        }
        owner.outcome = Some(match turn {
            0 if self.chance.happens(500) => Outcome::Retryable(None),
            0 | 1 => Outcome::Unknown(Doubt::AnswerLost),
            _ => Outcome::Completed(kept),
        });
    }

    async fn settle(&mut self) {
        let Some(at) = self.some_owner() else { return };
        let Owner { key, generation, lease, outcome } = self.owners.swap_remove(at);
        let Some(outcome) = outcome else {
            self.owners.push(Owner { key, generation, lease, outcome });
            return;
        };
        if matches!(outcome, Outcome::Retryable(_)) {
            self.release(generation);
        }
        match self.engine.settle(lease, &outcome).await {
            Ok(Settled::Done(record)) => self.acknowledged(key, &record),
            Ok(Settled::Lost { current, contradiction }) => {
                assert!(!contradiction, "all tell the truth: {outcome:?}, and {current:?}");
            }
            Err(unsettled) => {
                self.may_be_settled(key).await;
                let lease = unsettled.lease;
                self.owners.push(Owner { key, generation, lease, outcome: Some(outcome) });
            }
        }
    }

    fn die(&mut self) {
        if let Some(at) = self.some_owner() {
            self.owners.swap_remove(at);
        }
    }

    async fn withdraw(&mut self) {
        let Some((key, owner)) = self.withdrawing.pop() else { return };
        if let Some(generation) = self.generation(key).await {
            self.release(generation);
        }
        self.may_be_settled(key).await;
        let id = self.requests[key].id();
        if self.engine.withdraw(id, owner).await.is_err() {
            self.withdrawing.push((key, owner));
        }
    }

    async fn renew(&mut self) {
        let Some(at) = self.some_owner() else { return };
        let owner = &mut self.owners[at];
        let _renewed = self.engine.renew(owner.lease.renewal(), LEASE, LEASE * 5).await;
    }

    async fn pass_time(&mut self) {
        let lengths = [Duration::from_secs(1), LEASE / 2, LEASE * 2, TTL / 2, TTL * 2];
        let by = *self.chance.pick(&lengths);
        self.bench.advance(by).await;
    }

    /// Decides by the truth, and only where nobody can still make it untrue.
    async fn judge(&mut self, key: usize) {
        let (Some(record), _) = self.truth(key).await else { return };
        let generation = Generation(key, record.timeline[0].fence);
        let executing = self.owners.iter().any(|owner| owner.key == key && owner.outcome.is_none());
        if record.standing() != Standing::Unknown || executing {
            return;
        }
        let effects = self.stories.entry(generation).or_default().effects.clone();
        let verdict = match effects.into_iter().next() {
            Some(answer) => executed(record.fence, answer),
            None => {
                self.release(generation);
                not_executed(record.fence)
            }
        };
        self.may_be_settled(key).await;
        if let Ok(Ruled::Done(record)) = self.engine.resolve(record.id, &verdict).await {
            self.verdicts += 1;
            self.acknowledged(key, &record);
        }
    }

    async fn expire(&mut self, key: usize) {
        if !self.chance.happens(200) {
            return;
        }
        // Applied, not applied or late: from now on this generation may have ended.
        if let Some(latest) = self.latest.get_mut(&key) {
            latest.by_hand = true;
        }
        let _ruled = self.engine.expire(self.requests[key].id(), None, "at random").await;
    }

    fn release(&mut self, generation: Generation) {
        self.stories.entry(generation).or_default().released += 1;
    }

    fn acknowledged(&mut self, key: usize, record: &Record) {
        let generation = Generation(key, record.timeline[0].fence);
        if let Some(latest) = self.latest.get_mut(&key)
            && latest.generation == generation
            && let Some(at) = record.expires_at()
        {
            latest.may_end = Some(at);
        }
    }

    /// Whatever is tried now, the record may be settled by it.
    async fn may_be_settled(&mut self, key: usize) {
        let now = self.truth(key).await.1;
        if let Some(latest) = self.latest.get_mut(&key) {
            let end = now.plus(TTL);
            latest.may_end = Some(latest.may_end.map_or(end, |at| at.min(end)));
        }
    }

    fn some_owner(&mut self) -> Option<usize> {
        (!self.owners.is_empty()).then(|| self.chance.below(self.owners.len()))
    }
}
