//! What do the parts of one history share?
//!
//! The log, the seed, the names, and who is alive. One tokio runtime with a paused clock runs
//! everything on one thread: when nothing is ready, its clock moves to the next timer. The lock is
//! never contended; it is here because the product's types may be shared between threads.
//!
//! Chance is drawn by name, not in order: what becomes of a message depends on the seed and on which
//! message it is. So a fault kind that is switched off changes nothing else.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::HeaderMap;
use retrysafe_core::record::Standing;
use retrysafe_core::{Id, Key, Scope};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::options::{Kind, Options};
use super::outbox::Outbox;
use super::plan::Execution;
use super::records::Records;
use crate::chance::Chance;
use crate::history::{Entry, Found, What};
use crate::options::{NAMES, SCOPES};

/// The header by which the upstream knows the attempt of a client.
pub const CONN: &str = "x-request-id";

/// The header by which the network knows the call.
pub const CALL: &str = "x-sim-call";

/// The header by which the layer knows the scope.
pub const SCOPE: &str = "x-sim-scope";

/// The host under which clients know the service. Every gateway answers for it.
pub const HOST: &str = "shop.example";

/// Everything that one history is made of, as its parts hold it.
#[derive(Clone)]
pub struct Stage(Arc<Shared>);

struct Shared {
    options: Options,
    started: Instant,
    state: Mutex<State>,
}

/// What changes while a history runs.
#[derive(Default)]
pub struct State {
    pub log: Vec<Entry>,
    pub faults: u64,
    pub healed: bool,
    pub names: Vec<Id>,
    pub records: Records,
    pub epochs: Vec<u16>,
    pub conns: Vec<Conn>,
    pub execs: Vec<Execution>,
    /// The highest fence of each key that the upstream refuses for good.
    pub burnt: Vec<(u8, u32)>,
    /// What lookups have found.
    pub findings: Vec<Finding>,
    /// The fences whose owners know that they own.
    pub granted: Vec<u32>,
    /// Effects, and who receives them.
    pub outbox: Outbox,
    /// How many writes have still to reach the store, second copies included.
    pub writes_on_the_way: u32,
    heads: HashMap<Vec<u8>, u16>,
    counts: HashMap<u64, u64>,
    now: u64,
}

/// One attempt of a client, or its copy.
#[derive(Clone, Copy)]
pub struct Conn {
    pub key: u8,
    pub print: u8,
    pub failed: bool,
}

/// What a lookup found about an attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Finding {
    pub gateway: u8,
    pub epoch: u16,
    pub key: u8,
    pub fence: u32,
    pub found: Found,
}

/// One life of a process, as everything that belongs to it holds it.
///
/// A dead process is not stopped: like a killed one it says nothing any more, and nothing reaches
/// it. Its tasks go nowhere and end with the history.
#[derive(Clone)]
pub struct Life {
    pub gateway: u8,
    pub epoch: u16,
    inner: Arc<LifeState>,
}

#[derive(Default)]
struct LifeState {
    dead: AtomicBool,
    closed: AtomicBool,
    died: Notify,
    paused_until: AtomicU64,
    cut_off_until: AtomicU64,
}

impl Stage {
    /// The stage of a history. It must be made inside the history's runtime.
    pub fn new(options: &Options) -> Self {
        let names = (0..SCOPES * NAMES).map(|key| {
            let digest = Key::new(&key_name(key)).map(|key| key.digest());
            digest.map(|digest| Id::of(&scope(key), &digest)).unwrap_or(Id::from_bytes([0; 32]))
        });
        let state = State { names: names.collect(), ..State::default() };
        Self(Arc::new(Shared {
            options: options.clone(),
            started: Instant::now(),
            state: Mutex::new(state),
        }))
    }

    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// Since the history began.
    pub fn now_ms(&self) -> u64 {
        self.0.started.elapsed().as_millis() as u64
    }

    pub fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.now = self.now_ms();
        act(&mut state)
    }

    pub fn record(&self, what: What) {
        self.with(|state| state.record(what));
    }

    /// The stream of chance for one thing, named by numbers.
    pub fn chance(&self, name: &[u64]) -> Chance {
        let purpose = name.iter().fold(7_u64, |sum, word| Chance::of(sum, word + 1).next());
        Chance::of(self.0.options.seed, purpose)
    }

    /// Whether a fault of this kind strikes. It is drawn in any case, so that switching a kind off
    /// changes nothing else.
    pub fn strikes(&self, chance: &mut Chance, kind: Kind, percent: u64) -> bool {
        let drawn = chance.percent(percent);
        let strikes = drawn && self.options().kinds.has(kind) && !self.with(|state| state.healed);
        if strikes {
            self.with(|state| state.faults += 1);
        }
        strikes
    }

    pub async fn sleep(&self, ms: u64) {
        if ms > 0 {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
    }
}

impl State {
    pub fn record(&mut self, what: What) {
        self.log.push(Entry { at: self.now, what });
    }

    pub fn now_ms(&self) -> u64 {
        self.now
    }

