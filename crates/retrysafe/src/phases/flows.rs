//! Who runs flows, and for whom?
//!
//! [`Flows::run`] for a queue or a timer, with a scope and a key of its own. [`Flows::answer`] for a handler
//! behind the [layer](crate::layer), which has begun the record already and renews its lease.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use retrysafe_core::engine::{Ask, Begun, Engine, Renewal};
use retrysafe_core::fingerprint::Fingerprint;
use retrysafe_core::flow::{FlowProgress, FlowVersion};
use retrysafe_core::record::About;
use retrysafe_core::store::StoreError;
use retrysafe_core::{Key, Policy, Scope};
use serde::Serialize;
use sqlx::PgPool;
use tokio::sync::Semaphore;

use super::end::{FlowEnd, tell};
use super::flow::{Flow, FlowCode};
use super::in_flight::BeginInFlight;
use super::persist::BackgroundWrites;
use super::renewal::Renewing;
use super::runner::{HeldLease, RunEnd, Runner, owned_by_another};
use crate::layer::{Attempt, BootMoment};
use crate::stores::postgres::PostgresStore;

/// How many flows the completer has under way in all, those among them that a former round did not wait for any longer.
const FINISHING_MAX: usize = 32;

/// Runs flows. Clones share everything.
///
/// A flow must be [registered](Self::with) to be run. Register every version of which a run may be left
/// unfinished; what nobody has registered is held.
#[derive(Clone)]
pub struct Flows {
    pub(super) runner: Runner,
    pub(super) codes: Arc<HashMap<FlowVersion, Arc<FlowCode>>>,
    versions: Vec<FlowVersion>,
    owners: Arc<AtomicU64>,
    /// For those that the completer goes on with.
    pub(super) finishing: Arc<Semaphore>,
}

impl Flows {
    /// Runs flows in transactions of this pool, with records in this store of the same database.
    pub fn new(pool: PgPool, store: PostgresStore) -> Self {
        // Owners are told apart by a random beginning and a count.
        let first = RandomState::new().hash_one(std::process::id());
        let policy = Arc::new(Policy::default());
        let engine = Engine::new(store);
        Self {
            runner: Runner {
                pool,
                background: BackgroundWrites::new(engine.clone()),
                engine,
                policy,
            },
            codes: Arc::default(),
            versions: Vec::new(),
            owners: Arc::new(AtomicU64::new(first)),
            finishing: Arc::new(Semaphore::new(FINISHING_MAX)),
        }
    }

    /// Registers a flow. Several versions of one name may stand side by side.
    #[must_use]
    pub fn with<I>(mut self, flow: &Flow<I>) -> Self {
        let version = flow.version().clone();
        Arc::make_mut(&mut self.codes).insert(version.clone(), Arc::clone(&flow.code));
        self.versions.retain(|known| *known != version);
        self.versions.push(version);
        self
    }

