//! What is told about one request, and about each of its steps?
//!
//! Attributes have the names of OpenTelemetry's conventions for HTTP; what is ours begins with `retrysafe.`. No key, body, query or
//! credential is ever among them: a key is shown by the first digits of its digest, as in the log.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, Method, StatusCode};
use retrysafe::layer::{RequestWatch, WatchedStep};
use retrysafe_core::key::{Key, KeyDigest, KeySyntax};
use retrysafe_core::trace::TracedSpan;

use super::Tracer;
use super::context;
use super::span::{Attribute, FinishedSpan, SpanKind, number, text};

/// How many steps of one request are told: a duplicate that waits begins again and again.
const STEPS_MAX: u32 = 32;

/// The span of a request, while it lasts. Its steps may last longer: an answer that comes late is settled all the same.
#[derive(Debug)]
pub(crate) struct RequestSpan {
    tracer: Tracer,
    span: TracedSpan,
    asked: AskedRequest,
    is_sampled: bool,
    started: Duration,
    clock: Instant,
    steps: AtomicU32,
    replayed: OnceLock<TracedSpan>,
}

/// What a request asks for, and in whose trace.
#[derive(Debug)]
pub(super) struct AskedRequest {
    pub method: Method,
    pub path: Box<str>,
    pub is_tls: bool,
    /// The caller's span.
    pub parent: Option<[u8; 8]>,
    /// What vendors have added to the trace.
    pub state: Option<Box<str>>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedRequest<'a> {
    /// None where no rule of the configuration was found.
    pub route: Option<&'a str>,
    pub status: StatusCode,
    pub outcome: &'a str,
    pub key: Option<KeyDigest>,
    pub request_id: &'a str,
}

impl EndedRequest<'_> {
    /// Whether the caller has named its request by its key, which is told to nobody.
    fn is_named_by_key(&self) -> bool {
        let lines = [self.request_id.as_bytes()];
        let read = Key::parse_lines(lines, KeySyntax::Lenient);
        let digest = read.map(|read| read.digest()).ok();
        digest.is_some() && digest == self.key
    }
}

/// The span of a request, in the hands of whoever answers it. Dropped before its end, the caller has left.
#[derive(Debug)]
pub(crate) struct OpenSpan {
    request: Arc<RequestSpan>,
    /// Of the request, once it is known.
    pub key: Option<KeyDigest>,
    is_ended: bool,
}

impl OpenSpan {
    pub(super) fn new(request: RequestSpan) -> Self {
        Self { request: Arc::new(request), key: None, is_ended: false }
    }

    /// For whoever tells of a step of the request.
    pub(crate) fn request(&self) -> Arc<RequestSpan> {
        Arc::clone(&self.request)
    }

    /// The request was answered.
    pub(crate) fn end(mut self, ended: &EndedRequest<'_>) {
        self.is_ended = true;
        if self.request.is_sampled {
            self.request.answered(ended);
        }
    }
}

impl Drop for OpenSpan {
    /// What was begun goes on, and its steps are told as those of this span. Without it they would belong to nothing.
    fn drop(&mut self) {
        if self.is_ended || !self.request.is_sampled {
            return;
        }
        let mut attributes = vec![text("error.type", "caller_left")];
        attributes.extend(self.key.map(|key| text("retrysafe.key", &key.to_string())));
        self.request.tell(None, attributes, Some("the caller left before it was answered"));
    }
}

impl RequestSpan {
    pub(super) fn new(
        tracer: Tracer,
        span: TracedSpan,
        asked: AskedRequest,
        is_sampled: bool,
    ) -> Self {
        Self {
            tracer,
            span,
            asked,
            is_sampled,
            started: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            clock: Instant::now(),
            steps: AtomicU32::new(0),
            replayed: OnceLock::new(),
        }
    }

    /// Its ids.
    pub(crate) fn span(&self) -> TracedSpan {
        self.span
    }

    /// Now, by a clock that does not leap within a request.
    fn now(&self) -> Duration {
        self.started.saturating_add(self.clock.elapsed())
    }

    /// The request was answered.
    fn answered(&self, ended: &EndedRequest<'_>) {
        let is_server_error = ended.status.is_server_error();
        let mut attributes = vec![
            number("http.response.status_code", ended.status.as_u16()),
            text("retrysafe.outcome", ended.outcome),
        ];
        if !ended.is_named_by_key() {
            attributes.push(text("retrysafe.request_id", ended.request_id));
        }
        attributes.extend(ended.route.map(|route| text("http.route", route)));
        attributes.extend(ended.key.map(|key| text("retrysafe.key", &key.to_string())));
        if is_server_error {
            attributes.push(text("error.type", ended.status.as_str()));
        }
        let error = is_server_error.then_some("the answer is an error of the server");
        self.tell(ended.route, attributes, error);
    }

