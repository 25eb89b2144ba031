//! How does an answer of ours look on the wire?

use std::cell::RefCell;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode, response};
use http_body::Body as HttpBody;
use retrysafe_core::execution::{Durable, Settling, Told};
use retrysafe_core::problem::Refusal;
use retrysafe_core::response::StoredResponse;
use retrysafe_core::retry::show_http_date;
use retrysafe_core::scope::Id;
use retrysafe_core::time::Time;
use retrysafe_core::wire::{IDEMPOTENCY_EXPIRES, OUTCOME};

use super::body::Body;
use super::context::RequestContext;
use super::memory::MemoryBudget;

/// A date as a header value. The last one is remembered, because all answers of one second that
/// are kept for as long expire in the same one.
fn date(unix: u64) -> Option<HeaderValue> {
    thread_local! {
        static LAST: RefCell<Option<(u64, HeaderValue)>> = const { RefCell::new(None) };
    }
    LAST.with_borrow_mut(|last| match last {
        Some((at, date)) if *at == unix => Some(date.clone()),
        Some(_) | None => {
            let date = HeaderValue::try_from(show_http_date(unix)).ok()?;
            *last = Some((unix, date.clone()));
            Some(date)
        }
    })
}

impl<S> RequestContext<S> {
    /// What the record says, where there is no answer of the handler's to give.
    pub(super) fn tell<R: HttpBody>(&self, id: Id, told: Told) -> Response<Body<R>> {
        match told {
            Told::Replay(stored, facts) => {
                self.tell_what_is_replayed(facts.span);
                self.replay(id, stored, facts.expires_at)
            }
            Told::Refusal(refusal) => self.refuse(&refusal),
            // Nobody has the answer any more that this is the permission for.
            Told::Answer(_) => self.refuse(&Settling::not_durable()),
        }
    }

    /// The handler's own answer, once it is in the record.
    pub(super) fn answer<R: HttpBody>(
        &self,
        mut parts: response::Parts,
        body: Body<R>,
        durable: &Durable,
    ) -> Response<Body<R>> {
        if let Some(expires_at) = durable.expires_at() {
            self.announce(&mut parts.headers, expires_at);
        }
        if durable.is_unknown() {
            parts.headers.insert(OUTCOME, HeaderValue::from_static("unknown"));
        }
        Response::from_parts(parts, body)
    }

    /// A refused request is a response. The refusal is among its extensions, for whoever keeps a log.
    pub(super) fn refuse<R: HttpBody>(&self, refusal: &Refusal) -> Response<Body<R>> {
        self.report.refused(refusal.code());
        let policy = &self.route.policy;
        let mut problem = refusal.problem(policy);
        if let Some(rewrite) = &self.settings.error {
            problem = rewrite(refusal, problem);
        }
        let mut response = problem.into_response(|document| Body::whole(document.into(), None));
        response.extensions_mut().insert(refusal.clone());
        response
    }

    /// The stored answer once more: same status, same headers, same bytes, and a mark. Where there is
    /// no memory to send it from, the caller may ask again.
    pub(super) fn replay<R: HttpBody>(
        &self,
        id: Id,
        stored: StoredResponse,
        expires_at: Time,
    ) -> Response<Body<R>> {
        let headers = self.replay_headers(&stored, expires_at);
        self.replay_with(id, stored.status, stored.body, headers)
    }

    /// The headers of a stored answer, and ours.
    pub(super) fn replay_headers(&self, stored: &StoredResponse, expires_at: Time) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(stored.headers.len() + 4);
        for (name, value) in &stored.headers {
            headers.append(name.clone(), value.clone());
        }
        // These two have no content, so a length would speak of another answer.
        if !matches!(stored.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
            headers.insert(header::CONTENT_LENGTH, stored.body.len().into());
        }
        let marker = self.route.policy.replay_marker.clone();
        headers.insert(marker, HeaderValue::from_static("true"));
        self.announce(&mut headers, expires_at);
        headers
    }

    /// An answer from the record, as far as there is memory to send it from. Else the caller may ask again.
    pub(super) fn replay_with<R: HttpBody>(
        &self,
        id: Id,
        status: StatusCode,
        body: Bytes,
        headers: HeaderMap,
    ) -> Response<Body<R>> {
        let body = match &self.settings.memory {
            None => Some(body),
            Some(memory) => memory.replay(id, body),
        };
        let Some(body) = body else { return self.refuse(&MemoryBudget::refusal()) };
        let mut response = Response::new(Body::whole(body, None));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }

    /// Says when the record will be forgotten, where the route wants that.
    pub(super) fn announce(&self, headers: &mut HeaderMap, expires_at: Time) {
        if self.route.policy.announce_expiry
            && let Some(date) = date(expires_at.as_ms() / 1_000)
        {
            headers.insert(IDEMPOTENCY_EXPIRES, date);
        }
    }
}
