//! What is there, and what can happen next?
//!
//! The real rules decide over the real [`Effect`]; everything around them is small. The store's clock always shows
//! [`NOW`]: a tick moves every time that lies ahead one step nearer instead, so that the states stay finite however long
//! a history is. Fences are renamed for the same reason: only "the present one" and "an earlier one" matter.

use std::time::Duration;

use retrysafe_core::effect::{
    BeforeFirstByte, Claimed, DeliveryLimits, Effect, EffectEnd, EffectEvidence, EffectState,
    Finished, Marked, SentMark, may_send,
};
use retrysafe_core::record::Fence;
use retrysafe_core::time::Time;

const NOW: Time = Time::from_ms(1_000_000);

/// The fence of whoever holds the effect now, and of everybody before.
const PRESENT: Fence = Fence(10);
const FORMER: Fence = Fence(1);

const LIMITS: DeliveryLimits = DeliveryLimits { failures_max: 2, crashes_max: 2 };

const RETRY_AFTER: Duration = Duration::from_millis(1);

/// What one search is about. Lengths are ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub is_keyed: bool,
    pub lease: u8,
    pub deadline: u8,
    /// How long a packet may be on its way at the most, beyond its deadline.
    pub longest_way: u8,
    /// How long the receiver remembers a key.
    pub window: u8,
    /// How long before that nothing is sent any more.
    pub margin: u8,
    pub settle_time: u8,
    pub fault: Option<Fault>,
}

/// A rule that is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nobody looks at lease and memory before the first byte.
    NoCheckBeforeWire,
    /// The mark is written after the answer.
    MarkAfterSending,
    /// Each delivery moves the time of the first one.
    MarkMoves,
    /// Writes name the fence that is there.
    NoFence,
    /// An ended lease frees the effect, whatever was sent, and its mark with it.
    StaleIsForgotten,
    /// An effect without a key is sent again.
    UnkeyedIsResent,
    /// "No effect" clears any mark.
    NoEffectClearsAnyMark,
    /// Too many failures are the end, also after a sending.
    DeadAfterSending,
    /// What was sent can be cancelled.
    CancelsWhatWasSent,
    /// Too many failures are the end, also after a sending; and what is dead can be requeued at any time.
    RequeuePastMemory,
    /// "Not known" counts at once.
    NoSettleTime,
    /// Somebody says that it had no effect while its packet may be on its way, and gives it up.
    UnwantedTooEarly,
    /// A live lease can be claimed.
    ClaimsLiveLease,
    /// Nobody looks at ended leases.
    NoSweeper,
    /// A pause between the check and the packet, which no rule excludes.
    PauseAfterCheck,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub effect: Effect,
    /// How often the receiver has done it.
    pub done: u8,
    /// For how long the receiver will remember that it has done it.
    memory: u8,
    /// Whether the receiver refuses it. What it has refused for good it will refuse again.
    has_refused: bool,
    /// A packet whose sender is gone: for how long it may still arrive.
    orphan: u8,
    workers: [Worker; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Worker {
    stage: Stage,
    fence: Fence,
    lease_left: u8,
    resend_left: Option<u8>,
    elapsed: u8,
    /// For how long its packet may still arrive.
    packet: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    Idle,
    Claimed,
    Marked,
    Checked,
    OnTheWire,
    Confirmed,
    Refused,
    NotSent,
    NoAnswer,
}

const IDLE: Worker = Worker {
    stage: Stage::Idle,
    fence: Fence(0),
    lease_left: 0,
    resend_left: None,
    elapsed: 0,
    packet: 0,
};

/// Whether a step is needed for things to come to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Own,
    /// A failure, or somebody's decision.
    Optional,
}

