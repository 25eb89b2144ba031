//! What is known of a request when the layer is to guard it?
//!
//! As a service the layer finds it out by its own settings. A server that has to know it anyway, such as
//! a gateway that chooses its route, hands it over with [`Idempotency::guard`](super::Idempotency::guard).
//! So a key is parsed once, and nobody asks twice who is calling.

use std::sync::Arc;

use http::HeaderMap;
use retrysafe_core::key::{Key, KeyError};
use retrysafe_core::policy::{KeyRule, Policy};
use retrysafe_core::problem::Refusal;
use retrysafe_core::scope::Caller;

use super::memory::ConnectionShare;
use super::settings::RoutePolicy;

/// What is known of a covered request: its route's policy, its key, and who is asking.
///
/// ```
/// use std::sync::Arc;
/// use http::HeaderMap;
/// use retrysafe::core::{Policy, Scope};
/// use retrysafe::layer::{RequestFacts, RoutePolicy};
///
/// let route = Arc::new(RoutePolicy::new("/payments", Policy::default()));
/// let mut headers = HeaderMap::new();
/// headers.insert("idempotency-key", "k-1".parse()?);
/// let key = RequestFacts::read_key(&route.policy, &headers);
/// let tenant = Scope::of([("tenant", &b"acme"[..])]);
/// let facts = RequestFacts::new(route, key, || Ok(tenant.into()));
/// # let _ = facts;
/// # Ok::<(), http::header::InvalidHeaderValue>(())
/// ```
#[derive(Clone, Debug)]
pub struct RequestFacts {
    pub(super) route: Arc<RoutePolicy>,
    pub(super) asked: Asked,
    pub(super) share: Option<ConnectionShare>,
}

/// How a covered request can be told from others.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    /// By this key of this caller.
    Keyed(Key, Caller),
    /// Not at all, which its route permits.
    Unkeyed,
    /// Not at all, for this reason.
    Refused(Refusal),
}

impl RequestFacts {
    /// What is known of a covered request. Who is asking is found out only if there is a key.
    pub fn new(
        route: Arc<RoutePolicy>,
        key: Result<Option<Key>, Refusal>,
        caller: impl FnOnce() -> Result<Caller, Refusal>,
    ) -> Self {
        let asked = match key {
            Ok(Some(key)) => match caller() {
                Ok(caller) => Asked::Keyed(key, caller),
                Err(refusal) => Asked::Refused(refusal),
            },
            Ok(None) => Asked::Unkeyed,
            Err(refusal) => Asked::Refused(refusal),
        };
        Self { route, asked, share: None }
    }

    /// Counts the request's body as its connection's.
    #[must_use]
    pub fn share(mut self, share: ConnectionShare) -> Self {
        self.share = Some(share);
        self
    }

    /// The key of a request, by the policy's header, syntax and rule. None where there is no key and
    /// none is needed.
    ///
    /// # Errors
    ///
    /// The refusal, if there is no key that can be used.
    pub fn read_key(policy: &Policy, headers: &HeaderMap) -> Result<Option<Key>, Refusal> {
        let lines = headers.get_all(&policy.key_header).iter().map(|line| line.as_bytes());
        judge_key(policy, Key::parse_lines(lines, policy.key_syntax))
    }
}

/// What a key that was looked for means on a route.
pub(super) fn judge_key(
    policy: &Policy,
    found: Result<Key, KeyError>,
) -> Result<Option<Key>, Refusal> {
    match (found.and_then(|key| key.at_least(policy.key_chars_min)), policy.key) {
        (Ok(key), _) => Ok(Some(key)),
        (Err(KeyError::Missing), KeyRule::Required) => Err(Refusal::KeyMissing),
        (Err(KeyError::Missing), KeyRule::Optional | KeyRule::Off) => Ok(None),
        (Err(error), _) => Err(Refusal::KeyInvalid(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrysafe_core::Scope;
    use retrysafe_core::problem::UnsafeScope;

    fn facts(policy: Policy, key: Option<&'static str>, is_known: bool) -> Asked {
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            headers.insert("idempotency-key", key.parse().unwrap());
        }
        let found = RequestFacts::read_key(&policy, &headers);
        let nobody = Refusal::ScopeUnsafe(UnsafeScope::Nobody);
        let caller = || if is_known { Ok(Scope::anonymous().into()) } else { Err(nobody) };
        RequestFacts::new(Arc::new(RoutePolicy::new("r", policy)), found, caller).asked
    }

    #[test]
    fn a_key_counts_before_its_caller_and_its_rule_before_both() {
        let required = Policy { key: KeyRule::Required, ..Policy::default() };
        assert!(matches!(facts(Policy::default(), None, false), Asked::Unkeyed));
        let missing = facts(required.clone(), None, false);
        assert!(matches!(missing, Asked::Refused(Refusal::KeyMissing)));
        let invalid = facts(required.clone(), Some("a b"), false);
        assert!(matches!(invalid, Asked::Refused(Refusal::KeyInvalid(_))));
        let nobody = facts(required.clone(), Some("k"), false);
        assert!(matches!(nobody, Asked::Refused(Refusal::ScopeUnsafe(_))));
        assert!(matches!(facts(required, Some("k"), true), Asked::Keyed(..)));
        let long = Policy { key_chars_min: 9, ..Policy::default() };
        assert!(matches!(facts(long, Some("short"), true), Asked::Refused(Refusal::KeyInvalid(_))));
    }
}
