//! What may anybody know about the policy?
//!
//! `GET /.well-known/idempotency` publishes the rules, as the draft demands of servers.

use http::Method;
use retrysafe_core::key::show_header_name;
use serde_json::{Value, json};

use super::route::{Route, Routes};

pub(crate) const POLICY: &str = "/.well-known/idempotency";
pub(crate) const KEY: &str = "/.well-known/idempotency/key";

/// The policy as it is published.
pub(crate) fn document(routes: &Routes) -> Value {
    let shown = |route: &Route| {
        let policy = &route.rules.policy;
        json!({
            "path": &*route.label,
            "methods": policy.methods.iter().map(Method::as_str).collect::<Vec<_>>(),
            "key_header": show_header_name(&policy.key_header),
            "key": crate::config::file::KeyRule::from(policy.key),
            "key_syntax": crate::config::file::KeySyntax::from(policy.key_syntax),
            "key_chars_min": policy.key_chars_min,
            "key_chars_max": retrysafe_core::key::KEY_CHARS_MAX,
            "retention_seconds": policy.ttl.as_secs_f64(),
            "wait_max_seconds": policy.wait_max.as_secs_f64(),
            "request_bytes_max": policy.request_bytes_max,
            "response_bytes_max": policy.response_bytes_max,
            "on_server_error": crate::config::file::OnServerError::from(policy.on_server_error),
            "replay_marker": policy.replay_marker.as_str(),
            "mode": crate::config::file::Mode::from(policy.mode),
        })
    };
    json!({
        "header": show_header_name(&routes.defaults().rules.policy.key_header),
        "follows": "draft-ietf-httpapi-idempotency-key-header-07",
        "expiry": "counted from the last settled attempt; a running or unknown request never expires",
        "fingerprint": "method, host, path, query, media type, content coding and body",
        "key_status": KEY,
        "routes": routes.all().map(|route| shown(route)).collect::<Vec<_>>(),
    })
}
