//! Could a lookup take the word of a server for which it was not written?
//!
//! A lookup that names a path, and no server, asks the upstream that got the request. That one is found by the request's path alone, and
//! the request's rule by its path and method. So a rule without an upstream of its own, and the defaults, may hold for requests that go to
//! the upstream of another route. Nobody has said that the lookup's path means anything there, and a server says "not found" to every path
//! that it lacks: where that is proof, the request would run again. It may be proof only where the lookup names its server.

use http::Method;
use retrysafe_core::policy::Absence;

use super::lookup::LookupRules;
use super::{Complaint, RouteRules, Target, Upstream};
use crate::paths::overlap::{covers, overlap};

/// What is known of upstreams and rules.
pub(super) struct AskedUpstreams<'a> {
    pub top: &'a Upstream,
    pub targets: &'a [Target],
    pub routes: &'a [RouteRules],
    pub defaults: &'a RouteRules,
}

impl<'a> AskedUpstreams<'a> {
    /// What is wrong with lookups that name a path.
    pub(super) fn check(&self, lookups: &[LookupRules]) -> Vec<Complaint> {
        let other = self.targets.iter().find(|target| target.upstream != *self.top);
        let calls = lookups.iter().filter(|it| it.call.is_some() && it.server.is_none());
        let calls = calls.filter_map(|lookup| {
            let what = format!(
                "must be a whole URL where a route has an upstream of its own ({}): nobody can say which of the upstreams made a call",
                other?.path
            );
            Some(Complaint::new(format!("{}.url", lookup.table), what))
        });
        let routes = self.routes.iter().enumerate().filter_map(|(at, route)| {
            let (target, _) = self.unproven(route, lookups)?;
            let what = format!(
                "is \"proof\", but requests of this route may go to {} (the upstream of {}), and their lookups name a path and no server: \
                 a server that lacks the path says that it has not found them; write a [lookups.NAME] with these `routes` and a whole `url`",
                target.upstream, target.path
            );
            Some(Complaint::new(format!("route[{at}].absence"), what))
        });
        let defaults = self.unproven(self.defaults, lookups).map(|(target, method)| {
            let what = format!(
                "is \"proof\", but {method} {} is under the defaults and goes to {}, and its lookups name a path and no server: a server \
                 that lacks the path says that it has not found them; add {method} to the `methods` of that route, or give [reconcile] a whole `url`",
                target.path, target.upstream
            );
            Complaint::new("defaults.absence", what)
        });
        calls.chain(routes).chain(defaults).collect()
    }

    /// A target other than the top to which requests of a rule may go, and their method, if "not found" would be proof there by the word
    /// of a lookup that names no server.
    fn unproven(
        &self,
        rule: &'a RouteRules,
        lookups: &[LookupRules],
    ) -> Option<(&'a Target, &'a Method)> {
        let names =
            |lookup: &&LookupRules| lookup.routes.iter().flatten().any(|it| *it == rule.path);
        let is_for_rest = |lookup: &&LookupRules| lookup.routes.is_none() && lookup.call.is_none();
        let asked = lookups.iter().find(names).or_else(|| lookups.iter().find(is_for_rest))?;
        if rule.policy.absence != Absence::Proof || asked.server.is_some() {
            return None;
        }
        let methods = rule.policy.methods.iter().filter(|method| rule.policy.covers(method));
        let mut ways = methods.flat_map(|method| self.targets.iter().map(move |it| (it, method)));
        ways.find(|(target, method)| {
            self.is_elsewhere(target) && self.may_lead_to(rule, method, target)
        })
    }

    fn is_elsewhere(&self, target: &Target) -> bool {
        !self.top.is_same_server(&target.upstream)
    }

    /// Whether a request that a rule holds for may go to a target.
    fn may_lead_to(&self, rule: &RouteRules, method: &Method, target: &Target) -> bool {
        let is_default = std::ptr::eq(rule, self.defaults);
        let goes_before = |other: &RouteRules| {
            let is_narrower =
                is_default || covers(&rule.path, &other.path) && !covers(&other.path, &rule.path);
            is_narrower
                && other.policy.methods.contains(method)
                && covers(&other.path, &target.path)
        };
        let is_nearer = |other: &Target| {
            covers(&target.path, &other.path)
                && !covers(&other.path, &target.path)
                && covers(&other.path, &rule.path)
        };
        let is_met = is_default || overlap(&rule.path, &target.path);
        is_met && !self.routes.iter().any(goes_before) && !self.targets.iter().any(is_nearer)
    }
}
