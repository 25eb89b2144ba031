//! On what stage do the layer's tests play? A real axum server on a socket, a shop whose handlers
//! behave as their path says, a store that fails on command, and a client that hides nothing.
#![allow(dead_code, unreachable_pub, reason = "each test binary plays its own scenes")]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use retrysafe::layer::{Attempt, Failed, IdempotencyLayer};
use retrysafe::stores::clock::{Clock, Hand};
use retrysafe::stores::memory::MemoryStore;
use retrysafe_core::policy::{Policy, Said};
use retrysafe_core::record::{First, Record, Standing, Write};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{
    ChangeHint, Filter, Inserted, Page, Query, Stamped, Store, StoreError, StoreErrorKind, Swapped,
    Voucher,
};
use retrysafe_core::time::Time;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

/// How long a test waits for something that must happen. Nothing is ever timed by it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for something that must happen.
pub async fn must<T>(what: &str, happens: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, happens).await.unwrap_or_else(|_| panic!("never: {what}"))
}

/// What a store does instead of what it is asked.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Fails, and nothing was written.
    Refuse(StoreErrorKind),
    /// Writes, and loses the acknowledgement.
    LoseAnswer,
    /// Says that the write may have been applied; it was not.
    LoseWrite,
    /// Never answers; nothing was written.
    Hang,
    /// Waits for a permit, then does as it is asked.
    Hold(Arc<Semaphore>),
}

/// Which call a fault is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    Insert,
    Load,
    Swap,
}

/// A memory store that fails on command.
pub struct Faulty {
    pub inner: MemoryStore,
    plan: Mutex<Vec<(On, VecDeque<Fault>)>>,
    always: Mutex<Option<(On, Fault)>>,
    calls: watch::Sender<(usize, usize)>,
    read_at_hand: AtomicUsize,
}

impl Faulty {
    pub fn new(inner: MemoryStore) -> Arc<Self> {
        let (calls, _) = watch::channel((0, 0));
        let (plan, always) = (Mutex::default(), Mutex::default());
        Arc::new(Self { inner, plan, always, calls, read_at_hand: AtomicUsize::new(0) })
    }

    /// The next call of this kind fails like this; several queue up.
    pub fn next(&self, on: On, fault: Fault) {
        let mut plan = self.plan.lock().unwrap();
        match plan.iter_mut().find(|(kind, _)| *kind == on) {
            Some((_, faults)) => faults.push_back(fault),
            None => plan.push((on, VecDeque::from([fault]))),
        }
    }

    /// Every call of this kind fails like this, until told otherwise.
    pub fn always(&self, fault: Option<(On, Fault)>) {
        *self.always.lock().unwrap() = fault;
    }

    /// Waits until this many writes (inserts, swaps) have been asked for.
    pub async fn asked(&self, inserts: usize, swaps: usize) {
        let mut calls = self.calls.subscribe();
        let enough = calls.wait_for(|(i, s)| *i >= inserts && *s >= swaps);
        must("store asked", enough).await.unwrap();
    }

    pub fn inserts(&self) -> usize {
        self.calls.borrow().0
    }

    /// How often a record was read to be kept at hand.
    pub fn read_at_hand(&self) -> usize {
        self.read_at_hand.load(Ordering::SeqCst)
    }

    pub fn swaps(&self) -> usize {
        self.calls.borrow().1
    }

    fn fault(&self, on: On) -> Option<Fault> {
        self.calls.send_modify(|(inserts, swaps)| match on {
            On::Insert => *inserts += 1,
            On::Swap => *swaps += 1,
            On::Load => {}
        });
        let mut plan = self.plan.lock().unwrap();
        let planned = plan
            .iter_mut()
            .find(|(kind, _)| *kind == on)
            .and_then(|(_, faults)| faults.pop_front());
        planned.or_else(|| match &*self.always.lock().unwrap() {
            Some((kind, fault)) if *kind == on => Some(fault.clone()),
            _ => None,
        })
    }

