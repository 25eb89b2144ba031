//! Which tasks keep the store tidy while the gateway runs?

use std::sync::Arc;
use std::time::Duration;

use retrysafe::upkeep::{Tending, Upkeep};
use retrysafe::webhooks::Webhooks;
use retrysafe_core::store::Store;

use super::Gateway;
use super::reconcile::HttpLookup;

/// How often webhooks that wait are looked at.
const WEBHOOKS_EVERY: Duration = Duration::from_secs(1);

/// Starts the sweeper, the reaper and, where they are configured, the reconcilers.
///
/// # Errors
///
/// If a reconciler's settings make no sense.
pub(crate) fn start<S: Store>(gateway: &Arc<Gateway<S>>) -> Result<Tending, String> {
    let live = gateway.live.load();
    let store = Arc::clone(gateway.engine.store());
    let mut upkeep =
        Upkeep::new(store).sweep_every(live.config.sweep_every).reap_every(live.config.reap_every);
    let all = &live.config.lookups;
    for rules in all {
        let lookup = HttpLookup::new(rules, all, gateway)?;
        upkeep = upkeep.reconcile(lookup, rules.schedule.clone());
    }
    let webhooks = gateway.webhooks.load_full();
    let upkeep = match webhooks.inbox() {
        Some(_) if !live.config.webhooks.is_empty() => {
            upkeep.webhooks(Webhooks::clone(&webhooks), WEBHOOKS_EVERY)
        }
        Some(_) | None => upkeep,
    };
    let tending = upkeep.start();
    gateway.asker.store(Arc::new(tending.asker()));
    Ok(tending)
}
