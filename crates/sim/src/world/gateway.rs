//! What does a gateway do with a request?
//!
//! The life of a guarded request, as the product's layer lives it, over the real engine and the
//! real policy: begin; check the lease on the own clock; send; renew while waiting; settle, again
//! if need be; answer only what is durable. The begin belongs to the connection and dies with it;
//! from the grant on everything runs in a task of its own. A crash drops all tasks of the process.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use retrysafe_core::Policy;
use retrysafe_core::engine::{Ask, Begun, Lease, Renewed, Settled};
use retrysafe_core::policy::End;
use retrysafe_core::record::{Answer, Outcome, State};

use super::conn::Reply;
use super::tables::{self, Said, Tables};
use super::{Sim, TaskNo, World, mutant};
use crate::history::{By, Class, NONE, Role, SettleHeard, What};
use crate::museum::Fault;
use crate::options::{Kind, NAMES, Options};

/// How often a settle is tried while its caller waits.
const SETTLES_WAITED_FOR: u32 = 4;

/// How often it is tried in all. With its pauses this outlasts a short loss of the store; a longer
/// one leaves the record to become unknown.
const SETTLES_MAX: u32 = 7;

/// How often an ambiguous begin is taken back before its record is left to its lease. "Nothing to
/// take back" is asked again as well: the begin may still be on its way.
const WITHDRAWALS_MAX: u32 = 3;

/// The first pause between two tries of either; each further one is twice as long.
const PAUSE_MS: u64 = 60;

/// How often a waiting duplicate looks whether the running one has ended.
const WAIT_STEP_MS: u64 = 250;

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
}

/// What the tasks of a gateway process share.
#[derive(Clone)]
pub struct Gate {
    pub sim: Sim,
    pub number: u8,
    pub epoch: u16,
    pub options: Arc<Options>,
    pub tables: Arc<Tables>,
    policy: Arc<Policy>,
}

impl Gate {
    pub fn by(&self, role: Role) -> By {
        By { gateway: self.number, epoch: self.epoch, role }
    }

    /// The process's monotonic clock.
    pub fn clock(&self) -> u64 {
        self.sim.with(|world| world.clock_of(self.number))
    }

    fn fault(&self, fault: Fault) -> bool {
        self.options.fault == Some(fault)
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(self.options.lease_ms)
    }

    fn answer(&self, conn: u16, reply: Reply) {
        self.sim.with(|world| world.answer(conn, reply));
    }

    fn refuse(&self, conn: u16, class: Class, said: Said, retry_after: Duration) {
        let retry_after = retry_after.as_millis().div_ceil(1_000).clamp(1, 65_535) as u16;
        let Said { status, code } = said;
        self.answer(conn, Reply { class, status, code, body: NONE, retry_after });
    }

    pub fn answer_kept(&self, conn: u16, class: Class, answer: &Answer) {
        let (status, body) = tables::status_and_body(answer);
        match answer {
            Answer::Kept(_) => {
                self.answer(conn, Reply { class, status, code: None, body, retry_after: 0 });
            }
            Answer::NotKept { .. } => {
                let Said { status, code } = self.tables.refusals.gone;
                let reply = Reply { class: Class::Gone, status, code, body, retry_after: 0 };
                self.answer(conn, reply);
            }
        }
    }
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
    loop {
        let asked_at = gate.clock();
        let owner = gate.sim.with(|world| world.chance.next());
        let ask = Ask {
            scope,
            mark: None,
            key: digest,
            prints: &tables::print(print),
            about: &tables.about,
            ttl: Duration::from_millis(gate.options.ttl_ms),
            lease: gate.lease(),
            owner,
            request_id: None,
        };
        match engine.begin(&ask).await {
            Ok(Begun::Execute(lease)) => {
                let what = What::Begun {
                    conn,
                    gateway: gate.number,
                    epoch: gate.epoch,
                    fence: lease.fence().0 as u32,
                };
                gate.sim.with(|world| {
                    world.record(what);
                    world.struck_at_grant(gate.number);
                });
                let number = gate.number;
                let cancels = gate.fault(Fault::DisconnectCancels);
                let sim = gate.sim.clone();
                let task = sim.spawn(number, execute(gate, conn, key, print, lease, asked_at));
                sim.with(|world| world.hand_over(conn, cancels.then_some(task)));
                return;
            }
            Ok(Begun::Replay(answer, _)) => return gate.answer_kept(conn, Class::Replay, &answer),
            // No caller here has a credential mark: to be told of another one is a mismatch that the
            // checker refuses.
            Ok(Begun::Mismatch | Begun::CredentialChanged) => {
                let Said { status, code } = tables.refusals.mismatch;
                let class = Class::Mismatch;
                return gate
                    .answer(conn, Reply { class, status, code, body: NONE, retry_after: 0 });
            }
            Ok(Begun::Unknown(_)) => {
                return gate.refuse(conn, Class::Unknown, tables.refusals.unknown, gate.lease());
            }
            Ok(Begun::InProgress(left)) => {
                let waited = gate.sim.with(|world| world.now) - began;
                if waited < gate.options.wait_max_ms {
                    gate.sim.sleep(WAIT_STEP_MS.min(gate.options.wait_max_ms - waited)).await;
                    continue;
                }
                if gate.fault(Fault::WaiterDeletes) && waited > 0 {
                    mutant::delete(engine.store(), named).await;
                    continue;
                }
                return gate.refuse(conn, Class::InProgress, tables.refusals.in_progress, left);
            }
            Err(error) => {
                let attempt = Attempt { conn, key, named, print, owner };
                return begin_failed(gate, attempt, error.may_have_applied());
            }
        }
    }
}

