//! Whom does a person ask about one record, out of turn?

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use retrysafe_core::scope::Id;
use retrysafe_core::store::{Store, StoreError};

use super::reconciler::Reconciler;
use super::rounds::{AskedNow, Reconciliation};

/// The answer to a question that is under way.
type Asking<'a> = Pin<Box<dyn Future<Output = Result<AskedNow, StoreError>> + Send + 'a>>;

/// A reconciliation, whatever it asks.
pub(super) trait AskAbout: Send + Sync {
    fn ask_now(&self, id: Id) -> Asking<'_>;
}

impl<S: Store, R: Reconciler> AskAbout for Reconciliation<S, R> {
    fn ask_now(&self, id: Id) -> Asking<'_> {
        Box::pin(Self::ask_now(self, id))
    }
}

/// Asks the reconcilers of an [`Upkeep`](super::Upkeep) about one record, at once.
#[derive(Clone, Default)]
pub struct Asker {
    reconciliations: Vec<Arc<dyn AskAbout>>,
}

impl Asker {
    pub(super) fn add(&mut self, reconciliation: Option<Arc<dyn AskAbout>>) {
        self.reconciliations.extend(reconciliation);
    }

    /// Asks the first reconciler that can be asked about a record, whatever its schedule says, and uses up nothing of it. See
    /// [`Reconciliation::ask_now`].
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn ask_now(&self, id: Id) -> Result<AskedNow, StoreError> {
        for reconciliation in &self.reconciliations {
            match reconciliation.ask_now(id).await? {
                AskedNow::NobodyToAsk => {}
                asked @ (AskedNow::Asked(_)
                | AskedNow::NotUnknown(_)
                | AskedNow::Absent
                | AskedNow::Busy) => return Ok(asked),
            }
        }
        Ok(AskedNow::NobodyToAsk)
    }
}

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asker").field("reconciliations", &self.reconciliations.len()).finish()
    }
}
