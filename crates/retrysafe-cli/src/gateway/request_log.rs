//! What does each request leave in the log?
//!
//! One line: who asked for what, what became of it, how long it took. Keys stand in it only as
//! digests, paths without their query.

use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

use http::{HeaderValue, Method, Response, StatusCode};
use retrysafe_core::Policy;
use retrysafe_core::key::KeyDigest;
use retrysafe_core::policy::Mode;
use retrysafe_core::problem::{Refusal, put_json};

use crate::config::LogFormat;
use crate::log_queue::{Haste, LogQueue};

/// What is said about one request.
pub(crate) struct Line<'a> {
    pub method: &'a Method,
    pub path: &'a str,
    pub route: &'a str,
    pub status: StatusCode,
    pub took: Duration,
    pub request_id: &'a HeaderValue,
    pub key: Option<KeyDigest>,
    pub outcome: Outcome,
}

/// Which way a request went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// No further than to us.
    Ours,
    /// To the upstream, unprotected because it is not covered or has no key.
    Passed,
    /// Through the layer.
    Keyed,
}

/// What became of a request, in one of few words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// We answered it ourselves: one of our own pages.
    Answered,
    /// The upstream answered it, unprotected.
    Passed,
    /// The upstream answered it, and the answer is settled.
    Executed,
    /// It was answered from its record.
    Replayed,
    /// The first of its kind is still running.
    InProgress,
    /// Its key belongs to another request.
    Mismatch,
    /// It may have run, or has just run and its answer was lost.
    Unknown,
    /// It has run, and its answer was not kept.
    NotStored,
    /// The upstream answered it, without a store, where the route allows that.
    Unprotected,
    /// The upstream answered it, and what the rules would have said was counted.
    Observed,
    /// It was refused with this code.
    Refused(&'static str),
}

impl Outcome {
    /// What an answer says about its request.
    pub(crate) fn of<B>(response: &Response<B>, policy: &Policy, way: Way) -> Self {
        if let Some(refusal) = response.extensions().get::<Refusal>() {
            return match refusal.code() {
                "request_in_progress" => Self::InProgress,
                "idempotency_key_reused" => Self::Mismatch,
                "outcome_unknown" => Self::Unknown,
                "response_not_stored" => Self::NotStored,
                code => Self::Refused(code),
            };
        }
        let headers = response.headers();
        match way {
            Way::Ours => Self::Answered,
            Way::Passed => Self::Passed,
            Way::Keyed if policy.mode == Mode::Observe => Self::Observed,
            Way::Keyed if headers.contains_key("retrysafe-unprotected") => Self::Unprotected,
            Way::Keyed if headers.contains_key(&policy.replay_marker) => Self::Replayed,
            Way::Keyed => Self::Executed,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Answered => "answered",
            Self::Passed => "passed",
            Self::Executed => "executed",
            Self::Replayed => "replayed",
            Self::InProgress => "in_progress",
            Self::Mismatch => "mismatch",
            Self::Unknown => "unknown",
            Self::NotStored => "not_stored",
            Self::Unprotected => "unprotected",
            Self::Observed => "observed",
            Self::Refused(code) => return write!(f, "refused:{code}"),
        })
    }
}

/// Writes a line for each request.
#[derive(Clone)]
pub(crate) struct RequestLog {
    pub format: LogFormat,
    pub queue: LogQueue,
}

impl RequestLog {
    /// Takes a line.
    pub(crate) fn put(&self, line: &Line<'_>) {
        let mut text = String::with_capacity(256);
        match self.format {
            LogFormat::Human => line.human(&mut text),
            LogFormat::Json => line.json(&mut text),
        }
        self.queue.put(text.as_bytes(), Haste::Soon);
    }
}

impl Line<'_> {
    fn human(&self, out: &mut String) {
        use std::fmt::Write as _;
        let ms = self.took.as_secs_f64() * 1e3;
        put_time(out, 3);
        let _ = write!(
            out,
            " {} {} {} {ms:.1}ms {} route={}",
            self.method,
            self.path,
            self.status.as_u16(),
            self.outcome,
            self.route,
        );
        if let Some(key) = self.key {
            let _ = write!(out, " key={key}");
        }
        let _ = writeln!(out, " request_id={}", self.request_id.to_str().unwrap_or_default());
    }

    /// With the same names as the lines of events, so that one reader reads them all.
    fn json(&self, out: &mut String) {
        use std::fmt::Write as _;
        out.push_str("{\"timestamp\":\"");
        put_time(out, 6);
        out.push_str("\",\"level\":\"INFO\",\"message\":\"request\",\"method\":\"");
        out.push_str(self.method.as_str());
        out.push_str("\",\"path\":");
        put_json(out, self.path);
        out.push_str(",\"route\":");
        put_json(out, self.route);
        let _ = write!(
            out,
            ",\"status\":{},\"duration_s\":{:.6},\"outcome\":\"{}\"",
            self.status.as_u16(),
            self.took.as_secs_f64(),
            self.outcome,
        );
        if let Some(key) = self.key {
            let _ = write!(out, ",\"key\":\"{key}\"");
        }
        out.push_str(",\"request_id\":");
        put_json(out, self.request_id.to_str().unwrap_or_default());
        out.push_str("}\n");
    }
}

/// Writes the time of day, with so many digits after the second. All lines of one second begin alike, so
/// the beginning is remembered.
fn put_time(out: &mut String, digits: u32) {
    thread_local! {
        static LAST: RefCell<(i64, String)> = const { RefCell::new((i64::MIN, String::new())) };
    }
    let now = jiff::Timestamp::now();
    LAST.with_borrow_mut(|(second, text)| {
        if *second != now.as_second() {
            *second = now.as_second();
            let whole = jiff::Timestamp::from_second(*second).unwrap_or_default();
            *text = whole.to_string().trim_end_matches('Z').to_owned();
        }
        out.push_str(text);
    });
    out.push('.');
    let mut rest = now.subsec_nanosecond().unsigned_abs();
    let mut unit = 100_000_000;
    for _ in 0..digits {
        let digit = u8::try_from(rest / unit).unwrap_or_default();
        out.push(char::from(b'0' + digit));
        rest %= unit;
        unit /= 10;
    }
    out.push('Z');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_everybody_writes_it() {
        for digits in [3, 6] {
            let before = jiff::Timestamp::now();
            let mut text = String::new();
            put_time(&mut text, digits);
            let written: jiff::Timestamp = text.parse().unwrap();
            let cut = jiff::SignedDuration::from_millis(1);
            assert!(before - cut <= written && written <= jiff::Timestamp::now(), "{text}");
            assert_eq!(text.len(), "2026-01-01T00:00:00.Z".len() + digits as usize);
        }
    }

    #[test]
    fn a_line_is_one_json_document() {
        let id = HeaderValue::from_static("r-1");
        let line = Line {
            method: &Method::POST,
            path: "/a\"b",
            route: "/{*rest}",
            status: StatusCode::CREATED,
            took: Duration::from_millis(12),
            request_id: &id,
            key: Some(KeyDigest::from_bytes([7; 32])),
            outcome: Outcome::Replayed,
        };
        let mut text = String::new();
        line.json(&mut text);
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&document["message"], &document["level"]), (&"request".into(), &"INFO".into()));
        assert_eq!(document["path"], "/a\"b");
        assert_eq!(document["duration_s"], 0.012);
        assert_eq!(document["key"], "070707070707");
        text.clear();
        line.human(&mut text);
        assert!(
            text.contains("POST /a\"b 201 12.0ms replayed") && text.ends_with(" request_id=r-1\n"),
            "{text}"
        );
    }
}