    async fn call<T>(
        &self,
        on: On,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match self.fault(on) {
            None => call.await,
            Some(Fault::Refuse(kind)) => Err(StoreError::not_applied(kind)),
            Some(Fault::LoseAnswer) => {
                call.await?;
                Err(StoreError::maybe_applied(StoreErrorKind::Unavailable))
            }
            Some(Fault::LoseWrite) => Err(StoreError::maybe_applied(StoreErrorKind::Unavailable)),
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Hold(gate)) => {
                gate.acquire().await.unwrap().forget();
                call.await
            }
        }
    }
}

impl Store for Faulty {
    async fn insert(&self, first: First) -> Result<Stamped<Inserted>, StoreError> {
        self.call(On::Insert, self.inner.insert(first)).await
    }

    async fn load(&self, id: Id) -> Result<Stamped<Option<Record>>, StoreError> {
        self.call(On::Load, self.inner.load(id)).await
    }

    async fn swap(&self, from: Record, write: Write) -> Result<Stamped<Swapped>, StoreError> {
        self.call(On::Swap, self.inner.swap(from, write)).await
    }

    fn change_hint(&self, id: Id) -> Option<ChangeHint> {
        self.inner.change_hint(id)
    }

    fn voucher(&self) -> Option<&dyn Voucher> {
        Some(self)
    }

    async fn scan(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        self.inner.scan(query).await
    }

    async fn reap(&self, limit: usize) -> Result<Stamped<usize>, StoreError> {
        self.inner.reap(limit).await
    }
}

impl Voucher for Faulty {
    fn vouch(&self, id: Id, version: u64) -> Option<Time> {
        self.inner.vouch(id, version)
    }

    fn at_hand(&self, id: Id) -> Option<Record> {
        self.read_at_hand.fetch_add(1, Ordering::SeqCst);
        self.inner.at_hand(id)
    }
}

/// What the handlers share.
#[derive(Clone)]
pub struct Shop {
    runs: Arc<watch::Sender<usize>>,
    left: Arc<watch::Sender<usize>>,
    pub gate: Arc<Semaphore>,
}

impl Shop {
    pub fn new() -> Self {
        let (runs, left) = (watch::channel(0).0, watch::channel(0).0);
        Self { runs: Arc::new(runs), left: Arc::new(left), gate: Arc::new(Semaphore::new(0)) }
    }

    /// How often a handler has begun.
    pub fn runs(&self) -> usize {
        *self.runs.borrow()
    }

    /// Waits until a handler has begun for the `count`th time.
    pub async fn began(&self, count: usize) {
        must("handler began", self.runs.subscribe().wait_for(|runs| *runs >= count)).await.unwrap();
    }

    /// Waits until the server has dropped this many unfinished answers.
    pub async fn left(&self, count: usize) {
        must("caller left", self.left.subscribe().wait_for(|left| *left >= count)).await.unwrap();
    }

    fn run(&self) -> usize {
        self.runs.send_modify(|runs| *runs += 1);
        self.runs()
    }
}

/// A server on a socket.
pub struct Stage {
    pub address: SocketAddr,
    pub shop: Shop,
    pub store: Arc<Faulty>,
    pub layer: IdempotencyLayer<Arc<Faulty>>,
    pub hand: Hand,
}

impl Stage {
    /// A shop behind a layer with this policy.
    pub async fn open(policy: Policy) -> Self {
        Self::open_with(|layer| layer.policy(policy)).await
    }

    /// A shop behind a layer set like this.
    pub async fn open_with(
        set: impl FnOnce(IdempotencyLayer<Arc<Faulty>>) -> IdempotencyLayer<Arc<Faulty>>,
    ) -> Self {
        let (clock, hand) = Clock::manual(Time::from_ms(1_800_000_000_000));
        let store = Faulty::new(MemoryStore::with_clock(clock));
        let layer = set(IdempotencyLayer::new(Arc::clone(&store)));
        let shop = Shop::new();
        let router = Router::new().merge(shelves(&shop)).layer(layer.clone());
        let address = serve(&shop, router).await;
        Self { address, shop, store, layer, hand }
    }

