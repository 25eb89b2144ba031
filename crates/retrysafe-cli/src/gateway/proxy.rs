//! What does the upstream say, and if nothing, how far did the request get?
//!
//! The proxy never sends a request twice. Where it cannot give an answer, it says to the layer
//! whether anything was sent; the layer then decides what that means for the record.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{self, HeaderMap, HeaderValue};
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use retrysafe::layer::{self, Attempt, Failed};
use retrysafe_core::event;
use retrysafe_core::problem::Refusal;
use tokio::time::{Instant, sleep_until};
use tower_service::Service;

use super::answer;
use super::body::{Answer, Outgoing, Reply};
use super::headers;
use super::live::Live;
use super::pool::{Failure, Pool};
use super::route::Route;

/// Sends requests to the upstream, over the connections of one thread.
#[derive(Clone)]
pub(crate) struct Proxy {
    pool: Pool,
}

/// What the front has found out about a request, for whoever sends it on.
#[derive(Clone)]
pub(crate) struct Found {
    pub live: Arc<Live>,
    pub route: Arc<Route>,
}

impl Proxy {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// Passes an uncovered request on, as it comes, and its answer back.
    pub(crate) async fn pass(
        &self,
        found: &Found,
        mut request: Request<Incoming>,
        wants_upgrade: bool,
    ) -> Response<Reply> {
        let callers_side = wants_upgrade.then(|| hyper::upgrade::on(&mut request));
        let deadline = Instant::now() + found.route.rules.upstream_timeout;
        let request = outgoing(request.map(Outgoing::Streamed), found);
        let (response, held) = match self.pool.send(&found.live.connector, request, deadline).await
        {
            Ok(answered) => answered,
            Err(failure) => return answer::refused(&report(failure).1, &found.route.policy.policy),
        };
        let mut response = response;
        strip_response(response.headers_mut(), wants_upgrade);
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return switch(response, callers_side);
        }
        response.map(|body| Reply::Streamed(Answer::new(body, held, None)))
    }

    async fn execute(self, request: Request<layer::Body<Incoming>>) -> Response<Answer> {
        let Some(found) = request.extensions().get::<Found>().cloned() else {
            // The front sets it on every request; without it nobody knows where to send this.
            return failed(Failed::NotSent);
        };
        let attempt = request.extensions().get::<Attempt>().cloned();
        let mut request = outgoing(request.map(Outgoing::Guarded), &found);
        if let Some(attempt) = &attempt {
            headers::announce(request.headers_mut(), attempt);
        }
        let deadline = Instant::now() + found.route.rules.upstream_timeout;
        let (mut response, held) =
            match self.pool.send(&found.live.connector, request, deadline).await {
                Ok(answered) => answered,
                Err(failure) => return failed(report(failure).0),
            };
        // Nobody asked for another protocol, so this is no answer to the request.
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return failed(Failed::Lost { timed_out: false });
        }
        headers::strip_hop(response.headers_mut(), false);
        match attempt {
            Some(_) => {
                let marker = &found.route.rules.policy.replay_marker;
                headers::strip_answer(response.headers_mut(), marker);
            }
            None => headers::strip_passed_answer(response.headers_mut()),
        }
        let deadline = Box::pin(sleep_until(deadline));
        response.map(|body| Answer::new(body, held, Some(deadline)))
    }
}

impl Service<Request<layer::Body<Incoming>>> for Proxy {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<layer::Body<Incoming>>) -> Self::Future {
        let proxy = self.clone();
        Box::pin(async move { Ok(proxy.execute(request).await) })
    }
}

/// The request in the form in which it goes to the upstream.
fn outgoing(mut request: Request<Outgoing>, found: &Found) -> Request<Outgoing> {
    *request.version_mut() = Version::HTTP_11;
    // HTTP/1.0 knows requests without it.
    if !request.headers().contains_key(header::HOST)
        && let Ok(host) = HeaderValue::from_str(found.live.config.upstream.authority.as_str())
    {
        request.headers_mut().insert(header::HOST, host);
    }
    if request.uri().authority().is_some() {
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = Uri::from(path.unwrap_or(PathAndQuery::from_static("/")));
    }
    // What the front noted for us is not for the connection to hold on to.
    request.extensions_mut().clear();
    request
}

/// Takes from an answer what only we may say, and what belongs to one hop.
fn strip_response(headers: &mut HeaderMap, keep_upgrade: bool) {
    headers::strip_hop(headers, keep_upgrade);
    headers::strip_passed_answer(headers);
}

fn failed(failed: Failed) -> Response<Answer> {
    let mut response = Response::new(Answer::empty());
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    response.extensions_mut().insert(failed);
    response
}

/// Counts a failure, and says what it means to the layer and to an unprotected caller.
fn report(failure: Failure) -> (Failed, Refusal) {
    let count = |reached: &'static str| {
        metrics::counter!(event::UPSTREAM_FAILURES.name, "reached" => reached).increment(1);
    };
    match failure {
        Failure::NotSent(why) => {
            count("not_sent");
            tracing::warn!(why, "upstream_unreachable");
            let retry_after = answer::ASK_AGAIN;
            (Failed::NotSent, Refusal::UpstreamUnreachable { retry_after })
        }
        Failure::Lost { timed_out, why } => {
            count(if timed_out { "timed_out" } else { "lost" });
            tracing::warn!(why, timed_out, "upstream_failed");
            (Failed::Lost { timed_out }, Refusal::UpstreamFailed { timed_out })
        }
    }
}

/// Joins the caller's connection with the upstream's, once both speak another protocol.
fn switch(
    mut response: Response<Incoming>,
    callers_side: Option<hyper::upgrade::OnUpgrade>,
) -> Response<Reply> {
    let upstreams_side = hyper::upgrade::on(&mut response);
    if let Some(callers_side) = callers_side {
        tokio::spawn(async move {
            let (Ok(caller), Ok(upstream)) = tokio::join!(callers_side, upstreams_side) else {
                return;
            };
            let mut caller = hyper_util::rt::TokioIo::new(caller);
            let mut upstream = hyper_util::rt::TokioIo::new(upstream);
            // Either side may hang up at any time; that is how such connections end.
            let _ = tokio::io::copy_bidirectional(&mut caller, &mut upstream).await;
        });
    }
    response.map(|_| Reply::Own(None))
}
