//! How do operators' connections come in?
//!
//! By a listener of its own, beside the threads that serve callers, so that it answers when those
//! are busy. Nobody can use it up: a head or a body must come in time, an answer must be taken in
//! time, and of too many connections the oldest is closed. A health check always gets through.

use std::collections::VecDeque;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::error::Refused;
use crate::slow_readers::TimedWrites;

/// How many connections there may be: a few people, scripts, scrapers and health checks.
pub(crate) const CONNECTIONS_MAX: usize = 32;

/// How large the head of a request may be.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// How large a body may be: the largest answer that an operator may give, as JSON.
const BODY_BYTES_MAX: usize = 2 << 20;

/// How long a body may take to arrive. Operators are near.
const BODY_TIME_MAX: Duration = Duration::from_secs(10);

/// The pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long connections may be slow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// How long the head of a request may take, and an idle connection is kept.
    pub head_time_max: Duration,
    /// How long an answer may wait for its reader.
    pub write_time_max: Duration,
}

/// Serves the pages until it is told that it is over. What is being answered then is answered. Each connection is asked for the patience that
/// holds when it comes.
pub(crate) async fn serve(
    listener: TcpListener,
    pages: Router,
    patience: impl Fn() -> Patience + Send + 'static,
    over: watch::Receiver<bool>,
) {
    let pages = pages.layer(middleware::from_fn(read_body));
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            () = ended(over.clone()) => return,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "accept_failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= CONNECTIONS_MAX
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let served = tokio::spawn(connection(stream, pages.clone(), patience(), over.clone()));
        open.push_back(served.abort_handle());
    }
}

/// Waits until it is over.
async fn ended(mut over: watch::Receiver<bool>) {
    // Whoever says so outlives the listener; if it did not, that would be the end as well.
    let _ = over.wait_for(|over| *over).await;
}

async fn connection(
    stream: TcpStream,
    pages: Router,
    patience: Patience,
    over: watch::Receiver<bool>,
) {
    let io = TimedWrites::new(TokioIo::new(stream), patience.write_time_max);
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience.head_time_max)
        .max_buf_size(HEAD_BYTES_MAX)
        .half_close(true)
        .serve_connection(io, TowerToHyperService::new(pages));
    let mut served = std::pin::pin!(served);
    // A connection that breaks is its operator's affair.
    tokio::select! {
        _ = served.as_mut() => {}
        () = ended(over) => {
            served.as_mut().graceful_shutdown();
            let _ = served.await;
        }
    }
}

/// Reads a request whole before anything is done with it.
async fn read_body(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let read = tokio::time::timeout(BODY_TIME_MAX, to_bytes(body, BODY_BYTES_MAX)).await;
    match read {
        Ok(Ok(body)) => next.run(Request::from_parts(parts, Body::from(body))).await,
        Ok(Err(_)) => Refused::BodyTooLarge.into_response(),
        Err(_) => Refused::BodyTimeout.into_response(),
    }
}
