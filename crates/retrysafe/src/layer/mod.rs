//! How does a tower or axum service become safe to retry?
//!
//! [`IdempotencyLayer`] wraps a service. A request with an `Idempotency-Key` takes effect once,
//! however often it arrives, and is answered with the same bytes.
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # fn example() -> axum::Router {
//! use axum::{Router, routing::post};
//! use retrysafe::layer::IdempotencyLayer;
//! use retrysafe::stores::memory::MemoryStore;
//!
//! Router::new()
//!     .route("/payments", post(async || "paid"))
//!     .layer(IdempotencyLayer::new(MemoryStore::default()))
//! # }
//! ```
//!
//! # Contract
//!
//! * The request body is read whole before anything is begun; the handler sees it unchanged.
//! * A client that goes away changes nothing: what was begun goes on and is settled.
//! * An answer leaves only after it is durable. If that fails, the caller is told so, never "done".
//! * A refused request is a response; the inner service's error type is passed through.
//!
//! # Order
//!
//! From the outside in: request id, tracing, compression, CORS, authentication, **this layer**, limits and
//! timeouts of the handler's own, the handler. A replay skips everything inside, so whatever decides
//! *whether* a caller may ask stands outside, and the scope is what it found out. In axum the
//! `.layer` that is called last is outermost. Where two of these layers meet, the outer one guards.
//!
//! # Caveats
//!
//! * A handler that does not end by itself is not killed. Its caller is answered after `lease_max`.
//! * An answer that is too large, a stream, or slower than `answer_hold_max` is passed on as it comes and
//!   cannot be replayed: a retry is told so with 410, and whether it was whole.
//! * An error of the inner service (not a response) makes the record unknown: nothing proves that
//!   nothing was done. Turn errors into responses inside this layer.
//! * What executes is the handler's future, within the connection's task while the client is there.
//!   It needs a tokio runtime. When the client leaves, the work goes on in another task: what a handler
//!   needs from outer layers belongs into the request's extensions, not into task-locals.
//! * Leases are renewed by a task of the layer, on the runtime on which the layer was made. A handler
//!   that blocks the only thread of that runtime for longer than a lease loses its lease.

mod answer;
mod arriving;
mod at_hand;
mod attempt;
mod attend;
mod begin;
mod body;
mod boot_clock;
mod context;
mod deadline;
mod drain;
mod execute;
#[cfg(feature = "axum")]
mod extractor;
mod gate;
mod guarded;
mod inner_body;
mod known_replays;
mod limits;
mod meaning;
mod memory;
mod observe;
mod observed;
mod read_answer;
mod renewal;
mod repeat;
mod report;
mod request;
mod response_future;
mod run_to_completion;
mod running;
mod service;
mod settings;
mod settle;
mod shared;
mod stream;
mod tally;
mod waiting;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use retrysafe_core::store::Store;
use tower_layer::Layer;

pub use attempt::{Attempt, Failed};
#[cfg(feature = "phases")]
pub(crate) use attend::catch_panic;
pub use body::Body;
#[cfg(any(feature = "outbox", feature = "phases"))]
pub(crate) use boot_clock::BootMoment;
pub use drain::Drain;
#[cfg(feature = "axum")]
pub use extractor::MissingAttempt;
pub use gate::ExecutionGate;
pub use inner_body::InnerBody;
pub use limits::{Limiter, Limits};
pub use memory::{ConnectionShare, MemoryBudget};
pub use repeat::{HeldReplay, RepeatableReplay};
pub use request::fingerprint_request;
pub use response_future::ResponseFuture;
pub use service::{Idempotency, RequestFacts};
pub use settings::{IDEMPOTENCY_KEY, RoutePolicy, caller_of_credential};
pub use tally::{ScopeCount, ScopeTally, Tallied};
pub use watch::{RequestWatch, WatchedStep};

use settings::Settings;
use shared::LayerShared;

/// Makes the services that it wraps safe to retry.
///
/// A clone shares everything with its original but the settings that are changed afterwards: make
/// one layer per store, and a clone of it per route that is set differently.
///
/// ```
/// use retrysafe::core::Policy;
/// use retrysafe::layer::IdempotencyLayer;
/// use retrysafe::stores::memory::MemoryStore;
///
/// let layer = IdempotencyLayer::new(MemoryStore::default()).policy(Policy::default().strict());
/// let drain = layer.drain();
/// # let _ = drain;
/// ```
pub struct IdempotencyLayer<S> {
    settings: Arc<Settings>,
    shared: Arc<LayerShared<S>>,
}

impl<S: Store> IdempotencyLayer<S> {
    /// A layer over this store that needs nothing else to be set.
    pub fn new(store: S) -> Self {
        Self { settings: Arc::default(), shared: Arc::new(LayerShared::new(store)) }
    }

    /// How long one call of the store may take. Holds for all clones.
    #[must_use]
    pub fn store_timeout(self, timeout: Duration) -> Self {
        self.shared.engine.store().set_timeout(timeout);
        self
    }

    /// From which number on the owners of this process are numbered: a random one, unless a process
    /// that comes later is to know which were this one's. No two processes that are alive may have
    /// numbers near each other. Holds for all clones.
    #[must_use]
    pub fn owners_from(self, first: u64) -> Self {
        self.shared.number_owners_from(first);
        self
    }
}

impl<S> IdempotencyLayer<S> {
    /// A handle by which a shutdown waits until every execution is settled.
    pub fn drain(&self) -> Drain {
        self.shared.drain.clone()
    }
}

impl<Svc, S> Layer<Svc> for IdempotencyLayer<S> {
    type Service = Idempotency<Svc, S>;

    fn layer(&self, inner: Svc) -> Self::Service {
        Idempotency::new(inner, Arc::clone(&self.settings), Arc::clone(&self.shared))
    }
}

impl<S> Clone for IdempotencyLayer<S> {
    fn clone(&self) -> Self {
        Self { settings: Arc::clone(&self.settings), shared: Arc::clone(&self.shared) }
    }
}

impl<S> fmt::Debug for IdempotencyLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer").field("settings", &self.settings).finish_non_exhaustive()
    }
}
