//! A shop that knows keys, and loses its first answer.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// The answer to each key.
type Ledger = Arc<Mutex<HashMap<HeaderValue, String>>>;

pub(crate) struct Shop {
    addr: SocketAddr,
    ledger: Ledger,
}

impl Shop {
    pub(crate) fn url(&self) -> String {
        format!("http://{}/payments", self.addr)
    }

    pub(crate) fn payments_made(&self) -> usize {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

pub(crate) async fn open() -> io::Result<Shop> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let shop = Shop { addr: listener.local_addr()?, ledger: Ledger::default() };
    let ledger = Arc::clone(&shop.ledger);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let ledger = Arc::clone(&ledger);
            let serve = service_fn(move |request| {
                let answer = pay(&ledger, &request);
                async move { answer }
            });
            // A connection that ends badly is part of the story.
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), serve));
        }
    });
    Ok(shop)
}

fn pay(ledger: &Ledger, request: &Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
    let Some(key) = request.headers().get("idempotency-key") else {
        let mut refused = Response::new(Full::from("a key is required"));
        *refused.status_mut() = StatusCode::BAD_REQUEST;
        return Ok(refused);
    };
    let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
    let number = ledger.len() + 1;
    let is_first = number == 1;
    let text = ledger.entry(key.clone()).or_insert_with(|| format!("payment {number}")).clone();
    if is_first {
        // The payment is made, and the connection breaks.
        return Err(io::Error::other("the cable was pulled"));
    }
    let mut answer = Response::new(Full::from(text));
    *answer.status_mut() = StatusCode::CREATED;
    Ok(answer)
}
