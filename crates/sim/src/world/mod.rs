//! What is there, and what happens next?
//!
//! One thread, one heap of events ordered by virtual time, and the state of everything outside the
//! product: wires, store, cache, upstream, clocks. Product code runs in tasks that the
//! [`executor`] polls by hand; whatever leaves a task becomes an event here, so that a message
//! outlives the process that sent it. Nothing waits in real time: a day of retention costs one pop.

mod client;
mod conn;
mod cost;
mod effects;
mod executor;
mod flows;
mod gate;
mod gateway;
mod handle;
mod nemesis;
mod notices;
mod redis_rules;
mod sim_store;
mod tables;
mod upkeep;
mod upstream;
mod wire;
mod withdrawal;

pub use cost::Cost;
pub use executor::Executor;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use retrysafe_core::Policy;

use crate::chance::Chance;
use crate::history::{Entry, OUTSIDE, What};
use crate::options::{GATEWAYS, Kind, Options};

/// The number of a task. Never used twice in a history.
type TaskNo = u32;

/// A piece of product or harness code that waits for events.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The simulation, as its actors hold it. The lock is never contended: there is one thread. It is
/// here because the product's store contract asks for handles that could be shared.
#[derive(Clone)]
struct Sim(Arc<Mutex<World>>);

/// Everything outside the product.
struct World {
    options: Arc<Options>,
    policy: Arc<Policy>,
    tables: Arc<tables::Tables>,
    chance: Chance,
    now: u64,
    order: u32,
    due: BinaryHeap<Reverse<Due>>,
    log: Vec<Entry>,
    events: u64,
    faults: u64,
    healed_at: Option<u64>,
    ended: bool,

    tasks: TaskNo,
    alive: u32,
    current: TaskNo,
    spawned: Vec<(TaskNo, u8, Task)>,
    jobs: Vec<Job>,
    doomed: Vec<Doomed>,
    ready: Vec<TaskNo>,

    ops: Vec<wire::Op>,
    arriving: u32,
    store: sim_store::SimStore,
    cache: handle::Cache,
    gateways: Vec<gateway::Process>,
    conns: Vec<conn::Conn>,
    execs: Vec<upstream::Exec>,
    charges: Vec<flows::Charge>,
    /// What the provider of flows remembers.
    provider: Vec<flows::Remembered>,
    /// How many outputs and answers the phases of flows have made up.
    bodies: u16,
    burnt: Vec<u32>,
    lookups: Vec<upstream::Lookup>,
    calls: Vec<client::Call>,
    dead_letters: Vec<u32>,
    /// What the provider reports by itself.
    notices: Vec<notices::Notice>,
    /// What of it is kept.
    inbox: Vec<notices::KeptNotice>,
    plan: Vec<nemesis::Blow>,
}

/// An event and when it is due. The order breaks ties, so that equal seeds pop alike.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Due {
    at: u64,
    order: u32,
    event: Event,
}

/// What can be due. Numbers point into the world's lists.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Wake(TaskNo),
    StoreArrives(u32),
    StoreReplies(u32),
    StoreFails(u32),
    CacheFills(u16),
    ConnArrives(u16),
    ConnAnswers(u16),
    ConnBreaks(u16),
    UpstreamArrives(u16),
    TakesEffect(u16),
    UpstreamAnswers(u16),
    AnswerArrives(u16),
    ChargeArrives(u16),
    ChargeTakesEffect(u16),
    ChargeAnswers(u16),
    LookupArrives(u16),
    LookupReplies(u16),
    WebhookArrives(u16),
    NoticeArrives(u16),
    CallStarts(u16),
    Tick(Tick, u8),
    Strikes(u16),
    Boots(u8),
    Resumes(u8),
    Heals,
    Watches,
}

/// A round of upkeep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tick {
    Sweep,
    Reap,
    Reconcile,
    Operate,
    Complete,
}

