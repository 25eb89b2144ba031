//! Is a retry known again when its client sends it a little differently?
//!
//! A client that follows a name to the same machine by another spelling, or that draws a new boundary for its form, sends the same
//! request once more.

use http::{HeaderValue, header};

use super::{Bench, finding, judge_retry};
use crate::check::report::{Finding, Verdict};
use crate::check::request::{Shot, new_key};

pub(crate) async fn cases(bench: &Bench<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(other_host_name(bench).await);
    found.extend(other_boundary(bench).await);
    found
}

/// `localhost` and `127.0.0.1`, where the API is on this machine.
async fn other_host_name(bench: &Bench<'_>) -> Option<Finding> {
    let shot = bench.template.shot();
    let key = new_key();
    let other_name = match shot.url.host()? {
        "localhost" => "127.0.0.1",
        "127.0.0.1" | "[::1]" => "localhost",
        _ => return None,
    };
    let host = match shot.url.port() {
        Some(port) => format!("{other_name}:{port}"),
        None => other_name.to_owned(),
    };
    let elsewhere = shot.with(&vec![(header::HOST, HeaderValue::from_str(&host).ok()?)]);
    let first = bench.send(&shot, &key).await;
    let again = bench.settle(&elsewhere, &key).await;
    let told = format!("{other_name} instead of {}", shot.url.host().unwrap_or_default());
    Some(judge_retry(bench, "host_name", &told, first.success()?, &again))
}

/// The same form under another boundary, where the operation takes forms.
async fn other_boundary(bench: &Bench<'_>) -> Option<Finding> {
    let shot = bench.template.shot();
    let key = new_key();
    let form = |boundary: &str| -> Option<Shot> { shot.as_form(boundary) };
    let first = bench.send(&form("----check0123456789abcdef")?, &key).await;
    let Some(first) = first.success() else {
        let seen = format!("a form gets {first}: the operation takes none");
        return Some(finding("form_boundary", Verdict::Note, seen));
    };
    let again = bench.settle(&form("fedcba9876543210fedcba9876543210")?, &key).await;
    Some(judge_retry(
        bench,
        "form_boundary",
        "another boundary around the same form",
        first,
        &again,
    ))
}
