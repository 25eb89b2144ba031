//! May requests be executed at this moment?
//!
//! A server in front of another one may know that the other one is ill. A request that would be executed is refused then, and nothing is
//! begun: no record is left, and its key is free for any other request. Whatever a record answers is answered.

use std::fmt;

use retrysafe_core::problem::Refusal;

/// Whoever knows whether requests may be executed.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use std::time::Duration;
/// use retrysafe::core::problem::Refusal;
/// use retrysafe::layer::ExecutionGate;
///
/// #[derive(Debug)]
/// struct Backend { is_ill: AtomicBool }
///
/// impl ExecutionGate for Backend {
///     fn closed(&self) -> Option<Refusal> {
///         let retry_after = Duration::from_secs(1);
///         self.is_ill.load(Ordering::Relaxed).then_some(Refusal::UpstreamUnhealthy { retry_after })
///     }
/// }
/// ```
pub trait ExecutionGate: fmt::Debug + Send + Sync {
    /// What a request is told that would be executed now; none while requests may be executed. It is asked before each begin,
    /// so it must not wait for anything.
    fn closed(&self) -> Option<Refusal>;
}
