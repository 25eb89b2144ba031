//! What does the upstream say, and if nothing, how far did the request get?
//!
//! The proxy never sends a request twice. Where it cannot give an answer, it says to the layer
//! whether anything was sent; the layer then decides what that means for the record.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{self, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use retrysafe::layer::{self, Attempt, Failed};
use retrysafe_core::event;
use retrysafe_core::key::KeyDigest;
use retrysafe_core::problem::Refusal;
use retrysafe_core::wire::ASK_AGAIN_SOON;
use tower_service::Service;

use super::answer;
use super::body::{Answer, Reply};
use super::callers_body::CallersBody;
use super::destination::Destination;
use super::framing::{self, Afterwards};
use super::headers::{self, Peer};
use super::live::Live;
use super::named_fields::X_REQUEST_ID;
use super::outgoing::Outgoing;
use super::pool::{Failure, Held, Pool};
use super::route::Route;
use super::silence::Silence;
use super::upload::Patience;
use super::upstream_state::LiveUpstream;
use crate::otel::{RequestSpan, UpstreamEnd};

/// Sends requests to the upstream, over the connections of one thread.
#[derive(Clone)]
pub(crate) struct Proxy {
    pool: Pool,
}

/// Sends one request to the upstream, by the rules of its route.
#[derive(Clone)]
pub(crate) struct RoutedProxy {
    pool: Pool,
    live: Arc<Live>,
    route: Arc<Route>,
    caller: Arc<Peer>,
    way: OnwardWay,
    /// None where it is not traced.
    span: Option<Arc<RequestSpan>>,
}

/// Where a request goes on, and under which path.
#[derive(Clone)]
pub(crate) struct OnwardWay {
    pub upstream: Arc<LiveUpstream>,
    pub destination: Destination,
}

impl Proxy {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// Closes connections that nobody needs.
    pub(crate) fn tidy(&self) {
        self.pool.tidy();
    }

    /// Whoever sends a request of this route for this caller.
    pub(crate) fn to(
        &self,
        live: Arc<Live>,
        route: Arc<Route>,
        caller: Arc<Peer>,
        way: OnwardWay,
    ) -> RoutedProxy {
        RoutedProxy { pool: self.pool.clone(), live, route, caller, way, span: None }
    }
}

impl RoutedProxy {
    /// The same, and the exchange with the upstream is a part of this span.
    pub(crate) fn traced(self, span: Option<Arc<RequestSpan>>) -> Self {
        Self { span, ..self }
    }

