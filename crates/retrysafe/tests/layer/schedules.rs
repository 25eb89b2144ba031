//! Which orders of events must the layer survive? Renewals that are starved, stores that leave at
//! the wrong moment, shutdowns in the middle, waiters in another process.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::post;
use http::Request;
use retrysafe::layer::{IdempotencyLayer, Limits};
use retrysafe::stores::clock::{Clock, Hand};
use retrysafe::stores::memory::MemoryStore;
use retrysafe_core::policy::{Mode, OnStoreError, Policy};
use retrysafe_core::store::StoreErrorKind;
use retrysafe_core::time::Time;
use tokio::sync::Semaphore;
use tower::ServiceExt as _;

use crate::stage::{Fault, Faulty, On, must};

const AWAY: Fault = Fault::Refuse(StoreErrorKind::Unavailable);

fn request() -> Request<Body> {
    let head = Request::post("/x").header("host", "shop.example").header("idempotency-key", "k");
    head.header("authorization", "Bearer alice").body(Body::empty()).unwrap()
}

fn store() -> Arc<Faulty> {
    Faulty::new(MemoryStore::default())
}

/// A short lease, so that renewals come soon.
const SHORT_LEASE: Duration = Duration::from_millis(300);

/// Waits for five renewals, and lets a third of the lease pass after each: more than one lease in all.
/// The store's clock is turned by hand, so that a machine that stalls ends no lease.
async fn renewed_past_the_first_lease(store: &Faulty, hand: &Hand) {
    for renewals in 1..=5 {
        store.asked(1, renewals).await;
        hand.advance(SHORT_LEASE / 3);
    }
}

/// The status, the problem's code, and whether it is a replay.
async fn told(response: Response) -> (u16, String, bool) {
    let status = response.status().as_u16();
    let is_replay = response.headers().contains_key("idempotent-replayed");
    let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    (status, problem["code"].as_str().unwrap_or_default().to_owned(), is_replay)
}

async fn ask(app: &Router) -> (u16, String, bool) {
    told(app.clone().oneshot(request()).await.unwrap()).await
}

fn in_progress() -> (u16, String, bool) {
    (409, "request_in_progress".into(), false)
}

fn unavailable() -> (u16, String, bool) {
    (503, "store_unavailable".into(), false)
}

/// A handler that never waits for anything uses up its task's budget; the renewal shared that
/// task, was never polled, and the request became unknown while it ran.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_uses_up_its_budget_keeps_its_lease() {
    let (clock, hand) = Clock::manual(Time::from_ms(1_800_000_000_000));
    let store = Faulty::new(MemoryStore::with_clock(clock));
    let is_over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_over);
    let policy = Policy { lease: SHORT_LEASE, ..Policy::default() };
    let busy = move || async move {
        while !seen.load(Ordering::Acquire) {
            tokio::task::consume_budget().await;
        }
    };
    let layer = IdempotencyLayer::new(Arc::clone(&store)).policy(policy);
    let app = Router::new().route("/x", post(busy)).layer(layer);
    let first = tokio::spawn(app.clone().oneshot(request()));
    renewed_past_the_first_lease(&store, &hand).await;
    assert_eq!(ask(&app).await, in_progress());
    is_over.store(true, Ordering::Release);
    assert_eq!(told(first.await.unwrap().unwrap()).await.0, 200);
}

/// A handler that blocks its thread must not cost its own lease either, as long as the runtime
/// has another thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_blocks_its_thread_keeps_its_lease() {
    let (clock, hand) = Clock::manual(Time::from_ms(1_800_000_000_000));
    let store = Faulty::new(MemoryStore::with_clock(clock));
    let (go, gate) = mpsc::channel::<()>();
    let gate = Arc::new(std::sync::Mutex::new(gate));
    let policy = Policy { lease: SHORT_LEASE, ..Policy::default() };
    let blocking = move || async move { gate.lock().unwrap().recv().unwrap() };
    let layer = IdempotencyLayer::new(Arc::clone(&store)).policy(policy);
    let app = Router::new().route("/x", post(blocking)).layer(layer);
    let first = tokio::spawn(app.clone().oneshot(request()));
    renewed_past_the_first_lease(&store, &hand).await;
    assert_eq!(ask(&app).await, in_progress());
    go.send(()).unwrap();
    assert_eq!(told(first.await.unwrap().unwrap()).await.0, 200);
}

