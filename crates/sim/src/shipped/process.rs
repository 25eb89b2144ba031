//! What runs in a process?
//!
//! The shipped layer around the handler, or the shipped gateway in front of an upstream; and the shipped upkeep with its reconcilers, over the
//! simulated store. A crash ends the process's [`Life`]; the next one begins with nothing but what
//! the store knows.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, response};
use http_body_util::{BodyExt as _, Full};
use retrysafe::layer::{Drain, Idempotency, IdempotencyLayer, RoutePolicy};
use retrysafe::upkeep::{Lookup, LookupPauses, Reconciler, Schedule, Tending, Upkeep};
use retrysafe_core::fingerprint::Rules;
use retrysafe_core::machine::Proof;
use retrysafe_core::policy::{Absence, OnStoreError};
use retrysafe_core::record::Record;
use retrysafe_core::{Policy, Scope};
use tower_layer::Layer as _;
use tower_service::Service as _;

use super::answer::RESPONSE_BYTES_MAX;
use super::options::{Kind, Options};
use super::stage::{Finding, Life, SCOPE, Stage};
use super::store::SimStore;
use super::upstream::{Upstream, panic_quietly};
use super::witness::Asker;
use crate::history::{Found, What};

/// What answers requests in a process.
#[derive(Clone)]
pub enum Service {
    /// The shipped layer around the simulated handler.
    Layer(Box<Idempotency<Upstream, SimStore>>, Rulebook),
    /// The shipped gateway in front of the simulated upstream.
    #[cfg(feature = "gateway")]
    Gateway(super::gateway::Gateway),
}

/// The rules of a layer, which a reload replaces.
type Rulebook = Arc<Mutex<Arc<RoutePolicy>>>;

/// The processes of a history, by their numbers; none where one is down.
#[derive(Clone, Default)]
pub struct Gateways(Arc<Mutex<Vec<Option<Process>>>>);

impl Gateways {
    pub fn with<R>(&self, act: impl FnOnce(&mut Vec<Option<Process>>) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A process that is alive.
    pub fn alive<R>(&self, gateway: u8, act: impl FnOnce(&mut Process) -> R) -> Option<R> {
        self.with(|all| all.get_mut(usize::from(gateway)).and_then(Option::as_mut).map(act))
    }

    /// The life of a process, if it is alive.
    pub fn life(&self, gateway: u8) -> Option<Life> {
        self.alive(gateway, |process| process.life.clone())
    }
}

/// A gateway process that is alive.
pub struct Process {
    pub life: Life,
    pub service: Service,
    pub drain: Drain,
    /// Whether new connections are taken.
    pub accepts: bool,
    /// Dropped with the process.
    _upkeep: Tending,
}

impl Process {
    /// Starts a process.
    pub fn boot(stage: &Stage, gateway: u8) -> Self {
        let epoch = stage.with(|state| {
            while state.epochs.len() <= usize::from(gateway) {
                state.epochs.push(0);
            }
            let epoch = state.epochs.get_mut(usize::from(gateway));
            epoch.map_or(0, |epoch| {
                *epoch += 1;
                *epoch
            })
        });
        stage.record(What::Booted { gateway, epoch });
        let life = Life::new(gateway, epoch);
        let first_owner = stage.chance(&[30, gateway.into(), epoch.into()]).next();
        let (service, drain) = Service::boot(stage, &life, first_owner);
        let upkeep = upkeep(stage, &life);
        Self { life, service, drain, accepts: true, _upkeep: upkeep }
    }

    /// Replaces the rules while requests run.
    pub fn reload(&self, options: &Options, number: u64) {
        match &self.service {
            Service::Layer(_, rules) => {
                *rules.lock().unwrap_or_else(PoisonError::into_inner) = policy(options, number);
            }
            #[cfg(feature = "gateway")]
            Service::Gateway(gateway) => {
                // These settings differ from the first ones in nothing that could be wrong.
                let _ = gateway.reload(&super::gateway::settings(options, number));
            }
        }
    }

    /// Takes no further request.
    pub fn stop(&mut self) {
        self.accepts = false;
        self.life.close();
        match &self.service {
            Service::Layer(..) => {}
            #[cfg(feature = "gateway")]
            Service::Gateway(gateway) => gateway.stop(),
        }
    }
}

impl Service {
    fn boot(stage: &Stage, life: &Life, first_owner: u64) -> (Self, Drain) {
        #[cfg(feature = "gateway")]
        if stage.options().is_gateway
            && let Ok(gateway) = super::gateway::boot(stage, life, first_owner)
        {
            let drain = gateway.drain();
            return (Self::Gateway(gateway), drain);
        }
        let options = stage.options();
        let rules = Arc::new(Mutex::new(policy(options, 0)));
        let current = Arc::clone(&rules);
        let layer = IdempotencyLayer::new(SimStore::new(stage, Asker::Layer(life.clone())))
            .store_timeout(Duration::from_millis(options.store_timeout_ms))
            .owners_from(first_owner)
            .settle_max(Duration::from_millis(options.settle_max_ms))
            .policy_by(move |_| Arc::clone(&current.lock().unwrap_or_else(PoisonError::into_inner)))
            .scope(|parts| {
                let name = parts.headers.get(SCOPE)?;
                Some(Scope::of([(SCOPE, name.as_bytes())]))
            })
            .waiters_max(4, 8)
            .by_upstream(true)
            .trust_outcome_header(true);
        let drain = layer.drain();
        let service = layer.layer(Upstream { stage: stage.clone(), life: life.clone() });
        (Self::Layer(Box::new(service), rules), drain)
    }

