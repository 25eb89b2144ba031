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
use http_body::Body as _;
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
use super::outgoing::Outgoing;
use super::pool::{Failure, Pool};
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
        mut request: Request<CallersBody>,
        wants_upgrade: bool,
    ) -> Response<Reply> {
        let whose = Whose::of(&self.route, None, request.headers());
        let callers_side = wants_upgrade.then(|| hyper::upgrade::on(&mut request));
        let request = self.outgoing(request.map(Outgoing::Streamed), wants_upgrade);
        let mut response = match self.exchange(request, None).await {
            Ok(response) => response,
            Err(failure) => {
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
        let whose = Whose::of(&self.route, attempt.as_ref(), request.headers());
        let mut request = self.outgoing(request.map(Outgoing::Guarded), false);
        if let Some(attempt) = &attempt {
            headers::announce(request.headers_mut(), attempt);
        }
        let mut response = match self.exchange(request, attempt.as_ref()).await {
            Ok(response) => response,
            Err(failure) => return failed(whose.report(failure)),
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

    /// The request in the form in which it goes to the upstream.
    fn outgoing(&self, mut request: Request<Outgoing>, wants_upgrade: bool) -> Request<Outgoing> {
        *request.version_mut() = Version::HTTP_11;
        if !request.headers().contains_key(header::HOST)
            && let Some(authority) = request.uri().authority()
            && let Ok(host) = HeaderValue::from_str(authority.as_str())
        {
            request.headers_mut().insert(header::HOST, host);
        }
        headers::strip_request(request.headers_mut(), &self.live.guard, wants_upgrade);
        let networks = &self.live.config.trusted_networks;
        headers::forward(request.headers_mut(), &self.caller, networks);
        // HTTP/1.0 knows requests without it; nothing is said about a host that the caller did not name.
        if !request.headers().contains_key(header::HOST)
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
        request
    }

    /// Sends one request, and reads the head of its answer. Where it is traced, the upstream is told in which span.
    async fn exchange(
        &self,
        mut request: Request<Outgoing>,
        attempt: Option<&Attempt>,
    ) -> Result<Response<Answer>, Failure> {
        let Some(span) = self.span.as_ref().map(RequestSpan::upstream) else {
            return self.send_once(request, attempt).await;
        };
        span.put(request.headers_mut());
        let ended = self.send_once(request, attempt).await;
        let server = self.way.upstream.upstream.authority.as_str();
        span.end(
            server,
            match &ended {
                Ok(response) => UpstreamEnd::Answered(response.status()),
                Err(failure) => UpstreamEnd::Failed(reached(failure)),
            },
        );
        ended
    }

    /// Sends one request, and reads the head of its answer in the one way in which everybody reads
    /// it.
    async fn send_once(
        &self,
        request: Request<Outgoing>,
        attempt: Option<&Attempt>,
    ) -> Result<Response<Answer>, Failure> {
        // What has a key was refused before its begin, unless the upstream has become unhealthy since.
        if !self.way.upstream.health.is_healthy() {
            return Err(Failure::Unhealthy);
        }
        let asked = request.method().clone();
        let asked_protocol = request.headers().get(header::UPGRADE).cloned();
        let patience = Patience {
            with_caller: self.route.rules.policy.request_time_max,
            with_upstream: self.route.rules.upstream_timeout,
        };
        let sent = self.pool.send(&self.way.upstream.connector, request, patience, attempt).await;
        let (mut response, held) = sent?;
        let broken = |why: &str| Failure::Lost { timed_out: false, why: why.into() };
        let version = response.version();
        let afterwards = framing::take(&asked, &mut response).map_err(broken)?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && !headers::agrees(asked_protocol.as_ref(), response.headers())
        {
            return Err(broken("the answer switches to a protocol that nobody asked for"));
        }
        let silence = Silence::new(patience.with_upstream);
        let is_switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        Ok(response.map(|body| match afterwards {
            Afterwards::Reused => Answer::new(body, version, held, silence),
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
struct Whose {
    route: Arc<Route>,
    /// None where it is not protected.
    key: Option<KeyDigest>,
    request_id: Option<HeaderValue>,
}

impl Whose {
    fn of(route: &Arc<Route>, attempt: Option<&Attempt>, headers: &HeaderMap) -> Self {
        Self {
            route: Arc::clone(route),
            key: attempt.map(Attempt::key),
            request_id: headers.get(headers::X_REQUEST_ID).cloned(),
        }
    }

    /// Counts a failure, and says what it means to the layer and to an unprotected caller.
    fn report(&self, failure: Failure) -> (Failed, Refusal) {
        let count = |reached: &'static str| {
            metrics::counter!(event::UPSTREAM_FAILURES.name, "reached" => reached).increment(1);
        };
        let reached = reached(&failure);
        let route = &*self.route.label;
        let key = self.key.as_ref().map(tracing::field::display);
        let request_id = self.request_id.as_ref().and_then(|id| id.to_str().ok());
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
