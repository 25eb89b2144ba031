//! What do the layer and the disk store do for one request? Loads to be counted, one request after the other.
//!
//! `counted LOAD REQUESTS` runs one load on one thread (the disk store has its own thread beside it) and prints nothing.
//! `cargo xtask bench counts` runs each load twice under callgrind, with more and with fewer requests; the difference is what
//! the requests cost. So nothing here may depend on time or chance.

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use retrysafe::layer::IdempotencyLayer;
use retrysafe::stores::disk::DiskStore;
use retrysafe::stores::memory::MemoryStore;
use retrysafe_core::Store as _;
use retrysafe_core::fingerprint::{Fingerprint, RulesId};
use retrysafe_core::key::Key;
use retrysafe_core::record::{About, Answer, Becomes, First, Happened, Standing, Write};
use retrysafe_core::response::StoredResponse;
use retrysafe_core::scope::{Id, Scope};
use retrysafe_core::store::{Inserted, Swapped};
use tower::{Layer as _, ServiceExt as _};

/// As large as the answers of the project's measurements.
const ANSWER: &[u8] = &[b'x'; 1_024];

/// What is asked of the layer.
const ORDER: &str =
    r#"{"amount":100,"currency":"EUR","to":"acct_1","note":"a payment like any other"}"#;

type Outcome = Result<(), Box<dyn Error>>;

/// Whether each request has a key of its own.
#[derive(Clone, Copy)]
enum Keys {
    New,
    Same,
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [load, requests] = arguments.as_slice() else {
        return Err("usage: counted layer-first|layer-replay|disk REQUESTS".into());
    };
    let requests: u64 = requests.parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match load.as_str() {
        "layer-first" => runtime.block_on(ask_layer(requests, Keys::New)),
        "layer-replay" => runtime.block_on(ask_layer(requests, Keys::Same)),
        "disk" => runtime.block_on(begin_and_settle_on_disk(requests)),
        other => Err(format!("no such load: {other}").into()),
    }
}

/// Requests through the layer over the memory store, to a handler that reads the body and answers.
async fn ask_layer(requests: u64, keys: Keys) -> Outcome {
    let handler =
        tower::service_fn(async |request: Request<retrysafe::layer::Body<Full<Bytes>>>| {
            let paid =
                request.into_body().collect().await.is_ok_and(|body| !body.to_bytes().is_empty());
            let answer: &[u8] = if paid { br#"{"paid":100}"# } else { b"" };
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(answer))))
        });
    let service = IdempotencyLayer::new(MemoryStore::default()).layer(handler);
    for number in 0..requests {
        let number = match keys {
            Keys::New => number,
            Keys::Same => 0,
        };
        let request = Request::post("http://shop.example/pay")
            .header("host", "shop.example")
            .header("idempotency-key", format!("4f0c2b54-9a53-4f6e-8f4b-{number:012x}"))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from_static(ORDER.as_bytes())))?;
        let Ok(response) = service.clone().oneshot(request).await;
        if response.status() != StatusCode::OK || response.into_body().collect().await.is_err() {
            return Err("the layer refused a request".into());
        }
    }
    Ok(())
}

/// Begins and settles, each flushed before it is acknowledged.
async fn begin_and_settle_on_disk(requests: u64) -> Outcome {
    let folder = tempfile::tempdir()?;
    let store = DiskStore::open(folder.path())?;
    for number in 0..requests {
        let Inserted::New(record) = store.insert(first(number)?).await?.value else {
            return Err("a key that is new was there".into());
        };
        let Swapped::Done(_) = store.swap(record, settle()).await?.value else {
            return Err("a lease was lost".into());
        };
    }
    store.close();
    Ok(())
}

fn first(number: u64) -> Result<First, Box<dyn Error>> {
    let scope = Scope::of([("tenant", &b"acme"[..])]);
    let key = Key::new(&format!("4f0c2b54-9a53-4f6e-8f4b-{number:012x}"))?.digest();
    Ok(First {
        id: Id::of(&scope, &key),
        scope,
        key,
        fingerprint: Fingerprint::from_parts(1, RulesId::from_bytes([7; 8]), [9; 32]),
        mark: None,
        about: About {
            method: "POST".into(),
            route: "/payments/{*rest}".into(),
            path: "/payments/charge".into(),
        },
        ttl: Duration::from_secs(86_400),
        lease: Duration::from_secs(60),
        owner: number,
        request_id: None,
        flow: None,
    })
}

fn settle() -> Write {
    let response = StoredResponse {
        status: StatusCode::CREATED,
        headers: vec![(
            http::header::CONTENT_TYPE,
            http::HeaderValue::from_static("application/json"),
        )],
        body: Bytes::from_static(ANSWER),
    };
    Write {
        becomes: Becomes::Completed(Answer::Kept(response)),
        new_fence: false,
        what: Some(Happened::Settled(Standing::Completed, Some(201))),
        ttl: None,
    }
}
