//! Where are the planted faults that sit between engine and store?
//!
//! Here, and only here: a decision of the real engine is changed on its way to the store, or an
//! answer of the store on its way back. Nothing of this can reach a build of the product, because
//! the product does not know this crate. What each fault is called and by what it is found stands
//! in the [museum](crate::museum).

use std::future::poll_fn;
use std::time::Duration;

use retrysafe_core::engine::Settled;
use retrysafe_core::policy::End;
use retrysafe_core::record::{
    Answer, Becomes, Doubt, First, Happened, Outcome, Standing, State, Write,
};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{Inserted, Stamped, StoreError};

use super::gateway::Gate;
use super::handle::{Handle, broken};
use super::wire::{Request, Response};
use crate::history::{Class, Role, What};
use crate::museum::Fault;

/// An insert as a faulty store client makes it.
#[expect(clippy::wildcard_enum_match_arm, reason = "all other faults lie elsewhere")]
pub async fn insert(
    handle: &Handle,
    fault: Fault,
    first: First,
) -> Result<Stamped<Inserted>, StoreError> {
    let key = handle.key(&first.id)?;
    let mine = first.fingerprint;
    match fault {
        // Looks, and then acts on what it saw.
        Fault::CheckThenAct => {
            let Stamped { now, value } = handle.ask(Request::Load(key)).await?;
            let Response::Loaded(found) = value else { return Err(broken()) };
            if let Some(record) = found.filter(|record| !record.is_expired(now)) {
                return Ok(Stamped { now, value: Inserted::Exists(record) });
            }
            put(handle, first).await
        }
        // Takes an empty cache for an empty store.
        Fault::CacheGrants => match handle.sim.with(|world| world.read_cache(key, &mine)) {
            Some(hit) => Ok(hit.map(Inserted::Exists)),
            None => put(handle, first).await,
        },
        // Forgets what a released request meant.
        Fault::PrintDropped => {
            let mut answer = handle.insert_in_store(first).await?;
            if let Inserted::Exists(record) = &mut answer.value
                && record.standing() == Standing::FailedRetryable
            {
                record.fingerprint = mine;
            }
            Ok(answer)
        }
        // Takes an old unknown record for an expired one.
        Fault::UnknownReruns => {
            let answer = handle.insert_in_store(first.clone()).await?;
            if let Inserted::Exists(record) = &answer.value
                && let State::Unknown { since, .. } = record.state
                && since.plus(record.ttl) <= answer.now
            {
                handle.ask(Request::Delete(key)).await?;
                return handle.insert_in_store(first).await;
            }
            Ok(answer)
        }
        _ => handle.insert_in_store(first).await,
    }
}

async fn put(handle: &Handle, first: First) -> Result<Stamped<Inserted>, StoreError> {
    let Stamped { now, value } = handle.ask(Request::Put(first)).await?;
    let Response::Inserted(value) = value else { return Err(broken()) };
    Ok(Stamped { now, value })
}

