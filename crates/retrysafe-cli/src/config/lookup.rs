//! Can the lookup of `[reconcile]` ever find out anything?

use std::time::Duration;

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, StatusCode, Uri};
use retrysafe_core::policy::Absence;

use super::file::{Length, ReconcileFile};
use super::{Complaint, RouteRules, server};

/// What stands for something of the record in the URL of a lookup.
const PLACEHOLDERS: [&str; 3] = ["id", "fence", "path"];

/// Headers that the lookup sets itself.
const OWN_HEADERS: [HeaderName; 4] = [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION];

/// What is wrong with a `[reconcile]` table, all of it.
pub(super) fn complaints(table: &ReconcileFile) -> Vec<Complaint> {
    let mut wrong = Vec::new();
    let mut complain = |setting: &str, what: String| {
        wrong.push(Complaint::new(format!("reconcile.{setting}"), what));
    };
    if let Err(what) = check_url(&table.url) {
        complain("url", what);
    }
    for (name, value) in &table.headers {
        if let Err(what) = check_header(name, value) {
            complain(&format!("headers.{name}"), what);
        }
    }
    for (setting, pointer) in [("pointer", &table.pointer), ("response", &table.response)] {
        if let Some(pointer) = pointer
            && !(pointer.is_empty() || pointer.starts_with('/'))
        {
            complain(setting, format!("{pointer:?} is not a JSON pointer such as /state"));
        }
    }
    for status in table.absent_statuses.iter().flatten() {
        match StatusCode::from_u16(*status) {
            Ok(status) if status.is_client_error() || status.is_server_error() => {}
            Ok(_) | Err(_) => complain(
                "absent_statuses",
                format!("{status} does not say that the upstream lacks something; use 404 or 410"),
            ),
        }
    }
    for (one, other, shared) in shared_states(table) {
        complain(one, format!("{shared:?} stands in `{other}` too; a state means one thing"));
    }
    for (setting, length) in [("timeout", table.timeout), ("every", table.every)] {
        if length.is_some_and(|Length(length)| length.is_zero()) {
            complain(setting, "must be longer than nothing".into());
        }
    }
    if let Some(schedule) = &table.schedule {
        let lengths: Vec<Duration> = schedule.iter().map(|length| length.0).collect();
        if lengths.is_empty() || !lengths.is_sorted_by(|one, next| one < next) {
            complain("schedule", "must rise, such as [\"10s\", \"1m\", \"1h\"]".into());
        }
    }
    wrong
}

/// The URL's server, none for the upstream itself, and its path with placeholders.
///
/// # Errors
///
/// If it is neither a path nor a URL.
pub(crate) fn split(url: &str) -> Result<(Option<super::Upstream>, String), String> {
    if url.starts_with('/') {
        return Ok((None, url.to_owned()));
    }
    let end = url.find("://").and_then(|at| {
        let rest = url.get(at + 3..)?;
        rest.find('/').map(|slash| at + 3 + slash)
    });
    let (base, path) = url.split_at(end.unwrap_or(url.len()));
    let path = if path.is_empty() { "/" } else { path };
    match server(base) {
        Some(base) => Ok((Some(base), path.to_owned())),
        None => Err("is neither a path of the upstream such as /requests/{id} nor a URL".into()),
    }
}

fn check_url(url: &str) -> Result<(), String> {
    if url.is_empty() {
        return Err("is not set: what is to be asked, such as /requests/{id}?".into());
    }
    let (_, path) = split(url)?;
    let mut filled = String::new();
    let mut names = Vec::new();
    let mut rest = path.as_str();
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').ok_or("has a brace that is not closed")?;
        if !PLACEHOLDERS.contains(&name) {
            return Err(format!(
                "there is no {{{name}}}; there are {{id}}, {{fence}} and {{path}}"
            ));
        }
        names.push(name);
        filled.push_str(before);
        filled.push('1');
        rest = after;
    }
    filled.push_str(rest);
    if !names.contains(&"id") {
        return Err("has no {id}: every lookup would ask the same question".into());
    }
    match filled.parse::<Uri>() {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("is not a path: {error}")),
    }
}

fn check_header(name: &str, value: &str) -> Result<(), String> {
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "is not a header name")?;
    if OWN_HEADERS.contains(&name) {
        return Err("is set by the gateway itself; leave it out".into());
    }
    // The value may be a credential, so it is not shown.
    HeaderValue::from_str(value).map_err(|_| "has a value that no header can carry")?;
    Ok(())
}