    /// Passes an uncovered request on, as it comes, and its answer back.
    pub(crate) async fn pass(
        &self,
        mut request: Request<Outgoing>,
        wants_upgrade: bool,
        request_id: &HeaderValue,
    ) -> Response<Reply> {
        let callers_side = wants_upgrade.then(|| hyper::upgrade::on(&mut request));
        self.make_outgoing(&mut request, wants_upgrade);
        let mut response = match self.exchange(request, None, wants_upgrade).await {
            Ok(response) => response,
            Err(failure) => {
                let whose = Whose { route: &self.route, key: None, request_id: Some(request_id) };
                let (_, refusal) = whose.report(failure);
                return answer::refused_without_key(&refusal, &self.route.rules.policy);
            }
        };
        headers::strip_hop(response.headers_mut(), wants_upgrade);
        headers::strip_passed_answer(response.headers_mut());
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return switch(response, callers_side);
        }
        response.map(Reply::Streamed)
    }

    async fn execute(self, request: Request<layer::Body<CallersBody>>) -> Response<Answer> {
        let attempt = request.extensions().get::<Attempt>().cloned();
        let request_id = request.headers().get(X_REQUEST_ID).cloned();
        let mut request = request.map(Outgoing::Guarded);
        self.make_outgoing(&mut request, false);
        if let Some(attempt) = &attempt {
            headers::announce(request.headers_mut(), attempt);
        }
        let mut response = match self.exchange(request, attempt.as_ref(), false).await {
            Ok(response) => response,
            Err(failure) => {
                let key = attempt.as_ref().map(Attempt::key);
                let request_id = request_id.as_ref();
                let whose = Whose { route: &self.route, key, request_id };
                return failed(whose.report(failure));
            }
        };
        headers::strip_hop(response.headers_mut(), false);
        match attempt {
            Some(_) => {
                let marker = &self.route.rules.policy.replay_marker;
                headers::strip_answer(response.headers_mut(), marker);
            }
            None => headers::strip_passed_answer(response.headers_mut()),
        }
        response
    }

    /// Brings a request into the form in which it goes to the upstream.
    fn make_outgoing(&self, request: &mut Request<Outgoing>, wants_upgrade: bool) {
        *request.version_mut() = Version::HTTP_11;
        let mut named_host = request.headers().get(header::HOST).cloned();
        if named_host.is_none()
            && let Some(authority) = request.uri().authority()
            && let Ok(host) = HeaderValue::from_str(authority.as_str())
        {
            request.headers_mut().insert(header::HOST, host.clone());
            named_host = Some(host);
        }
        let is_host_named = named_host.is_some();
        headers::strip_request(request.headers_mut(), &self.live.guard, wants_upgrade);
        let networks = &self.live.config.trusted_networks;
        headers::forward(request.headers_mut(), &self.caller, networks, named_host);
        // HTTP/1.0 knows requests without it; nothing is said about a host that the caller did not name.
        if !is_host_named
            && let Ok(host) = HeaderValue::from_str(self.way.upstream.upstream.authority.as_str())
        {
            request.headers_mut().insert(header::HOST, host);
        }
        if let Some(prefix) = &self.way.destination.prefix {
            headers::forward_prefix(request.headers_mut(), prefix);
            let target = self.way.destination.target(request.uri());
            // The door has read the same path in the same way, so there is something left of it.
            *request.uri_mut() = Uri::from(target.unwrap_or(PathAndQuery::from_static("/")));
        } else if request.uri().authority().is_some() {
            let path = request.uri().path_and_query().cloned();
            *request.uri_mut() = Uri::from(path.unwrap_or(PathAndQuery::from_static("/")));
        }
        let is_empty = request.body().is_end_stream();
        let length = if is_empty { Some(0) } else { request.body().size_hint().exact() };
        let asked = request.method().clone();
        framing::put(&asked, length, request.headers_mut());
        // What the layer noted for us is not for the connection to hold on to.
        request.extensions_mut().clear();
    }

    /// Sends one request, and reads the head of its answer in the one way in which everybody reads it. Where the request is traced,
    /// the upstream is told in which span.
    async fn exchange(
        &self,
        mut request: Request<Outgoing>,
        attempt: Option<&Attempt>,
        wants_upgrade: bool,
    ) -> Result<Response<Answer>, Failure> {
        let span = self.span.as_ref().map(RequestSpan::upstream);
        if let Some(span) = &span {
            span.put(request.headers_mut());
        }
        let asked = AskedFor {
            method: request.method().clone(),
            // Only where the caller wants another protocol has its field survived until here.
            protocol: if wants_upgrade { request.headers().get(header::UPGRADE) } else { None }
                .cloned(),
        };
        let patience = Patience {
            with_caller: self.route.rules.policy.request_time_max,
            with_upstream: self.route.rules.upstream_timeout,
        };
        let upstream = &*self.way.upstream;
        // What has a key was refused before its begin, unless the upstream has become unhealthy since.
        let ended = if upstream.health.is_healthy() {
            let sent = self.pool.send(&upstream.connector, request, patience, attempt).await;
            sent.and_then(|(response, held)| asked.read(response, held, patience.with_upstream))
        } else {
            Err(Failure::Unhealthy)
        };
        if let Some(span) = span {
            let end = match &ended {
                Ok(response) => UpstreamEnd::Answered(response.status()),
                Err(failure) => UpstreamEnd::Failed(reached(failure)),
            };
            span.end(upstream.upstream.authority.as_str(), end);
        }
        ended
    }
}

