//! When does what go wrong, and when is it repaired?
//!
//! Calls come in bursts around their keys, and blows fall around calls: a crash in an idle hour
//! shows nothing. After the last call everything heals, each key is called once more, and upkeep
//! runs on a schedule, so that the second phase can ask whether anything is stuck.

use std::time::Duration;

use retrysafe_core::flow::ResumeRule;
use retrysafe_core::policy::Absence;
use retrysafe_core::record::{Record, Standing};
use retrysafe_core::retry::Patience;

use super::client::Call;
use super::gateway::Process;
use super::notices::KeptNotice;
use super::{Doomed, Event, Job, Tick, World};
use crate::fault::Fault;
use crate::history::What;
use crate::options::{Kind, NAMES, Profile, SCOPES};
use crate::provider_plan::{MONTH_MS, SCHEDULE_MS};

/// A blow of the nemesis.
#[derive(Clone, Copy)]
pub enum Blow {
    Crash { gateway: u8, down_ms: u64 },
    Pause { gateway: u8, ms: u64 },
    Stray { gateway: u8, by: i64, freeze: bool },
    CutOff { gateway: u8, ms: u64 },
    Jump { by: i64 },
    Flush,
    FailOver { lag_ms: u64, behind_ms: u64 },
}

impl World {
    /// Boots the gateways and plans the history.
    pub fn set_up(&mut self) {
        for gateway in 0..self.options.gateways {
            self.gateways.push(Process::default());
            self.boots(gateway);
        }
        let (starts, last) = self.plan_calls();
        let end = self.plan_blows(&starts).max(last);
        let mut end = end.max(self.plan_upkeep(&starts));
        if self.options.provider.is_some() {
            end = end.max(self.plan_schedule(&starts));
        }
        let pause = self.chance.between(1, 2 * self.options.lease_ms);
        self.at(end + pause, Event::Heals);
    }

    /// Calls in bursts: at once, within a lease, after it, around the end of the retention.
    fn plan_calls(&mut self) -> (Vec<u64>, u64) {
        let (lease, ttl) = (self.options.lease_ms, self.options.ttl_ms);
        let mut last_of = [None::<u64>; 32];
        let mut starts = Vec::with_capacity(16);
        for _ in 0..self.options.calls {
            let scope = self.chance.below(u64::from(self.options.scopes)) as u8;
            let name = self.chance.below(u64::from(self.options.names)) as u8;
            let key = scope * NAMES + name;
            let Some(last) = last_of.get_mut(usize::from(key)) else { continue };
            let start = match *last {
                None if self.options.provider.is_some() => self.chance.below(MONTH_MS),
                None => self.chance.below(lease),
                Some(last) => {
                    last + match self.chance.below(10) {
                        0..3 => self.chance.below(20),
                        3..5 => self.chance.below(lease),
                        5..7 => lease + self.chance.below(3 * lease),
                        7 => ttl.saturating_sub(lease) + self.chance.below(2 * lease),
                        8 => ttl + self.chance.below(ttl / 2),
                        _ => self.chance.scaled(1, ttl),
                    }
                }
            };
            *last = Some(start);
            starts.push(start);
            let print = u8::from(self.strike(Kind::OtherRequest, 25));
            let patience = Patience {
                attempts_max: self.chance.between(1, 5) as u32,
                pause: Duration::from_millis(self.chance.scaled(20, lease)),
                pause_max: Duration::from_millis(2 * lease),
                deadline: Duration::from_millis(12 * lease),
            };
            let attempt_ms = self.chance.scaled(300, 3 * lease);
            self.call_at(
                start,
                Call { key, print, patience, attempt_ms, answered: false, ended: false },
            );
        }
        let last = starts.iter().copied().max().unwrap_or_default();
        (starts, last)
    }

    fn call_at(&mut self, at: u64, call: Call) {
        let number = self.calls.len() as u16;
        self.calls.push(call);
        self.at(at, Event::CallStarts(number));
    }

    /// A moment around a call.
    fn around(&mut self, starts: &[u64]) -> u64 {
        let at = self.chance.below(starts.len() as u64) as usize;
        let spread = self.chance.scaled(2, 4 * self.options.lease_ms);
        starts.get(at).copied().unwrap_or_default() + spread
    }