    /// Answers a request. None if the connection breaks.
    pub async fn answer(self, request: Request<Full<Bytes>>) -> Option<(response::Parts, Bytes)> {
        match self {
            Self::Layer(mut service, _) => {
                let (parts, body) = service.call(request).await.ok()?.into_parts();
                Some((parts, body.collect().await.ok()?.to_bytes()))
            }
            #[cfg(feature = "gateway")]
            Self::Gateway(gateway) => {
                let (parts, mut body) = super::gateway::ask(gateway, request).await?.into_parts();
                Some((parts, (&mut body.body).collect().await.ok()?.to_bytes()))
            }
        }
    }
}

/// The route's policy. Every reload makes another set of rules for fingerprints, which knows the
/// former ones.
fn policy(options: &Options, number: u64) -> Arc<RoutePolicy> {
    let sets = [Rules::default(), Rules::default().raw_bodies(), Rules::default().without_host()];
    let at = (number % sets.len() as u64) as usize;
    let fingerprint = sets.get(at).cloned().unwrap_or_default();
    let policy = Policy {
        lease: Duration::from_millis(options.lease_ms),
        lease_max: Duration::from_millis(options.lease_max_ms),
        ttl: Duration::from_millis(options.ttl_ms),
        wait_max: Duration::from_millis(options.wait_max_ms),
        on_server_error: options.on_server_error,
        on_store_error: if options.fails_open { OnStoreError::Open } else { OnStoreError::Closed },
        absence: options.absence,
        response_bytes_max: RESPONSE_BYTES_MAX,
        former_fingerprints: sets.into_iter().filter(|rules| *rules != fingerprint).collect(),
        fingerprint,
        ..Policy::default()
    };
    Arc::new(RoutePolicy::new("payments", policy))
}

fn upkeep(stage: &Stage, life: &Life) -> Tending {
    let options = stage.options();
    let lease = Duration::from_millis(options.lease_ms);
    let mut upkeep = Upkeep::new(SimStore::new(stage, Asker::Upkeep(life.clone())))
        .store_timeout(Duration::from_millis(options.store_timeout_ms))
        .sweep_every(lease)
        .reap_every(lease * 2);
    for _ in 0..options.reconcilers {
        let reconciler = SimReconciler { stage: stage.clone(), life: life.clone() };
        upkeep = upkeep.reconcile(reconciler, schedule(options));
    }
    upkeep.start()
}

/// When the reconcilers ask.
pub fn schedule(options: &Options) -> Schedule {
    let lease = Duration::from_millis(options.lease_ms);
    let times: Vec<Duration> = (0..options.lookups_max).map(|number| lease * number).collect();
    let default = Schedule::default();
    Schedule {
        pauses: LookupPauses::between(&times).unwrap_or_else(|| default.pauses.clone()),
        look_every: lease,
        lookup_max: lease,
        settle_time: Duration::from_millis(options.settle_ms()),
        ..default
    }
}

/// Asks the upstream what became of an attempt.
struct SimReconciler {
    stage: Stage,
    life: Life,
}

impl Reconciler for SimReconciler {
    async fn lookup(&self, unknown: &Record) -> Lookup {
        let stage = &self.stage;
        self.life.pass(stage).await;
        let fence = unknown.fence.0 as u32;
        let Some(key) = stage.with(|state| state.key_of(&unknown.id)) else {
            return Lookup::Inconclusive("no such key".into());
        };
        let Life { gateway, epoch, .. } = self.life;
        let name = [40, gateway.into(), epoch.into(), key.into(), fence.into()];
        let number = stage.with(|state| state.count(&name));
        let mut chance = stage.chance(&[name.as_slice(), &[number]].concat());
        let out_ms = if stage.strikes(&mut chance, Kind::BadLookup, 20) {
            chance.scaled(10, 2 * stage.options().lease_ms)
        } else {
            chance.between(1, 10)
        };
        stage.sleep(out_ms).await;
        if stage.strikes(&mut chance, Kind::BadLookup, 10) {
            panic_quietly();
        }
        if stage.strikes(&mut chance, Kind::BadLookup, 10) {
            return Lookup::Pending;
        }
        let burns = stage.options().burns && chance.percent(75);
        let (found, lookup) = stage.with(|state| match state.effect_of(key, fence) {
            Some(exec) => (Some(Found::Effect), Lookup::Executed(state.remembered(exec))),
            None if burns => {
                state.burnt.push((key, fence));
                state.record(What::Burnt { key, fence });
                (Some(Found::Burnt), Lookup::NotExecuted(Proof::burnt()))
            }
            None => (Some(Found::Absence), Lookup::NotFound),
        });
        if let Some(found) = found {
            let finding = Finding { gateway, epoch, key, fence, found };
            stage.with(|state| state.findings.push(finding));
        }
        stage.sleep(chance.between(1, 10)).await;
        self.life.pass(stage).await;
        lookup
    }

    fn absence(&self, _: &Record) -> Absence {
        let number = self.stage.with(|state| state.count(&[41]));
        let mut chance = self.stage.chance(&[41, number]);
        if self.stage.strikes(&mut chance, Kind::BadLookup, 5) {
            panic_quietly();
        }
        self.stage.options().absence
    }
}
