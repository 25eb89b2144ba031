//! What happens to a request? (the gateway's way, from top to bottom)
//!
//! ```text
//! connection        listen: accept, TLS, HTTP/1.1 or HTTP/2, half-close, drain
//!   the door        front + guard: what two servers could read differently is refused
//!   our own pages   published: the policy; wellknown: the state of the caller's own key; webhooks: what providers tell
//!   the rule        destination + route + paths: every spelling of a path finds its upstream and its rule
//!   the caller      scope: only for covered requests with a key
//!   the layer       retrysafe::layer: begin, execute or replay, settle
//!   the headers     headers: one hop's end here, forged markers too; who is asking is said
//!   the upstream    proxy + pool: once, and how far it got; framing: where its answer ends
//! the answer        headers of one hop end here; cors: which page may read it; id, counters, one line in the log
//! ```
//!
//! Uncovered requests go from the rule straight to the upstream, and their bodies stream. A replay never needs the headers of
//! the next hop.

pub(crate) mod answer;
mod between_messages;
mod body;
mod callers_body;
mod connect;
mod cors;
pub(crate) mod descriptors;
mod destination;
mod durations;
pub(crate) mod files;
mod framing;
mod front;
mod given_bytes;
mod guard;
mod headers;
mod health;
mod http_form;
pub(crate) mod in_process;
mod jwks;
pub(crate) mod jwt;
mod kept_lately;
mod known_bytes;
mod lasting_timer;
pub(crate) mod listen;
pub(crate) mod live;
mod look_back;
mod lookup_desk;
mod named_fields;
mod outgoing;
mod pool;
mod predecessor;
mod preface;
mod proxy;
mod published;
mod reconcile;
mod request_log;
mod reserved_address;
pub(crate) mod route;
mod same_bytes;
mod scope;
mod sender;
pub(crate) mod serve;
mod silence;
mod single_key;
mod small_message;
#[cfg(test)]
mod tests;
mod under_way;
mod upkeep;
mod upload;
mod upstream_state;
mod wake_batcher;
mod webhooks;
mod wellknown;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use retrysafe::layer::{
    self, ExecutionGate, Failed, IdempotencyLayer, Limiter, MemoryBudget, RepeatableReplay,
    RequestFacts, RequestWatch, ScopeTally,
};
use retrysafe::stores::postgres::PostgresStore;
use retrysafe::upkeep::Asker;
use retrysafe::webhooks::Inbox;
use retrysafe_core::event;
use retrysafe_core::key::KeyDigest;
use retrysafe_core::policy::Mode;
use retrysafe_core::problem::Refusal;
use retrysafe_core::store::Store;
use retrysafe_core::wire::ASK_AGAIN_SOON;
use retrysafe_core::{Engine, Policy};
use tower_layer::Layer as _;

use body::{Answer, Reply};
use callers_body::CallersBody;
use cors::{Page, Permissions};
use descriptors::ConnectionSlots;
use destination::Destination;
use durations::AskedLabels;
use headers::{Peer, RequestIds};
use known_bytes::{KnownBytes, Rememberable};
use live::Live;
use named_fields::{NamedFields, X_REQUEST_ID};
use outgoing::Outgoing;
use pool::Pool;
use proxy::{OnwardWay, Proxy};
use request_log::{Asked, Line, Outcome, RequestLog, Way};
use route::Route;
use upstream_state::LiveUpstream;
use wellknown::Pace;

use crate::admin::SharedWebhooks;
use crate::otel::{EndedRequest, OpenSpan, Tracer};