    pub async fn post(&self, path: &str, key: &str, body: impl Into<Bytes>) -> Answer {
        self.send(self.request(path, key, body)).await
    }

    pub fn request(&self, path: &str, key: &str, body: impl Into<Bytes>) -> Request {
        Request::post(path)
            .header("host", "shop.example")
            .header("idempotency-key", key)
            .body(Body::from(body.into()))
            .unwrap()
    }

    pub async fn send(&self, request: Request) -> Answer {
        must("an answer", send(self.address, request)).await
    }

    /// Sends in the background.
    pub fn begin(&self, request: Request) -> tokio::task::JoinHandle<Answer> {
        tokio::spawn(send(self.address, request))
    }

    /// Every record there is.
    pub async fn records(&self) -> Vec<Record> {
        let query = Query { filter: Filter::default(), after: None, limit: 1_000 };
        self.store.inner.scan(query).await.unwrap().value.records
    }

    /// The standing of the only record there is.
    pub async fn standing(&self) -> Standing {
        match &self.records().await[..] {
            [record] => record.standing(),
            records => panic!("{} records", records.len()),
        }
    }

    /// Waits until the only record there is looks like this.
    pub async fn until(&self, is_so: impl Fn(&Record) -> bool) {
        must("the record", async {
            while !matches!(&self.records().await[..], [record] if is_so(record)) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }

    /// Waits until every execution is settled.
    pub async fn settled(&self) {
        self.layer.drain().wait(PATIENCE).await.expect("everything is settled");
    }
}

/// Opens a socket for a router; the server ends with the test's runtime.
pub async fn serve(shop: &Shop, router: Router) -> SocketAddr {
    let router = router.layer(WatchLayer(shop.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

/// An answer as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Bytes,
    /// Whether it broke off, perhaps before its status.
    pub broken: bool,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(n, _)| n == name)?;
        std::str::from_utf8(value).ok()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The problem's code.
    pub fn code(&self) -> String {
        let json: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        json["code"].as_str().unwrap_or_default().to_owned()
    }

    pub fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// A refusal with this status and code, in the form that every refusal has.
    #[track_caller]
    pub fn refuses(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.code().as_str()), (status, code), "{}", self.text());
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        assert_eq!(self.header("cache-control"), Some("no-store"));
        let link = self.header("link").unwrap();
        assert!(
            link.ends_with(&format!("/docs/problems/{code}.md>; rel=\"describedby\"")),
            "{link}"
        );
    }

    pub fn retry_after(&self) -> u64 {
        self.header("retry-after").expect("Retry-After").parse().unwrap()
    }
}

/// Sends one request on a connection of its own.
pub async fn send(address: SocketAddr, request: Request) -> Answer {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake::<_, Body>(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let Ok(response) = sender.send_request(request).await else {
        return Answer { status: 0, headers: vec![], body: Bytes::new(), broken: true };
    };
    let (parts, mut body) = response.into_parts();
    let (mut bytes, mut broken) = (Vec::new(), false);
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => bytes.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new())),
            Err(_) => broken = true,
        }
    }
    let headers = parts.headers.iter().map(|(n, v)| (n.to_string(), v.as_bytes().to_vec()));
    Answer { status: parts.status.as_u16(), headers: headers.collect(), body: bytes.into(), broken }
}

/// A body of pieces that may end in an error.
pub struct Pieces {
    pub pieces: VecDeque<Bytes>,
    pub then: Then,
}

