//! What is a history of effects made of?
//!
//! Transactions stage effects, one to three workers deliver them, and a nemesis breaks all of it. The rules are the
//! core's ([`retrysafe_core::effect`]): inside the [table](crate::effects::table), and in each worker before its first
//! byte. What carries them out is written anew here; the loop that ships runs in the other simulator. It asks more
//! freely than that one: questions of one worker overtake each other.
//!
//! * [`worker`]: what a worker does. [`wire`]: what goes wrong between it and the store.
//! * [`packets`]: what goes wrong between it and a receiver. [`nemesis`]: what happens when, and who decides.

mod nemesis;
mod packets;
mod wire;
mod worker;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use retrysafe_core::time::Time;

use self::nemesis::{Blow, Finding};
use self::packets::Packet;
use self::wire::Ask;
use self::worker::WorkerProcess;
use super::cost::Cost;
use crate::chance::Chance;
use crate::effect_plan::EffectPlan;
use crate::effects::Planted;
use crate::effects::receiver::Receivers;
use crate::effects::table::EffectTable;
use crate::history::{EffectEvent, Entry, STORE_EPOCH_MS, What};
use crate::options::{Kind, Options};

/// More events than any history has: one that runs away ends, and is found to be stuck.
const EVENTS_MAX: u64 = 200_000;

/// Plays histories of effects, one after the other, with the same memory.
pub struct EffectWorld {
    options: Options,
    plan: EffectPlan,
    planted: Planted,
    chance: Chance,
    now: u64,
    order: u64,
    due: BinaryHeap<Reverse<(u64, u64, Event)>>,
    log: Vec<Entry>,
    events: u64,
    faults: u64,
    healed_at: Option<u64>,
    is_over: bool,
    /// By how much the store's clock is off.
    clock_offset: i64,
    /// By how much it was turned back, all in all.
    turned_back_ms: u64,
    table: EffectTable,
    receivers: Receivers,
    workers: Vec<WorkerProcess>,
    asks: Vec<Ask>,
    packets: Vec<Packet>,
    blows: Vec<Blow>,
    findings: Vec<Finding>,
}

/// What is due to happen. Workers are named with the life that it belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Stages { lane: Option<u8>, kind: u8, delay_ms: u64 },
    Commits { effect: u8, is_committed: bool },
    Wakes { worker: u8 },
    Looks { worker: u8, epoch: u16, is_hint: bool },
    Sweeps { worker: u8, epoch: u16 },
    Renews { worker: u8, epoch: u16 },
    Tells { worker: u8, epoch: u16 },
    Checks { worker: u8, epoch: u16, effect: u8, fence: u32 },
    AskArrives(u16),
    AskAnswered(u16),
    AskFails(u16),
    PacketArrives(u16),
    PacketWorks(u16),
    AnswerArrives(u16),
    DeadlinePasses(u16),
    Boots(u8),
    Resumes(u8),
    Stops { worker: u8, epoch: u16 },
    Strikes(u16),
    Operates,
    Decides(u16),
    Heals,
    Watches,
}

impl EffectWorld {
    pub fn new() -> Self {
        let options = Options::of(0, None, None);
        let mut chance = Chance::of(0, 0);
        Self {
            plan: EffectPlan::draw(&mut chance, options.lease_ms),
            options,
            planted: Planted::default(),
            chance,
            now: 0,
            order: 0,
            due: BinaryHeap::with_capacity(256),
            log: Vec::with_capacity(1_024),
            events: 0,
            faults: 0,
            healed_at: None,
            is_over: false,
            clock_offset: 0,
            turned_back_ms: 0,
            table: EffectTable::default(),
            receivers: Receivers::default(),
            workers: Vec::new(),
            asks: Vec::new(),
            packets: Vec::new(),
            blows: Vec::new(),
            findings: Vec::new(),
        }
    }