/// What all threads share.
pub(crate) struct Gateway<S> {
    pub live: ArcSwap<Live>,
    pub engine: Engine<Arc<S>>,
    layer: IdempotencyLayer<Arc<S>>,
    ids: RequestIds,
    pace: Pace,
    permissions: Permissions,
    log: Option<RequestLog>,
    limiter: Limiter,
    pub memory: MemoryBudget,
    pub slots: ConnectionSlots,
    inbox: Option<Inbox>,
    /// What receives webhooks. A reload exchanges it.
    pub webhooks: SharedWebhooks<S>,
    /// Whom an operator asks about one unknown record, out of turn.
    pub asker: ArcSwap<Asker>,
    /// Whose requests are repeated, and whose keys are misused.
    pub tally: ScopeTally,
    /// None where nothing is traced.
    tracer: Option<Tracer>,
}

/// What one thread has of its own.
pub(crate) struct Worker<S> {
    gateway: Arc<Gateway<S>>,
    proxy: Proxy,
    /// Requests that were replayed lately, by their bytes.
    known_bytes: Mutex<KnownBytes>,
}

/// What is known of a request once it has passed the door.
struct Admitted {
    route: Arc<Route>,
    /// None where the request is not covered.
    facts: Option<RequestFacts>,
    /// What stands for its key in the log.
    key: Option<KeyDigest>,
    has_key: bool,
    destination: Destination,
}

impl<S: Store> Gateway<S> {
    /// A gateway over a store, whose owners are numbered from this number on.
    pub(crate) fn new(
        live: Live,
        store: Arc<S>,
        log: Option<RequestLog>,
        slots: ConnectionSlots,
        first_owner: u64,
    ) -> Self {
        let limiter = Limiter::new(live.config.limits);
        let webhooks = webhooks::receiver(&live.config, &store, None);
        let memory = MemoryBudget::new(live.config.held_bytes_max);
        let tally = ScopeTally::default();
        let layer = IdempotencyLayer::new(Arc::clone(&store))
            .limiter(limiter.clone())
            .memory(memory.clone())
            .tally(tally.clone())
            .late_answers_max(live.config.late_answers_max)
            .trust_outcome_header(true)
            .owners_from(first_owner)
            .by_upstream(true);
        Self {
            live: ArcSwap::from_pointee(live),
            engine: Engine::new(store),
            layer,
            ids: RequestIds::new(getrandom::u64().unwrap_or_default()),
            pace: Pace::default(),
            permissions: Permissions::default(),
            log,
            limiter,
            memory,
            slots,
            inbox: None,
            webhooks: Arc::new(ArcSwap::from_pointee(webhooks)),
            asker: ArcSwap::default(),
            tally,
            tracer: None,
        }
    }

    /// The same, whose requests are traced, if there is somebody to trace them.
    pub(crate) fn with_tracer(self, tracer: Option<Tracer>) -> Self {
        Self { tracer, ..self }
    }

    /// The same, with an inbox for webhooks, if the store has one.
    pub(crate) fn with_inbox(mut self, store: Option<PostgresStore>) -> Self {
        self.inbox = store.map(Inbox::new);
        self.exchange_webhooks();
        self
    }

    fn exchange_webhooks(&self) {
        let live = self.live.load();
        let receiver = webhooks::receiver(&live.config, self.engine.store(), self.inbox.clone());
        self.webhooks.store(Arc::new(receiver));
    }

    /// Takes what holds from now on.
    pub(crate) fn set_live(&self, live: Arc<Live>) {
        self.limiter.set(live.config.limits);
        self.memory.set_bytes_max(live.config.held_bytes_max);
        // All clones of the layer share it.
        let _ = self.layer.clone().late_answers_max(live.config.late_answers_max);
        self.live.store(live);
        self.exchange_webhooks();
    }

    /// Counts an answer, and writes its line.
    fn tell(
        &self,
        route: &Route,
        noted: &Noted,
        status: StatusCode,
        took: Duration,
        request_id: &HeaderValue,
        outcome: Outcome,
    ) {
        route.answered(status);
        route.durations.record(noted.labels, status, took);
        if let (Some(log), Some(asked)) = (&self.log, &noted.line) {
            log.put(&Line {
                asked,
                upstream: noted.upstream.as_ref().map(|it| &it.upstream),
                route: &route.label,
                status,
                took,
                request_id,
                key: noted.key,
                outcome,
                span: noted.span.as_ref().map(|span| span.request().span()),
            });
        }
    }

