//! What does a gateway do with a request?
//!
//! The life of a guarded request, over the real engine, the real policy and the real order of an
//! execution (`execution.rs`); only what carries the steps out is the simulator's own. The begin belongs
//! to the connection and dies with it; from the grant on everything runs in a task of its own. A crash
//! drops all tasks of the process.

mod mutant;

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::StatusCode;
use retrysafe_core::engine::{Ask, Lease, Renewed, Settled};
use retrysafe_core::execution::{
    AfterBegin, Beginning, Failure, NoStore, Owned, Patience, SETTLE_MAX, Sent, SettleAgain,
    Settling, Told,
};
use retrysafe_core::policy::End;
use retrysafe_core::problem::Refusal;
use retrysafe_core::record::{Answer, AnswerHead, Outcome};

use super::conn::Reply;
use super::gate::Gate;
use super::tables;
use super::withdrawal::withdraw;
use super::{TaskNo, World, flows};
use crate::fault::Fault;
use crate::history::{Class, NONE, Role, SettleHeard, What};
use crate::options::{Kind, NAMES};

/// A gateway process.
#[derive(Default)]
pub struct Process {
    pub up: bool,
    pub epoch: u16,
    pub paused: bool,
    pub cut_off_until: u64,
    /// Tasks that an event would have woken while it stood still.
    pub held: Vec<TaskNo>,
    /// How far its monotonic clock is off, and since when it stands still.
    pub astray_ms: i64,
    pub frozen_at: Option<u64>,
    /// Since when, by its own clock, its reconciler has known a fence to be unknown.
    pub seen: Vec<(u32, u64)>,
    /// The highest version of a record that was acknowledged to it.
    pub version_seen: u64,
}

/// A request arrives: the connection's own part of it, up to the grant.
pub async fn serve(gate: Gate, conn: u16) {
    let Some((key, print, began)) = gate.sim.with(|world| {
        world.conns.get(usize::from(conn)).map(|conn| (conn.key, conn.print, world.now))
    }) else {
        return;
    };
    // A scope that everybody shares.
    let named = if gate.fault(Fault::KeyWithoutScope) { key % NAMES } else { key };
    let tables = gate.tables.clone();
    let Some((scope, digest)) = tables.name(named) else { return };
    let engine = gate.sim.engine(gate.by(Role::Begin { conn }));
    let mut patience = Patience::new(gate.now(), gate.policy.wait_max);
    loop {
        let asked_at = gate.now();
        let beginning = Beginning::new(asked_at, SETTLE_MAX);
        let owner = gate.sim.with(|world| world.chance.next());
        let ask = Ask {
            scope,
            mark: None,
            key: digest,
            prints: &tables::print(print),
            about: &tables.about,
            ttl: gate.policy.ttl,
            lease: gate.policy.lease,
            owner,
            request_id: None,
        };
        let begun = match gate.options.flow {
            None => engine.begin(&ask).await,
            Some(_) => engine.begin_flow(&ask, &flows::known_versions(&gate)).await,
        };
        let begun = match flows::take_over(&gate, conn, key, asked_at, begun) {
            Some(begun) => begun,
            None => return,
        };
        let after = match begun {
            Ok(begun) => beginning.begun(&gate.policy, Ok(begun)),
            Err(error) => beginning.begun(&gate.policy, Err(&error)),
        };
        match after {
            AfterBegin::Owned(owned) => {
                let fence = owned.lease().fence().0 as u32;
                let Gate { number, epoch, .. } = gate;
                gate.sim.with(|world| {
                    world.record(What::Begun { conn, gateway: number, epoch, fence });
                    world.struck_at_grant(number);
                });
                let cancels = gate.fault(Fault::DisconnectCancels);
                let sim = gate.sim.clone();
                let asked = Asked { conn, key, print, fence, asked_at };
                let task = sim.spawn(number, execute(gate, asked, owned));
                sim.with(|world| world.hand_over(conn, cancels.then_some(task)));
                return;
            }
            AfterBegin::Tell(_, told) => return gate.tell(conn, told),
            AfterBegin::Busy(left) => {
                if patience.wait_until(gate.now()).is_some() {
                    gate.sleep(patience.look_again(gate.now())).await;
                    continue;
                }
                let has_waited = gate.sim.with(|world| world.now) > began;
                if gate.fault(Fault::WaiterDeletes) && has_waited {
                    engine.store().delete(named).await;
                    continue;
                }
                return gate.refuse(conn, &Refusal::InProgress { retry_after: left });
            }
            AfterBegin::NoStore(no_store) => {
                let asked = Asked { conn, key, print, fence: 0, asked_at };
                return begin_failed(gate, &asked, named, owner, no_store);
            }
        }
    }
}

