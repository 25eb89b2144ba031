//! Which tasks keep the store tidy while the gateway runs?

use std::sync::Arc;
use std::time::Duration;

use retrysafe::upkeep::{Schedule, Tending, Upkeep};
use retrysafe_core::store::Store;

use super::Gateway;
use super::reconcile::HttpLookup;
use crate::config::ReconcileFile;

/// Starts the sweeper, the reaper and, where one is configured, the reconciler.
///
/// # Errors
///
/// If the reconciler's settings make no sense.
pub(crate) fn start<S: Store>(gateway: &Arc<Gateway<S>>) -> Result<Tending, String> {
    let live = gateway.live.load();
    let store = Arc::clone(gateway.engine.store());
    let upkeep =
        Upkeep::new(store).sweep_every(live.config.sweep_every).reap_every(live.config.reap_every);
    let upkeep = match &live.config.reconcile {
        None => upkeep,
        Some(settings) => {
            let lookup = HttpLookup::new(settings, Arc::clone(gateway))?;
            upkeep.reconcile(lookup, schedule(settings))
        }
    };
    Ok(upkeep.start())
}

fn schedule(settings: &ReconcileFile) -> Schedule {
    let default = Schedule::default();
    let after = settings.schedule.as_ref();
    let after = after.map(|list| list.iter().map(|length| length.0).collect::<Vec<Duration>>());
    Schedule {
        after: after.unwrap_or(default.after),
        look_every: settings.every.map_or(default.look_every, |length| length.0),
        lookup_max: settings.timeout.map_or(default.lookup_max, |length| length.0),
        settle_time: settings.settle_time(),
        ..default
    }
}