    /// Blows around calls. Says when the last one falls.
    fn plan_blows(&mut self, starts: &[u64]) -> u64 {
        let (lease, ttl) = (self.options.lease_ms, self.options.ttl_ms);
        let mut last = 0;
        let kinds = self.options.kinds;
        for kind in kinds.iter() {
            for _ in 0..self.chance.between(1, 2) {
                let gateway = self.chance.below(u64::from(self.options.gateways)) as u8;
                let blow = match kind {
                    Kind::Crash => {
                        Blow::Crash { gateway, down_ms: self.chance.scaled(10, 2 * lease) }
                    }
                    Kind::Pause => Blow::Pause { gateway, ms: self.pause_ms() },
                    Kind::GatewayClock => Blow::Stray {
                        gateway,
                        by: self.chance.between(0, 20 * lease) as i64 - 10 * lease as i64,
                        freeze: self.chance.percent(40),
                    },
                    Kind::CutOff => {
                        Blow::CutOff { gateway, ms: self.chance.scaled(100, 3 * lease) }
                    }
                    Kind::StoreForward => {
                        // Where there is a cache the clocks stay within its margin, all in all.
                        let far = match self.options.profile {
                            Profile::Cached => self.options.cache_margin_ms() / 2,
                            Profile::Durable | Profile::SingleOwner | Profile::FailOver => {
                                self.chance.pick(2 * lease, &[2 * ttl])
                            }
                        };
                        Blow::Jump { by: self.chance.scaled(1, far) as i64 }
                    }
                    Kind::StoreBack => {
                        // What a provider is said to remember rests on clocks that are not far apart.
                        let far = match self.options.flow {
                            Some(flow) => flow.skew_ms / 4,
                            None => self.chance.pick(2 * lease, &[ttl]),
                        };
                        Blow::Jump { by: -(self.chance.scaled(1, far) as i64) }
                    }
                    Kind::Flush => Blow::Flush,
                    Kind::StoreLost
                    | Kind::StoreLate
                    | Kind::StoreTwice
                    | Kind::UpstreamRefuses
                    | Kind::UpstreamLost
                    | Kind::UpstreamSlow
                    | Kind::UpstreamErrors
                    | Kind::Truncated
                    | Kind::TooLarge
                    | Kind::Panic
                    | Kind::AnswerLost
                    | Kind::Disconnect
                    | Kind::OtherRequest
                    | Kind::Expire => continue,
                };
                last = last.max(self.blow_around(starts, blow));
            }
        }
        if self.options.profile == Profile::FailOver {
            // The replica is behind, and so is its clock at times.
            let lag_ms = self.chance.scaled(5, lease);
            let behind_ms = self.chance.below(self.options.clock_apart_max_ms());
            last = last.max(self.blow_around(starts, Blow::FailOver { lag_ms, behind_ms }));
        }
        last
    }

    fn blow_around(&mut self, starts: &[u64], blow: Blow) -> u64 {
        let at = self.around(starts);
        let number = self.plan.len() as u16;
        self.plan.push(blow);
        self.at(at, Event::Strikes(number));
        at
    }

    /// Rounds of upkeep around calls. Says when the last one runs.
    fn plan_upkeep(&mut self, starts: &[u64]) -> u64 {
        let mut last = 0;
        for _ in 0..self.chance.between(3, 9) {
            let completes = self.options.flow.is_some() && self.chance.percent(30);
            let tick = match self.chance.below(8) {
                _ if completes => Tick::Complete,
                0..3 => Tick::Sweep,
                3..6 => Tick::Reconcile,
                6 => Tick::Reap,
                _ => Tick::Operate,
            };
            let tick = match tick {
                Tick::Operate if !self.options.operator => Tick::Sweep,
                Tick::Sweep | Tick::Reap | Tick::Reconcile | Tick::Operate | Tick::Complete => tick,
            };
            let at = self.around(starts)
                + match tick {
                    Tick::Reap => self.options.ttl_ms,
                    Tick::Sweep | Tick::Reconcile | Tick::Operate | Tick::Complete => 0,
                };
            last = last.max(at);
            let gateway = self.chance.below(u64::from(self.options.gateways)) as u8;
            self.at(at, Event::Tick(tick, gateway));
            if tick == Tick::Reconcile {
                last = last.max(self.reconcile_again(at, gateway));
            }
        }
        last
    }

    /// Reconcilers ask by their schedule after every call. Says when the last one does.
    fn plan_schedule(&mut self, starts: &[u64]) -> u64 {
        let mut last = 0;
        for start in starts {
            let gateway = self.chance.below(u64::from(self.options.gateways)) as u8;
            let mut at = *start + self.chance.below(2 * self.options.lease_ms);
            self.at(at, Event::Tick(Tick::Sweep, gateway));
            for pause in SCHEDULE_MS {
                at += pause + self.chance.below(pause / 4);
                self.at(at, Event::Tick(Tick::Reconcile, gateway));
                last = last.max(self.reconcile_again(at, gateway)).max(at);
            }
        }
        last
    }