    /// A handle by which a stop waits until every execution is settled.
    pub(crate) fn drain(&self) -> retrysafe::layer::Drain {
        self.layer.drain()
    }
}

impl<S: Store> Worker<S> {
    /// What one thread needs to serve.
    pub(crate) fn new(gateway: Arc<Gateway<S>>) -> Self {
        let proxy = Proxy::new(Pool::new(Arc::clone(&gateway.slots.upstream)));
        let threads = gateway.live.load().config.threads;
        let known_bytes = KnownBytes::new(getrandom::u64().unwrap_or_default(), threads);
        Self { gateway, proxy, known_bytes: Mutex::new(known_bytes) }
    }

    /// Closes connections to the upstream that nobody needs, and forgets what was remembered for long enough.
    pub(crate) fn tidy(&self) {
        self.proxy.tidy();
        self.known_bytes.lock().unwrap_or_else(PoisonError::into_inner).tidy();
    }

    pub(crate) fn live(&self) -> Arc<Live> {
        self.gateway.live.load_full()
    }

    /// The life of a request.
    pub(crate) async fn handle(
        &self,
        peer: &Arc<Peer>,
        request: Request<Incoming>,
    ) -> Response<Reply> {
        let started = Instant::now();
        let live = self.live();
        let (mut parts, body) = request.into_parts();
        let rememberable = Rememberable::of(peer, &parts, &live);
        let named = NamedFields::of(&parts.headers);
        if named.cookie {
            headers::join_cookies(&mut parts);
            headers::strip_session(&mut parts.headers);
        }
        let request_id = self.gateway.ids.of(&mut parts.headers, named);
        let mut noted = self.note(&live, &parts, named, peer);

        if let Err(refusal) = front::check(&parts, named, &live.guard) {
            return self.turned_away(&live, &refusal, noted, started, &request_id);
        }
        let page = noted.page.as_ref();
        if let Some(response) = page.and_then(|page| page.preflight_answer(&parts.headers)) {
            return self.finish(live.routes.defaults(), response, noted, started, &request_id);
        }
        if let Some(response) = self.own_page(&live, &parts).await {
            return self.finish(live.routes.defaults(), response, noted, started, &request_id);
        }
        if let Some(service) = webhooks::at(&live, &self.gateway.webhooks, parts.uri.path()) {
            // In a box of its own: an event is rare, and every request would carry the room for it.
            let receiving = webhooks::answer(&service, Request::from_parts(parts, body));
            let response = Box::pin(receiving).await;
            return self.finish(live.routes.defaults(), response, noted, started, &request_id);
        }
        let Admitted { route, facts, key, has_key, destination } = match admit(&live, peer, &parts)
        {
            Ok(admitted) => admitted,
            Err(refusal) => {
                return self.turned_away(&live, &refusal, noted, started, &request_id);
            }
        };

        let Some(upstream) = live.upstreams.get(destination.upstream) else {
            let refusal = Refusal::UpstreamUnreachable { retry_after: ASK_AGAIN_SOON };
            return self.turned_away(&live, &refusal, noted, started, &request_id);
        };
        let upstream = Arc::clone(upstream);
        noted.upstream = Some(Arc::clone(&upstream));
        noted.key = key;
        if let Some(span) = &mut noted.span {
            span.key = key;
        }
        let wants_upgrade = facts.is_none() && named.upgrade && headers::wants_upgrade(&parts);
        let trailers = headers::trailers_taken(&parts, named);
        let body = CallersBody::new(body, parts.version);
        noted.way = if has_key { Way::Keyed } else { Way::Passed };
        let may_be_remembered = has_key && facts.is_some() && Rememberable::may_be_under(&route);
        let rememberable = rememberable.filter(|_| may_be_remembered);
        let mut response = match facts {
            None => {
                let way = OnwardWay { upstream, destination };
                let upstream = self.proxy.to(live, Arc::clone(&route), Arc::clone(peer), way);
                let upstream = upstream.traced(noted.span.as_ref().map(OpenSpan::request));
                let request = Request::from_parts(parts, Outgoing::Streamed(body));
                upstream.pass(request, wants_upgrade, &request_id).await
            }
            Some(facts) => {
                let gate = Arc::clone(&upstream.health) as Arc<dyn ExecutionGate>;
                let facts = facts.share(peer.share.clone()).gate(gate);
                let facts = if rememberable.is_some() { facts.repeatable() } else { facts };
                let facts = match &noted.span {
                    Some(span) => facts.watch(span.request() as Arc<dyn RequestWatch>),
                    None => facts,
                };
                let way = OnwardWay { upstream, destination };
                let upstream = self.proxy.to(live, Arc::clone(&route), Arc::clone(peer), way);
                let upstream = upstream.traced(noted.span.as_ref().map(OpenSpan::request));
                let guarded = self.gateway.layer.layer(upstream);
                match guarded.guard(Request::from_parts(parts, body), facts).await {
                    Ok(response) => told(response, &route.rules.policy, has_key),
                    Err(never) => match never {},
                }
            }
        };
        headers::announce_trailers(&mut response, trailers);
        let Some(rememberable) = rememberable else {
            return self.finish(&route, response, noted, started, &request_id);
        };
        let replay = response.extensions_mut().remove::<RepeatableReplay>();
        let replay = replay.map(|replay| (replay, noted.of_the_same()));
        let response = self.finish(&route, response, noted, started, &request_id);
        if let Some((replay, noted)) = replay {
            self.remember_bytes(rememberable, replay, route, noted, &response);
        }
        response
    }