/// How a body of pieces ends.
pub enum Then {
    End,
    Break,
    Panic,
    Trailers,
    Wait(Arc<Semaphore>),
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, std::io::Error>>> {
        if let Some(piece) = self.pieces.pop_front() {
            return Poll::Ready(Some(Ok(http_body::Frame::data(piece))));
        }
        Poll::Ready(match std::mem::replace(&mut self.then, Then::End) {
            Then::End => None,
            Then::Break => Some(Err(std::io::Error::other("cut"))),
            Then::Panic => panic!("in the body"),
            Then::Trailers => {
                let trailers = HeaderMap::from_iter([(
                    http::HeaderName::from_static("x-sum"),
                    HeaderValue::from_static("7"),
                )]);
                Some(Ok(http_body::Frame::trailers(trailers)))
            }
            Then::Wait(gate) => {
                self.then = Then::Wait(gate);
                return Poll::Pending;
            }
        })
    }
}

pub fn pieces(count: usize, bytes: usize, then: Then) -> Body {
    let piece = Bytes::from(vec![b'x'; bytes]);
    Body::new(Pieces { pieces: std::iter::repeat_n(piece, count).collect(), then })
}

/// What the shop sells: each path behaves as it says. Every handler counts as a run.
pub fn shelves(shop: &Shop) -> Router {
    Router::new()
        .route("/pay", post(pay).patch(pay).put(pay).get(pay).delete(pay))
        .route("/pay/{more}", post(pay))
        .route("/slow", post(slow))
        .route("/echo", post(echo))
        .route("/status/{status}", post(with_status))
        .route("/said/{said}/{status}", post(said))
        .route("/says/{said}/{status}", post(says))
        .route("/header/{said}/{status}", post(by_header))
        .route("/failed/{how}", post(failed))
        .route("/panic/{when}", post(panics))
        .route("/pieces/{count}/{bytes}/{then}", post(in_pieces))
        .route("/sse", post(sse))
        .route("/keep/{seconds}", post(keep))
        .route("/attempt", post(attempt))
        .route("/headers", post(many_headers))
        .with_state(shop.clone())
}

async fn pay(State(shop): State<Shop>, body: Bytes) -> Response {
    let run = shop.run();
    let text = format!("paid {run} for {} bytes", body.len());
    (StatusCode::CREATED, [("location", format!("/payments/{run}"))], text).into_response()
}

async fn slow(State(shop): State<Shop>) -> Response {
    let run = shop.run();
    shop.gate.acquire().await.unwrap().forget();
    (StatusCode::CREATED, format!("slow {run}")).into_response()
}

async fn echo(State(shop): State<Shop>, request: Request) -> Response {
    shop.run();
    let (parts, body) = request.into_parts();
    let mut response = Response::new(Body::from(body.collect().await.unwrap().to_bytes()));
    if let Some(value) = parts.headers.get("content-type") {
        response.headers_mut().insert("content-type", value.clone());
    }
    response
}

async fn with_status(State(shop): State<Shop>, Path(status): Path<u16>) -> Response {
    let run = shop.run();
    let status = StatusCode::from_u16(status).unwrap();
    let body = match status {
        StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED => String::new(),
        _ => format!("run {run}"),
    };
    (status, body).into_response()
}

fn word(said: &str) -> Said {
    Said::parse(said).unwrap()
}

async fn said(
    State(shop): State<Shop>,
    Path((said, status)): Path<(String, u16)>,
    attempt: Attempt,
) -> Response {
    attempt.say(word(&said));
    (StatusCode::from_u16(status).unwrap(), format!("run {}", shop.run())).into_response()
}

async fn says(State(shop): State<Shop>, Path((said, status)): Path<(String, u16)>) -> Response {
    let status = StatusCode::from_u16(status).unwrap();
    (status, Extension(word(&said)), format!("run {}", shop.run())).into_response()
}

async fn by_header(
    State(shop): State<Shop>,
    Path((said, status)): Path<(String, u16)>,
) -> Response {
    let status = StatusCode::from_u16(status).unwrap();
    (status, [("retrysafe-outcome", said)], format!("run {}", shop.run())).into_response()
}

