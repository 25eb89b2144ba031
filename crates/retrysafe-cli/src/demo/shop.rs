//! What is protected? A payments API with a flaky provider.
//!
//! Like most APIs it knows nothing of retries: each POST charges. The provider writes down every
//! charge, which is the truth that the ledgers are made from. It can also be asked about a request by
//! the id and fence that the gateway sends along, and refuses that fence from then on if it has not
//! charged: that is what makes "not charged" a proof.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::crowd::chance;

/// A charge that the provider has made.
#[derive(Clone, Debug)]
pub(crate) struct Charge {
    pub(crate) payment: String,
}

/// The running API.
pub(crate) struct Shop {
    address: SocketAddr,
    provider: Arc<Provider>,
    task: tokio::task::JoinHandle<()>,
}

struct Provider {
    seed: u64,
    /// Whether the measured run is over: from then on every request is served as it should be.
    is_calm: AtomicBool,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    charges: Vec<Charge>,
    /// What was answered, per id of the gateway's that has charged.
    charged: HashMap<String, String>,
    /// Up to which fence an id is refused.
    burnt: HashMap<String, u64>,
    /// How often each payment was asked for.
    asked: HashMap<String, u64>,
}

/// What the provider does to a request.
enum Mood {
    Fine,
    Slow(Duration),
    FailsBefore,
    FailsAfter,
    DropsAnswer,
}

impl Shop {
    /// Opens on a free port.
    pub(crate) async fn open(seed: u64) -> Result<Self, String> {
        let listener =
            TcpListener::bind(("127.0.0.1", 0)).await.map_err(|error| error.to_string())?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let provider =
            Arc::new(Provider { seed, is_calm: AtomicBool::new(false), books: Mutex::default() });
        let serving = provider.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let provider = serving.clone();
                tokio::spawn(async move {
                    let service = hyper::service::service_fn(move |request| {
                        let provider = provider.clone();
                        async move { provider.answer(request).await }
                    });
                    // A dropped connection is a part of the show.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .half_close(true)
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Ok(Self { address, provider, task })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Every charge so far.
    pub(crate) fn charges(&self) -> Vec<Charge> {
        self.provider.books().charges.clone()
    }

    /// Ends the faults: whoever tries the API after the measured run is to see what the gateway does, and not the provider's luck.
    pub(crate) fn calm_down(&self) {
        self.provider.is_calm.store(true, Ordering::Relaxed);
    }

    /// Takes no more connections, and hands out the books.
    pub(crate) fn close(&self) -> Vec<Charge> {
        self.task.abort();
        self.charges()
    }
}

/// The provider hangs up without an answer.
#[derive(Debug)]
struct HungUp;

impl std::fmt::Display for HungUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("hung up")
    }
}

impl std::error::Error for HungUp {}

impl Provider {
    fn books(&self) -> MutexGuard<'_, Books> {
        // The books are whole after every statement, so a panic elsewhere does not spoil them.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, HungUp> {
        if request.method() == Method::GET {
            return Ok(self.lookup(request.uri().path()));
        }
        let header = |name: &str| {
            request.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        let id = header("retrysafe-id");
        let fence = header("retrysafe-fence");
        let fence: u64 = fence.and_then(|fence| fence.parse().ok()).unwrap_or(0);
        let body = request.into_body().collect().await.map_err(|_| HungUp)?.to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let payment = body.get("payment").and_then(|p| p.as_str()).unwrap_or("?").to_owned();
        // A request, once here, is worked off whether its caller waits or not.
        let mood = self.mood(&payment);
        if let Mood::Slow(pause) = mood {
            tokio::time::sleep(pause).await;
        }
        if matches!(mood, Mood::FailsBefore) {
            return Ok(json(
                StatusCode::SERVICE_UNAVAILABLE,
                r#"{"error":"provider is busy"}"#.into(),
            ));
        }
        let amount = body.get("amount").cloned().unwrap_or_default();
        let Some(receipt) = self.charge(&payment, &amount, id.as_deref(), fence) else {
            return Ok(json(
                StatusCode::CONFLICT,
                r#"{"error":"this attempt was called off"}"#.into(),
            ));
        };
        match mood {
            Mood::DropsAnswer => Err(HungUp),
            Mood::FailsAfter => Ok(json(
                StatusCode::INTERNAL_SERVER_ERROR,
                r#"{"error":"crashed after charging"}"#.into(),
            )),
            Mood::Fine | Mood::Slow(_) | Mood::FailsBefore => {
                Ok(json(StatusCode::CREATED, receipt))
            }
        }
    }

    /// What happens is chance, but the same chance for the same seed, payment and attempt.
    fn mood(&self, payment: &str) -> Mood {
        if self.is_calm.load(Ordering::Relaxed) {
            return Mood::Fine;
        }
        let attempt = {
            let mut books = self.books();
            let asked = books.asked.entry(payment.to_owned()).or_default();
            *asked += 1;
            *asked
        };
        match chance(self.seed, payment, attempt) % 100 {
            0..=9 => Mood::DropsAnswer,
            10..=17 => Mood::Slow(Duration::from_millis(900)),
            18..=23 => Mood::FailsBefore,
            24..=28 => Mood::FailsAfter,
            _ => Mood::Fine,
        }
    }

    /// Charges, unless this attempt was called off, and gives the receipt.
    fn charge(
        &self,
        payment: &str,
        amount: &serde_json::Value,
        id: Option<&str>,
        fence: u64,
    ) -> Option<String> {
        let mut books = self.books();
        let is_burnt = |burnt: &u64| fence <= *burnt;
        if id.and_then(|id| books.burnt.get(id)).is_some_and(is_burnt) {
            return None;
        }
        books.charges.push(Charge { payment: payment.to_owned() });
        let charge = format!("ch_{}", books.charges.len());
        let receipt = serde_json::json!({ "charge": charge, "payment": payment, "amount": amount });
        let receipt = receipt.to_string();
        if let Some(id) = id {
            books.charged.insert(id.to_owned(), receipt.clone());
        }
        Some(receipt)
    }

    /// Says whether a request was charged, and calls it off if it was not.
    fn lookup(&self, path: &str) -> Response<Full<Bytes>> {
        let mut words = path.trim_start_matches("/lookup/").split('/');
        let (Some(id), Some(fence)) = (words.next(), words.next().and_then(|f| f.parse().ok()))
        else {
            return json(StatusCode::NOT_FOUND, "{}".into());
        };
        let mut books = self.books();
        if let Some(receipt) = books.charged.get(id) {
            // With the answer that was lost, so that it can still be given.
            let answer = serde_json::json!({
                "status": 201,
                "headers": [["content-type", "application/json"]],
                "body": receipt,
            });
            let found = serde_json::json!({ "state": "charged", "answer": answer });
            return json(StatusCode::OK, found.to_string());
        }
        books.burnt.insert(id.to_owned(), fence);
        json(StatusCode::OK, r#"{"state":"called_off"}"#.into())
    }
}

fn json(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}