    /// Plays one history, and hands its log to `judge`.
    pub fn run<R>(
        &mut self,
        options: &Options,
        plan: EffectPlan,
        judge: impl FnOnce(&[Entry]) -> R,
    ) -> (R, Cost) {
        self.reset(options, plan);
        while let Some(Reverse((at, _, event))) = self.due.pop() {
            self.now = at;
            self.events += 1;
            self.happens(event);
            self.take_events();
            if self.is_over || self.events > EVENTS_MAX {
                break;
            }
        }
        self.record(What::Ended);
        let cost = Cost { events: self.events, faults: self.faults, ms: self.now };
        (judge(&self.log), cost)
    }

    fn reset(&mut self, options: &Options, plan: EffectPlan) {
        self.options = options.clone();
        self.plan = plan;
        self.planted = Planted(options.fault);
        self.chance = Chance::of(options.seed, 5);
        (self.now, self.order, self.events, self.faults) = (0, 0, 0, 0);
        (self.healed_at, self.is_over) = (None, false);
        (self.clock_offset, self.turned_back_ms) = (0, 0);
        self.due.clear();
        self.log.clear();
        self.table.reset(self.planted);
        self.receivers.clear();
        self.workers.clear();
        self.asks.clear();
        self.packets.clear();
        self.blows.clear();
        self.findings.clear();
        self.set_up();
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Stages { lane, kind, delay_ms } => self.stages(lane, kind, delay_ms),
            Event::Commits { effect, is_committed } => self.commits(effect, is_committed),
            Event::Wakes { worker } => self.wakes(worker),
            Event::Looks { worker, epoch, is_hint } => self.looks(worker, epoch, is_hint),
            Event::Sweeps { worker, epoch } => self.sweeps(worker, epoch),
            Event::Renews { worker, epoch } => self.renews(worker, epoch),
            Event::Tells { worker, epoch } => self.tells(worker, epoch),
            Event::Checks { worker, epoch, effect, fence } => {
                self.checks(worker, epoch, effect, fence);
            }
            Event::AskArrives(ask) => self.ask_arrives(ask),
            Event::AskAnswered(ask) => self.ask_answered(ask),
            Event::AskFails(ask) => self.ask_fails(ask),
            Event::PacketArrives(packet) => self.packet_arrives(packet),
            Event::PacketWorks(packet) => self.packet_works(packet),
            Event::AnswerArrives(packet) => self.answer_arrives(packet),
            Event::DeadlinePasses(packet) => self.deadline_passes(packet),
            Event::Boots(worker) => self.boots(worker),
            Event::Resumes(worker) => self.resumes(worker),
            Event::Stops { worker, epoch } => self.stops(worker, epoch),
            Event::Strikes(blow) => self.strikes(blow),
            Event::Operates => self.operates(),
            Event::Decides(finding) => self.decides(finding),
            Event::Heals => self.heals(),
            Event::Watches => self.watches(),
        }
    }

    fn record(&mut self, what: What) {
        self.log.push(Entry { at: self.now, what });
    }

    fn note(&mut self, event: EffectEvent) {
        self.record(What::Outbox(event));
    }

    /// Writes down what the table has done.
    fn take_events(&mut self) {
        let at = self.now;
        let events = self.table.events.drain(..);
        self.log.extend(events.map(|event| Entry { at, what: What::Outbox(event) }));
    }

    fn at(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.due.push(Reverse((at, self.order, event)));
    }

    fn after(&mut self, ms: u64, event: Event) {
        self.at(self.now + ms, event);
    }

    /// What the store's clock shows.
    fn store_now(&self) -> Time {
        Time::from_ms((STORE_EPOCH_MS + self.now).saturating_add_signed(self.clock_offset))
    }

    /// Whether a fault of this kind strikes now. After the healing none does.
    fn strike(&mut self, kind: Kind, percent: u64) -> bool {
        let strikes = self.healed_at.is_none()
            && self.options.kinds.has(kind)
            && self.chance.percent(percent);
        self.faults += u64::from(strikes);
        strikes
    }
}
