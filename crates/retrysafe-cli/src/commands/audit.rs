//! Which operations of an API does no rule guard?
//!
//! A flow is only as safe as its unprotected step. An operation that changes something is guarded if
//! a rule covers its method, enforces it, and requires a key: a key that is optional guards only
//! those callers who send one.

use std::path::Path;

use http::Method;
use retrysafe_core::policy::{KeyRule, Mode};

use crate::config::{Config, rules};
use crate::gateway::route::{Route, Routes};
use crate::openapi;
use crate::output;

/// How many operations there are, and how many of them no rule guards.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Audit {
    pub operations: usize,
    pub unguarded: usize,
}

/// Asks the rules about every operation of a document, and lists those that none of them guards.
///
/// # Errors
///
/// Why the document cannot be read.
pub(crate) fn audit(config: &Config, document: &Path) -> Result<Audit, String> {
    let routes = Routes::new(config);
    let mut audit = Audit { operations: 0, unguarded: 0 };
    for operation in openapi::operations(document)? {
        for base in &operation.bases {
            audit.operations += 1;
            let found = routes.find(&operation.sample(base), &operation.method);
            let why = match found {
                Ok(route) => gap(route, &operation.method),
                Err(_) => Some("the gateway refuses such a path".to_owned()),
            };
            if let Some(why) = why {
                audit.unguarded += 1;
                let method = operation.method.as_str();
                let path = &operation.path;
                output::say(&format!("{method:<6} {base}{path}: {why}"));
            }
        }
    }
    Ok(audit)
}

/// Why a route does not guard a method, and how that is mended.
fn gap(route: &Route, method: &Method) -> Option<String> {
    let policy = &route.rules.policy;
    let of = match &*route.label {
        rules::EVERYWHERE => "[defaults]".to_owned(),
        path => format!("the route {path}"),
    };
    if !policy.methods.contains(method) {
        return Some(format!("no rule covers {method}; add it to `methods` of a route"));
    }
    if policy.key == KeyRule::Off {
        return Some(format!("{of} says `key = \"off\"`"));
    }
    if policy.mode == Mode::Observe {
        return Some(format!("{of} says `mode = \"observe\"`; nothing is blocked"));
    }
    (policy.key == KeyRule::Optional).then(|| {
        format!("runs unprotected without a key; {of} says `key = \"optional\"`, set \"required\"")
    })
}
