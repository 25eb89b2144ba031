//! What is seen in observe mode, and what is reported in any?

use std::io::Write;
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use http::Request;
use http_body_util::BodyExt as _;
use metrics_exporter_prometheus::PrometheusBuilder;
use retrysafe::layer::IdempotencyLayer;
use retrysafe::stores::memory::MemoryStore;
use retrysafe_core::policy::{KeyRule, Mode, Policy};
use tower::{Layer as _, ServiceExt as _};

use crate::stage::{Stage, Then, pieces};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Takes everything, and writes it nowhere. With one subscriber alone, whoever meets an event first decides for all threads whether it is
/// told; a test beside this one has none.
static SECOND_SUBSCRIBER: LazyLock<tracing::Dispatch> = LazyLock::new(|| {
    let everything = tracing_subscriber::filter::LevelFilter::TRACE;
    let sink = tracing_subscriber::fmt().with_max_level(everything).with_writer(std::io::sink);
    tracing::Dispatch::new(sink.finish())
});

/// Plays a scene on one thread, and returns what it reported: metrics and log.
fn reported<F: Future<Output = ()>>(scene: impl FnOnce() -> F) -> (String, String) {
    LazyLock::force(&SECOND_SUBSCRIBER);
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        tracing::subscriber::with_default(subscriber, || runtime.block_on(scene()));
    });
    drop(runtime);
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    (metrics.render(), log)
}

#[track_caller]
fn counts(metrics: &str, line: &str) {
    assert!(metrics.lines().any(|found| found == line), "no {line:?} in:\n{metrics}");
}

#[test]
fn observing_blocks_and_replays_nothing_and_counts_what_it_saw() {
    let (metrics, _) = reported(|| async {
        let policy = Policy {
            mode: Mode::Observe,
            key: KeyRule::Required,
            request_bytes_max: 10,
            ..Policy::default()
        };
        let stage = Stage::open(policy).await;
        let unkeyed = Request::post("/pay").body(Body::empty()).unwrap();
        assert_eq!(stage.send(unkeyed).await.status, 201);
        for body in ["one", "one", "two", "0123456789+"] {
            let answer = stage.post("/echo", "k", body).await;
            assert_eq!((answer.status, answer.text(), answer.is_replay()), (200, body, false));
        }
        let mut chunked = stage.request("/echo", "k2", "");
        *chunked.body_mut() = pieces(5, 4, Then::End);
        assert_eq!(stage.send(chunked).await.body.len(), 20, "passed on whole");
        assert_eq!(stage.post("/pay", "not a key", "").await.status, 201);
        assert_eq!((stage.shop.runs(), stage.store.inserts()), (7, 0));
    });
    for line in [
        r#"retrysafe_observed_total{route="/pay",finding="idempotency_key_missing"} 1"#,
        r#"retrysafe_observed_total{route="/pay",finding="idempotency_key_invalid"} 1"#,
        r#"retrysafe_observed_total{route="/echo",finding="duplicate"} 1"#,
        r#"retrysafe_observed_total{route="/echo",finding="mismatch"} 1"#,
        r#"retrysafe_observed_total{route="/echo",finding="request_too_large"} 2"#,
    ] {
        counts(&metrics, line);
    }
}

/// A part of a body was taken for the request, and its whole retry for another one.
#[test]
fn observing_does_not_take_a_part_for_the_whole() {
    let (metrics, _) = reported(|| async {
        let policy = Policy { mode: Mode::Observe, ..Policy::default() };
        let layer = IdempotencyLayer::new(MemoryStore::default()).policy(policy);
        let echo = tower::service_fn(async |request: Request<Body>| {
            Ok::<_, std::convert::Infallible>(http::Response::new(request.into_body()))
        });
        for (body, echoed) in [
            (Body::new(CutBody(Some("0123".into()))), "0123"),
            (Body::from("01234567"), "01234567"),
        ] {
            let request = Request::post("/echo")
                .header("idempotency-key", "k")
                .header("authorization", "Bearer a")
                .body(body);
            let Ok(answer) = layer.layer(echo).oneshot(request.unwrap()).await;
            let read = answer.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(read, echoed, "passed on as it came");
        }
    });
    assert!(metrics.contains(r#"finding="request_broken"} 1"#), "{metrics}");
    assert!(!metrics.contains(r#"finding="mismatch""#), "{metrics}");
}

/// A body that ends four bytes before the length that it has promised.
struct CutBody(Option<Bytes>);

impl http_body::Body for CutBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(http_body::Frame::data(bytes))))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(4 + self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

#[test]
fn observing_counts_unkeyed_writes_where_keys_are_optional() {
    let (metrics, _) = reported(|| async {
        let stage = Stage::open(Policy { mode: Mode::Observe, ..Policy::default() }).await;
        let unkeyed = Request::post("/pay").body(Body::empty()).unwrap();
        assert_eq!(stage.send(unkeyed).await.status, 201);
        let safe = Request::get("/pay").body(Body::empty()).unwrap();
        assert_eq!(stage.send(safe).await.status, 201);
    });
    counts(&metrics, r#"retrysafe_observed_total{route="/pay",finding="unkeyed"} 1"#);
}

#[test]
fn what_happens_is_counted_per_route_and_no_secret_is_reported() {
    const KEY: &str = "secret-key-of-alice";
    const CREDENTIAL: &str = "Bearer s3cr3t-credential";
    const BODY: &str = "secret-body-4242";
    let (metrics, log) = reported(|| async {
        let stage = Stage::open(Policy::default()).await;
        let ask = |path: &str, body: &'static str| {
            let mut request = stage.request(path, KEY, body);
            request.headers_mut().insert("authorization", CREDENTIAL.parse().unwrap());
            stage.send(request)
        };
        assert_eq!(ask("/pay", BODY).await.status, 201);
        assert!(ask("/pay", BODY).await.is_replay());
        ask("/pay", "another secret-body-4242").await.refuses(422, "idempotency_key_reused");
        assert_eq!(stage.post("/status/500", "k", BODY).await.status, 500);
        assert_eq!(stage.post("/status/500", "k", BODY).await.status, 500);
        stage.post("/panic/late", "p", BODY).await.refuses(500, "outcome_unknown");
    });
    for line in [
        r#"retrysafe_begin_total{route="/pay",answer="created"} 1"#,
        r#"retrysafe_begin_total{route="/pay",answer="replay"} 1"#,
        r#"retrysafe_begin_total{route="/pay",answer="key_misuse"} 1"#,
        r#"retrysafe_begin_total{route="/status/{status}",answer="failed_retry"} 1"#,
        r#"retrysafe_settled_total{route="/pay",standing="completed"} 1"#,
        r#"retrysafe_settled_total{route="/status/{status}",standing="failed_retryable"} 2"#,
        r#"retrysafe_settled_total{route="/panic/{when}",standing="unknown"} 1"#,
        r#"retrysafe_refusals_total{route="/pay",code="idempotency_key_reused"} 1"#,
        r#"retrysafe_executing 0"#,
    ] {
        counts(&metrics, line);
    }
    assert!(log.contains("begin") && log.contains("settled") && log.contains("panicked"), "{log}");
    for secret in [KEY, "s3cr3t-credential", "secret-body"] {
        assert!(!metrics.contains(secret) && !log.contains(secret), "{secret} in:\n{log}");
    }
}