/// A request that was begun, or is to be.
struct Asked {
    conn: u16,
    key: u8,
    print: u8,
    fence: u32,
    asked_at: Duration,
}

/// No store, no execution. What may have been applied is taken back.
fn begin_failed(gate: Gate, asked: &Asked, named: u8, owner: u64, no_store: NoStore) {
    let Asked { conn, key, print, .. } = *asked;
    let (sim, number) = (gate.sim.clone(), gate.number);
    let ambiguous = no_store.must_withdraw;
    sim.with(|world| world.record(What::BeginFailed { conn, ambiguous }));
    if gate.fault(Fault::FailOpen) {
        sim.spawn(number, mutant::execute_unprotected(gate, conn, key, print));
        return;
    }
    gate.refuse(conn, &Refusal::StoreUnavailable { retry_after: gate.policy.lease });
    if ambiguous {
        sim.spawn(number, withdraw(gate, named, owner));
    }
}

/// From the grant to the end, in a task of its own.
async fn execute(gate: Gate, asked: Asked, owned: Owned) {
    let Asked { conn, fence, .. } = asked;
    let (ms, refused) = gate.sim.with(|world| {
        let refused = world.strike(Kind::UpstreamRefuses, 10);
        (world.connecting_ms(), refused)
    });
    gate.sim.sleep(ms).await;
    let policy = gate.policy.clone();
    let unreachable = Refusal::UpstreamUnreachable { retry_after: policy.lease };
    // A layer that does not look at the clock believes that it is still when it asked.
    let skips_check = gate.fault(Fault::NoLeaseCheck);
    let looked_at = if skips_check { asked.asked_at } else { gate.now() };
    let sent = if refused {
        gate.sim.with(|world| world.record(What::Unsent { fence, late: false }));
        Err(Box::new(owned.not_sent(&policy, gate.now(), unreachable)))
    } else {
        owned.send(&policy, looked_at, unreachable).inspect_err(|_| {
            gate.sim.with(|world| world.record(What::Unsent { fence, late: true }));
        })
    };
    let sent = match sent {
        Ok(sent) => sent,
        Err(unsent) => {
            let (lease, settling) = *unsent;
            settle(&gate, &asked, NONE, lease, settling, &Told504::default()).await;
            return;
        }
    };
    let told_504 = Told504::default();
    let (end, exec) = run(&gate, &asked, &sent, &told_504).await;
    let now = gate.now();
    let (lease, settling) = match end {
        None => sent.failed(&policy, now, Failure::Lost { timed_out: true }),
        Some(End::Panicked) => sent.failed(&policy, now, Failure::Panicked),
        Some(End::NotSent) => sent.failed(&policy, now, Failure::NotSent),
        Some(end @ End::Answered { .. }) => sent.answered(&policy, now, end),
        Some(end @ End::TooLarge { .. }) => {
            pass_on(&gate, &asked, exec, sent, end, true, &told_504).await
        }
        Some(End::AnswerLost) if gate.sim.with(|world| world.is_large(exec)) => {
            let status = gate.sim.with(|world| world.status_of(exec));
            let status = StatusCode::from_u16(status).unwrap_or_default();
            let end = End::TooLarge { status, location: None, by_upstream: true, said: None };
            pass_on(&gate, &asked, exec, sent, end, false, &told_504).await
        }
        Some(End::AnswerLost) => sent.failed(&policy, now, Failure::Lost { timed_out: false }),
    };
    if gate.fault(Fault::AnswerBeforeDurable)
        && let Outcome::Completed(answer @ Answer::Kept(_)) = settling.outcome()
    {
        gate.answer_kept(conn, Class::First, answer);
        told_504.set();
    }
    settle(&gate, &asked, exec, lease, settling, &told_504).await;
}

/// Whether the caller has got its answer before the end: it was told to ask again.
#[derive(Default)]
struct Told504(AtomicBool);