    /// Our own pages, which the upstream never sees.
    async fn own_page(&self, live: &Live, parts: &Parts) -> Option<Response<Reply>> {
        if parts.method != Method::GET || !parts.uri.path().starts_with("/.well-known/idem") {
            return None;
        }
        match parts.uri.path() {
            published::POLICY => Some(answer::json(&live.published)),
            published::KEY => {
                let gateway = &*self.gateway;
                Some(wellknown::key_status(live, &gateway.engine, &gateway.pace, parts).await)
            }
            _ => None,
        }
    }

    fn turned_away(
        &self,
        live: &Live,
        refusal: &Refusal,
        noted: Noted,
        started: Instant,
        request_id: &HeaderValue,
    ) -> Response<Reply> {
        let code = refusal.code();
        metrics::counter!(event::DOOR_REFUSALS.name, "code" => code).increment(1);
        let route = live.routes.defaults();
        let mut response = answer::refused(refusal, &route.rules.policy);
        // Whatever follows on this connection may be the rest of a request that was misread.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        self.finish(route, response, noted, started, request_id)
    }

    /// Counts and notes an answer on its way out.
    fn finish(
        &self,
        route: &Route,
        mut response: Response<Reply>,
        noted: Noted,
        started: Instant,
        request_id: &HeaderValue,
    ) -> Response<Reply> {
        let status = response.status();
        let took = started.elapsed();
        let outcome = Outcome::of(&response, &route.rules.policy, noted.way);
        match &noted.page {
            Some(page) => self.gateway.permissions.apply(page, outcome, &mut response),
            None => cors::say_to_caches(route, response.headers_mut()),
        }
        self.gateway.tell(route, &noted, status, took, request_id, outcome);
        if let Some(span) = noted.span {
            span.end(&EndedRequest {
                route: route.durations.route(),
                status,
                outcome: &outcome.name(),
                key: noted.key,
                request_id: request_id.to_str().unwrap_or_default(),
            });
        }
        response.headers_mut().insert(X_REQUEST_ID, request_id.clone());
        response
    }

