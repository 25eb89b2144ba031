//! How do tasks run in virtual time?
//!
//! By hand: an event names the task that waited for it, and that task is polled once. There is no
//! waker to call and nothing to race with. A crash drops the tasks of a process where they stand,
//! as the end of a process does; what they had sent is on its way all the same.

use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use super::cost::Cost;
use super::effects::EffectWorld;
use super::{Doomed, Job, Sim, Task, TaskNo, World, client, gateway, notices, upkeep};
use crate::history::{Entry, OUTSIDE};
use crate::options::Options;

/// Runs histories, one after the other, with the same memory.
pub struct Executor {
    sim: Sim,
    effects: EffectWorld,
    tasks: Vec<Slot>,
    spawned: Vec<(TaskNo, u8, Task)>,
    jobs: Vec<Job>,
    doomed: Vec<Doomed>,
    ready: Vec<TaskNo>,
}

struct Slot {
    owner: u8,
    task: Option<Task>,
}

impl Executor {
    pub fn new() -> Self {
        Self {
            sim: Sim(Arc::new(Mutex::new(World::new()))),
            effects: EffectWorld::new(),
            tasks: Vec::with_capacity(128),
            spawned: Vec::new(),
            jobs: Vec::new(),
            doomed: Vec::new(),
            ready: Vec::new(),
        }
    }

    /// Runs one history, and hands its log to `judge`.
    pub fn run<R>(&mut self, options: &Options, judge: impl FnOnce(&[Entry]) -> R) -> (R, Cost) {
        if let Some(plan) = options.effects {
            return self.effects.run(options, plan, judge);
        }
        self.tasks.clear();
        self.sim.with(|world| world.reset(options));
        while self.sim.with(World::step) {
            self.advance();
        }
        self.tasks.clear();
        self.sim.with(|world| {
            let cost = Cost { events: world.events, faults: world.faults, ms: world.now };
            (judge(&world.log), cost)
        })
    }

    /// Carries out what an event has caused, until nothing moves without another event.
    fn advance(&mut self) {
        loop {
            self.sim.with(|world| {
                self.spawned.append(&mut world.spawned);
                self.jobs.append(&mut world.jobs);
                self.doomed.append(&mut world.doomed);
                self.ready.append(&mut world.ready);
            });
            if self.spawned.is_empty()
                && self.jobs.is_empty()
                && self.doomed.is_empty()
                && self.ready.is_empty()
            {
                return;
            }
            while let Some(doomed) = self.doomed.pop() {
                self.drop_tasks(doomed);
            }
            let mut spawned = std::mem::take(&mut self.spawned);
            for (number, owner, task) in spawned.drain(..) {
                self.adopt(number, owner, task);
            }
            self.spawned = spawned;
            let mut jobs = std::mem::take(&mut self.jobs);
            for job in jobs.drain(..) {
                self.start(job);
            }
            self.jobs = jobs;
            let mut ready = std::mem::take(&mut self.ready);
            for number in ready.drain(..) {
                self.poll(number);
            }
            self.ready = ready;
        }
    }

    fn start(&mut self, job: Job) {
        let sim = &self.sim;
        match job {
            Job::Serve { gateway, conn } => {
                let number = sim.spawn(gateway, gateway::serve(sim.gate(gateway), conn));
                sim.with(|world| world.serves(conn, number));
            }
            Job::Call { call } => {
                sim.spawn(OUTSIDE, client::call(sim.clone(), call));
            }
            Job::Upkeep { gateway, tick } => {
                sim.spawn(gateway, upkeep::round(sim.gate(gateway), tick));
            }
            Job::Webhook { gateway, exec } => {
                sim.spawn(gateway, upkeep::webhook(sim.gate(gateway), exec));
            }
            Job::Receive { gateway, notice } => {
                sim.spawn(gateway, notices::receive(sim.gate(gateway), notice));
            }
            Job::Resume { gateway, exec } => {
                sim.spawn(gateway, gateway::resend(sim.gate(gateway), exec));
            }
        }
    }

    fn adopt(&mut self, number: TaskNo, owner: u8, task: Task) {
        let at = number as usize;
        while self.tasks.len() <= at {
            self.tasks.push(Slot { owner: OUTSIDE, task: None });
        }
        if let Some(slot) = self.tasks.get_mut(at) {
            *slot = Slot { owner, task: Some(task) };
        }
        self.sim.with(|world| world.alive += u32::from(owner != OUTSIDE));
        self.poll(number);
    }

    fn poll(&mut self, number: TaskNo) {
        let Some(slot) = self.tasks.get_mut(number as usize) else { return };
        let Some(task) = slot.task.as_mut() else { return };
        if !self.sim.with(|world| world.enter(number, slot.owner)) {
            return;
        }
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            slot.task = None;
            let of_gateway = slot.owner != OUTSIDE;
            self.sim.with(|world| world.alive -= u32::from(of_gateway));
        }
    }

    fn drop_tasks(&mut self, doomed: Doomed) {
        let mut dropped = 0;
        match doomed {
            Doomed::Task(number) => {
                if let Some(slot) = self.tasks.get_mut(number as usize) {
                    dropped += u32::from(slot.task.take().is_some());
                }
            }
            Doomed::Gateway(gateway) => {
                for slot in self.tasks.iter_mut().filter(|slot| slot.owner == gateway) {
                    dropped += u32::from(slot.task.take().is_some());
                }
            }
        }
        self.sim.with(|world| world.alive -= dropped);
    }
}