/// Two renewals that hang used to cost the lease, although the store was well again long before
/// the lease ended.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_is_tried_again_soon() {
    let (clock, hand) = Clock::manual(Time::from_ms(1_800_000_000_000));
    let store = Faulty::new(MemoryStore::with_clock(clock));
    let forever = || async { std::future::pending::<()>().await };
    let layer = IdempotencyLayer::new(Arc::clone(&store));
    let app = Router::new().route("/x", post(forever)).layer(layer);
    store.next(On::Swap, Fault::Hang);
    store.next(On::Swap, Fault::Hang);
    let first = tokio::spawn(app.clone().oneshot(request()));
    for _ in 0..61 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        hand.advance(Duration::from_secs(1));
    }
    assert_eq!(ask(&app).await, in_progress());
    first.abort();
}

/// A begin whose client has left goes on. A shutdown that did not wait for it ended the process
/// in the middle of the execution.
#[tokio::test]
async fn a_shutdown_waits_for_a_begin_whose_client_has_left() {
    let store = store();
    let gate = Arc::new(Semaphore::new(0));
    store.next(On::Insert, Fault::Hold(Arc::clone(&gate)));
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let layer = IdempotencyLayer::new(Arc::clone(&store));
    let handler = move || async move {
        counted.fetch_add(1, Ordering::SeqCst);
    };
    let app = Router::new().route("/x", post(handler)).layer(layer.clone());
    let call = tokio::spawn(app.oneshot(request()));
    store.asked(1, 0).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    assert_eq!(layer.drain().executing(), 1);
    assert_eq!(layer.drain().wait(Duration::ZERO).await, Err(1));
    gate.add_permits(1);
    must("the end", layer.drain().wait(Duration::from_secs(30))).await.unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// The store is away and requests were refused: nothing runs, so a shutdown need not wait until
/// every withdrawal has given up.
#[tokio::test(start_paused = true)]
async fn withdrawals_hold_up_a_shutdown_for_a_moment_only() {
    let store = store();
    store.next(On::Insert, Fault::LoseWrite);
    store.always(Some((On::Load, AWAY)));
    let layer = IdempotencyLayer::new(Arc::clone(&store));
    let app = Router::new().route("/x", post(|| async {})).layer(layer.clone());
    assert_eq!(ask(&app).await, unavailable());
    let begun = tokio::time::Instant::now();
    assert_eq!(layer.drain().wait(Duration::from_secs(60)).await, Ok(()));
    assert!(begun.elapsed() <= Duration::from_secs(2), "{:?}", begun.elapsed());
}

/// A begin was applied, its acknowledgement was lost, and the store stayed away for 20 seconds. Its
/// owner had given up by then, and the key ended unknown although nothing was ever executed.
#[tokio::test(start_paused = true)]
async fn a_begin_that_never_executed_is_withdrawn_after_an_outage() {
    for outage in [Duration::from_secs(20), Duration::from_secs(90)] {
        let (clock, hand) = Clock::manual(Time::from_ms(1_800_000_000_000));
        let store = Faulty::new(MemoryStore::with_clock(clock));
        let layer = IdempotencyLayer::new(Arc::clone(&store));
        let app = Router::new().route("/x", post(|| async {})).layer(layer.clone());
        store.next(On::Insert, Fault::LoseAnswer);
        store.always(Some((On::Load, AWAY)));
        assert_eq!(ask(&app).await, unavailable());
        tokio::time::sleep(outage).await;
        hand.advance(outage);
        // Past its lease the sweeper has made it unknown before its owner comes back.
        let engine = retrysafe_core::engine::Engine::new(Arc::clone(&store));
        let is_overdue = outage > Policy::default().lease;
        assert_eq!(engine.sweep(10).await.unwrap().doubted, usize::from(is_overdue));
        store.always(None);
        layer.drain().wait(Duration::from_secs(60)).await.unwrap();
        assert_eq!(ask(&app).await.0, 200, "after {outage:?}");
    }
}

/// The store went away after an execution and before its settle. The process knew what it had
/// done, was still trying to settle it, and ran it once more because the route fails open.
#[tokio::test]
async fn a_route_that_fails_open_does_not_repeat_what_is_being_settled() {
    let store = store();
    let runs = Arc::new(AtomicUsize::new(0));
    let policy = Policy { on_store_error: OnStoreError::Open, ..Policy::default() };
    let layer = IdempotencyLayer::new(Arc::clone(&store)).policy(policy).settle_max(Duration::ZERO);
    let counted = Arc::clone(&runs);
    let leaving = Arc::clone(&store);
    let handler = move || async move {
        counted.fetch_add(1, Ordering::SeqCst);
        leaving.always(Some((On::Swap, AWAY)));
    };
    let app = Router::new().route("/x", post(handler)).layer(layer.clone());
    let first = ask(&app).await;
    assert_eq!((first.0, first.1.as_str()), (503, "outcome_unknown"));
    assert_eq!(layer.drain().executing(), 1, "it is still being settled");
    store.next(On::Insert, AWAY);
    assert_eq!(ask(&app).await, unavailable());
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    // Once the store is back the first execution's answer holds.
    store.always(None);
    must("the settle", layer.drain().wait(Duration::from_secs(30))).await.unwrap();
    assert!(ask(&app).await.2, "it is replayed");
}

/// Several duplicates of one key reached an open route while the store was away; all ran at once.
#[tokio::test]
async fn a_route_that_fails_open_runs_a_key_once_at_a_time() {
    let store = store();
    let gate = Arc::new(Semaphore::new(0));
    let runs = Arc::new(AtomicUsize::new(0));
    let policy = Policy { on_store_error: OnStoreError::Open, ..Policy::default() };
    let layer = IdempotencyLayer::new(Arc::clone(&store)).policy(policy);
    let counted = Arc::clone(&runs);
    let held = Arc::clone(&gate);
    let handler = move || async move {
        counted.fetch_add(1, Ordering::SeqCst);
        held.acquire().await.unwrap().forget();
    };
    let app = Router::new().route("/x", post(handler)).layer(layer);
    store.next(On::Insert, AWAY);
    let first = tokio::spawn(app.clone().oneshot(request()));
    must("the first runs", async {
        while runs.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    store.next(On::Insert, AWAY);
    assert_eq!(ask(&app).await, unavailable(), "the store is still away");
    assert_eq!(ask(&app).await, in_progress(), "the store is back");
    gate.add_permits(1);
    let first = first.await.unwrap().unwrap();
    assert_eq!(first.headers()["retrysafe-unprotected"], "store");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// The limit of new keys asks the store; where the store is away an open route stays open.
#[tokio::test]
async fn a_limit_of_new_keys_does_not_close_an_open_route() {
    let store = store();
    let limits = Limits { new_keys_per_scope_per_second: NonZeroU32::new(5), ..Limits::default() };
    for (on_store_error, status) in [(OnStoreError::Open, 200), (OnStoreError::Closed, 503)] {
        let policy = Policy { on_store_error, ..Policy::default() };
        let layer = IdempotencyLayer::new(Arc::clone(&store)).policy(policy).limits(limits);
        let app = Router::new().route("/x", post(|| async {})).layer(layer);
        store.always(Some((On::Load, AWAY)));
        store.next(On::Insert, AWAY);
        assert_eq!(ask(&app).await.0, status);
    }
}

/// No clock shows the end of `Duration::MAX`; adding it panicked.
#[tokio::test]
async fn a_time_to_live_without_end_is_no_panic() {
    let ttl = Duration::MAX;
    let live_keys = Limits { live_keys_per_scope: NonZeroU32::new(5), ..Limits::default() };
    for (mode, limits) in [(Mode::Observe, Limits::default()), (Mode::Enforce, live_keys)] {
        let policy = Policy { ttl, mode, wait_max: Duration::MAX, ..Policy::default() };
        let layer = IdempotencyLayer::new(store()).policy(policy).limits(limits);
        let app = Router::new().route("/x", post(|| async {})).layer(layer);
        assert_eq!(ask(&app).await.0, 200);
        assert_eq!(ask(&app).await.0, 200);
    }
}

/// The first owner's process died, and its lease is over. The doubt cannot be written down because the
/// store refuses the write, but that is no sign that nothing has begun: an open route must not run it.
#[tokio::test]
async fn a_route_that_fails_open_does_not_run_what_a_dead_owner_may_have_run() {
    let (clock, hand) = Clock::manual(Time::from_ms(1_800_000_000_000));
    let store = Faulty::new(MemoryStore::with_clock(clock));
    let policy = Policy { on_store_error: OnStoreError::Open, ..Policy::default() };
    let lease = policy.lease;
    let runs = Arc::new(AtomicUsize::new(0));
    let process = |handler: axum::routing::MethodRouter| {
        let layer = IdempotencyLayer::new(Arc::clone(&store)).policy(policy.clone());
        Router::new().route("/x", handler).layer(layer)
    };
    let dying = tokio::spawn({
        let app = process(post(std::future::pending::<()>));
        async move { ask(&app).await }
    });
    store.asked(1, 0).await;
    hand.advance(lease);
    let counted = Arc::clone(&runs);
    let count = move || async move {
        counted.fetch_add(1, Ordering::SeqCst);
    };
    let other = process(post(count));
    store.next(On::Swap, AWAY);
    assert_eq!(ask(&other).await, (409, "outcome_unknown".into(), false));
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    dying.abort();
}

/// Duplicates that wait for a request in another process held no seat: any number of them waited.
#[tokio::test]
async fn waiters_for_a_request_that_runs_elsewhere_are_bounded() {
    let store = store();
    let gate = Arc::new(Semaphore::new(0));
    let process = || {
        let policy = Policy { wait_max: Duration::from_secs(600), ..Policy::default() };
        let layer = IdempotencyLayer::new(Arc::clone(&store)).policy(policy).waiters_max(1, 1);
        let held = Arc::clone(&gate);
        let handler = move || async move { held.acquire().await.unwrap().forget() };
        Router::new().route("/x", post(handler)).layer(layer)
    };
    let one = process();
    let other = process();
    let first = tokio::spawn(one.oneshot(request()));
    store.asked(1, 0).await;
    let mut duplicates = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let other = other.clone();
        duplicates.spawn(async move { ask(&other).await });
    }
    for _ in 0..4 {
        let refused = must("a refusal at once", duplicates.join_next()).await;
        assert_eq!(refused.unwrap().unwrap(), in_progress());
    }
    gate.add_permits(1);
    let waited = must("the answer", duplicates.join_next()).await.unwrap().unwrap();
    assert!(waited.2, "{waited:?}");
    assert_eq!(told(first.await.unwrap().unwrap()).await.0, 200);
}

/// What an outer layer put into the request stays with it when the client leaves. Task-locals do
/// not: the work goes on in another task.
#[tokio::test]
async fn a_handler_whose_client_has_left_still_has_the_requests_extensions() {
    let store = store();
    let gate = Arc::new(Semaphore::new(0));
    let layer = IdempotencyLayer::new(Arc::clone(&store));
    let held = Arc::clone(&gate);
    let handler = move |axum::Extension(tenant): axum::Extension<u32>| async move {
        held.acquire().await.unwrap().forget();
        tenant.to_string()
    };
    let app = Router::new().route("/x", post(handler)).layer(layer.clone());
    let mut from_tenant = request();
    from_tenant.extensions_mut().insert(7_u32);
    let call = tokio::spawn(app.clone().oneshot(from_tenant));
    store.asked(1, 0).await;
    call.abort();
    let _ = call.await;
    gate.add_permits(1);
    must("the end", layer.drain().wait(Duration::from_secs(30))).await.unwrap();
    let replay = app.oneshot(request()).await.unwrap();
    let body = axum::body::to_bytes(replay.into_body(), 1 << 10).await.unwrap();
    assert_eq!(body, "7");
}

/// A duplicate used to begin anew at each look at a request that ran elsewhere: a write for nothing, and
/// up to a second too late.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_run_elsewhere_begins_once_more_when_it_has_ended() {
    let store = store();
    let gate = Arc::new(Semaphore::new(0));
    let process = || {
        let policy = Policy { wait_max: Duration::from_secs(600), ..Policy::default() };
        let layer = IdempotencyLayer::new(Arc::clone(&store)).policy(policy);
        let held = Arc::clone(&gate);
        let handler = move || async move { held.acquire().await.unwrap().forget() };
        Router::new().route("/x", post(handler)).layer(layer)
    };
    let first = tokio::spawn(process().oneshot(request()));
    store.asked(1, 0).await;
    let other = process();
    let duplicate = tokio::spawn(async move { ask(&other).await });
    // Long enough for the pauses between two looks to have grown to their longest.
    tokio::time::sleep(Duration::from_millis(10_500)).await;
    assert_eq!(store.inserts(), 2, "each has begun once");
    let ended = tokio::time::Instant::now();
    gate.add_permits(1);
    assert_eq!(told(first.await.unwrap().unwrap()).await.0, 200);
    let waited = duplicate.await.unwrap();
    assert!(waited.2, "{waited:?}");
    assert_eq!(store.inserts(), 3);
    assert_eq!(ended.elapsed(), Duration::ZERO, "the store's hint was heard");
}

/// A shutdown that has lost its patience used to wait for a store that did not answer, and for runs that
/// nothing protects.
#[tokio::test(start_paused = true)]
async fn a_shutdown_gives_up_begins_and_unprotected_runs() {
    let store = store();
    let layer = IdempotencyLayer::new(Arc::clone(&store));
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let handler = move || async move {
        counted.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<()>().await;
    };
    let app = Router::new().route("/x", post(handler.clone())).layer(layer.clone());
    store.next(On::Insert, Fault::Hang);
    let begun = tokio::spawn(async move { ask(&app).await });
    store.asked(1, 0).await;
    layer.drain().give_up(Duration::from_secs(1)).await.unwrap();
    assert_eq!(begun.await.unwrap(), unavailable());
    assert_eq!(runs.load(Ordering::SeqCst), 0);

    let policy = Policy { on_store_error: OnStoreError::Open, ..Policy::default() };
    let layer = IdempotencyLayer::new(Arc::clone(&store)).policy(policy);
    let app = Router::new().route("/x", post(handler)).layer(layer.clone());
    store.next(On::Insert, AWAY);
    let unprotected = tokio::spawn(async move { ask(&app).await });
    store.asked(2, 0).await;
    must("the run", async {
        while runs.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    layer.drain().give_up(Duration::from_secs(1)).await.unwrap();
    assert_eq!(unprotected.await.unwrap().0, 504);
}

/// A begin that comes back after a shutdown has given everything up is not executed, and its key is free.
#[tokio::test(start_paused = true)]
async fn nothing_begins_once_a_shutdown_has_given_up() {
    let store = store();
    let layer = IdempotencyLayer::new(Arc::clone(&store));
    let app = Router::new().route("/x", post(|| async {})).layer(layer.clone());
    layer.drain().give_up(Duration::from_secs(1)).await.unwrap();
    assert_eq!(ask(&app).await, unavailable());
    let next_process = IdempotencyLayer::new(Arc::clone(&store));
    let app = Router::new().route("/x", post(|| async {})).layer(next_process);
    assert_eq!(ask(&app).await.0, 200);
}