    /// What the log will need, if there is one, and the page that is asking, if there is one.
    fn note(&self, live: &Live, parts: &Parts, named: NamedFields, peer: &Peer) -> Noted {
        let line = self.gateway.log.as_ref();
        let line = line.map(|log| Asked::of(parts, peer, log));
        let span = self.gateway.tracer.as_ref();
        Noted {
            line,
            key: None,
            way: Way::Ours,
            page: if named.origin { Page::of(live, parts) } else { None },
            upstream: None,
            labels: AskedLabels::new(&parts.method, peer.is_tls()),
            span: span.map(|tracer| tracer.request(parts, peer.is_tls())),
        }
    }
}

/// What is needed of a request for its answer and for the log, taken before it is sent on.
struct Noted {
    line: Option<Asked>,
    key: Option<KeyDigest>,
    way: Way,
    page: Option<Box<Page>>,
    /// Where it goes, once that is known.
    upstream: Option<Arc<LiveUpstream>>,
    labels: AskedLabels,
    /// None where it is not traced.
    span: Option<OpenSpan>,
}

impl Noted {
    /// What is needed of the next request with the same bytes, which comes from no page and is not traced either.
    fn of_the_same(&self) -> Self {
        let line = self.line.clone();
        let upstream = self.upstream.clone();
        let Self { key, way, labels, .. } = *self;
        Self { line, key, way, page: None, upstream, labels, span: None }
    }
}

/// Finds the rule of a request, and who is asking.
fn admit(live: &Live, peer: &Peer, parts: &Parts) -> Result<Admitted, Refusal> {
    let path = parts.uri.path();
    let destination = live.routes.destination(path)?;
    let find = |method: &Method| live.routes.find_on_way(path, method, &destination);
    let mut route = find(&parts.method)?;
    let mut is_covered = route.rules.policy.covers(&parts.method);
    // A request is judged by the method that it asks for, if that is the guarded one.
    if let Some(asked) = front::asked_method(&parts.headers)? {
        let asked_route = find(&asked)?;
        // Nobody knows whether the upstream heeds the override, so it may not lead to a rule that
        // demands less than the one of the request's own method.
        let demands_less = asked_route.demands(&asked) < route.demands(&parts.method);
        if asked_route.rules.policy.covers(&asked) && !demands_less {
            (route, is_covered) = (asked_route, true);
        }
    }
    if !is_covered {
        let route = Arc::clone(route);
        return Ok(Admitted { route, facts: None, key: None, has_key: false, destination });
    }
    let policy = &route.rules.policy;
    let has_key = parts.headers.contains_key(&policy.key_header);
    if has_key && policy.mode == Mode::Enforce {
        front::check_ascii(&parts.headers, &policy.key_header)?;
    }
    let found = RequestFacts::read_key(policy, &parts.headers);
    // The layer refuses who is not known, and only notes it where it observes.
    let caller = || peer.last_caller.of(route, &parts.headers, live.verifier.as_deref());
    let facts = RequestFacts::new(Arc::clone(&route.policy), found, caller);
    let key = facts.key();
    Ok(Admitted { route: Arc::clone(route), facts: Some(facts), key, has_key, destination })
}

/// What the layer answers. Where it only passed a request on, a failure is still ours to put into
/// words: the proxy has left the refusal beside it.
fn told(
    mut response: Response<layer::Body<Answer>>,
    policy: &Policy,
    has_key: bool,
) -> Response<Reply> {
    if response.extensions_mut().remove::<Failed>().is_none() {
        return response.map(Reply::Guarded);
    }
    let refusal = response.extensions_mut().remove::<Refusal>();
    let refusal = refusal.unwrap_or(Refusal::UpstreamFailed { timed_out: false });
    let put = if has_key { answer::refused } else { answer::refused_without_key };
    let mut told = put(&refusal, policy);
    // Only the layer has set any: that the request ran unprotected.
    told.headers_mut().extend(response.into_parts().0.headers);
    told
}
