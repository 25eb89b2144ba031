//! What is the operation that is broken off?
//!
//! A ride: a row, a charge at a provider, and a receipt with which the flow answers. The provider is in this process
//! and counts. At seven named points the operation can be broken off, in several ways.

use std::collections::HashMap;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use retrysafe::core::record::Record;
use retrysafe::core::{Engine, Id, Key, Policy, Scope, StoreError};
use retrysafe::phases::{CallEnd, Flow, FlowEnd, Flows, Next, PhaseError, Provider};
use retrysafe::stores::postgres::PostgresStore;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::sync::Notify;

use crate::kit::proxy::{Cut, Proxy};
use crate::kit::{database, number, sql, store};

pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RideRequest {
    pub(super) key: String,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Charge {
    ride: i64,
    /// Differs from attempt to attempt, if a test wants that.
    note: String,
}

/// Where the operation can be broken off, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Point {
    RideBefore,
    RideAfter,
    ChargePrepared,
    ChargeBefore,
    ChargeAfter,
    ReceiptBefore,
    ReceiptAfter,
}

/// How it is broken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Break {
    /// The run is gone, without a word to anybody.
    Crash,
    Error,
    Panic,
    /// The run stops until it is let go.
    Pause,
    /// The next COMMIT does not reach the server.
    CutBeforeCommit,
    /// The next COMMIT is applied, and its answer is lost.
    CutAfterCommit,
    /// The next COMMIT does not reach the server, and nobody hears of it.
    HungCommit,
}

/// Breaks the operation off at one point, once.
#[derive(Debug, Default)]
pub(super) struct BreakPoints {
    armed: Mutex<Option<(Point, Break)>>,
    reached: Notify,
    released: Notify,
    proxy: Mutex<Option<Arc<Proxy>>>,
    at_point: Mutex<Option<AtPoint>>,
}

/// What is done at a point, once.
struct AtPoint(Point, Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for AtPoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AtPoint").field(&self.0).finish()
    }
}

impl BreakPoints {
    pub(super) fn arm(&self, point: Point, how: Break) {
        *self.armed.lock().unwrap() = Some((point, how));
    }

    /// Does this at a point. At `ChargePrepared` the mark is not written yet.
    pub(super) fn do_at(&self, point: Point, does: impl FnOnce() + Send + 'static) {
        *self.at_point.lock().unwrap() = Some(AtPoint(point, Box::new(does)));
    }

    /// Waits until a run has come to a point at which it is gone or stops.
    pub(super) async fn reached(&self) {
        self.reached.notified().await;
    }

    /// Lets a run go on that has stopped.
    pub(super) fn release(&self) {
        self.released.notify_one();
    }

    pub(super) fn is_used_up(&self) -> bool {
        self.armed.lock().unwrap().is_none()
    }

    fn take(&self, point: Point) -> Option<Break> {
        let does = self.at_point.lock().unwrap().take_if(|AtPoint(at, _)| *at == point);
        if let Some(AtPoint(_, does)) = does {
            does();
        }
        let mut armed = self.armed.lock().unwrap();
        let is_here = armed.is_some_and(|(at, _)| at == point);
        if is_here { armed.take().map(|(_, how)| how) } else { None }
    }

    fn at_once(&self, point: Point) -> Result<(), PhaseError> {
        match self.take(point) {
            None => Ok(()),
            Some(Break::Error) => Err("broken off".into()),
            Some(how) => panic!("broken off by {how:?}"),
        }
    }

    pub(super) async fn at(&self, point: Point) -> Result<(), PhaseError> {
        match self.take(point) {
            None => {}
            Some(Break::Error) => return Err("broken off".into()),
            Some(Break::Panic) => panic!("broken off"),
            Some(Break::Crash) => {
                self.reached.notify_one();
                pending::<()>().await;
            }
            Some(Break::Pause) => {
                self.reached.notify_one();
                self.released.notified().await;
            }
            Some(Break::CutBeforeCommit) => self.cut(Cut::BeforeCommit),
            Some(Break::CutAfterCommit) => self.cut(Cut::AfterCommit),
            Some(Break::HungCommit) => self.cut(Cut::Hang),
        }
        Ok(())
    }

    fn cut(&self, cut: Cut) {
        self.proxy.lock().unwrap().as_ref().unwrap().arm_commit(cut);
    }
}