/// States that stand in two of the lists.
fn shared_states(table: &ReconcileFile) -> Vec<(&'static str, &'static str, String)> {
    let lists = [
        ("executed", &table.executed),
        ("not_executed", &table.not_executed),
        ("pending", &table.pending),
    ]
    .map(|(name, list)| (name, list.clone().unwrap_or_else(|| vec![name.to_owned()])));
    let [(executed, one), (not_executed, two), (pending, three)] = &lists;
    let mut shared = Vec::new();
    for (setting, states, other, others) in [
        (not_executed, two, executed, one),
        (pending, three, executed, one),
        (pending, three, not_executed, two),
    ] {
        let both = states.iter().filter(|state| others.contains(state));
        shared.extend(both.map(|state| (*setting, *other, state.clone())));
    }
    shared
}

/// What is wrong with the settle time of a route on which an absence is proof: its owner may send
/// until its lease ends, and what it sent is on its way for as long as the upstream may take.
pub(super) fn unripe(table: &ReconcileFile, route: &RouteRules) -> Option<Complaint> {
    let needed = route.policy.lease.saturating_add(route.upstream_timeout);
    let is_short = route.policy.absence == Absence::Proof && table.settle_time() < needed;
    is_short.then(|| {
        let what = format!(
            "is shorter than `lease` and `upstream_timeout` together ({needed:?}) on {}, where an absence \
             is proof: a request that may still arrive would be run again",
            route.path
        );
        Complaint::new("reconcile.settle_time", what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(table: &ReconcileFile) -> String {
        let wrong = complaints(table);
        wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    fn asking(url: &str) -> ReconcileFile {
        ReconcileFile { url: url.into(), ..ReconcileFile::default() }
    }

    #[test]
    fn a_lookup_asks_about_one_request() {
        for (url, what) in [
            ("", "is not set"),
            ("/lookup", "has no {id}"),
            ("/lookup/{fence}", "has no {id}"),
            ("/lookup/{key}/{id}", "there is no {key}"),
            ("/lookup/{ID}", "there is no {ID}"),
            ("/lookup/{id", "not closed"),
            ("lookup/{id}", "neither a path"),
            ("ftp://x/{id}", "neither a path"),
            ("/look up/{id}", "is not a path"),
        ] {
            let told = told(&asking(url));
            assert!(told.contains("reconcile.url") && told.contains(what), "{url}: {told}");
        }
        for url in ["/l/{id}", "https://api.test:8443/l?id={id}&fence={fence}&path={path}"] {
            assert_eq!(told(&asking(url)), "", "{url}");
        }
    }

    #[test]
    fn everything_wrong_with_a_lookup_is_named_and_no_credential_is_shown() {
        let texts = |list: &[&str]| Some(list.iter().map(|text| (*text).to_owned()).collect());
        let table = ReconcileFile {
            headers: [("Host", "x"), ("a b", "y"), ("Authorization", "sk_live\n")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            pointer: Some("state".into()),
            executed: texts(&["done", "pending"]),
            not_executed: texts(&["done"]),
            absent_statuses: Some(vec![200, 404, 999]),
            timeout: Some(Length(Duration::ZERO)),
            schedule: Some(vec![Length(Duration::from_secs(2)), Length(Duration::from_secs(1))]),
            ..asking("/l/{id}")
        };
        let told = told(&table);
        for part in [
            "headers.Host",
            "headers.a b",
            "headers.Authorization",
            "reconcile.pointer",
            "`reconcile.not_executed`: \"done\"",
            "`reconcile.pending`: \"pending\"",
            "200 does not",
            "999 does not",
            "reconcile.timeout",
            "reconcile.schedule",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert_eq!(told.lines().count(), 10, "{told}");
        assert!(!told.contains("sk_live"), "{told}");
    }

    #[test]
    fn urls_are_split_before_their_placeholders() {
        let (base, path) = split("https://api.test:8443/by-id/{id}?f={fence}").unwrap();
        let base = base.unwrap();
        assert_eq!((base.authority.as_str(), base.port, base.tls), ("api.test:8443", 8443, true));
        assert_eq!(path, "/by-id/{id}?f={fence}");
        assert!(split("ftp://x/y").is_err() && split("x/y").is_err());
    }
}