    /// A second reconciler may be at it at the same time; and where an absence is proof, the same
    /// one comes back when it is ripe.
    fn reconcile_again(&mut self, at: u64, gateway: u8) -> u64 {
        if self.chance.percent(30) {
            let by = self.chance.below(30);
            self.at(at + by, Event::Tick(Tick::Reconcile, (gateway + 1) % self.options.gateways));
        }
        if self.options.absence != Absence::Proof {
            return at;
        }
        let ripe = at + self.options.settle_ms() + self.chance.below(self.options.lease_ms);
        self.at(ripe, Event::Tick(Tick::Reconcile, gateway));
        ripe
    }

    /// A grant has arrived: the moment at which a crash or a pause does the most harm.
    pub fn struck_at_grant(&mut self, gateway: u8) {
        let lease = self.options.lease_ms;
        let blow = if self.strike(Kind::Crash, 2) {
            Blow::Crash { gateway, down_ms: self.chance.scaled(10, 2 * lease) }
        } else if self.strike(Kind::Pause, if self.options.sleepers { 25 } else { 4 }) {
            Blow::Pause { gateway, ms: self.pause_ms() }
        } else {
            return;
        };
        let number = self.plan.len() as u16;
        self.plan.push(blow);
        let ms = self.chance.scaled(1, 60);
        self.after(ms, Event::Strikes(number));
    }

    /// A flow is between two of its steps: the same, at a moment of its own.
    pub fn struck_in_flow(&mut self, gateway: u8) {
        let lease = self.options.lease_ms;
        let blow = if self.strike(Kind::Crash, 3) {
            Blow::Crash { gateway, down_ms: self.chance.scaled(10, 2 * lease) }
        } else if self.strike(Kind::Pause, 4) {
            Blow::Pause { gateway, ms: self.pause_ms() }
        } else {
            return;
        };
        let number = self.plan.len() as u16;
        self.plan.push(blow);
        let ms = self.chance.scaled(1, 30);
        self.after(ms, Event::Strikes(number));
    }

    /// Short, or so long that everything is decided when the gateway wakes up.
    fn pause_ms(&mut self) -> u64 {
        let lease = self.options.lease_ms;
        let short = self.chance.scaled(50, 4 * lease);
        let long = self.chance.between(6 * lease, 14 * lease);
        self.chance.pick(short, &[short, long])
    }

    pub fn strikes(&mut self, number: u16) {
        if self.healed_at.is_some() {
            return;
        }
        let Some(blow) = self.plan.get(usize::from(number)).copied() else { return };
        self.faults += 1;
        match blow {
            Blow::Crash { gateway, down_ms } => self.crashes(gateway, down_ms),
            Blow::Pause { gateway, ms } => {
                if let Some(process) = self.gateways.get_mut(usize::from(gateway))
                    && process.up
                    && !process.paused
                {
                    process.paused = true;
                    self.record(What::Paused { gateway });
                    self.after(ms, Event::Resumes(gateway));
                }
            }
            Blow::Stray { gateway, by, freeze } => {
                let now = self.now;
                if let Some(process) = self.gateways.get_mut(usize::from(gateway)) {
                    process.astray_ms = by;
                    process.frozen_at = freeze.then_some(now);
                    self.record(What::Strayed { gateway });
                }
            }
            Blow::CutOff { gateway, ms } => {
                let until = self.now + ms;
                if let Some(process) = self.gateways.get_mut(usize::from(gateway)) {
                    process.cut_off_until = until;
                    self.record(What::CutOff { gateway });
                }
            }
            Blow::Jump { by } => {
                self.store.jump(by);
                self.record(What::Jumped { by });
            }
            Blow::Flush => {
                self.cache.flush();
                self.record(What::Flushed);
            }
            Blow::FailOver { lag_ms, behind_ms } => {
                self.record(What::FailedOver);
                self.store.fail_over(self.now.saturating_sub(lag_ms), self.now, &mut self.log);
                let by = -(behind_ms as i64);
                self.store.jump(by);
                self.record(What::Jumped { by });
            }
        }
    }

    fn crashes(&mut self, gateway: u8, down_ms: u64) {
        let Some(process) = self.gateways.get_mut(usize::from(gateway)) else { return };
        if !process.up {
            return;
        }
        process.up = false;
        process.paused = false;
        process.held.clear();
        process.seen.clear();
        process.version_seen = 0;
        self.record(What::Crashed { gateway });
        self.doomed.push(Doomed::Gateway(gateway));
        for conn in 0..self.conns.len() {
            if self.conns.get(conn).is_some_and(|conn| conn.gateway == gateway) {
                self.reset_conn(conn as u16);
            }
        }
        self.after(down_ms, Event::Boots(gateway));
    }

