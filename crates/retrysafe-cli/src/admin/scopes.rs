//! Whose requests are repeated the most, and whose keys are misused?
//!
//! On `/metrics`, which everybody may read, a scope is shown by the first digits of its digest; the statistics, which need a token, have
//! its name beside them. A gauge for each of millions of scopes would fill Prometheus, so only those with the most are shown.

use std::fmt::Write as _;

use retrysafe::layer::{ScopeCount, ScopeTally, Tallied};
use retrysafe_core::Scope;
use retrysafe_core::event::{self, Metric};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::view;

/// How many scopes stand on `/metrics` for each thing that is counted.
const SHOWN: usize = 10;

/// How many bytes of a scope's digest are shown: as many as of a key's.
const DIGEST_BYTES: usize = 6;

/// The lines of the scopes with the most, as Prometheus reads them.
pub(super) fn metrics(tally: &ScopeTally) -> String {
    let mut lines = String::new();
    put(&mut lines, event::SCOPE_DUPLICATES, &tally.top(Tallied::Duplicate, SHOWN));
    put(&mut lines, event::SCOPE_MISUSES, &tally.top(Tallied::Misuse, SHOWN));
    lines
}

/// The same for people who may see names.
pub(super) fn document(tally: &ScopeTally, what: Tallied, count_max: usize) -> Value {
    let top = tally.top(what, count_max);
    let shown = top.iter().map(|ScopeCount { scope, count, excess_max }| {
        json!({
            "scope": scope.to_string(),
            "scope_hex": view::hex(scope.as_bytes()),
            "scope_digest": digest(scope),
            "count": count,
            "excess_max": excess_max,
        })
    });
    shown.collect()
}

fn put(lines: &mut String, metric: Metric, top: &[ScopeCount]) {
    if top.is_empty() {
        return;
    }
    let Metric { name, help, .. } = metric;
    // What cannot be written into memory cannot be written at all.
    let _ = write!(lines, "# HELP {name}{help}\n# TYPE {name} gauge\n");
    for ScopeCount { scope, count, .. } in top {
        let _ = writeln!(lines, "{name}{{scope=\"{}\"}} {count}", digest(scope));
    }
}

/// What stands for a scope where everybody may look.
fn digest(scope: &Scope) -> String {
    let digest = Sha256::digest(scope.as_bytes());
    view::hex(digest.get(..DIGEST_BYTES).unwrap_or_default())
}
