//! How does a request reach the ledger, and what is answered?

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};

use crate::Desk;
use crate::ledger::{ChargeEnd, ChargeRequest, ReceiptRequest};
use crate::modes::Mode;

/// The largest request that is read: a charge is some dozen bytes.
const BODY_BYTES_MAX: usize = 1 << 16;

/// Why a connection ends without an answer.
type Reset = Box<dyn std::error::Error + Send + Sync>;

type Answer = Result<Response<Full<Bytes>>, Reset>;

#[derive(Deserialize)]
struct Resets {
    reset: u32,
}

/// Serves until it is dropped.
pub(crate) async fn accept(listener: TcpListener, desk: Arc<Desk>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        // A connection that ends unanswered is reset, as by a machine that lost its memory.
        let _ = stream.set_zero_linger();
        if desk.state().modes.take_reset() {
            continue;
        }
        tokio::spawn(serve(stream, Arc::clone(&desk)));
    }
}

async fn serve(stream: TcpStream, desk: Arc<Desk>) {
    let service = service_fn(move |request| answer(Arc::clone(&desk), request));
    // The client is told by the end of the connection; there is nobody else to tell.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(desk: Arc<Desk>, request: Request<Incoming>) -> Answer {
    let (parts, body) = request.into_parts();
    let body = Limited::new(body, BODY_BYTES_MAX).collect().await?.to_bytes();
    let path = parts.uri.path().trim_start_matches('/');
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    let key = parts.headers.get("idempotency-key");
    let key = key.and_then(|key| key.to_str().ok()).map(str::to_owned);
    match (parts.method, first, rest) {
        (Method::POST, "charges", "") => {
            let Ok(request) = serde_json::from_slice::<ChargeRequest>(&body) else {
                return told(StatusCode::BAD_REQUEST, &json!({"error": "not a charge"}));
            };
            // Whoever has sent a request cannot take it back by going away.
            tokio::spawn(async move {
                desk.begins_work(&request.ride);
                let answer = charge(&desk, &request, key.as_deref()).await;
                desk.ends_work(&request.ride);
                answer
            })
            .await?
        }
        (Method::POST, "receipts", "") => {
            let Ok(request) = serde_json::from_slice::<ReceiptRequest>(&body) else {
                return told(StatusCode::BAD_REQUEST, &json!({"error": "not a receipt"}));
            };
            let is_mailed = desk.state().ledger.mail(&request, key.as_deref());
            let status =
                if is_mailed { StatusCode::ACCEPTED } else { StatusCode::UNPROCESSABLE_ENTITY };
            told(status, &json!({"mailed": is_mailed}))
        }
        (Method::GET, "charges", "") => told(StatusCode::OK, &json!(desk.state().ledger.totals())),
        (Method::GET, "charges", ride) => {
            told(StatusCode::OK, &json!(desk.state().ledger.ride(ride)))
        }
        (Method::PUT, "modes", ride) if !ride.is_empty() => {
            change(&body, |mode| desk.state().modes.set(ride, mode))
        }
        (Method::PUT, "connections", "") => {
            change(&body, |Resets { reset }| desk.state().modes.resets = reset)
        }
        (Method::PUT, "settings", "") => {
            change(&body, |settings| desk.state().ledger.settings = settings)
        }
        (Method::GET, "held", ride) => {
            desk.until(|state| state.modes.is_held(ride)).await;
            told(StatusCode::OK, &json!({"held": ride}))
        }
        (Method::POST, "release", ride) => {
            desk.release(ride);
            told(StatusCode::OK, &json!({"released": ride}))
        }
        (Method::POST, "forget", "") => {
            desk.state().ledger.forget_keys();
            told(StatusCode::OK, &json!({"forgotten": true}))
        }
        _ => told(StatusCode::NOT_FOUND, &json!({"error": "no such thing"})),
    }
}

/// One request for a charge, and what its mode makes of it.
async fn charge(desk: &Desk, request: &ChargeRequest, key: Option<&str>) -> Answer {
    let mode = {
        let mut state = desk.state();
        state.ledger.note(request, key);
        state.modes.take(&request.ride)
    };
    match mode {
        Mode::FailBeforeCharging => {
            return told(StatusCode::SERVICE_UNAVAILABLE, &json!({"error": "not now"}));
        }
        Mode::ResetBeforeCharging => return Err("reset before charging".into()),
        Mode::KeyInUse => {
            return told(StatusCode::CONFLICT, &json!({"error": "this key is in use"}));
        }
        Mode::HoldBeforeCharging => hold(desk, &request.ride).await,
        Mode::Well
        | Mode::Slow { .. }
        | Mode::FailAfterCharging
        | Mode::ResetAfterCharging
        | Mode::Decline
        | Mode::HoldAfterCharging => {}
    }
    let end = desk.state().ledger.charge(request, key, mode == Mode::Decline);
    match mode {
        Mode::FailAfterCharging => {
            return told(StatusCode::INTERNAL_SERVER_ERROR, &json!({"error": "out of order"}));
        }
        Mode::ResetAfterCharging => return Err("reset after charging".into()),
        Mode::HoldAfterCharging => hold(desk, &request.ride).await,
        Mode::Slow { ms } => tokio::time::sleep(Duration::from_millis(ms)).await,
        Mode::Well
        | Mode::FailBeforeCharging
        | Mode::ResetBeforeCharging
        | Mode::Decline
        | Mode::KeyInUse
        | Mode::HoldBeforeCharging => {}
    }
    match end {
        ChargeEnd::Charged(id) => told(StatusCode::CREATED, &json!({"charge": id})),
        ChargeEnd::Declined => {
            told(StatusCode::PAYMENT_REQUIRED, &json!({"error": "card_declined"}))
        }
        ChargeEnd::OtherContent => {
            told(StatusCode::UNPROCESSABLE_ENTITY, &json!({"error": "key used for another charge"}))
        }
    }
}

async fn hold(desk: &Desk, ride: &str) {
    desk.state().modes.hold(ride);
    desk.changed.notify_waiters();
    desk.until(|state| !state.modes.is_held(ride)).await;
}

/// Reads what is to be changed, and changes it.
fn change<T: for<'read> Deserialize<'read>>(body: &[u8], apply: impl FnOnce(T)) -> Answer {
    match serde_json::from_slice(body) {
        Ok(wanted) => {
            apply(wanted);
            told(StatusCode::OK, &json!({"changed": true}))
        }
        Err(error) => told(StatusCode::BAD_REQUEST, &json!({"error": error.to_string()})),
    }
}

fn told(status: StatusCode, document: &serde_json::Value) -> Answer {
    let body = Full::new(Bytes::from(document.to_string()));
    Ok(Response::builder().status(status).header("content-type", "application/json").body(body)?)
}