    pub fn boots(&mut self, gateway: u8) {
        let Some(process) = self.gateways.get_mut(usize::from(gateway)) else { return };
        if process.up {
            return;
        }
        process.up = true;
        process.epoch += 1;
        let epoch = process.epoch;
        self.record(What::Booted { gateway, epoch });
        if self.options.profile == Profile::SingleOwner && epoch > 1 {
            self.store.reopen(self.now, &mut self.log);
        }
        if self.options.fault == Some(Fault::ResumesOldFence) && epoch > 1 {
            let execs: Vec<_> = self.execs_of(gateway).collect();
            self.jobs.extend(execs.into_iter().map(|exec| Job::Resume { gateway, exec }));
        }
    }

    pub fn resumes(&mut self, gateway: u8) {
        if let Some(process) = self.gateways.get_mut(usize::from(gateway))
            && process.paused
        {
            process.paused = false;
            self.ready.append(&mut process.held);
            self.record(What::Resumed { gateway });
        }
    }

    /// Everything is repaired, and every key is called once more.
    pub fn heals(&mut self) {
        self.record(What::Healed);
        self.healed_at = Some(self.now);
        for gateway in 0..self.options.gateways {
            self.boots(gateway);
            self.resumes(gateway);
            if let Some(process) = self.gateways.get_mut(usize::from(gateway)) {
                (process.astray_ms, process.frozen_at) = (0, None);
            }
        }
        let by = self.store.steady();
        if by != 0 {
            self.record(What::Jumped { by });
        }
        let lease = self.options.lease_ms;
        for scope in 0..self.options.scopes {
            for name in 0..self.options.names {
                let patience = Patience {
                    attempts_max: u32::MAX,
                    pause: Duration::from_millis(lease / 4),
                    pause_max: Duration::from_millis(lease),
                    deadline: Duration::from_millis(self.options.liveness_ms()),
                };
                let at = self.now + self.chance.below(lease);
                let key = scope * NAMES + name;
                let attempt_ms = 4 * lease;
                self.call_at(
                    at,
                    Call { key, print: 0, patience, attempt_ms, answered: false, ended: false },
                );
            }
        }
        self.after(lease, Event::Watches);
    }

    /// A round of upkeep after the healing; the end, if all is decided or time is up.
    pub fn watches(&mut self) {
        let healed_at = self.healed_at.unwrap_or_default();
        let out_of_time = self.now > healed_at + self.options.liveness_ms();
        // The first round always runs: it is what the second phase is about.
        let first = self.now <= healed_at + self.options.lease_ms;
        if !first && self.is_quiet() || out_of_time {
            self.record(What::Ended);
            self.ended = true;
            return;
        }
        for tick in [Tick::Sweep, Tick::Reconcile] {
            self.after(1, Event::Tick(tick, 0));
        }
        if self.options.flow.is_some() && self.options.fault != Some(Fault::NoCompleter) {
            self.after(2, Event::Tick(Tick::Complete, 0));
        }
        if self.options.operator {
            self.after(self.options.lease_ms / 2, Event::Tick(Tick::Operate, 0));
        }
        self.after(self.options.lease_ms, Event::Watches);
    }

    /// Whether it is a flow that somebody could go on with, and that nobody knows any more.
    fn is_held_for_good(&self, record: &Record) -> bool {
        let (Some(flow), Some(plan)) = (&record.flow, self.options.flow) else { return false };
        let is_known = (0..self.options.gateways)
            .any(|gateway| plan.versions.known_to(gateway, true).contains(&flow.flow().version));
        let could_go_on = match record.standing() {
            Standing::InProgress => record.resume_rule() == ResumeRule::Always,
            Standing::FailedRetryable => true,
            Standing::Completed | Standing::Unknown => false,
        };
        could_go_on && !is_known
    }

    /// Whether nothing is under way, and nothing waits for a decision that somebody will make.
    fn is_quiet(&self) -> bool {
        let settled = |key| match self.store.record(key) {
            None => Some(true),
            Some(record) if self.is_held_for_good(record) => Some(false),
            Some(record) => match record.standing() {
                // What holds work is the completer's, if nobody comes for it.
                Standing::FailedRetryable if record.holds_work() => None,
                Standing::Completed | Standing::FailedRetryable => Some(true),
                Standing::InProgress => None,
                // Nobody is there to decide it: it is on the list for whoever comes.
                Standing::Unknown => {
                    let fence = record.fence.0 as u32;
                    let listed = self.dead_letters.contains(&fence);
                    let is_reported = |kept: &KeptNotice| {
                        (kept.key, kept.fence, kept.is_over) == (key, fence, false)
                    };
                    let reported = self.inbox.iter().any(is_reported);
                    (!self.options.operator && listed && !reported).then_some(false)
                }
            },
        };
        self.arriving == 0
            && self.alive == 0
            && (0..SCOPES * NAMES).all(|key| settled(key).is_some())
            && self
                .calls
                .iter()
                .all(|call| call.ended || call.answered || settled(call.key) == Some(false))
    }
}
