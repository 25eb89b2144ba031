//! Where are the planted faults between engine and store?
//!
//! Here, and only here: a decision of the real engine is changed on its way to the store, or an
//! answer of the store on its way back. Nothing of this can reach a build of the product, because
//! the product does not know this crate.

use std::time::Duration;

use retrysafe_core::flow::{FirstSentMark, FlowMove};
use retrysafe_core::record::{
    Answer, Becomes, Doubt, Fence, First, Happened, Record, Standing, State, Write,
};
use retrysafe_core::store::{Inserted, Stamped, StoreError};
use retrysafe_core::time::Time;

use super::super::wire::{Request, Response};
use super::{Handle, broken};
use crate::fault::Fault;
use crate::history::{Found, Role};

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
        // Takes a lease that is live for one that is over.
        Fault::LiveLeaseTakenOver => {
            let mut answer = handle.insert_in_store(first).await?;
            let now = answer.now;
            if let Inserted::Exists(record) = &mut answer.value
                && let State::InProgress { lease_until, .. } = &mut record.state
            {
                *lease_until = now;
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
        Some(Fault::TwoOwnersAdvance) => owner && matches!(write.becomes, Becomes::Advanced(_)),
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
        // The provider is taken to remember for ever.
        (
            Some(Fault::ForgottenKeyResumed),
            Becomes::Advanced(FlowMove::CallMarked(
                mark @ FirstSentMark { resume_until: Some(_), .. },
            )),
            _,
        )
        | (
            Some(Fault::UnkeyedCallResumed),
            Becomes::Advanced(FlowMove::CallMarked(
                mark @ FirstSentMark { resume_until: None, .. },
            )),
            _,
        ) => {
            let mark = FirstSentMark { resume_until: Some(Time::NEVER), ..*mark };
            write.becomes = Becomes::Advanced(FlowMove::CallMarked(mark));
        }
        (Some(Fault::WithdrawnTakeoverFrees), Becomes::LeaseEnded, _)
            if handle.by.role == Role::Withdraw =>
        {
            write.becomes = Becomes::FailedRetryable;
        }
        (Some(Fault::MarkSettledAway), Becomes::LeaseEnded, _) if owner => {
            write.becomes = Becomes::FailedRetryable;
        }
        (Some(Fault::FactCompletes), Becomes::Advanced(_), Some(Happened::Resolved(..))) => {
            let answer = Answer::NotKept { status: None, location: None };
            write.becomes = Becomes::Completed(answer);
        }
        (_, _, _) => {}
    }
    (write, force)
}

/// A record as a faulty engine sees it: to an owner that does not look, what is unknown is still in
/// progress; to a judge that does not look, what is decided is still unknown.
pub fn shown(handle: &Handle, mut record: Record) -> Record {
    let owner = matches!(handle.by.role, Role::Owner { .. });
    if handle.fault == Some(Fault::LateOwnerAdvances)
        && owner
        && let State::Unknown { since, owner, .. } = record.state
    {
        let owner = owner.unwrap_or_default();
        record.state = State::InProgress { owner, begun_at: since, lease_until: since, head: None };
    }
    if let Role::Judge { fence, evidence } = handle.by.role
        && let State::Completed { settled_at: since, .. }
        | State::FailedRetryable { settled_at: since, .. } = record.state
    {
        let is_blind = match handle.fault {
            Some(Fault::WebhookDecidesAgain) => evidence == Found::Effect,
            Some(Fault::ContradictionFlips) => matches!(evidence, Found::Absence | Found::Burnt),
            Some(_) | None => false,
        };
        if is_blind {
            let doubt = Doubt::LeaseEnded;
            record.fence = Fence(u64::from(fence));
            record.state = State::Unknown { since, doubt, lookups: 0, owner: None, head: None };
        }
    }
    record
}

impl Handle {
    /// A waiter that has waited for long enough, and takes the record away from its owner.
    pub async fn delete(&self, key: u8) {
        // Whether it was deleted shows at the next begin.
        let _ = self.ask(Request::Delete(key)).await;
    }
}