impl Told504 {
    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Sends the request on and waits for its end, with the lease renewed meanwhile. `None` if the time of
/// the attempt is used up.
async fn run(gate: &Gate, asked: &Asked, sent: &Sent, told_504: &Told504) -> (Option<End>, u16) {
    let Gate { number, epoch, .. } = *gate;
    let Asked { conn, key, print, fence, asked_at } = *asked;
    let (exec, late_at) = gate.sim.with(|world| {
        world.record(What::Sent { conn, key, fence, gateway: number, epoch });
        let exec = world.send(key, fence, print, number, epoch);
        (exec, world.now + gate.options.upstream_timeout_ms)
    });
    let ends_at = asked_at.saturating_add(gate.policy.lease_max);
    let step = (gate.options.lease_ms / 3).max(1);
    let mut renewing = true;
    let engine = gate.sim.engine(gate.by(Role::Owner { fence }));
    loop {
        let left = ends_at.saturating_sub(gate.now()).as_millis().max(1) as u64;
        let until = gate.sim.with(|world| {
            let before_late = late_at.saturating_sub(world.now);
            let pause = if before_late == 0 { left } else { left.min(before_late) };
            world.wake_in(if renewing { pause.min(step) } else { pause })
        });
        if let Some(end) = poll_fn(|_| gate.sim.with(|world| world.end(exec, until))).await {
            return (Some(end), exec);
        }
        if renewing {
            let renewal = sent.lease().renewal();
            let renewed = engine.renew(renewal, gate.policy.lease, gate.policy.lease_max).await;
            // A failed renewal is tried again at the next step; a lost one never.
            renewing = !matches!(renewed, Ok(Renewed::Lost));
        }
        let is_late = gate.sim.with(|world| world.now) >= late_at && !told_504.is_set();
        // There may be too many late ones already.
        let has_room = !is_late || gate.sim.with(|world| world.chance.percent(80));
        // Looked at last: who has slept past everything still tries to renew first.
        if !has_room || gate.now() >= ends_at {
            gate.sim.with(|world| world.record(What::GaveUp { exec }));
            return (None, exec);
        }
        if is_late {
            gate.refuse(conn, &Refusal::AnswerLate { retry_after: gate.policy.lease });
            told_504.set();
        }
    }
}

/// Makes the head of an answer durable before it is passed on, and says what its end means.
async fn pass_on(
    gate: &Gate,
    asked: &Asked,
    exec: u16,
    sent: Sent,
    end: End,
    is_whole: bool,
    told_504: &Told504,
) -> (Lease, Settling) {
    let policy = &gate.policy;
    let engine = gate.sim.engine(gate.by(Role::Owner { fence: asked.fence }));
    let status = gate.sim.with(|world| world.status_of(exec));
    let status = StatusCode::from_u16(status).unwrap_or_default();
    let mut keeping = sent.passes_on(policy, gate.now(), AnswerHead { status, location: None });
    let (streaming, told) = loop {
        let renewal = keeping.lease().renewal();
        match engine.keep_head(renewal, keeping.head(), policy.lease, Duration::MAX).await {
            Ok(Renewed::For(_)) => break keeping.kept(policy, end),
            Ok(Renewed::Lost) => break keeping.lost(policy, end),
            Err(_) => match keeping.failed(gate.now()) {
                Some(pause) => gate.sleep(pause).await,
                None => break keeping.not_durable(policy, end),
            },
        }
    };
    let is_passed_on = matches!(told, Told::Answer(_));
    if !is_passed_on && !told_504.is_set() {
        gate.tell(asked.conn, told);
        told_504.set();
    }
    let ms = gate.sim.with(|world| world.chance.scaled(1, world.options.lease_ms));
    gate.sim.sleep(ms).await;
    if is_passed_on && !is_whole && !told_504.is_set() {
        // The caller has some of it, and then its connection breaks.
        told_504.set();
        gate.sim.with(|world| world.reset_conn(asked.conn));
    }
    streaming.ended(policy, gate.now(), is_whole)
}

/// Settles, again if the store fails, with the same fence, and tells the caller what holds.
async fn settle(
    gate: &Gate,
    asked: &Asked,
    exec: u16,
    mut lease: Lease,
    mut settling: Settling,
    told_504: &Told504,
) {
    let Asked { conn, key, print, fence, .. } = *asked;
    let engine = gate.sim.engine(gate.by(Role::Owner { fence }));
    let outcome = mutant::outcome(gate.options.fault, settling.outcome().clone());
    let standing = outcome.standing();
    let body = match &outcome {
        Outcome::Completed(answer) => tables::status_and_body(answer).1,
        Outcome::Retryable(_) | Outcome::Unknown(_) => NONE,
    };
    let mut has_rerun = false;
    loop {
        gate.sim.with(|world| world.record(What::SettleAsked { fence, standing, body }));
        let settled = engine.settle(lease, &outcome).await;
        let heard = match &settled {
            Ok(Settled::Done(_)) => SettleHeard::Done,
            Ok(Settled::Lost { contradiction, .. }) => {
                SettleHeard::Lost { contradiction: *contradiction }
            }
            Err(unsettled) => SettleHeard::Failed { ambiguous: unsettled.error.may_have_applied() },
        };
        gate.sim.with(|world| world.record(What::SettleHeard { fence, heard }));
        lease = match settled {
            Ok(settled) => {
                let settled = mutant::overruled(gate, key, settled).await;
                if !told_504.is_set() {
                    gate.tell_end(conn, exec, &outcome, settling.settled(settled));
                }
                return;
            }
            Err(unsettled) => unsettled.lease,
        };
        if gate.fault(Fault::SettleReruns) && !has_rerun && exec != NONE {
            has_rerun = true;
            let Gate { number, epoch, .. } = *gate;
            gate.sim.with(|world| {
                world.record(What::Sent { conn, key, fence, gateway: number, epoch });
                world.send(key, fence, print, number, epoch);
            });
        }
        if gate.now() >= settling.tell_at() && !told_504.is_set() {
            // The caller is told that nobody knows yet; the owner does, and tries on.
            gate.refuse(conn, &Settling::not_durable());
            told_504.set();
        }
        match settling.failed(gate.now()) {
            SettleAgain::After(pause) => gate.sleep(pause).await,
            SettleAgain::Never => return,
        }
    }
}

impl Gate {
    /// Gives the caller what holds at the end of its own execution.
    fn tell_end(&self, conn: u16, exec: u16, outcome: &Outcome, told: Told) {
        if !matches!(told, Told::Answer(_)) {
            return self.tell(conn, told);
        }
        let status = self.sim.with(|world| world.status_of(exec));
        let whole = |class| Reply { class, status, code: None, body: exec, retry_after: 0 };
        match outcome {
            Outcome::Completed(answer @ Answer::Kept(_)) => {
                self.answer_kept(conn, Class::First, answer);
            }
            // The first caller gets it whole; only the record cannot keep it.
            Outcome::Completed(Answer::NotKept { .. }) => self.answer(conn, whole(Class::First)),
            Outcome::Retryable(_) => self.answer(conn, whole(Class::Released)),
            // The answer says by a header that it leaves its outcome unknown.
            Outcome::Unknown(_) => {
                let retry_after = self.policy.lease;
                self.refuse(conn, &Refusal::OutcomeUnknown { retry_after, head: None });
            }
        }
    }

    /// Gives the caller what the record says.
    fn tell(&self, conn: u16, told: Told) {
        match told {
            Told::Replay(stored, _) => {
                self.answer_kept(conn, Class::Replay, &Answer::Kept(stored));
            }
            Told::Refusal(refusal) => self.refuse(conn, &refusal),
            // Only for the answer that an execution has.
            Told::Answer(_) => {}
        }
    }
}

/// Only a planted fault calls this: a new process sends again what a dead one had begun.
pub async fn resend(gate: Gate, exec: u16) {
    gate.sim.with(|world| {
        if let Some((key, fence, print)) = world.exec_about(exec) {
            let Gate { number, epoch, .. } = gate;
            world.record(What::Sent { conn: NONE, key, fence, gateway: number, epoch });
            world.send(key, fence, print, number, epoch);
        }
    });
}

impl World {
    pub fn connecting_ms(&mut self) -> u64 {
        if self.strike(Kind::UpstreamSlow, 10) {
            self.chance.scaled(10, self.options.lease_ms * 3 / 2)
        } else {
            self.chance.between(1, 6)
        }
    }
}