async fn failed(State(shop): State<Shop>, Path(how): Path<String>) -> Response {
    shop.run();
    let failed = match how.as_str() {
        "not-sent" => Failed::NotSent,
        "lost" => Failed::Lost { timed_out: false },
        "late" => Failed::Lost { timed_out: true },
        other => panic!("{other}"),
    };
    (Extension(failed), "nobody sees this").into_response()
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("in a destructor");
    }
}

async fn panics(State(shop): State<Shop>, Path(when): Path<String>) -> Response {
    let run = shop.run();
    match when.as_str() {
        "at-once" => panic!("at once"),
        "late" => {
            tokio::task::yield_now().await;
            panic!("late")
        }
        "in-drop" => {
            let held = PanicsWhenDropped;
            tokio::task::yield_now().await;
            drop(held);
        }
        "in-body" => return pieces(1, 3, Then::Panic).into_response(),
        other => panic!("{other}"),
    }
    format!("run {run}").into_response()
}

async fn in_pieces(
    State(shop): State<Shop>,
    Path((count, bytes, then)): Path<(usize, usize, String)>,
) -> Response {
    shop.run();
    let then = match then.as_str() {
        "end" => Then::End,
        "break" => Then::Break,
        "trailers" => Then::Trailers,
        "wait" => Then::Wait(Arc::clone(&shop.gate)),
        other => panic!("{other}"),
    };
    let location = [("location", "/exports/1")];
    (StatusCode::CREATED, location, pieces(count, bytes, then)).into_response()
}

async fn sse(State(shop): State<Shop>) -> Response {
    shop.run();
    ([("content-type", "Text/Event-Stream; charset=utf-8")], pieces(2, 4, Then::End))
        .into_response()
}

async fn keep(State(shop): State<Shop>, Path(seconds): Path<u64>, attempt: Attempt) -> String {
    attempt.keep_for(Duration::from_secs(seconds));
    format!("run {}", shop.run())
}

async fn attempt(State(shop): State<Shop>, attempt: Option<Attempt>) -> String {
    shop.run();
    match attempt {
        Some(attempt) => {
            format!("{} {} {}", attempt.key(), attempt.fence().0, attempt.number())
        }
        None => "none".to_owned(),
    }
}

/// An answer as a request's body spells it: status, headers, body.
pub type Spelt = (u16, Vec<(String, Vec<u8>)>, Vec<u8>);

/// Answers as the request's body spells it, in JSON.
async fn many_headers(State(shop): State<Shop>, body: Bytes) -> Response {
    shop.run();
    let spelt: Spelt = serde_json::from_slice(&body).unwrap();
    let mut response = Response::new(Body::from(spelt.2));
    *response.status_mut() = StatusCode::from_u16(spelt.0).unwrap();
    for (name, value) in spelt.1 {
        let name = http::HeaderName::try_from(name).unwrap();
        response.headers_mut().append(name, HeaderValue::from_bytes(&value).unwrap());
    }
    response
}

/// Tells when an answer is dropped before its end: that is what a server does when a client leaves.
#[derive(Clone)]
struct WatchLayer(Shop);

#[derive(Clone)]
struct Watch<S>(S, Shop);

struct Watched<F> {
    future: Pin<Box<F>>,
    shop: Option<Shop>,
}

impl<S> tower::Layer<S> for WatchLayer {
    type Service = Watch<S>;

    fn layer(&self, inner: S) -> Watch<S> {
        Watch(inner, self.0.clone())
    }
}

impl<S> tower::Service<Request> for Watch<S>
where
    S: tower::Service<Request, Error = Infallible>,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = Watched<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        Watched { future: Box::pin(self.0.call(request)), shop: Some(self.1.clone()) }
    }
}

impl<F: Future> Future for Watched<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let polled = self.future.as_mut().poll(cx);
        if polled.is_ready() {
            self.shop = None;
        }
        polled
    }
}

impl<F> Drop for Watched<F> {
    fn drop(&mut self) {
        if let Some(shop) = &self.shop {
            shop.left.send_modify(|left| *left += 1);
        }
    }
}
