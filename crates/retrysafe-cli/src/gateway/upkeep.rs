//! Which tasks keep the store tidy while the gateway runs?
use super::Gateway;
use retrysafe_core::store::Store;
use std::sync::Arc;
pub(crate) struct Upkeep;
pub(crate) fn start<S: Store>(_g: &Arc<Gateway<S>>) -> Upkeep {
    Upkeep
}
impl Upkeep {
    pub(crate) async fn end(self) {}
}