/// A provider that counts, and that remembers keys for as long as a test wants.
#[derive(Debug, Default)]
pub(super) struct CountingProvider {
    charged_rides: Mutex<Vec<i64>>,
    remembered: Mutex<HashMap<String, String>>,
    takes_no_key: bool,
    notes: AtomicUsize,
    pub(super) sends_other_notes: AtomicBool,
}

impl CountingProvider {
    fn charge(&self, key: &str, charge: &Charge) -> String {
        let mut remembered = self.remembered.lock().unwrap();
        if let Some(id) = remembered.get(key).filter(|_| !self.takes_no_key) {
            return id.clone();
        }
        let mut charged = self.charged_rides.lock().unwrap();
        charged.push(charge.ride);
        let id = format!("ch_{}", charged.len());
        remembered.insert(key.to_owned(), id.clone());
        id
    }

    pub(super) fn forget_keys(&self) {
        self.remembered.lock().unwrap().clear();
    }

    /// How many charges were made in all.
    pub(super) fn charges(&self) -> usize {
        self.charged_rides.lock().unwrap().len()
    }

    fn note(&self) -> String {
        if !self.sends_other_notes.load(Ordering::SeqCst) {
            return "a ride".to_owned();
        }
        format!("note {}", self.notes.fetch_add(1, Ordering::SeqCst))
    }
}

/// An application with rides.
pub(super) struct Rides {
    pub(super) url: String,
    /// The same database, through the proxy.
    pub(super) through: String,
    pub(super) proxy: Arc<Proxy>,
    pub(super) pool: PgPool,
    pub(super) store: PostgresStore,
    pub(super) engine: Engine<PostgresStore>,
    pub(super) provider: Arc<CountingProvider>,
    pub(super) breaks: Arc<BreakPoints>,
    pub(super) flow: Flow<RideRequest>,
    pub(super) flows: Flows,
}

pub(super) fn keyed() -> Provider {
    Provider::remembers_keys_for(DAY)
}

impl Rides {
    /// With a provider that takes keys, and is declared like this.
    pub(super) async fn open(provider: Provider) -> Self {
        Self::with(provider, CountingProvider::default()).await
    }

    /// With a provider that takes no key, and says so.
    pub(super) async fn without_keys() -> Self {
        let counting = CountingProvider { takes_no_key: true, ..CountingProvider::default() };
        Self::with(Provider::takes_no_key(), counting).await
    }

    async fn with(provider: Provider, counting: CountingProvider) -> Self {
        let url = database().await;
        let tables = "CREATE TABLE ride (id bigserial PRIMARY KEY, key text NOT NULL);
            CREATE TABLE receipt (ride bigint NOT NULL REFERENCES ride, charge text NOT NULL)";
        sql(&url, tables).await;
        // Time is what a test says it is.
        sql(&url, "UPDATE retrysafe_test.clock SET still = true, ms = 1700000000000").await;
        let (base, name) = url.rsplit_once('/').unwrap();
        let port = base.rsplit_once(':').unwrap().1.parse().unwrap();
        let proxy = Arc::new(Proxy::to(port).await);
        let through = format!("postgres://postgres@{}/{name}?sslmode=disable", proxy.address);
        let pool = PgPool::connect(&through).await.unwrap();
        let store = store(&url).await;
        let breaks = Arc::new(BreakPoints::default());
        *breaks.proxy.lock().unwrap() = Some(Arc::clone(&proxy));
        let counting = Arc::new(counting);
        let flow = create_ride(1, provider, &counting, &breaks);
        let flows = Flows::new(pool.clone(), store.clone()).with(&flow);
        let engine = Engine::new(store.clone());
        Self { url, through, proxy, pool, store, engine, provider: counting, breaks, flow, flows }
    }

    /// Runs the flow for a key. None if it has crashed.
    pub(super) async fn run(&self, key: &str) -> Option<FlowEnd> {
        tokio::select! {
            ended = self.run_with(&self.flows, &self.flow, key) => Some(ended.unwrap()),
            () = self.breaks.reached() => None,
        }
    }

    pub(super) async fn run_with(
        &self,
        flows: &Flows,
        flow: &Flow<RideRequest>,
        key: &str,
    ) -> Result<FlowEnd, StoreError> {
        let request = RideRequest { key: key.to_owned() };
        let print = flow.fingerprint(&request).unwrap();
        flows.run(flow, &scope(), &Key::new(key).unwrap(), print, &request).await
    }

