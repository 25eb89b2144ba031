//! What becomes of a request while nothing may be executed?

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use retrysafe::layer::{self, ExecutionGate, IdempotencyLayer, RequestFacts, RoutePolicy};
use retrysafe::stores::memory::MemoryStore;
use retrysafe_core::Scope;
use retrysafe_core::policy::{OnStoreError, Policy};
use retrysafe_core::problem::Refusal;
use retrysafe_core::store::StoreErrorKind;
use tokio::sync::watch;
use tower::Layer as _;

use crate::stage::{Fault, Faulty, On, must};

/// A gate that a test opens and closes.
#[derive(Debug, Default)]
struct Door {
    is_closed: AtomicBool,
}

impl Door {
    fn set_closed(&self, is_closed: bool) {
        self.is_closed.store(is_closed, Ordering::SeqCst);
    }
}

impl ExecutionGate for Door {
    fn closed(&self) -> Option<Refusal> {
        let retry_after = Duration::from_secs(1);
        let is_closed = self.is_closed.load(Ordering::SeqCst);
        is_closed.then_some(Refusal::UpstreamUnhealthy { retry_after })
    }
}

/// A handler behind the layer, whose executions a test lets end.
#[derive(Clone)]
struct House {
    door: Arc<Door>,
    store: Arc<Faulty>,
    layer: IdempotencyLayer<Arc<Faulty>>,
    runs: Arc<AtomicUsize>,
    is_held: watch::Sender<bool>,
}

impl House {
    fn new() -> Self {
        let store = Faulty::new(MemoryStore::default());
        let layer = IdempotencyLayer::new(Arc::clone(&store));
        let is_held = watch::Sender::new(false);
        Self { door: Arc::default(), store, layer, runs: Arc::default(), is_held }
    }

    /// Sends a request. A body that begins with "fail" is answered with 500.
    async fn send(&self, policy: &Policy, key: &str, body: &'static str) -> (u16, String) {
        let Self { runs, is_held, .. } = self.clone();
        let handler = tower::service_fn(move |request: Request<layer::Body<Full<Bytes>>>| {
            let runs = Arc::clone(&runs);
            let mut is_held = is_held.subscribe();
            async move {
                runs.fetch_add(1, Ordering::SeqCst);
                is_held.wait_for(|is_held| !is_held).await.unwrap();
                let sent = request.into_body().collect().await.unwrap().to_bytes();
                let status = if sent.starts_with(b"fail") { 500 } else { 201 };
                let answer = Response::builder().status(status).body(Full::from("done"));
                Ok::<_, Infallible>(answer.unwrap())
            }
        });
        let mut headers = HeaderMap::new();
        headers.insert("idempotency-key", key.parse().unwrap());
        let named = RequestFacts::read_key(policy, &headers);
        let route = Arc::new(RoutePolicy::new("/pay", policy.clone()));
        let facts = RequestFacts::new(route, named, || Ok(Scope::anonymous().into()));
        let facts = facts.gate(Arc::clone(&self.door) as Arc<dyn ExecutionGate>);
        let mut request = Request::post("/pay").body(Full::<Bytes>::from(body)).unwrap();
        *request.headers_mut() = headers;
        let Ok(answer) = self.layer.layer(handler).guard(request, facts).await;
        let status = answer.status().as_u16();
        let text = answer.into_body().collect().await.unwrap().to_bytes();
        let code = serde_json::from_slice::<serde_json::Value>(&text).ok();
        let code = code.and_then(|problem| problem["code"].as_str().map(str::to_owned));
        (status, code.unwrap_or_else(|| String::from_utf8_lossy(&text).into_owned()))
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

fn unhealthy() -> (u16, String) {
    (503, "upstream_unhealthy".into())
}

#[tokio::test]
async fn what_would_execute_is_refused_without_a_record_and_what_is_known_is_told() {
    let house = House::new();
    let policy = Policy::default();
    let done = (201, "done".to_owned());
    assert_eq!(house.send(&policy, "paid", "one").await, done);
    assert_eq!(house.send(&policy, "failed", "fail").await.0, 500);
    house.door.set_closed(true);
    let writes = (house.store.inserts(), house.store.swaps());
    assert_eq!(house.send(&policy, "new", "one").await, unhealthy());
    assert_eq!(house.send(&policy, "failed", "fail").await, unhealthy(), "it may run again later");
    for _ in 0..2 {
        assert_eq!(house.send(&policy, "paid", "one").await, done);
    }
    assert_eq!(house.send(&policy, "paid", "two").await, (422, "idempotency_key_reused".into()));
    assert_eq!((house.store.inserts(), house.store.swaps()), writes, "nothing is written");
    assert_eq!(house.runs(), 2);
    house.door.set_closed(false);
    assert_eq!(house.send(&policy, "new", "two").await, done, "its key was free");
}

#[tokio::test]
async fn a_duplicate_waits_for_what_runs_while_nothing_else_may() {
    let house = House::new();
    let waits = Policy { wait_max: Duration::from_secs(60), ..Policy::default() };
    house.is_held.send_replace(true);
    let first = tokio::spawn({
        let house = house.clone();
        let policy = waits.clone();
        async move { house.send(&policy, "k", "one").await }
    });
    must("it runs", async {
        while house.runs() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    house.door.set_closed(true);
    let told = house.send(&Policy::default(), "k", "one").await;
    assert_eq!(told, (409, "request_in_progress".into()));
    let (second, _) = tokio::join!(must("its end", house.send(&waits, "k", "one")), async {
        house.is_held.send_replace(false)
    });
    assert_eq!(second, (201, "done".into()));
    assert_eq!((first.await.unwrap(), house.runs()), ((201, "done".into()), 1));
}

#[tokio::test]
async fn a_store_that_is_away_executes_nothing_either() {
    let house = House::new();
    house.door.set_closed(true);
    let open = Policy { on_store_error: OnStoreError::Open, ..Policy::default() };
    for (policy, told) in
        [(Policy::default(), (503, "store_unavailable".to_owned())), (open, unhealthy())]
    {
        house.store.next(On::Load, Fault::Refuse(StoreErrorKind::Unavailable));
        assert_eq!(house.send(&policy, "k", "one").await, told);
    }
    assert_eq!(house.runs(), 0);
}
