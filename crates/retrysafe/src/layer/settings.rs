//! What can be set, and what holds if nothing is?

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use retrysafe_core::Policy;
use retrysafe_core::credential::{self, Shown};
use retrysafe_core::execution::SETTLE_MAX;
use retrysafe_core::fingerprint::{Fingerprint, Rules};
use retrysafe_core::flow::FlowVersion;
pub use retrysafe_core::key::IDEMPOTENCY_KEY;
use retrysafe_core::key::{Key, KeyError};
use retrysafe_core::problem::{Problem, Refusal, UnsafeScope};
use retrysafe_core::scope::{Caller, Scope};

use super::limits::{Limiter, Limits};
use super::memory::MemoryBudget;
use super::tally::ScopeTally;

/// The label of a policy that was set without one.
pub(super) const ANY_ROUTE: &str = "*";

/// Waiters per key and in all, unless set otherwise: each holds a connection.
const WAITERS: (usize, usize) = (256, 4_096);

/// What a route's operator has decided, and what the route is called in metrics.
///
/// ```
/// use std::sync::Arc;
/// use retrysafe::core::Policy;
/// use retrysafe::layer::{IdempotencyLayer, RoutePolicy};
/// use retrysafe::stores::memory::MemoryStore;
///
/// let money = Arc::new(RoutePolicy::new("/payments", Policy::default().strict()));
/// let rest = Arc::new(RoutePolicy::new("rest", Policy::default()));
/// let layer = IdempotencyLayer::new(MemoryStore::default()).policy_by(move |parts| {
///     let is_money = parts.uri.path().starts_with("/payments");
///     Arc::clone(if is_money { &money } else { &rest })
/// });
/// # let _ = layer;
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RoutePolicy {
    /// What the route is called in records, metrics and logs. Never the request's path.
    pub label: Arc<str>,
    /// What its operator has decided.
    pub policy: Policy,
}

impl RoutePolicy {
    /// A policy under a label.
    pub fn new(label: impl Into<Arc<str>>, policy: Policy) -> Self {
        Self { label: label.into(), policy }
    }
}

pub(super) type PolicyFn = dyn Fn(&Parts) -> Arc<RoutePolicy> + Send + Sync;
pub(super) type CallerFn = dyn Fn(&Parts) -> Result<Caller, Refusal> + Send + Sync;
pub(super) type KeyFn = dyn Fn(&Parts, &Policy) -> Result<Key, KeyError> + Send + Sync;
pub(super) type PrintFn = dyn Fn(&Parts, &[u8], &Rules) -> Fingerprint + Send + Sync;
pub(super) type ErrorFn = dyn Fn(&Refusal, Problem) -> Problem + Send + Sync;

/// Everything that can be set.
#[derive(Clone)]
pub(super) struct Settings {
    pub policy: Arc<PolicyFn>,
    pub caller: Arc<CallerFn>,
    pub key: Arc<KeyFn>,
    /// None: [ours](super::request::print).
    pub print: Option<Arc<PrintFn>>,
    pub error: Option<Arc<ErrorFn>>,
    pub limiter: Option<Limiter>,
    pub memory: Option<MemoryBudget>,
    pub tally: Option<ScopeTally>,
    pub waiters_per_key_max: usize,
    pub waiters_max: usize,
    pub settle_max: Duration,
    pub trust_outcome_header: bool,
    pub by_upstream: bool,
    pub flows: Arc<[FlowVersion]>,
}

