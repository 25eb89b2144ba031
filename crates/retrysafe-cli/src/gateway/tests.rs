//! What needs a store of the test's own: a clock that can be turned, and one that fails on demand.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use retrysafe::stores::clock::Clock;
use retrysafe::stores::memory::MemoryStore;
use retrysafe::upkeep::Tending;
use retrysafe_core::engine::{Ask, Begun};
use retrysafe_core::fingerprint::{Fingerprint, RulesId};
use retrysafe_core::record::{About, First, Record, Write};
use retrysafe_core::scope::{Id, Scope};
use retrysafe_core::store::{
    Inserted, Page, Query, Stamped, Store, StoreError, StoreErrorKind, Swapped,
};
use retrysafe_core::time::Time;
use retrysafe_core::{Engine, Key};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::descriptors::ConnectionSlots;
use super::headers::Peer;
use super::listen::{self, Workers};
use super::live::Live;
use super::{Gateway, Worker, upkeep};
use crate::admin::{self, Admin, Operators};
use crate::config::{self, Secret, source};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const MINUTE: Duration = Duration::from_secs(60);

/// A gateway in this process, with its admin listener and its upkeep.
struct House {
    address: SocketAddr,
    admin: SocketAddr,
    executions: Arc<AtomicU64>,
    _tending: Tending,
    _stop: watch::Sender<bool>,
}

/// What was answered.
struct Told {
    status: StatusCode,
    headers: http::HeaderMap,
    body: String,
}

impl House {
    async fn open<S: Store>(store: Arc<S>, toml: &str) -> Self {
        let executions = Arc::new(AtomicU64::new(0));
        let upstream = upstream(Arc::clone(&executions)).await;
        let toml = format!("upstream = \"http://{upstream}\"\nthreads = 1\n{toml}");
        let source::Source { file, complaints, .. } = source::read(&toml);
        assert_eq!(complaints, [], "the configuration of the test");
        let live = Live::new(config::resolve(&file).unwrap(), None).unwrap();
        let slots = ConnectionSlots::new(1_000);
        let gateway = Arc::new(Gateway::new(live, Arc::clone(&store), None, slots, 1));
        let tending = upkeep::start(&gateway).unwrap();
        let (stop, stopped) = watch::channel(false);
        let workers = Workers::start(&gateway, 1, &stopped).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { workers.accept(&listener, stopped).await });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let admin = listener.local_addr().unwrap();
        let metrics = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let memory = gateway.memory.clone();
        let operators = Operators::new(&Secret("t".into()), &[]);
        let pages = Admin::new(store, None, operators, None, metrics.handle(), memory);
        let pages = admin::router(Arc::new(pages));
        tokio::spawn(async move { axum::serve(listener, pages).await });
        Self { address, admin, executions, _tending: tending, _stop: stop }
    }

    async fn post(&self, key: &str) -> Told {
        ask(self.address, keyed("/x", key)).await
    }

    async fn admin(&self, path: &str) -> Told {
        ask(self.admin, Request::get(path).header("authorization", "Bearer t")).await
    }

    fn executions(&self) -> u64 {
        self.executions.load(Ordering::Acquire)
    }
}

impl Told {
    fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }
}

fn keyed(path: &str, key: &str) -> http::request::Builder {
    Request::post(path).header("idempotency-key", key).header("authorization", "Bearer alice")
}

async fn ask(address: SocketAddr, request: http::request::Builder) -> Told {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = request.header("host", "api.test").body(Full::new(Bytes::new())).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    let status = answer.status();
    let headers = answer.headers().clone();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    Told { status, headers, body: String::from_utf8_lossy(&body).into_owned() }
}