    /// Tells the whole request.
    fn tell(
        &self,
        route: Option<&str>,
        mut attributes: Vec<Attribute>,
        error: Option<&'static str>,
    ) {
        let AskedRequest { method, path, is_tls, parent, state } = &self.asked;
        let method = method.as_str();
        attributes.extend([
            text("http.request.method", method),
            text("url.path", path),
            text("url.scheme", if *is_tls { "https" } else { "http" }),
        ]);
        self.tracer.0.queue.put(FinishedSpan {
            span: self.span,
            parent: *parent,
            state: state.clone(),
            name: route.map_or(method.into(), |route| format!("{method} {route}").into()),
            kind: SpanKind::Server,
            started: self.started,
            ended: self.now(),
            attributes,
            link: self.replayed.get().copied(),
            error,
        });
    }

    /// The request is about to go to the upstream.
    pub(crate) fn upstream(self: &Arc<Self>) -> Box<UpstreamSpan> {
        let span_id = self.tracer.0.ids.span_id();
        let span = TracedSpan { trace_id: self.span.trace_id, span_id };
        let request = Arc::clone(self);
        Box::new(UpstreamSpan { request, span, started: self.now(), is_ended: false })
    }

    fn step(&self, child: ChildSpan) {
        if !self.is_sampled || self.steps.fetch_add(1, Ordering::Relaxed) >= STEPS_MAX {
            return;
        }
        let ChildSpan { span_id, name, kind, started, attributes, error } = child;
        self.tracer.0.queue.put(FinishedSpan {
            span: TracedSpan { trace_id: self.span.trace_id, span_id },
            parent: Some(self.span.span_id),
            state: self.asked.state.clone(),
            name: name.into(),
            kind,
            started,
            ended: self.now(),
            attributes,
            link: None,
            error,
        });
    }
}

/// A step of a request that is over.
struct ChildSpan {
    span_id: [u8; 8],
    name: &'static str,
    kind: SpanKind,
    started: Duration,
    attributes: Vec<Attribute>,
    error: Option<&'static str>,
}

impl RequestWatch for RequestSpan {
    /// What is not recorded cannot be linked to.
    fn span(&self) -> Option<TracedSpan> {
        self.is_sampled.then_some(self.span)
    }

    fn stepped(&self, step: WatchedStep, took: Duration) {
        let failed = "the store failed";
        let (name, attributes, error) = match step {
            WatchedStep::Begin(met) => {
                let is_store_error = met == retrysafe_core::event::Met::StoreError;
                let attributes = vec![text("retrysafe.answer", met.name())];
                ("begin", attributes, is_store_error.then_some(failed))
            }
            WatchedStep::Settle(Some(standing)) => {
                ("settle", vec![text("retrysafe.standing", standing.name())], None)
            }
            WatchedStep::Settle(None) => ("settle", Vec::new(), Some(failed)),
        };
        self.step(ChildSpan {
            span_id: self.tracer.0.ids.span_id(),
            name,
            kind: SpanKind::Internal,
            started: self.now().saturating_sub(took),
            attributes,
            error,
        });
    }

    fn replays(&self, executed_in: TracedSpan) {
        // The first one counts; there is never another.
        let _ = self.replayed.set(executed_in);
    }
}

/// The exchange of a request with the upstream, while it lasts. Dropped before its end, it was given up.
#[derive(Debug)]
pub(crate) struct UpstreamSpan {
    request: Arc<RequestSpan>,
    span: TracedSpan,
    started: Duration,
    is_ended: bool,
}

/// How the exchange ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UpstreamEnd {
    /// The head of an answer has come.
    Answered(StatusCode),
    /// It has not, and that is how far the request got.
    Failed(&'static str),
}

impl UpstreamSpan {
    /// Names this span to the upstream as the parent of whatever it does.
    pub(crate) fn put(&self, headers: &mut HeaderMap) {
        let RequestSpan { is_sampled, asked, .. } = &*self.request;
        context::put(headers, self.span, *is_sampled, asked.state.as_deref());
    }

    /// The exchange is over.
    pub(crate) fn end(mut self, server: &str, how: UpstreamEnd) {
        self.is_ended = true;
        let mut attributes = vec![text("server.address", server)];
        let error = match how {
            UpstreamEnd::Answered(status) => {
                attributes.push(number("http.response.status_code", status.as_u16()));
                let is_error = status.is_client_error() || status.is_server_error();
                if is_error {
                    attributes.push(text("error.type", status.as_str()));
                }
                is_error.then_some("the upstream's answer is an error")
            }
            UpstreamEnd::Failed(reached) => {
                attributes.push(text("error.type", reached));
                Some("no answer of the upstream has come")
            }
        };
        self.tell(attributes, error);
    }

    fn tell(&self, mut attributes: Vec<Attribute>, error: Option<&'static str>) {
        attributes.push(text("http.request.method", self.request.asked.method.as_str()));
        self.request.step(ChildSpan {
            span_id: self.span.span_id,
            name: "upstream",
            kind: SpanKind::Client,
            started: self.started,
            attributes,
            error,
        });
    }
}

impl Drop for UpstreamSpan {
    fn drop(&mut self) {
        if !self.is_ended {
            self.tell(vec![text("error.type", "given_up")], Some("nobody waits any longer"));
        }
    }
}
