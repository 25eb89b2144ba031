//! How does an outcome become durable, and a doubtful begin undone?

use std::sync::Arc;
use std::time::Duration;

use retrysafe_core::engine::{Lease, Settled};
use retrysafe_core::key::KeyDigest;
use retrysafe_core::record::Outcome;
use retrysafe_core::scope::Id;
use retrysafe_core::store::Store;
use tokio::time::Instant;

use super::deadline::after;
use super::running::Run;
use super::service::Case;
use super::stubborn::Stubborn;

/// The first pause between two tries of a store that has failed; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(50);

/// The longest pause: a store that comes back is noticed within a second.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How often a store that can be reached is asked for a begin that is not there. With the pauses
/// above this is about a quarter of a minute; a begin that lands later than that leaves a lease to
/// end, and its record is unknown.
const LOOKS_FOR_BEGIN_MAX: u32 = 20;

/// How many begins are withdrawn at once. In a long outage more may be in doubt; what is not withdrawn
/// becomes unknown, and memory stays bounded.
const WITHDRAWALS_MAX: usize = 10_000;

/// Settles, with the same fence as often as it takes. Says `None` when it took too long for the
/// caller; it is tried on without it, until the policy's `lease_max`. The execution counts as running
/// until then: a route that fails open must not repeat what this process is still settling.
pub(super) async fn settle<S: Store>(
    case: &Arc<Case<S>>,
    key: KeyDigest,
    lease: Lease,
    outcome: Outcome,
    run: Option<Run>,
) -> Option<Settled> {
    let lease = match case.room.engine.settle(lease, &outcome).await {
        Ok(settled) => {
            case.report.settled(key, &outcome, &settled);
            return Some(settled);
        }
        Err(unsettled) => unsettled.lease,
    };
    let again = Stubborn::new(settle_again(Arc::clone(case), key, lease, outcome, run));
    let settled = tokio::time::timeout(case.settings.settle_max, again).await.ok().flatten();
    if settled.is_none() {
        case.report.not_durable(key);
    }
    settled
}

async fn settle_again<S: Store>(
    case: Arc<Case<S>>,
    key: KeyDigest,
    mut lease: Lease,
    outcome: Outcome,
    _run: Option<Run>,
) -> Option<Settled> {
    let _under_way = case.room.drain.execution();
    let patience = case.route.policy.lease_max.max(case.settings.settle_max);
    let give_up_at = after(Instant::now(), patience);
    let mut pause = PAUSE;
    while Instant::now() < give_up_at {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
        match case.room.engine.settle(lease, &outcome).await {
            Ok(settled) => {
                case.report.settled(key, &outcome, &settled);
                return Some(settled);
            }
            Err(unsettled) => lease = unsettled.lease,
        }
    }
    None
}

/// Takes back a begin that may have been applied, so that its key is not stuck. Nobody waits for
/// this: the caller has been told that nothing was executed, which is true either way.
///
/// While the store is out of reach it is tried on for as long as a settle is. By then the record may
/// be unknown, which its owner can still take back.
pub(super) fn withdraw<S: Store>(case: &Arc<Case<S>>, id: Id, key: KeyDigest, owner: u64) {
    if case.room.drain.withdrawing() >= WITHDRAWALS_MAX {
        return case.report.withdrawn(key, false);
    }
    let case = Arc::clone(case);
    let under_way = case.room.drain.withdrawal();
    tokio::spawn(async move {
        let _under_way = under_way;
        let policy = &case.route.policy;
        let give_up_at = after(Instant::now(), policy.lease_max.max(policy.lease));
        let mut pause = PAUSE;
        let mut looks = 0;
        while looks < LOOKS_FOR_BEGIN_MAX && Instant::now() < give_up_at {
            match case.room.engine.withdraw(id, owner).await {
                Ok(true) => return case.report.withdrawn(key, true),
                // Nothing to take back is asked again as well: the begin may still be on its way.
                Ok(false) => looks += 1,
                Err(_) => {}
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        case.report.withdrawn(key, false);
    });
}