async fn upstream(executions: Arc<AtomicU64>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let executions = Arc::clone(&executions);
            let service = service_fn(move |_: Request<Incoming>| {
                let number = executions.fetch_add(1, Ordering::AcqRel) + 1;
                let mut answer = Response::new(Full::new(Bytes::from(format!("{number}"))));
                *answer.status_mut() = StatusCode::CREATED;
                std::future::ready(Ok::<_, Infallible>(answer))
            });
            let server = hyper::server::conn::http1::Builder::new();
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

/// Waits until something holds; the upkeep's tasks need a moment of real time.
async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(waited.await.is_ok(), "never: {what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_day_of_retention_passes_in_moments() {
    let (clock, hand) = Clock::manual(Time::from_ms(1_700_000_000_000));
    let store = Arc::new(MemoryStore::with_clock(clock));
    let upkeep = "[upkeep]\nsweep_every = \"5ms\"\nreap_every = \"5ms\"\n";
    let house = House::open(Arc::clone(&store), upkeep).await;

    assert_eq!(house.post("day-1").await.body, "1");
    hand.advance(DAY - MINUTE);
    let replay = house.post("day-1").await;
    assert!(replay.is_replay() && replay.body == "1");
    hand.advance(MINUTE);
    let anew = house.post("day-1").await;
    assert!(!anew.is_replay() && anew.body == "2", "a day later the key is free");
    hand.advance(DAY);
    until("the reaper deletes what has expired", async || store.is_empty()).await;
    assert_eq!(house.executions(), 2);

    // An owner that died: its lease ends, the sweeper doubts it, and no age lets it be reaped.
    let ask = Ask {
        scope: &Scope::of([("credential", &b"somebody"[..])]),
        mark: None,
        key: Key::new("dead-owner").unwrap().digest(),
        prints: &Fingerprint::from_parts(1, RulesId::from_bytes([0; 8]), [7; 32]),
        about: &About::default(),
        ttl: DAY,
        lease: MINUTE,
        owner: 1,
        request_id: None,
    };
    let Begun::Execute(lease) = Engine::new(Arc::clone(&store)).begin(&ask).await.unwrap() else {
        panic!("nobody else has this key");
    };
    drop(lease);
    let unknown = async || {
        let listed = house.admin("/api/v1/keys?state=unknown").await.body;
        listed.contains("lease_ended")
    };
    hand.advance(MINUTE - Duration::from_secs(1));
    assert!(!unknown().await);
    hand.advance(Duration::from_secs(1));
    until("the sweeper ends the lease", unknown).await;
    hand.advance(DAY * 30);
    house.post("another").await;
    hand.advance(DAY);
    until("only the unknown one is left", async || store.len() == 1).await;
    assert!(unknown().await);
}

/// A store that fails on demand.
struct Flaky {
    store: MemoryStore,
    is_down: AtomicBool,
}

impl Flaky {
    fn ask(&self) -> Result<&MemoryStore, StoreError> {
        if self.is_down.load(Ordering::Acquire) {
            Err(StoreError::not_applied(StoreErrorKind::Unavailable))
        } else {
            Ok(&self.store)
        }
    }
}

impl Store for Flaky {
    async fn insert(&self, first: First) -> Result<Stamped<Inserted>, StoreError> {
        self.ask()?.insert(first).await
    }
    async fn load(&self, id: Id) -> Result<Stamped<Option<Record>>, StoreError> {
        self.ask()?.load(id).await
    }
    async fn swap(&self, from: Record, write: Write) -> Result<Stamped<Swapped>, StoreError> {
        self.ask()?.swap(from, write).await
    }
    async fn scan(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        self.ask()?.scan(query).await
    }
    async fn reap(&self, limit: usize) -> Result<Stamped<usize>, StoreError> {
        self.ask()?.reap(limit).await
    }
    async fn probe(&self) -> Result<Stamped<()>, StoreError> {
        self.ask()?.probe().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_store_nothing_runs_and_only_readiness_fails() {
    let store = Flaky { store: MemoryStore::default(), is_down: AtomicBool::new(false) };
    let store = Arc::new(store);
    let route = "[[route]]\npath = \"/open\"\nmethods = [\"POST\"]\non_store_error = \"open\"\n";
    let house = House::open(Arc::clone(&store), route).await;
    assert_eq!(house.post("before").await.status, 201);
    assert_eq!(house.admin("/readyz").await.status, 200);

    store.is_down.store(true, Ordering::Release);
    let refused = house.post("during").await;
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("store_unavailable"), "{}", refused.body);
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(house.post("before").await.status, 503, "a replay needs the store too");
    assert_eq!(house.executions(), 1);
    assert_eq!(house.admin("/readyz").await.status, 503);
    assert_eq!(house.admin("/livez").await.status, 200);
    assert_eq!(house.admin("/api/v1/keys").await.status, 503);
    let bare = ask(house.address, Request::post("/x")).await;
    assert_eq!(bare.status, 201, "a request without a key needs no store");
    let open = ask(house.address, keyed("/open", "k")).await;
    assert_eq!(open.status, 201);
    assert_eq!(open.headers.get("retrysafe-unprotected").unwrap(), "store");

    store.is_down.store(false, Ordering::Release);
    until("the breaker lets requests through again", async || {
        house.post("during").await.status == 201
    })
    .await;
    assert_eq!(house.admin("/readyz").await.status, 200);
    assert!(house.post("before").await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn a_caller_over_http2_that_vanished_is_let_go() {
    let file = source::read("upstream = \"http://127.0.0.1:1\"\n").file;
    let live = Live::new(config::resolve(&file).unwrap(), None).unwrap();
    let store = Arc::new(MemoryStore::default());
    let gateway = Gateway::new(live, store, None, ConnectionSlots::new(1_000), 1);
    let worker = Arc::new(Worker::new(Arc::new(gateway)));
    let (mut caller, ours) = tokio::io::duplex(1 << 10);
    let (_stop, stopped) = watch::channel(false);
    let peer = Peer::new([127, 0, 0, 1].into(), false);
    // The preface and empty settings; then not a word, not even to a ping.
    let hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    tokio::io::AsyncWriteExt::write_all(&mut caller, hello).await.unwrap();
    let served = listen::serve(worker, TokioIo::new(ours), peer, stopped, true);
    let ended = tokio::time::timeout(MINUTE, served).await;
    assert!(ended.is_ok_and(|ended| ended.is_err()), "the connection is still held");
}
