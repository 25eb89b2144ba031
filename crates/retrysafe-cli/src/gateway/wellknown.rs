//! What may a caller know about its own key?
//!
//! `GET /.well-known/idempotency/key` says where the caller's own key stands, never its answer. It
//! needs a scope that says who is asking: for anonymous and constant ones it is off, because there
//! everybody could ask after everybody's keys.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use http::request::Parts;
use http::{Method, Response};
use retrysafe_core::problem::Refusal;
use retrysafe_core::record::State;
use retrysafe_core::scope::Id;
use retrysafe_core::store::Store;
use retrysafe_core::wire::ASK_AGAIN_SOON;
use retrysafe_core::{Caller, Engine, Key};
use serde_json::{Value, json};

use super::answer;
use super::body::Reply;
use super::live::Live;
use super::route::Route;
use super::scope::{self, Asker};
use crate::admin::view;

/// How often one caller may ask after keys, per second. Enough for a client that waits, too few to
/// guess keys.
const ASKS_PER_SECOND: u64 = 10;

/// How many callers are told apart by the limit. Two that fall together share it.
const SLOTS: usize = 4_096;

/// Bounds how often callers ask.
#[derive(Debug)]
pub(crate) struct Pace {
    /// For each slot, the second and, in the lower 16 bits, how often somebody asked in it.
    slots: Box<[AtomicU64]>,
    hasher: RandomState,
}

impl Default for Pace {
    fn default() -> Self {
        Self { slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(), hasher: RandomState::new() }
    }
}

impl Pace {
    /// Whether this caller may ask once more in this second.
    fn admits(&self, caller: &Caller, second: u64) -> bool {
        let slot = self.hasher.hash_one(caller) % SLOTS as u64;
        let at = usize::try_from(slot).unwrap_or_default();
        let Some(slot) = self.slots.get(at) else { return false };
        let next = |held: u64| {
            if held >> 16 == second { Some(held.saturating_add(1)) } else { Some(second << 16 | 1) }
        };
        let held = slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let held = held.unwrap_or_default();
        held >> 16 != second || (held & 0xffff) < ASKS_PER_SECOND
    }
}

/// Where the caller's own key stands.
pub(crate) async fn key_status<S: Store>(
    live: &Live,
    engine: &Engine<S>,
    pace: &Pace,
    parts: &Parts,
) -> Response<Reply> {
    let route = match asked_route(live, parts) {
        Ok(route) => route,
        Err(refusal) => return answer::refused(&refusal, &live.routes.defaults().rules.policy),
    };
    let policy = &route.rules.policy;
    match find(live, route, engine, pace, parts).await {
        Ok(document) => answer::json(&document),
        Err(refusal) => answer::refused(&refusal, policy),
    }
}

/// The route to look under: a scope may depend on it. `?path=/payments&method=POST` names it.
fn asked_route<'a>(live: &'a Live, parts: &Parts) -> Result<&'a Route, Refusal> {
    let query = parts.uri.query().unwrap_or_default();
    let value = |name: &str| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find_map(|(key, value)| (key == name).then_some(value))
    };
    let Some(path) = value("path") else { return Ok(live.routes.defaults()) };
    let path = path.replace("%2F", "/").replace("%2f", "/");
    let method = value("method").unwrap_or("POST");
    let method = Method::from_bytes(method.as_bytes())
        .map_err(|_| Refusal::Malformed("there is no such method"))?;
    live.routes.find(&path, &method).map(|route| &**route)
}

async fn find<S: Store>(
    live: &Live,
    route: &Route,
    engine: &Engine<S>,
    pace: &Pace,
    parts: &Parts,
) -> Result<Value, Refusal> {
    let Asker { caller, is_known } = scope::of(route, &parts.headers, live.verifier.as_deref())?;
    if !is_known {
        return Err(Refusal::KeyNotFound);
    }
    if !pace.admits(&caller, now_seconds()) {
        return Err(Refusal::RetryTooFast { retry_after: ASK_AGAIN_SOON });
    }
    let lines =
        parts.headers.get_all(&route.rules.policy.key_header).iter().map(|line| line.as_bytes());
    let key =
        Key::parse_lines(lines, route.rules.policy.key_syntax).map_err(Refusal::KeyInvalid)?;
    let found = engine
        .look(Id::of(&caller.scope, &key.digest()))
        .await
        .map_err(|_| Refusal::StoreUnavailable { retry_after: ASK_AGAIN_SOON })?;
    // To another credential of the same name there is no such key: it may be anybody's.
    let record = found.value.filter(|record| record.mark == caller.mark);
    let record = record.ok_or(Refusal::KeyNotFound)?;
    let (expires_at, retry_after) = match &record.state {
        State::Completed { .. } | State::FailedRetryable { .. } => {
            (view::expires_at(&record).map(view::time), None)
        }
        State::InProgress { lease_until, .. } => {
            (None, Some(found.now.until(*lease_until).as_secs().max(1)))
        }
        State::Unknown { .. } => (None, Some(ASK_AGAIN_SOON.as_secs())),
    };
    Ok(json!({
        "state": record.standing().name(),
        "expires_at": expires_at,
        "retry_after": retry_after,
    }))
}

fn now_seconds() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrysafe_core::Scope;

    #[test]
    fn a_caller_is_bounded_per_second_and_others_are_not() {
        let pace = Pace::default();
        let a = Caller::from(Scope::of([("t", &b"a"[..])]));
        for _ in 0..ASKS_PER_SECOND {
            assert!(pace.admits(&a, 7));
        }
        assert!(!pace.admits(&a, 7));
        // Two callers may share a slot; nine of them do not.
        let others = |name: u8| Caller::from(Scope::of([("t", &[name][..])]));
        assert!((0..9).any(|name| pace.admits(&others(name), 7)));
        assert!(pace.admits(&a, 8));
    }
}