/// A write as a faulty engine asks for it, and whether it ignores the version it read.
pub fn write(handle: &Handle, mut write: Write) -> (Write, bool) {
    let owner = matches!(handle.by.role, Role::Owner { .. });
    let force = match handle.fault {
        Some(Fault::NoFence) => owner,
        Some(Fault::SweeperOverwrites) => handle.by.role == Role::Sweeper,
        Some(_) | None => false,
    };
    match (handle.fault, &write.becomes, &write.what) {
        (Some(Fault::LeaseRerun), Becomes::Unknown(Doubt::LeaseEnded), _)
            if matches!(handle.by.role, Role::Begin { .. }) =>
        {
            let ms = handle.sim.with(|world| world.options.lease_ms);
            let lease = Duration::from_millis(ms);
            write.becomes = Becomes::Begun { owner: 0, lease, mark: None };
            write.new_fence = true;
            write.what = Some(Happened::Began(None));
        }
        (Some(Fault::VerdictKeepsFence), _, Some(Happened::Resolved(..)))
        | (Some(Fault::BeginKeepsFence), Becomes::Begun { .. }, _) => {
            write.new_fence = false;
        }
        (Some(Fault::SettleRaisesFence), _, Some(Happened::Settled(..)))
        | (Some(Fault::DoubtRaisesFence), _, Some(Happened::Doubted(_))) => {
            write.new_fence = true;
        }
        (Some(Fault::CompletedAsRetryable), Becomes::Completed(_), Some(Happened::Settled(..)))
        | (Some(Fault::VerdictReversed), Becomes::Completed(_), Some(Happened::Resolved(..)))
        | (Some(Fault::LateResultOverwrites), _, Some(Happened::LateResult(_)))
        | (Some(Fault::LookupReleases), Becomes::LookedUp, _) => {
            write.becomes = Becomes::FailedRetryable;
        }
        (Some(Fault::SweeperReleases), Becomes::Unknown(_), _)
            if handle.by.role == Role::Sweeper =>
        {
            write.becomes = Becomes::FailedRetryable;
        }
        (Some(Fault::WithdrawalDoubts), _, _) if handle.by.role == Role::Withdraw => {
            write.becomes = Becomes::Unknown(Doubt::Said);
        }
        (Some(Fault::KeptForNoTime), _, Some(Happened::Settled(..))) => {
            write.ttl = Some(Duration::ZERO);
        }
        (_, _, _) => {}
    }
    (write, force)
}

/// The owner whose begin a withdrawal takes back: one that does not look takes whoever it finds.
pub async fn withdraws(gate: &Gate, id: Id, mine: u64) -> u64 {
    if gate.options.fault != Some(Fault::WithdrawsAnybody) {
        return mine;
    }
    let found = gate.sim.engine(gate.by(Role::Reader)).look(id).await;
    let owner = found.ok().and_then(|found| found.value).and_then(|record| record.state.owner());
    owner.unwrap_or(mine)
}

/// A waiter that has waited for long enough, and takes the record away from its owner.
pub async fn delete(handle: &Handle, key: u8) {
    // Whether it was deleted shows at the next begin.
    let _ = handle.ask(Request::Delete(key)).await;
}

/// An execution without a grant.
pub async fn execute_unprotected(gate: Gate, conn: u16, key: u8, print: u8) {
    let Gate { number, epoch, .. } = gate;
    let (exec, until) = gate.sim.with(|world| {
        world.record(What::Sent { conn, key, fence: 0, gateway: number, epoch });
        let exec = world.send(key, 0, print, number, epoch);
        (exec, world.wake_in(gate.options.upstream_timeout_ms))
    });
    let end = poll_fn(|_| gate.sim.with(|world| world.end(exec, until))).await;
    if let Some(End::Answered { response, .. }) = end {
        gate.answer_kept(conn, Class::First, &Answer::Kept(response));
    }
}

/// What an execution's end means, as a faulty layer judges it.
pub fn outcome(fault: Option<Fault>, outcome: Outcome) -> Outcome {
    match (fault, &outcome) {
        (Some(Fault::EvictOnTimeout), Outcome::Unknown(Doubt::AnswerLost))
        | (Some(Fault::ServerErrorReleased), Outcome::Unknown(Doubt::ServerError))
        | (Some(Fault::PanicReleased), Outcome::Unknown(Doubt::Panicked))
        | (Some(Fault::LargeReleased), Outcome::Completed(Answer::NotKept { .. })) => {
            Outcome::Retryable(None)
        }
        (_, _) => outcome,
    }
}

/// A layer that answers whatever the record holds when its own settle is refused, whoever it is
/// about.
pub async fn overruled(gate: &Gate, key: u8, settled: Settled) -> Settled {
    let Settled::Lost { contradiction, .. } = settled else { return settled };
    if gate.options.fault != Some(Fault::OverruledByAnother) {
        return settled;
    }
    let Some(id) = gate.tables.id(key) else { return settled };
    let found = gate.sim.engine(gate.by(Role::Reader)).look(id).await;
    Settled::Lost { current: found.ok().and_then(|found| found.value), contradiction }
}
