//! Do the client and the layer keep the promise together?
//!
//! Between them is a network that loses what the test says: every sequence of three faults, then
//! silence. No sockets, so that the clock can stand still throughout.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use retrysafe::client::{Client, Journal, Receipt, Retries};
use retrysafe::layer::IdempotencyLayer;
use retrysafe::stores::memory::MemoryStore;
use tower::ServiceExt as _;
use tower_service::Service;

use crate::server::patience;

/// What happens to one attempt.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// It arrives, and its answer is lost.
    AnswerLost,
    /// It arrives, its client leaves while it is being executed, and the next attempt overtakes it.
    LeftEarly,
    /// It is lost on its way.
    RequestLost,
    /// There is no connection.
    Refused,
}

const FAULTS: [Fault; 4] =
    [Fault::AnswerLost, Fault::LeftEarly, Fault::RequestLost, Fault::Refused];

/// A service behind a network that has faults, and then none.
#[derive(Clone)]
struct Network {
    inside: Router,
    faults: Vec<Fault>,
    sent: usize,
}

impl Service<Request<Full<Bytes>>> for Network {
    type Response = Response<axum::body::Body>;
    type Error = io::Error;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        let fault = self.faults.get(self.sent).copied();
        self.sent += 1;
        let mut inside = Box::pin(self.inside.clone().oneshot(request.map(axum::body::Body::new)));
        Box::pin(async move {
            let lost = Err(io::ErrorKind::ConnectionReset.into());
            match fault {
                None => Ok(inside.await.unwrap()),
                Some(Fault::AnswerLost) => {
                    inside.await.unwrap();
                    lost
                }
                Some(Fault::LeftEarly) => {
                    // A few polls, so that it has begun and is not done.
                    for _ in 0..3 {
                        tokio::select! {
                            biased;
                            _ = &mut inside => break,
                            () = tokio::task::yield_now() => {}
                        }
                    }
                    lost
                }
                Some(Fault::RequestLost) => lost,
                Some(Fault::Refused) => Err(io::ErrorKind::ConnectionRefused.into()),
            }
        })
    }
}

fn shop(effects: &Arc<AtomicU64>) -> Router {
    let effects = Arc::clone(effects);
    let pay = post(async move || {
        let number = effects.fetch_add(1, Ordering::SeqCst) + 1;
        // The work takes a while after its effect, which is when clients leave.
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        (http::StatusCode::CREATED, format!("payment {number}"))
    });
    Router::new().route("/payments", pay).layer(IdempotencyLayer::new(MemoryStore::default()))
}

fn request() -> Request<Full<Bytes>> {
    let request = Request::post("http://shop.test/payments").header("authorization", "Bearer a");
    request.body(Full::from("{\"amount\":5}")).unwrap()
}

#[tokio::test(start_paused = true)]
async fn every_sequence_of_faults_ends_in_one_effect_and_its_answer() {
    for sequence in 0..FAULTS.len().pow(3) {
        let faults: Vec<_> = (0..3_u32).map(|at| FAULTS[sequence >> (2 * at) & 3]).collect();
        let effects = Arc::new(AtomicU64::new(0));
        let network = Network { inside: shop(&effects), faults: faults.clone(), sent: 0 };
        let client = Client::new(network, Retries::default().patience(patience()));
        let answer = client.send(request()).await.unwrap();
        assert_eq!(answer.status(), 201, "{faults:?}");
        let arrived = faults.iter().any(|fault| matches!(fault, Fault::AnswerLost));
        let replayed = answer.headers().contains_key("idempotent-replayed");
        assert!(replayed || !arrived, "{faults:?}");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "payment 1", "{faults:?}");
        assert_eq!(effects.load(Ordering::SeqCst), 1, "{faults:?}");
    }
}

#[tokio::test]
async fn a_resumed_call_is_answered_from_the_servers_record() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let effects = Arc::new(AtomicU64::new(0));
    let network = Network { inside: shop(&effects), faults: Vec::new(), sent: 0 };
    let client = Client::new(network, Retries::default().journal(journal.clone()));
    let first = client.send(request()).await.unwrap().into_body().collect().await.unwrap();
    let pending = journal.pending().await.unwrap().calls.remove(0);
    let answer = client.resume(pending, HeaderMap::new()).await.unwrap();
    assert!(answer.headers().contains_key("idempotent-replayed"));
    Receipt::of(&answer).unwrap().acknowledge().await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), first.to_bytes());
    assert_eq!(effects.load(Ordering::SeqCst), 1);
}
