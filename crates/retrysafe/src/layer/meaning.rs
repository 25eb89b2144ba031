//! Does a request mean the same as the one whose record is there?
//!
//! A record keeps the fingerprint of its request and the rules that it was made by. A request is compared
//! under those rules, as long as they are still known.

use http::request::Parts;
use retrysafe_core::engine::Prints;
use retrysafe_core::fingerprint::{Fingerprint, Rules, RulesId};
use retrysafe_core::policy::Policy;

use super::request;
use super::settings::Settings;

/// What a request means, under the rules of today and of former days.
pub(super) struct Meaning<'a> {
    pub settings: &'a Settings,
    pub policy: &'a Policy,
    pub parts: &'a Parts,
    pub body: &'a [u8],
    pub current: Fingerprint,
}

impl<'a> Meaning<'a> {
    pub(super) fn new(
        settings: &'a Settings,
        policy: &'a Policy,
        parts: &'a Parts,
        body: &'a [u8],
    ) -> Self {
        let current = print(settings, parts, body, &policy.fingerprint);
        Self { settings, policy, parts, body, current }
    }
}

impl Prints for Meaning<'_> {
    fn current(&self) -> Fingerprint {
        self.current
    }

    fn under(&self, scheme: u8, rules: RulesId) -> Option<Fingerprint> {
        if (self.current.scheme(), self.current.rules()) == (scheme, rules) {
            return Some(self.current);
        }
        self.policy
            .former_fingerprints
            .iter()
            .filter(|former| former.id() == rules)
            .map(|former| print(self.settings, self.parts, self.body, former))
            .find(|print| print.scheme() == scheme)
    }
}

/// The fingerprint of a request, as the user takes it, or as we do.
fn print(settings: &Settings, parts: &Parts, body: &[u8], rules: &Rules) -> Fingerprint {
    match &settings.print {
        Some(print) => print(parts, body, rules),
        None => request::print(parts, body, rules),
    }
}
