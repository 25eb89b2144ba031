//! How does an operator have an unknown request looked up, out of turn?

use std::sync::Arc;

use retrysafe_core::record::Record;
use retrysafe_core::scope::Id;
use retrysafe_core::store::Store;

use super::Gateway;
use super::reconcile::concerned;
use crate::admin::{LookupDesk, Polling};

/// Asks the gateway's own reconcilers.
pub(super) struct GatewayDesk<S> {
    pub gateway: Arc<Gateway<S>>,
}

impl<S: Store> LookupDesk for GatewayDesk<S> {
    fn looks_up(&self) -> bool {
        !self.gateway.live.load().config.lookups.is_empty()
    }

    fn planned(&self, unknown: &Record) -> Option<u32> {
        let live = self.gateway.live.load();
        let rules = concerned(&live.config.lookups, unknown)?;
        Some(u32::try_from(rules.schedule.pauses.lookups()).unwrap_or(u32::MAX))
    }

    fn poll(&self, id: Id) -> Polling {
        let asker = self.gateway.asker.load_full();
        Box::pin(async move { asker.ask_now(id).await })
    }
}