/// What an upstream was asked for, as far as the meaning of its answer's head depends on it.
struct AskedFor {
    method: Method,
    /// Another protocol, if the caller wants one.
    protocol: Option<HeaderValue>,
}

impl AskedFor {
    /// Reads the head of an answer.
    fn read(
        &self,
        mut response: Response<Incoming>,
        held: Held,
        pause_max: Duration,
    ) -> Result<Response<Answer>, Failure> {
        let broken = |why: &str| Failure::Lost { timed_out: false, why: why.into() };
        let version = response.version();
        let afterwards = framing::take(&self.method, &mut response).map_err(broken)?;
        let is_switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if is_switched && !headers::agrees(self.protocol.as_ref(), response.headers()) {
            return Err(broken("the answer switches to a protocol that nobody asked for"));
        }
        Ok(response.map(|body| match afterwards {
            Afterwards::Reused => Answer::new(body, version, held, Silence::new(pause_max)),
            Afterwards::Closed => {
                if is_switched {
                    held.hand_over();
                }
                Answer::empty()
            }
        }))
    }
}

impl Service<Request<layer::Body<CallersBody>>> for RoutedProxy {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<layer::Body<CallersBody>>) -> Self::Future {
        let proxy = self.clone();
        Box::pin(async move { Ok(proxy.execute(request).await) })
    }
}

/// How far a request got that has no answer.
fn reached(failure: &Failure) -> &'static str {
    match failure {
        Failure::NotSent(_) | Failure::Unhealthy => "not_sent",
        Failure::Lost { timed_out: true, .. } => "timed_out",
        Failure::Lost { timed_out: false, .. } => "lost",
        Failure::CallersFault(_) => "callers_fault",
    }
}

/// Stands for the answer that did not come: the layer reads how far the request got, and whoever
/// answers an unprotected caller reads the refusal.
fn failed((failed, refusal): (Failed, Refusal)) -> Response<Answer> {
    let mut response = Response::new(Answer::empty());
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    response.extensions_mut().insert(failed);
    response.extensions_mut().insert(refusal);
    response
}

/// Whose request it is, as far as a warning about it must say.
struct Whose<'a> {
    route: &'a Route,
    /// None where it is not protected.
    key: Option<KeyDigest>,
    request_id: Option<&'a HeaderValue>,
}

impl Whose<'_> {
    /// Counts a failure, and says what it means to the layer and to an unprotected caller.
    fn report(&self, failure: Failure) -> (Failed, Refusal) {
        let count = |reached: &'static str| {
            metrics::counter!(event::UPSTREAM_FAILURES.name, "reached" => reached).increment(1);
        };
        let reached = reached(&failure);
        let route = &*self.route.label;
        let key = self.key.as_ref().map(tracing::field::display);
        let request_id = self.request_id.and_then(|id| id.to_str().ok());
        match failure {
            Failure::NotSent(why) => {
                count(reached);
                tracing::warn!(route, key, request_id, why, "upstream_unreachable");
                let retry_after = ASK_AGAIN_SOON;
                (Failed::NotSent, Refusal::UpstreamUnreachable { retry_after })
            }
            // The checks have said so, once.
            Failure::Unhealthy => {
                let retry_after = ASK_AGAIN_SOON;
                (Failed::Unhealthy, Refusal::UpstreamUnhealthy { retry_after })
            }
            Failure::Lost { timed_out, why } => {
                count(reached);
                tracing::warn!(route, key, request_id, why, timed_out, "upstream_failed");
                (Failed::Lost { timed_out }, Refusal::UpstreamFailed { timed_out })
            }
            // No part of the upstream's; and of a protected request the layer has read the body
            // whole.
            Failure::CallersFault(refusal) => (Failed::Lost { timed_out: false }, refusal),
        }
    }
}

/// Joins the caller's connection with the upstream's, once both speak another protocol.
fn switch(
    mut response: Response<Answer>,
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