    /// Runs the flow for a key to its end, and gives the answer.
    pub(super) async fn answer(&self, key: &str) -> Bytes {
        answered(self.run(key).await)
    }

    /// Turns the clock of the database on.
    pub(super) async fn later(&self, by: Duration) {
        let by = by.as_millis();
        sql(&self.url, &format!("UPDATE retrysafe_test.clock SET ms = ms + {by}")).await;
    }

    /// Turns the clock of the database to after the end of every lease.
    pub(super) async fn end_leases(&self) {
        self.later(Policy::default().lease + Duration::from_secs(1)).await;
    }

    pub(super) async fn record(&self, key: &str) -> Record {
        self.engine.look(id(key)).await.unwrap().value.unwrap()
    }

    pub(super) async fn rides(&self, key: &str) -> i64 {
        number(&self.url, &format!("SELECT count(*) FROM ride WHERE key = '{key}'")).await
    }

    pub(super) async fn receipts(&self, key: &str) -> i64 {
        let receipts = "SELECT count(*) FROM receipt JOIN ride ON ride.id = receipt.ride";
        number(&self.url, &format!("{receipts} WHERE ride.key = '{key}'")).await
    }

    /// One ride, one charge for it and one receipt; and whoever asks again is told the same.
    pub(super) async fn check_done_once(&self, key: &str, answer: &Bytes, what: &str) {
        assert_eq!((self.rides(key).await, self.receipts(key).await), (1, 1), "{what}");
        let ride = number(&self.url, &format!("SELECT id FROM ride WHERE key = '{key}'")).await;
        let charged = self.provider.charged_rides.lock().unwrap().clone();
        assert_eq!(charged.iter().filter(|charged| **charged == ride).count(), 1, "{what}");
        assert_eq!(self.answer(key).await, answer, "{what}");
    }
}

pub(super) fn scope() -> Scope {
    Scope::of([("tenant", &b"rides"[..])])
}

pub(super) fn id(key: &str) -> Id {
    Id::of(&scope(), &Key::new(key).unwrap().digest())
}

pub(super) fn answered(ended: Option<FlowEnd>) -> Bytes {
    let Some(FlowEnd::Answered(response)) = ended else { panic!("{ended:?}") };
    assert_eq!(response.status, 201);
    response.body
}

/// The flow, as this version of the application has it.
pub(super) fn create_ride(
    version: u32,
    provider: Provider,
    counting: &Arc<CountingProvider>,
    breaks: &Arc<BreakPoints>,
) -> Flow<RideRequest> {
    let (at_ride, at_prepare) = (Arc::clone(breaks), Arc::clone(breaks));
    let (at_charge, at_receipt) = (Arc::clone(breaks), Arc::clone(breaks));
    let (counting, noting) = (Arc::clone(counting), Arc::clone(counting));
    Flow::named("create_ride", version)
        .tx("ride_created", async move |mut tx, request: RideRequest, ()| {
            at_ride.at(Point::RideBefore).await?;
            let insert = sqlx::query_scalar("INSERT INTO ride (key) VALUES ($1) RETURNING id");
            let ride: i64 = insert.bind(request.key).fetch_one(&mut *tx).await?;
            at_ride.at(Point::RideAfter).await?;
            Ok(Next::Done(ride))
        })
        .call(
            "charge_created",
            provider,
            move |_, (ride,)| {
                at_prepare.at_once(Point::ChargePrepared)?;
                Ok(Charge { ride, note: noting.note() })
            },
            async move |call, charge| {
                at_charge.at(Point::ChargeBefore).await?;
                let id = counting.charge(call.key(), &charge);
                at_charge.at(Point::ChargeAfter).await?;
                Ok(CallEnd::Done(id))
            },
        )
        .respond("receipt_written", async move |mut tx, _, (ride, charge)| {
            at_receipt.at(Point::ReceiptBefore).await?;
            let insert = sqlx::query("INSERT INTO receipt (ride, charge) VALUES ($1, $2)");
            insert.bind(ride).bind(&charge).execute(&mut *tx).await?;
            at_receipt.at(Point::ReceiptAfter).await?;
            let body = Bytes::from(format!("{{\"ride\":{ride},\"charge\":\"{charge}\"}}"));
            Ok(Response::builder().status(201).body(body)?)
        })
        .unwrap()
}