impl Default for Settings {
    fn default() -> Self {
        let everywhere = Arc::new(RoutePolicy::new(ANY_ROUTE, Policy::default()));
        Self {
            policy: Arc::new(move |_| Arc::clone(&everywhere)),
            caller: Arc::new(caller_of_credential),
            key: Arc::new(key_of_header),
            print: None,
            error: None,
            limiter: None,
            memory: None,
            tally: None,
            waiters_per_key_max: WAITERS.0,
            waiters_max: WAITERS.1,
            settle_max: SETTLE_MAX,
            trust_outcome_header: false,
            by_upstream: false,
            flows: Arc::default(),
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("settle_max", &self.settle_max)
            .field("by_upstream", &self.by_upstream)
            .finish_non_exhaustive()
    }
}

/// A caller is known by its scope alone.
fn by_scope(scope: impl Fn(&Parts) -> Option<Scope> + Send + Sync + 'static) -> Arc<CallerFn> {
    let nobody = || Refusal::ScopeUnsafe(UnsafeScope::Application);
    Arc::new(move |parts| scope(parts).map(Caller::from).ok_or_else(nobody))
}

/// Reads the key from the policy's header, by the policy's syntax.
fn key_of_header(parts: &Parts, policy: &Policy) -> Result<Key, KeyError> {
    let lines = parts.headers.get_all(&policy.key_header).iter().map(|line| line.as_bytes());
    Key::parse_lines(lines, policy.key_syntax)
}

/// Who is asking, as far as the request's [credentials](retrysafe_core::credential) say it. A cookie
/// says nothing, nor does an `Authorization` that is made anew for each request: those are refused.
/// Whoever shows nothing at all is anonymous, and all such callers share their keys; an application
/// that has other ways to know its callers names them with [`scope`](super::IdempotencyLayer::scope).
///
/// # Errors
///
/// The refusal, if what the caller shows cannot be a scope.
pub fn caller_of_credential(parts: &Parts) -> Result<Caller, Refusal> {
    // A token's claims are not read here: this layer stands behind whatever verifies tokens.
    let shown = credential::shown(&parts.headers, |_| None).map_err(Refusal::ScopeUnsafe)?;
    let Some(Shown { parts, mark }) = shown else { return Ok(Scope::anonymous().into()) };
    let scope = Scope::of(parts.iter().map(|(name, value)| (*name, value.as_bytes())));
    Ok(Caller { scope, mark })
}

impl<S> super::IdempotencyLayer<S> {
    fn set(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }

    /// What the operator has decided, for every request. In axum each matched path is reported as
    /// a route of its own.
    #[must_use]
    pub fn policy(self, policy: Policy) -> Self {
        self.route(ANY_ROUTE, policy)
    }

    /// What the operator has decided, reported under this label.
    #[must_use]
    pub fn route(self, label: impl Into<Arc<str>>, policy: Policy) -> Self {
        let one = Arc::new(RoutePolicy::new(label, policy));
        self.policy_by(move |_| Arc::clone(&one))
    }

    /// What the operator has decided, request by request. Keep the policies and hand out the
    /// `Arc`s: this is asked of every request, also of those that are not covered.
    #[must_use]
    pub fn policy_by(
        self,
        policy: impl Fn(&Parts) -> Arc<RoutePolicy> + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.policy = Arc::new(policy))
    }