    /// How often this was asked before, with these numbers.
    pub fn count(&mut self, name: &[u64]) -> u64 {
        let name = name.iter().fold(3_u64, |sum, word| Chance::of(sum, word + 1).next());
        let count = self.counts.entry(name).or_default();
        *count += 1;
        *count - 1
    }

    pub fn key_of(&self, id: &Id) -> Option<u8> {
        self.names.iter().position(|known| known == id).map(|at| at as u8)
    }

    pub fn conn(&mut self, conn: u16) -> Option<&mut Conn> {
        self.conns.get_mut(usize::from(conn))
    }

    pub fn exec(&mut self, exec: u16) -> Option<&mut Execution> {
        self.execs.get_mut(usize::from(exec))
    }

    /// Notes how the owner of a fence wants to settle.
    pub fn wants_to_settle(&mut self, fence: u32, standing: Standing) {
        if let Some(exec) = self.execs.iter_mut().rfind(|exec| exec.fence == Some(fence)) {
            exec.to_settle = Some(standing);
        }
    }

    /// Notes how the owner of a fence has settled.
    pub fn settled(&mut self, fence: u32, standing: Standing) {
        if let Some(exec) = self.execs.iter_mut().rfind(|exec| exec.fence == Some(fence)) {
            exec.settled = Some(standing);
        }
    }

    /// A number for what a head shows of an answer that must be the same in every final answer.
    pub fn head_number(&mut self, headers: &HeaderMap) -> u16 {
        let mut bytes = Vec::new();
        for (name, value) in headers.iter().filter(|(name, _)| !may_differ(name.as_str())) {
            bytes.extend_from_slice(name.as_str().as_bytes());
            bytes.push(b':');
            bytes.extend_from_slice(value.as_bytes());
            bytes.push(b'\n');
        }
        let next = self.heads.len() as u16;
        *self.heads.entry(bytes).or_insert(next)
    }
}

/// What two final answers of one request may differ in, by the project's own page; not taken from
/// its code.
fn may_differ(name: &str) -> bool {
    const NAMES: [&str; 15] = [
        "date",
        "age",
        "content-length",
        "set-cookie",
        "connection",
        "transfer-encoding",
        "x-hop",
        "retry-after",
        "traceparent",
        "tracestate",
        "x-request-id",
        "request-id",
        "server-timing",
        "idempotent-replayed",
        "idempotency-expires",
    ];
    NAMES.contains(&name) || name.starts_with("ratelimit") || name.starts_with("retrysafe-")
}

/// A key as clients send it.
pub fn key_name(key: u8) -> String {
    format!("k{}", key % NAMES)
}

/// A scope as clients send it.
pub fn scope_name(key: u8) -> String {
    format!("s{}", key / NAMES)
}

fn scope(key: u8) -> Scope {
    Scope::of([(SCOPE, scope_name(key).as_bytes())])
}

impl Life {
    pub fn new(gateway: u8, epoch: u16) -> Self {
        Self { gateway, epoch, inner: Arc::default() }
    }

    pub fn is_dead(&self) -> bool {
        self.inner.dead.load(Ordering::Relaxed)
    }

    pub fn die(&self) {
        self.inner.dead.store(true, Ordering::Relaxed);
        self.inner.died.notify_waiters();
    }

    /// From now on the process takes no request from its connections.
    pub fn close(&self) {
        self.inner.closed.store(true, Ordering::Relaxed);
    }

    pub fn is_closed(&self) -> bool {
        self.inner.closed.load(Ordering::Relaxed)
    }

    /// Comes when the process is dead.
    pub async fn death(&self) {
        let died = self.inner.died.notified();
        if !self.is_dead() {
            died.await;
        }
    }

    pub fn pause_until(&self, ms: u64) {
        self.inner.paused_until.fetch_max(ms, Ordering::Relaxed);
    }

    pub fn resume(&self) {
        self.inner.paused_until.store(0, Ordering::Relaxed);
        self.inner.cut_off_until.store(0, Ordering::Relaxed);
    }

    pub fn cut_off_until(&self, ms: u64) {
        self.inner.cut_off_until.fetch_max(ms, Ordering::Relaxed);
    }

    pub fn is_cut_off(&self, stage: &Stage) -> bool {
        stage.now_ms() < self.inner.cut_off_until.load(Ordering::Relaxed)
    }

    /// Whether nothing enters or leaves the process now.
    #[cfg(feature = "gateway")]
    pub fn stands_still(&self, stage: &Stage) -> bool {
        self.is_dead() || stage.now_ms() < self.inner.paused_until.load(Ordering::Relaxed)
    }

    /// Where something enters or leaves the process: it waits while the process stands still, and
    /// for ever if it is dead.
    pub async fn pass(&self, stage: &Stage) {
        loop {
            if self.is_dead() {
                std::future::pending::<()>().await;
            }
            let left =
                self.inner.paused_until.load(Ordering::Relaxed).saturating_sub(stage.now_ms());
            if left == 0 {
                return;
            }
            // Woken early when everything heals: nobody sleeps for longer than a step.
            stage.sleep(left.min(PAUSE_STEP_MS)).await;
        }
    }
}

/// How soon the parts of a paused process notice that it goes on.
const PAUSE_STEP_MS: u64 = 50;