pub(super) type Step = (World, &'static str, Kind);

impl Setting {
    pub(super) fn keyed() -> Self {
        Self {
            is_keyed: true,
            lease: 3,
            deadline: 1,
            longest_way: 1,
            window: 8,
            margin: 5,
            settle_time: 6,
            fault: None,
        }
    }

    pub(super) fn unkeyed() -> Self {
        Self { is_keyed: false, ..Self::keyed() }
    }

    pub(super) fn with(self, fault: Fault) -> Self {
        Self { fault: Some(fault), ..self }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn resend_for(&self) -> Option<Duration> {
        self.is_keyed.then(|| ticks(self.window.saturating_sub(self.margin)))
    }
}

fn ticks(number: u8) -> Duration {
    Duration::from_millis(u64::from(number))
}

/// How many ticks lie between now and a time.
fn ahead(time: Time) -> u8 {
    u8::try_from(NOW.until(time).as_millis()).unwrap_or(u8::MAX)
}

fn nearer(time: Time) -> Time {
    NOW.plus(ticks(ahead(time).saturating_sub(1)))
}

impl World {
    pub(super) fn first() -> Self {
        Self {
            effect: Effect::staged(EffectState::Ready(NOW)),
            done: 0,
            memory: 0,
            has_refused: false,
            orphan: 0,
            workers: [IDLE; 2],
        }
    }

    /// Whether nothing is under way, and the effect is where it may stay.
    pub(super) fn rests(&self) -> bool {
        let may_stay = match self.effect.state {
            EffectState::Delivered
            | EffectState::Unknown(_)
            | EffectState::Cancelled
            | EffectState::Dead => true,
            EffectState::Waiting | EffectState::Ready(_) | EffectState::Leased(_) => false,
        };
        may_stay && self.workers.iter().all(|it| it.stage == Stage::Idle) && self.orphan == 0
    }

    fn with_worker(mut self, at: usize, worker: Worker) -> Self {
        self.workers[at] = worker;
        self
    }

    fn with_effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// A packet reaches the receiver.
    fn arrives(mut self, setting: &Setting) -> Self {
        let is_remembered = setting.is_keyed && self.memory > 0;
        if !is_remembered && !self.has_refused {
            self.done = (self.done + 1).min(2);
            self.memory = if setting.is_keyed { setting.window } else { 0 };
        }
        self
    }

    /// A packet whose sender does not wait for it any more.
    fn abandoned(mut self, packet: u8) -> Self {
        if packet > 0 {
            self.orphan = packet;
        }
        self
    }

    fn has_room(&self) -> bool {
        self.orphan == 0
    }

    /// Renames fences and forgets what cannot matter any more.
    fn settled_names(mut self) -> Self {
        let present = self.effect.fence;
        let rename = |fence: Fence| if fence == present { PRESENT } else { FORMER };
        for worker in &mut self.workers {
            worker.fence = rename(worker.fence);
            worker.elapsed = worker.elapsed.min(worker.lease_left);
            let is_before_check = matches!(worker.stage, Stage::Claimed | Stage::Marked);
            if !is_before_check {
                *worker = Worker { lease_left: 0, resend_left: None, elapsed: 0, ..*worker };
            }
            if worker.stage == Stage::Idle {
                *worker = Worker { fence: FORMER, ..IDLE };
            }
        }
        // Who holds which number does not matter.
        self.workers.sort_unstable();
        if let Some(mark) = &mut self.effect.mark {
            mark.set_by = rename(mark.set_by);
            mark.last_by = rename(mark.last_by);
        }
        self.effect.fence = PRESENT;
        self.effect.failures = self.effect.failures.min(LIMITS.failures_max);
        self.effect.crashes = self.effect.crashes.min(LIMITS.crashes_max);
        self
    }

    fn tick(mut self) -> Self {
        self.effect.state = match self.effect.state {
            EffectState::Ready(due) => EffectState::Ready(nearer(due)),
            EffectState::Leased(until) => EffectState::Leased(nearer(until)),
            EffectState::Unknown(since) => {
                let passed = NOW.since(since).as_millis() as u64 + 1;
                EffectState::Unknown(Time::from_ms(NOW.as_ms() - passed.min(8)))
            }
            other @ (EffectState::Waiting
            | EffectState::Delivered
            | EffectState::Cancelled
            | EffectState::Dead) => other,
        };
        if let Some(SentMark { resend_until: Some(until), .. }) = &mut self.effect.mark {
            *until = nearer(*until);
        }
        self.memory = self.memory.saturating_sub(1);
        self.orphan = self.orphan.saturating_sub(1);
        for worker in &mut self.workers {
            worker.elapsed = worker.elapsed.saturating_add(1);
            worker.packet = worker.packet.saturating_sub(1);
        }
        self
    }
}

/// Everything that can happen next.
pub(super) fn successors(setting: &Setting, world: &World, steps: &mut Vec<Step>) {
    steps.clear();
    let mut add = |next: World, name, kind| steps.push((next.settled_names(), name, kind));
    time_passes(setting, world, &mut add);
    others_act(setting, world, &mut add);
    for at in 0..world.workers.len() {
        worker_acts(setting, world, at, &mut add);
    }
}

type Add<'a> = &'a mut dyn FnMut(World, &'static str, Kind);

fn time_passes(setting: &Setting, world: &World, add: Add<'_>) {
    // A packet arrives in its time or never.
    let is_due = |packet: u8| packet == 1;
    let is_waited_for =
        is_due(world.orphan) || world.workers.iter().any(|worker| is_due(worker.packet));
    let is_between = world.workers.iter().any(|worker| worker.stage == Stage::Checked);
    if !is_waited_for && (!is_between || setting.has(Fault::PauseAfterCheck)) {
        add(world.tick(), "tick", Kind::Own);
    }
    if world.orphan > 0 {
        let gone = World { orphan: 0, ..*world };
        add(gone.arrives(setting), "a late packet arrives", Kind::Own);
        add(gone, "a late packet is lost", Kind::Optional);
    }
}

fn others_act(setting: &Setting, world: &World, add: Add<'_>) {
    let effect = &world.effect;
    if let Some(swept) = effect.sweep(&LIMITS, NOW)
        && !setting.has(Fault::NoSweeper)
    {
        let forgets = setting.has(Fault::StaleIsForgotten);
        let resends = setting.has(Fault::UnkeyedIsResent) && !setting.is_keyed;
        let was_leased = matches!(effect.state, EffectState::Leased(_));
        let freed = Effect { state: EffectState::Ready(NOW), mark: None, ..swept };
        let next = if was_leased && (forgets || resends) { freed } else { swept };
        add(world.with_effect(next), "the sweeper", Kind::Own);
    }
    if matches!(effect.state, EffectState::Unknown(_)) {
        let settle_time = if setting.has(Fault::NoSettleTime) {
            Duration::ZERO
        } else {
            ticks(setting.settle_time)
        };
        let evidence = if world.done > 0 {
            EffectEvidence::Delivered
        } else {
            EffectEvidence::Absent { settle_time }
        };
        if let Ok(decided) = effect.resolve(evidence, NOW) {
            add(world.with_effect(decided), "evidence", Kind::Optional);
        }
        // Whoever says that it had no effect, and cannot have one any more, has waited for its last packet.
        let is_sure = world.done == 0 && effect.resolve(evidence, NOW).is_ok();
        if (is_sure || setting.has(Fault::UnwantedTooEarly))
            && let Ok(given_up) = effect.resolve(EffectEvidence::Unwanted, NOW)
        {
            add(world.with_effect(given_up), "nobody wants it any more", Kind::Optional);
        }
    }
    let requeued = match (effect.requeue(NOW), effect.state) {
        (Ok(requeued), _) => Some(requeued),
        (Err(_), EffectState::Dead) if setting.has(Fault::RequeuePastMemory) => {
            Some(Effect { state: EffectState::Ready(NOW), mark: None, failures: 0, ..*effect })
        }
        (Err(_), _) => None,
    };
    if let Some(requeued) = requeued {
        add(world.with_effect(requeued), "an operator requeues", Kind::Optional);
    }
    let cancelled = if setting.has(Fault::CancelsWhatWasSent) {
        Effect { mark: None, ..*effect }.cancel()
    } else {
        effect.cancel()
    };
    if let Ok(cancelled) = cancelled {
        add(world.with_effect(cancelled), "cancelled", Kind::Optional);
    }
}

fn worker_acts(setting: &Setting, world: &World, at: usize, add: Add<'_>) {
    let worker = world.workers[at];
    let idle = |world: World| world.with_worker(at, IDLE);
    let into = |stage: Stage| world.with_worker(at, Worker { stage, ..worker });
    if worker.stage != Stage::Idle && (world.has_room() || worker.packet == 0) {
        add(idle(world.abandoned(worker.packet)), "a worker dies", Kind::Optional);
    }
    let fence = if setting.has(Fault::NoFence) { world.effect.fence } else { worker.fence };
    if matches!(worker.stage, Stage::Claimed | Stage::Marked | Stage::Checked)
        && let Some(back) = world.effect.hand_back(fence, NOW)
    {
        add(idle(world.with_effect(back)), "a worker hands back", Kind::Optional);
    }
    match worker.stage {
        Stage::Idle => claims(setting, world, at, add),
        Stage::Claimed => marks(setting, world, at, fence, add),
        Stage::Marked => {
            let before = BeforeFirstByte {
                lease_left: ticks(worker.lease_left),
                resend_left: worker.resend_left.map(ticks),
                elapsed: ticks(worker.elapsed),
                deadline: ticks(setting.deadline),
            };
            let may_send = may_send(&before) || setting.has(Fault::NoCheckBeforeWire);
            add(into(if may_send { Stage::Checked } else { Stage::NotSent }), "checks", Kind::Own);
        }
        Stage::Checked => {
            let packet = setting.deadline + setting.longest_way + 1;
            let sent = Worker { stage: Stage::OnTheWire, packet, ..worker };
            add(world.with_worker(at, sent), "sends", Kind::Own);
            add(into(Stage::NotSent), "cannot connect", Kind::Optional);
        }
        Stage::OnTheWire => waits(setting, world, at, add),
        Stage::Confirmed => finishes(setting, world, at, fence, EffectEnd::Delivered, add),
        Stage::Refused => finishes(setting, world, at, fence, EffectEnd::Rejected, add),
        Stage::NotSent => {
            let end = EffectEnd::NoEffect { retry_after: RETRY_AFTER };
            finishes(setting, world, at, fence, end, add);
        }
        Stage::NoAnswer => {
            let end = EffectEnd::NoAnswer { retry_after: RETRY_AFTER };
            finishes(setting, world, at, fence, end, add);
        }
    }
}

fn claims(setting: &Setting, world: &World, at: usize, add: Add<'_>) {
    let effect = match world.effect.state {
        EffectState::Leased(_) if setting.has(Fault::ClaimsLiveLease) => {
            Effect { state: EffectState::Ready(NOW), ..world.effect }
        }
        _ => world.effect,
    };
    match effect.claim(ticks(setting.lease), NOW) {
        Claimed::Leased(effect) => {
            let worker = Worker {
                stage: Stage::Claimed,
                fence: effect.fence,
                lease_left: setting.lease,
                ..IDLE
            };
            add(world.with_effect(effect).with_worker(at, worker), "claims", Kind::Own);
            add(world.with_effect(effect), "claims, and does not hear of it", Kind::Optional);
        }
        Claimed::Unknown(effect) => {
            add(world.with_effect(effect), "claims what is past its memory", Kind::Own);
        }
        Claimed::NotReady => {}
    }
}

fn marks(setting: &Setting, world: &World, at: usize, fence: Fence, add: Add<'_>) {
    let worker = world.workers[at];
    if setting.has(Fault::MarkAfterSending) {
        let resend_left = setting.resend_for().map(|left| left.as_millis() as u8);
        let next = Worker { stage: Stage::Marked, resend_left, ..worker };
        return add(world.with_worker(at, next), "goes on without a mark", Kind::Own);
    }
    let mut effect = world.effect;
    if setting.has(Fault::MarkMoves) && effect.mark.is_some_and(|mark| mark.permits(NOW)) {
        effect.mark = None;
    }
    if setting.has(Fault::UnkeyedIsResent) && !setting.is_keyed {
        effect.mark = None;
    }
    match effect.mark(fence, setting.resend_for(), NOW) {
        Marked::Stands(effect) => {
            let lease_left = match effect.state {
                EffectState::Leased(until) => ahead(until),
                _ => 0,
            };
            let resend_left = effect.mark.and_then(|mark| mark.resend_until).map(ahead);
            let next =
                Worker { stage: Stage::Marked, lease_left, resend_left, elapsed: 0, ..worker };
            let marked = world.with_effect(effect);
            add(marked.with_worker(at, next), "marks", Kind::Own);
            add(marked.with_worker(at, IDLE), "marks, and does not hear of it", Kind::Optional);
        }
        Marked::Unknown(effect) => {
            add(world.with_effect(effect).with_worker(at, IDLE), "marks too late", Kind::Own);
        }
        Marked::Lost => add(world.with_worker(at, IDLE), "has lost it", Kind::Own),
    }
}

fn waits(setting: &Setting, world: &World, at: usize, add: Add<'_>) {
    let worker = world.workers[at];
    let into = |stage: Stage| Worker { stage, packet: 0, ..worker };
    if worker.packet == 0 {
        return add(world.with_worker(at, into(Stage::NoAnswer)), "hears nothing", Kind::Own);
    }
    let answered = if world.has_refused { Stage::Refused } else { Stage::Confirmed };
    add(world.with_worker(at, into(answered)).arrives(setting), "is answered", Kind::Own);
    let lost = world.with_worker(at, into(Stage::NoAnswer));
    add(lost.arrives(setting), "arrives, and its answer is lost", Kind::Optional);
    add(lost, "its packet is lost", Kind::Optional);
    if world.has_room() {
        add(lost.abandoned(worker.packet), "gives up waiting", Kind::Optional);
    }
    // A receiver that has done it does not refuse it.
    if world.done == 0 && !world.has_refused {
        let refused = World { has_refused: true, ..world.with_worker(at, into(Stage::Refused)) };
        add(refused, "is refused for good", Kind::Optional);
    }
    if let Some(renewed) = world.effect.renew(worker.fence, ticks(setting.lease), NOW) {
        add(world.with_effect(renewed), "renews", Kind::Optional);
    }
}

fn finishes(
    setting: &Setting,
    world: &World,
    at: usize,
    fence: Fence,
    end: EffectEnd,
    add: Add<'_>,
) {
    let mut effect = world.effect;
    let has_no_effect = matches!(end, EffectEnd::NoEffect { .. });
    if has_no_effect && setting.has(Fault::NoEffectClearsAnyMark) && effect.fence == fence {
        effect.mark = None;
    }
    let finished = effect.finish(fence, end, &LIMITS, NOW);
    let idle = world.with_worker(at, IDLE);
    match finished {
        Finished::Changed(mut changed) => {
            let is_failure = !matches!(end, EffectEnd::Delivered | EffectEnd::Rejected);
            let gives_up =
                setting.has(Fault::DeadAfterSending) || setting.has(Fault::RequeuePastMemory);
            if gives_up && is_failure && changed.failures >= LIMITS.failures_max {
                changed.state = EffectState::Dead;
            }
            add(idle.with_effect(changed), "says how it ended", Kind::Own);
            add(world.with_effect(changed), "says so, and does not hear of it", Kind::Optional);
            add(idle, "cannot say how it ended", Kind::Optional);
        }
        Finished::Repeated | Finished::Lost => add(idle, "is not heard", Kind::Own),
    }
}