    /// Who is asking. `None` refuses the request: its credential cannot serve as a scope.
    ///
    /// A replay skips the handler's own checks, so the scope must be something that a stranger
    /// cannot forge: put this layer behind authentication and name the account that it found.
    #[must_use]
    pub fn scope(self, scope: impl Fn(&Parts) -> Option<Scope> + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.caller = by_scope(scope))
    }

    /// Who is asking, where [`scope`](Self::scope) says too little: a [`Caller`] may have a credential
    /// mark beside its scope, and a refusal says why nobody was found.
    ///
    /// A mark is for scopes that the caller only claims, such as the subject of a token that nobody
    /// has verified. A record that may have been executed is then answered only to the credential
    /// that began it; another one is refused with `credential_changed`.
    #[must_use]
    pub fn caller(
        self,
        caller: impl Fn(&Parts) -> Result<Caller, Refusal> + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.caller = Arc::new(caller))
    }

    /// How the key is found, instead of in the policy's `key_header`. `KeyError::Missing` says that there is none.
    #[must_use]
    pub fn key_by(
        self,
        key: impl Fn(&Parts, &Policy) -> Result<Key, KeyError> + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.key = Arc::new(key))
    }

    /// How a request's meaning is taken, from its head, its whole body and the rules to use.
    /// [`fingerprint_request`](super::fingerprint_request) is the place to begin.
    #[must_use]
    pub fn fingerprint(
        self,
        print: impl Fn(&Parts, &[u8], &Rules) -> Fingerprint + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.print = Some(Arc::new(print)))
    }

    /// How refusals are written, from what would have been sent: status, headers (the `Link` to the page
    /// of the code among them) and document.
    ///
    /// ```
    /// # use retrysafe::layer::IdempotencyLayer;
    /// # use retrysafe::stores::memory::MemoryStore;
    /// use http::HeaderValue;
    ///
    /// let layer = IdempotencyLayer::new(MemoryStore::default()).error_body(|refusal, mut problem| {
    ///     problem.headers.insert("x-code", HeaderValue::from_static(refusal.code()));
    ///     problem.body = format!("sorry: {}", refusal.code()).into_bytes();
    ///     problem.content_type = "text/plain";
    ///     problem
    /// });
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn error_body(
        self,
        error: impl Fn(&Refusal, Problem) -> Problem + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.error = Some(Arc::new(error)))
    }

    /// How fast callers may be. Nothing is limited by default.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        self.limiter(Limiter::new(limits))
    }

    /// How fast callers may be, with limits that can be changed while requests run.
    #[must_use]
    pub fn limiter(self, limiter: Limiter) -> Self {
        self.set(|settings| settings.limiter = Some(limiter))
    }

    /// How much memory guarded requests may hold; past it they are refused with 503 before they
    /// begin. Not bounded by default. Layers that are given clones of one budget share it.
    #[must_use]
    pub fn memory(self, budget: MemoryBudget) -> Self {
        self.set(|settings| settings.memory = Some(budget))
    }

    /// Who counts duplicates and misuses by scope. Nobody does by default.
    #[must_use]
    pub fn tally(self, tally: ScopeTally) -> Self {
        self.set(|settings| settings.tally = Some(tally))
    }

    /// How many duplicates may wait for one running request, and how many in all.
    #[must_use]
    pub fn waiters_max(self, per_key: usize, in_all: usize) -> Self {
        self.set(|settings| {
            settings.waiters_per_key_max = per_key;
            settings.waiters_max = in_all;
        })
    }

    /// How many executions may go on at once after their handlers have
    /// [released](super::Attempt::release_caller) their callers: 1,024 unless it is set. Holds for all
    /// clones.
    #[must_use]
    pub fn late_answers_max(self, late_answers_max: usize) -> Self {
        self.shared.late_answers.set_max(late_answers_max);
        self
    }

    /// How long a settle is tried before the caller is told that the outcome is unknown. It is
    /// tried on behind the caller's back until the policy's `lease_max`.
    #[must_use]
    pub fn settle_max(self, settle_max: Duration) -> Self {
        self.set(|settings| settings.settle_max = settle_max)
    }

    /// Whether the inner service's `Retrysafe-Outcome` header is believed, and removed.
    #[must_use]
    pub fn trust_outcome_header(self, trust: bool) -> Self {
        self.set(|settings| settings.trust_outcome_header = trust)
    }

    /// The flows that the handlers behind this layer can go on with. A retry of one of these begins where
    /// its former owner has died; a flow that is not listed is held, and its callers are told that it is
    /// in progress.
    ///
    /// A handler that is given such a request and answers without going on with the flow has done
    /// nothing: the flow stays where it is.
    #[must_use]
    pub fn flows(self, flows: impl IntoIterator<Item = FlowVersion>) -> Self {
        self.set(|settings| settings.flows = flows.into_iter().collect())
    }

    /// Whether the inner service is a proxy. If it is, a 502 or 504 from it means that nobody knows
    /// whether the request ran, and the record becomes unknown.
    #[must_use]
    pub fn by_upstream(self, by_upstream: bool) -> Self {
        self.set(|settings| settings.by_upstream = by_upstream)
    }
}