/// A task to start because of an event.
#[derive(Clone, Copy)]
enum Job {
    Serve {
        gateway: u8,
        conn: u16,
    },
    Call {
        call: u16,
    },
    Upkeep {
        gateway: u8,
        tick: Tick,
    },
    Webhook {
        gateway: u8,
        exec: u16,
    },
    Receive {
        gateway: u8,
        notice: u16,
    },
    /// Only a planted fault asks for this: what a dead process had begun is sent again.
    Resume {
        gateway: u8,
        exec: u16,
    },
}

/// A task, or all tasks of a gateway, to drop at once.
#[derive(Clone, Copy)]
enum Doomed {
    Task(TaskNo),
    Gateway(u8),
}

impl Sim {
    fn with<R>(&self, act: impl FnOnce(&mut World) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts a task that belongs to a gateway and dies with it.
    fn spawn(&self, gateway: u8, task: impl Future<Output = ()> + Send + 'static) -> TaskNo {
        let task: Task = Box::pin(task);
        self.with(|world| {
            world.tasks += 1;
            let number = world.tasks;
            world.spawned.push((number, gateway, task));
            number
        })
    }

    async fn sleep(&self, ms: u64) {
        let until = self.with(|world| world.wake_in(ms));
        std::future::poll_fn(|_| {
            self.with(|world| if world.now >= until { Poll::Ready(()) } else { Poll::Pending })
        })
        .await;
    }
}

impl World {
    fn new() -> Self {
        let options = Options::of(0, None, None);
        Self {
            store: sim_store::SimStore::new(&options),
            options: Arc::new(options),
            policy: Arc::new(Policy::default()),
            tables: Arc::new(tables::Tables::new()),
            chance: Chance::of(0, 0),
            now: 0,
            order: 0,
            due: BinaryHeap::with_capacity(256),
            log: Vec::with_capacity(1_024),
            events: 0,
            faults: 0,
            healed_at: None,
            ended: false,
            tasks: 0,
            alive: 0,
            current: 0,
            spawned: Vec::new(),
            jobs: Vec::new(),
            doomed: Vec::new(),
            ready: Vec::new(),
            ops: Vec::with_capacity(256),
            arriving: 0,
            cache: handle::Cache::default(),
            gateways: Vec::with_capacity(usize::from(GATEWAYS)),
            conns: Vec::with_capacity(64),
            execs: Vec::with_capacity(64),
            charges: Vec::new(),
            provider: Vec::new(),
            bodies: 0,
            burnt: Vec::new(),
            lookups: Vec::with_capacity(64),
            calls: Vec::with_capacity(32),
            dead_letters: Vec::new(),
            notices: Vec::new(),
            inbox: Vec::new(),
            plan: Vec::with_capacity(32),
        }
    }

    /// Forgets everything and makes the world of these options, with its allocations kept.
    fn reset(&mut self, options: &Options) {
        self.chance = Chance::of(options.seed, 2);
        self.store.reset(options);
        (self.now, self.order, self.events, self.faults) = (0, 0, 0, 0);
        (self.tasks, self.alive, self.current, self.arriving) = (0, 0, 0, 0);
        (self.healed_at, self.ended) = (None, false);
        self.due.clear();
        self.log.clear();
        self.spawned.clear();
        self.jobs.clear();
        self.doomed.clear();
        self.ready.clear();
        self.ops.clear();
        self.cache.clear();
        self.gateways.clear();
        self.conns.clear();
        self.execs.clear();
        self.charges.clear();
        self.provider.clear();
        self.bodies = 0;
        self.burnt.clear();
        self.lookups.clear();
        self.calls.clear();
        self.dead_letters.clear();
        self.notices.clear();
        self.inbox.clear();
        self.plan.clear();
        self.policy = Arc::new(Policy {
            on_server_error: options.on_server_error,
            absence: options.absence,
            lease: Duration::from_millis(options.lease_ms),
            lease_max: Duration::from_millis(options.lease_max_ms),
            ttl: Duration::from_millis(options.ttl_ms),
            wait_max: Duration::from_millis(options.wait_max_ms),
            ..Policy::default()
        });
        self.options = Arc::new(options.clone());
        self.set_up();
    }

