//! How does an outcome become durable, and a doubtful begin undone?

use std::sync::Arc;
use std::time::Duration;

use retrysafe_core::engine::{Lease, Settled};
use retrysafe_core::execution::{SettleAgain, Settling, Told, Withdrawing};
use retrysafe_core::key::KeyDigest;
use retrysafe_core::scope::Id;
use retrysafe_core::store::Store;

use super::context::RequestContext;
use super::watch::WatchedStep;

/// How many begins are withdrawn at once. In a long outage more may be in doubt; what is not withdrawn
/// becomes unknown, and memory stays bounded.
const WITHDRAWALS_MAX: usize = 10_000;

/// Settles. The lease comes back if the store failed.
pub(super) async fn settle_once<S: Store>(
    context: &RequestContext<S>,
    key: KeyDigest,
    lease: Lease,
    settling: &Settling,
) -> Result<Settled, Lease> {
    // Nobody reads the clock for nobody.
    let started = context.watch.as_ref().map_or(Duration::ZERO, |_| context.now());
    match context.shared.engine.settle(lease, settling.outcome()).await {
        Ok(settled) => {
            context.stepped(WatchedStep::Settle(Some(settling.outcome().standing())), started);
            context.report.settled(key, settling.outcome(), &settled);
            Ok(settled)
        }
        Err(unsettled) => {
            context.stepped(WatchedStep::Settle(None), started);
            Err(unsettled.lease)
        }
    }
}

/// Settles after a failure, with the same fence as often as it takes. `None` when nobody tries any
/// more: the record becomes unknown when its lease ends.
pub(super) async fn settle_again<S: Store>(
    context: &RequestContext<S>,
    key: KeyDigest,
    mut lease: Lease,
    mut settling: Settling,
) -> Option<Told> {
    loop {
        match settling.failed(context.now()) {
            SettleAgain::Never => return None,
            SettleAgain::After(pause) => tokio::time::sleep(pause).await,
        }
        match settle_once(context, key, lease, &settling).await {
            Ok(settled) => return Some(settling.settled(settled)),
            Err(again) => lease = again,
        }
    }
}

/// Takes back a begin that may have been applied, so that its key is not stuck. Nobody waits for
/// this: the caller has been told that nothing was executed, which is true either way.
pub(super) fn withdraw<S: Store>(
    context: &Arc<RequestContext<S>>,
    id: Id,
    key: KeyDigest,
    owner: u64,
) {
    if context.shared.drain.withdrawing() >= WITHDRAWALS_MAX {
        return context.report.withdrawn(key, false);
    }
    let context = Arc::clone(context);
    let under_way = context.shared.drain.withdrawal();
    tokio::spawn(async move {
        let _under_way = under_way;
        let mut withdrawing = Withdrawing::new(context.policy(), context.now());
        loop {
            let pause = match context.shared.engine.withdraw(id, owner).await {
                Ok(true) => return context.report.withdrawn(key, true),
                Ok(false) => withdrawing.found_nothing(context.now()),
                Err(_) => withdrawing.failed(context.now()),
            };
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return context.report.withdrawn(key, false),
            }
        }
    });
}