    /// How long leases and records last, and how refusals look. Behind the layer it must be the layer's.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.runner.policy = Arc::new(policy);
        self
    }

    /// The flows that are registered, for [`IdempotencyLayer::flows`](crate::layer::IdempotencyLayer::flows).
    pub fn versions(&self) -> Vec<FlowVersion> {
        self.versions.clone()
    }

    /// Runs a flow for this key, or goes on with it, or gives its answer. `input` counts for the first run
    /// alone; whoever goes on works on the input that was committed then. [`Flow::fingerprint`] makes a fingerprint.
    ///
    /// Dropped, it leaves everything as a crash would: the next run goes on when the lease is over. Dropped during its begin, it
    /// ends its lease in the background. The flow may have started by then; if nobody runs it again, the completer does.
    ///
    /// # Errors
    ///
    /// The store's. Nothing is lost: the next run goes on from the recovery point.
    pub async fn run<I: Serialize>(
        &self,
        flow: &Flow<I>,
        scope: &Scope,
        key: &Key,
        fingerprint: Fingerprint,
        input: &I,
    ) -> Result<FlowEnd, StoreError> {
        let route = flow.version().name.clone();
        let about = About { method: "FLOW".into(), route, path: "".into() };
        let policy = &self.runner.policy;
        let ask = Ask {
            scope,
            mark: None,
            key: key.digest(),
            prints: &fingerprint,
            about: &about,
            ttl: policy.ttl,
            lease: policy.lease,
            owner: self.next_owner(),
            request_id: None,
        };
        let bytes = serde_json::to_vec(input);
        let start = bytes.as_ref().ok().and_then(|bytes| {
            FlowProgress::started(flow.version().clone(), Bytes::copy_from_slice(bytes))
        });
        let in_flight = BeginInFlight::new(&self.runner, ask.id(), ask.owner);
        let held = match self.begin(&ask, start.as_ref()).await {
            Ok(Ok(held)) => held,
            Ok(Err(end)) => {
                in_flight.stands();
                return Ok(end);
            }
            Err(error) => {
                if !error.may_have_applied() {
                    in_flight.stands();
                }
                return Err(error);
            }
        };
        let _renewing = self.renew(&held);
        self.go_on(flow, held, bytes, Some(in_flight)).await
    }

    /// Runs a flow for a request that the layer around the handler has begun, or goes on with it. The layer must
    /// know the registered [`versions`](Self::versions).
    ///
    /// The handler returns the response as it is. What it says of the outcome is for the layer. An attempt runs a flow
    /// once: whoever asks again (a handler that gave up waiting, a middleware that retries) is told that it is in progress.
    pub async fn answer<I: Serialize>(
        &self,
        flow: &Flow<I>,
        attempt: &Attempt,
        input: &I,
    ) -> Response<Full<Bytes>> {
        if !attempt.run_flow() {
            return tell(Ok(owned_by_another()), &self.runner.policy);
        }
        let asked_at = BootMoment::now();
        let renewal = Renewal::new(attempt.id(), attempt.fence());
        let ended = match self.runner.engine.lease_of(renewal).await {
            Ok(Some(mut lease)) => {
                if let Some(ttl) = attempt.ttl() {
                    lease.set_ttl(ttl);
                }
                let held = HeldLease { lease, asked_at };
                self.go_on(flow, held, serde_json::to_vec(input), None).await
            }
            Ok(None) => Ok(owned_by_another()),
            Err(error) => Err(error),
        };
        if ended.as_ref().is_ok_and(FlowEnd::is_over) {
            attempt.flow_is_over();
        }
        tell(ended, &self.runner.policy)
    }

    /// Starts a flow, or goes on with the one that the record has.
    async fn go_on<I>(
        &self,
        flow: &Flow<I>,
        held: HeldLease,
        input: serde_json::Result<Vec<u8>>,
        in_flight: Option<BeginInFlight<'_>>,
    ) -> RunEnd {
        let has_begun = held.lease.flow().map(|progress| progress.flow().clone());
        let version = has_begun.as_ref().unwrap_or(flow.version());
        let Some(code) = self.codes.get(version) else {
            let error = format!("register it with `Flows::with`: {version:?}").into();
            self.runner.give_back(held, "unregistered", error).await?;
            if let Some(in_flight) = in_flight {
                in_flight.stands();
            }
            return Ok(FlowEnd::Held(version.clone()));
        };
        if has_begun.is_some() {
            if let Some(in_flight) = in_flight {
                in_flight.stands();
            }
            if held.lease.attempt() == 1 {
                return self.runner.run_phases(code, held).await;
            }
            return self.runner.resume(code, held).await;
        }
        let started = self.runner.start(code, held, input).await;
        // A start that could not be written is taken back together with its begin.
        if let (Ok(_) | Err(Ok(_)), Some(in_flight)) = (&started, in_flight) {
            in_flight.stands();
        }
        match started {
            Ok(held) => self.runner.run_phases(code, held).await,
            Err(end) => end,
        }
    }

    /// Asks for the right to run a flow, or for its end. A record that is new has this start from its first moment on.
    pub(super) async fn begin(
        &self,
        ask: &Ask<'_, Fingerprint>,
        start: Option<&FlowProgress>,
    ) -> Result<Result<HeldLease, FlowEnd>, StoreError> {
        let asked_at = BootMoment::now();
        let engine = &self.runner.engine;
        let begun = match start {
            Some(start) => engine.begin_started(ask, &self.versions, start).await?,
            None => engine.begin_flow(ask, &self.versions).await?,
        };
        Ok(Err(match begun {
            Begun::Execute(lease) => return Ok(Ok(HeldLease { lease, asked_at })),
            Begun::Replay(answer, _) => answer.into(),
            Begun::InProgress(left) => FlowEnd::InProgress(left),
            Begun::Held(version) => FlowEnd::Held(version),
            Begun::Mismatch => FlowEnd::Mismatch,
            Begun::CredentialChanged => FlowEnd::CredentialChanged,
            Begun::Unknown(_) => FlowEnd::Unknown,
        }))
    }

    pub(super) fn renew(&self, held: &HeldLease) -> Renewing {
        let Runner { engine, policy, .. } = &self.runner;
        Renewing::start(engine.clone(), held.lease.renewal(), policy)
    }

    /// A number of its own for one begin.
    pub(super) fn next_owner(&self) -> u64 {
        self.owners.fetch_add(1, Ordering::Relaxed)
    }
}

impl fmt::Debug for Flows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flows").field("versions", &self.versions).finish_non_exhaustive()
    }
}