    /// Lets the next event happen. False when the history is over.
    fn step(&mut self) -> bool {
        let Some(Reverse(Due { at, event, .. })) = self.due.pop() else { return false };
        if self.ended {
            return false;
        }
        self.now = at;
        self.events += 1;
        match event {
            Event::Wake(task) => self.ready.push(task),
            Event::StoreArrives(op) => self.store_arrives(op),
            Event::StoreReplies(op) => self.store_replies(op),
            Event::StoreFails(op) => self.store_fails(op),
            Event::CacheFills(fill) => self.cache.fills(fill),
            Event::ConnArrives(conn) => self.conn_arrives(conn),
            Event::ConnAnswers(conn) => self.conn_answers(conn),
            Event::ConnBreaks(conn) => self.conn_breaks(conn),
            Event::UpstreamArrives(exec) => self.upstream_arrives(exec),
            Event::TakesEffect(exec) => self.takes_effect(exec),
            Event::UpstreamAnswers(exec) => self.upstream_answers(exec),
            Event::AnswerArrives(exec) => self.answer_arrives(exec),
            Event::ChargeArrives(charge) => self.charge_arrives(charge),
            Event::ChargeTakesEffect(charge) => self.charge_takes_effect(charge),
            Event::ChargeAnswers(charge) => self.charge_answers(charge),
            Event::LookupArrives(lookup) => self.lookup_arrives(lookup),
            Event::LookupReplies(lookup) => self.lookup_replies(lookup),
            Event::WebhookArrives(exec) => {
                if let Some(gateway) = self.any_gateway() {
                    self.jobs.push(Job::Webhook { gateway, exec });
                }
            }
            Event::NoticeArrives(notice) => self.notice_arrives(notice),
            Event::CallStarts(call) => self.jobs.push(Job::Call { call }),
            Event::Tick(tick, wanted) => {
                if let Some(gateway) = self.gateway_from(wanted) {
                    self.jobs.push(Job::Upkeep { gateway, tick });
                }
            }
            Event::Strikes(blow) => self.strikes(blow),
            Event::Boots(gateway) => self.boots(gateway),
            Event::Resumes(gateway) => self.resumes(gateway),
            Event::Heals => self.heals(),
            Event::Watches => self.watches(),
        }
        true
    }

    fn record(&mut self, what: What) {
        self.log.push(Entry { at: self.now, what });
    }

    fn at(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.due.push(Reverse(Due { at, order: self.order, event }));
    }

    fn after(&mut self, ms: u64, event: Event) {
        self.at(self.now + ms, event);
    }

    /// Wakes the present task in so many milliseconds, and says when that is.
    fn wake_in(&mut self, ms: u64) -> u64 {
        self.after(ms, Event::Wake(self.current));
        self.now + ms
    }

    /// Whether a fault of this kind strikes now. After the healing none does.
    fn strike(&mut self, kind: Kind, percent: u64) -> bool {
        let strikes = self.healed_at.is_none()
            && self.options.kinds.has(kind)
            && self.chance.percent(percent);
        self.faults += u64::from(strikes);
        strikes
    }

    /// A number for what a phase has made up, which no charge has.
    fn next_body(&mut self) -> u16 {
        self.bodies += 1;
        tables::MADE_UP + self.bodies
    }

    /// One of the gateways that run, if there is one.
    fn any_gateway(&mut self) -> Option<u8> {
        let first = self.chance.below(self.gateways.len() as u64) as u8;
        self.gateway_from(first)
    }

    /// This gateway, or the next one that runs.
    fn gateway_from(&self, first: u8) -> Option<u8> {
        let count = self.gateways.len() as u8;
        (0..count).map(|by| (first + by) % count).find(|number| {
            self.gateways.get(usize::from(*number)).is_some_and(|process| process.up)
        })
    }

    /// Whether a task of this owner may be polled now; if not, it is polled when its gateway
    /// resumes.
    fn enter(&mut self, task: TaskNo, owner: u8) -> bool {
        self.current = task;
        if owner == OUTSIDE {
            return true;
        }
        match self.gateways.get_mut(usize::from(owner)) {
            Some(process) if process.paused => {
                process.held.push(task);
                false
            }
            Some(_) | None => true,
        }
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