/// What a begin was for.
struct Attempt {
    conn: u16,
    key: u8,
    named: u8,
    print: u8,
    owner: u64,
}

/// No store, no execution. What may have been applied is taken back.
fn begin_failed(gate: Gate, attempt: Attempt, ambiguous: bool) {
    let Attempt { conn, key, named, print, owner } = attempt;
    let (sim, number) = (gate.sim.clone(), gate.number);
    sim.with(|world| world.record(What::BeginFailed { conn, ambiguous }));
    if gate.fault(Fault::FailOpen) {
        sim.spawn(number, mutant::execute_unprotected(gate, conn, key, print));
        return;
    }
    gate.refuse(conn, Class::Unavailable, gate.tables.refusals.unavailable, gate.lease());
    if ambiguous {
        sim.spawn(number, withdraw(gate, named, owner));
    }
}

/// Takes back a begin that may have been applied, so that the next caller need not wait for its
/// lease.
async fn withdraw(gate: Gate, key: u8, owner: u64) {
    let Some(id) = gate.tables.id(key) else { return };
    let engine = gate.sim.engine(gate.by(Role::Withdraw));
    for attempt in 0..WITHDRAWALS_MAX {
        if let Ok(true) = engine.withdraw(id, owner).await {
            return;
        }
        gate.sim.sleep(PAUSE_MS << attempt).await;
    }
}

/// From the grant to the answer, in a task of its own.
async fn execute(gate: Gate, conn: u16, key: u8, print: u8, mut lease: Lease, asked_at: u64) {
    let fence = lease.fence().0 as u32;
    let mut runs = 0;
    loop {
        let (end, exec) = run(&gate, conn, key, print, &mut lease, asked_at, runs > 0).await;
        let outcome = mutant::outcome(gate.options.fault, gate.policy.judge(end.clone()));
        if gate.fault(Fault::AnswerBeforeDurable)
            && let Outcome::Completed(answer) = &outcome
        {
            gate.answer_kept(conn, Class::First, answer);
        }
        lease = match settle(&gate, lease, fence, &outcome, 0..SETTLES_WAITED_FOR).await {
            Ok(settled) => {
                let settled = mutant::overruled(&gate, key, settled).await;
                return tell(&gate, conn, exec, &end, &outcome, settled);
            }
            Err(lease) => lease,
        };
        if gate.fault(Fault::SettleReruns) && runs == 0 {
            runs = 1;
            continue;
        }
        gate.refuse(conn, Class::Unknown, gate.tables.refusals.not_durable, gate.lease());
        // The caller has been told that nobody knows yet; the owner does, and tries on.
        let _ = settle(&gate, lease, fence, &outcome, SETTLES_WAITED_FOR..SETTLES_MAX).await;
        return;
    }
}

/// Sends the request on and waits for its end, with the lease renewed meanwhile.
async fn run(
    gate: &Gate,
    conn: u16,
    key: u8,
    print: u8,
    lease: &mut Lease,
    asked_at: u64,
    again: bool,
) -> (End, u16) {
    let fence = lease.fence().0 as u32;
    let (ms, refused) = gate.sim.with(|world| {
        let refused = world.strike(Kind::UpstreamRefuses, 10);
        (world.connecting_ms(), refused)
    });
    gate.sim.sleep(ms).await;
    // The last look before the first byte: past its lease an owner does not send.
    let late = gate.clock().saturating_sub(asked_at) >= lease.length().as_millis() as u64
        && !gate.fault(Fault::NoLeaseCheck)
        && !again;
    if late || refused {
        gate.sim.with(|world| world.record(What::Unsent { fence, late }));
        return (End::NotSent, NONE);
    }
    let Gate { number, epoch, .. } = *gate;
    let (exec, deadline) = gate.sim.with(|world| {
        world.record(What::Sent { conn, key, fence, gateway: number, epoch });
        let exec = world.send(key, fence, print, number, epoch);
        (exec, world.now + gate.options.upstream_timeout_ms)
    });
    let step = (gate.options.lease_ms / 3).max(1);
    let mut renewing = true;
    let engine = gate.sim.engine(gate.by(Role::Owner { fence }));
    loop {
        let until = gate.sim.with(|world| {
            let left = deadline.saturating_sub(world.now);
            world.wake_in(if renewing { left.min(step) } else { left })
        });
        if let Some(end) = poll_fn(|_| gate.sim.with(|world| world.end(exec, until))).await {
            return (end, exec);
        }
        if renewing {
            let lease_max = Duration::from_millis(gate.options.lease_max_ms);
            let renewed = engine.renew(lease.renewal(), gate.lease(), lease_max).await;
            // A failed renewal is tried again at the next step; a lost one never.
            renewing = !matches!(renewed, Ok(Renewed::Lost));
        }
        // Looked at last: who has slept past everything still tries to renew first.
        if gate.sim.with(|world| world.now) >= deadline {
            gate.sim.with(|world| world.record(What::GaveUp { exec }));
            return (End::AnswerLost, exec);
        }
    }
}

/// Settles, again if the store fails, with the same fence. The lease comes back if it cannot.
async fn settle(
    gate: &Gate,
    mut lease: Lease,
    fence: u32,
    outcome: &Outcome,
    tries: Range<u32>,
) -> Result<Settled, Lease> {
    let engine = gate.sim.engine(gate.by(Role::Owner { fence }));
    let standing = outcome.standing();
    let body = match outcome {
        Outcome::Completed(answer) => tables::status_and_body(answer).1,
        Outcome::Retryable(_) | Outcome::Unknown(_) => NONE,
    };
    for attempt in tries {
        gate.sim.with(|world| world.record(What::SettleAsked { fence, standing, body }));
        let settled = engine.settle(lease, outcome).await;
        let heard = match &settled {
            Ok(Settled::Done(_)) => SettleHeard::Done,
            Ok(Settled::Lost { contradiction, .. }) => {
                SettleHeard::Lost { contradiction: *contradiction }
            }
            Err(unsettled) => SettleHeard::Failed { ambiguous: unsettled.error.may_have_applied() },
        };
        gate.sim.with(|world| world.record(What::SettleHeard { fence, heard }));
        match settled {
            Ok(settled) => return Ok(settled),
            Err(unsettled) => lease = unsettled.lease,
        }
        gate.sim.sleep(PAUSE_MS << attempt).await;
    }
    Err(lease)
}

/// Answers what holds now.
fn tell(gate: &Gate, conn: u16, exec: u16, end: &End, outcome: &Outcome, settled: Settled) {
    let refusals = &gate.tables.refusals;
    match settled {
        Settled::Done(_) => match outcome {
            Outcome::Completed(Answer::Kept(_)) if gate.fault(Fault::AnswerBeforeDurable) => {}
            Outcome::Completed(answer @ Answer::Kept(_)) => {
                gate.answer_kept(conn, Class::First, answer);
            }
            // The first caller gets it whole; only the record cannot keep it.
            Outcome::Completed(Answer::NotKept { .. }) => {
                let status = gate.sim.with(|world| world.status_of(exec));
                let class = Class::First;
                gate.answer(conn, Reply { class, status, code: None, body: exec, retry_after: 0 });
            }
            Outcome::Retryable(Some(status)) => {
                let (class, status) = (Class::Released, status.as_u16());
                gate.answer(conn, Reply { class, status, code: None, body: exec, retry_after: 0 });
            }
            Outcome::Retryable(None) => {
                gate.refuse(conn, Class::Unreachable, refusals.unreachable, gate.lease());
            }
            Outcome::Unknown(_) => {
                let said = match end {
                    End::Panicked => refusals.panicked,
                    End::AnswerLost => refusals.answer_lost,
                    End::Answered { .. } | End::TooLarge { .. } | End::NotSent => refusals.unknown,
                };
                gate.refuse(conn, Class::Unknown, said, gate.lease());
            }
        },
        // Somebody else has decided: what they decided is the answer.
        Settled::Lost { current, .. } => match current.map(|record| record.state) {
            Some(State::Completed { answer, .. }) => {
                gate.answer_kept(conn, Class::Replay, &answer);
            }
            Some(State::InProgress { .. } | State::FailedRetryable { .. })
            | Some(State::Unknown { .. })
            | None => gate.refuse(conn, Class::Unknown, refusals.unknown, gate.lease()),
        },
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

impl Sim {
    /// The present life of a gateway.
    pub fn gate(&self, number: u8) -> Gate {
        self.with(|world| Gate {
            sim: self.clone(),
            number,
            epoch: world.gateways.get(usize::from(number)).map(|it| it.epoch).unwrap_or_default(),
            options: world.options.clone(),
            tables: world.tables.clone(),
            policy: world.policy.clone(),
        })
    }
}

impl World {
    fn clock_of(&self, gateway: u8) -> u64 {
        match self.gateways.get(usize::from(gateway)) {
            Some(process) => {
                process.frozen_at.unwrap_or(self.now).saturating_add_signed(process.astray_ms)
            }
            None => self.now,
        }
    }

    fn connecting_ms(&mut self) -> u64 {
        match self.strike(Kind::UpstreamSlow, 10) {
            true => self.chance.scaled(10, self.options.lease_ms * 3 / 2),
            false => self.chance.between(1, 6),
        }
    }
}
