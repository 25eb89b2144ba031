//! What does each request leave in the log?
//!
//! One line: who asked for what, what became of it, how long it took. Keys stand in it only as
//! digests, paths without their query.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode, header};
use retrysafe_core::Policy;
use retrysafe_core::key::KeyDigest;
use retrysafe_core::policy::Mode;
use retrysafe_core::problem::{Refusal, put_json};
use retrysafe_core::trace::TracedSpan;

use super::headers::Peer;
use crate::config::{LogField, LogFormat, Upstream};
use crate::log_queue::{Haste, LogQueue};

/// What is said about one request.
pub(crate) struct Line<'a> {
    pub asked: &'a Asked,
    /// Where it went, once that was known.
    pub upstream: Option<&'a Upstream>,
    pub route: &'a str,
    pub status: StatusCode,
    pub took: Duration,
    pub request_id: &'a HeaderValue,
    pub key: Option<KeyDigest>,
    pub outcome: Outcome,
    /// Its span, if it is traced.
    pub span: Option<TracedSpan>,
}

/// What is kept of a request for its line.
#[derive(Clone)]
pub(crate) struct Asked {
    method: Method,
    path: Box<str>,
    /// Only where somebody wants to read them.
    host: Option<Box<str>>,
    user_agent: Option<Box<str>>,
    peer: Option<HeaderValue>,
}

impl Asked {
    /// What a log wants to know of a request.
    pub(crate) fn of(parts: &Parts, peer: &Peer, log: &RequestLog) -> Self {
        let wants = |field: LogField| log.fields.contains(&field);
        let text = |name: HeaderName| {
            let value = parts.headers.get(name)?;
            let start = value.as_bytes().get(..HEADER_BYTES_MAX).unwrap_or(value.as_bytes());
            Some(String::from_utf8_lossy(start).into())
        };
        let target_host = || parts.uri.authority().map(|authority| authority.as_str().into());
        Self {
            method: parts.method.clone(),
            path: parts.uri.path().into(),
            host: wants(LogField::Host).then(|| text(header::HOST).or_else(target_host)).flatten(),
            user_agent: wants(LogField::UserAgent).then(|| text(header::USER_AGENT)).flatten(),
            peer: wants(LogField::Peer).then(|| peer.shown().clone()),
        }
    }

    /// The same request came from this peer.
    pub(crate) fn came_from(&mut self, peer: &Peer) {
        if let Some(shown) = &mut self.peer {
            shown.clone_from(peer.shown());
        }
    }

    /// How many bytes it takes up, beside itself.
    pub(crate) fn bytes_held(&self) -> usize {
        let texts = [Some(&self.path), self.host.as_ref(), self.user_agent.as_ref()];
        texts.into_iter().flatten().map(|text| text.len()).sum()
    }
}

/// How much of a header stands in a line: whoever sends more of it does not want to be read.
const HEADER_BYTES_MAX: usize = 256;

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

    /// Its name in logs and traces.
    pub(crate) fn name(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
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
            Self::Refused(code) => return Cow::Owned(format!("refused:{code}")),
        })
    }
}

/// Writes a line for each request.
#[derive(Clone)]
pub(crate) struct RequestLog {
    pub format: LogFormat,
    pub queue: LogQueue,
    /// What stands in a line, in this order.
    pub fields: Arc<[LogField]>,
}

impl RequestLog {
    /// Takes a line.
    pub(crate) fn put(&self, line: &Line<'_>) {
        let mut text = String::with_capacity(256);
        match self.format {
            LogFormat::Human => line.human(&self.fields, &mut text),
            LogFormat::Json => line.json(&self.fields, &mut text),
        }
        self.queue.put(text.as_bytes(), Haste::Soon);
    }
}

// A line is put together by hand: the formatter of the standard library takes a tenth of the instructions of a
// request that is only passed on.
impl Line<'_> {
    fn human(&self, fields: &[LogField], out: &mut String) {
        put_time(out, 3);
        for field in fields {
            match field {
                LogField::Method => put(out, " ", self.asked.method.as_str()),
                LogField::Path => put(out, " ", &self.asked.path),
                LogField::Status => {
                    out.push(' ');
                    put_number(out, self.status.as_u16().into(), 1);
                }
                LogField::Duration => {
                    let tenths = self.microseconds().saturating_add(50) / 100;
                    out.push(' ');
                    put_number(out, tenths / 10, 1);
                    out.push('.');
                    put_number(out, tenths % 10, 1);
                    out.push_str("ms");
                }
                LogField::Outcome => put(out, " ", &self.outcome.name()),
                LogField::Route => put(out, " route=", self.route),
                LogField::Key => {
                    if let Some(key) = self.key {
                        put(out, " key=", &key.to_string());
                    }
                }
                LogField::RequestId => put(out, " request_id=", self.request_id()),
                LogField::Peer => put(out, " peer=", self.peer()),
                LogField::Host => put_quoted(out, " host=", self.asked.host.as_deref()),
                LogField::UserAgent => {
                    put_quoted(out, " user_agent=", self.asked.user_agent.as_deref());
                }
                LogField::Upstream => {
                    if let Some(upstream) = self.upstream {
                        put(out, " upstream=", &upstream.to_string());
                    }
                }
            }
        }
        if let Some(span) = &self.span {
            put(out, " trace_id=", &span.trace_hex());
        }
        out.push('\n');
    }

    /// With the same names as the lines of events, so that one reader reads them all.
    fn json(&self, fields: &[LogField], out: &mut String) {
        out.push_str("{\"timestamp\":\"");
        put_time(out, 6);
        out.push_str("\",\"level\":\"INFO\",\"message\":\"request\"");
        let text = |out: &mut String, name: &str, value: Option<&str>| {
            if let Some(value) = value {
                out.push_str(name);
                put_json(out, value);
            }
        };
        // Of these nothing can need an escape: a method is a token, an id of a request is made by us or looked through, and the others are
        // words and digits of ours.
        let plain = |out: &mut String, name: &str, value: &str| {
            out.push_str(name);
            out.push('"');
            out.push_str(value);
            out.push('"');
        };
        for field in fields {
            match field {
                LogField::Method => plain(out, ",\"method\":", self.asked.method.as_str()),
                LogField::Path => text(out, ",\"path\":", Some(&self.asked.path)),
                LogField::Status => {
                    out.push_str(",\"status\":");
                    put_number(out, self.status.as_u16().into(), 1);
                }
                LogField::Duration => {
                    out.push_str(",\"duration_s\":");
                    put_number(out, self.microseconds() / 1_000_000, 1);
                    out.push('.');
                    put_number(out, self.microseconds() % 1_000_000, 6);
                }
                LogField::Outcome => plain(out, ",\"outcome\":", &self.outcome.name()),
                LogField::Route => text(out, ",\"route\":", Some(self.route)),
                LogField::Key => {
                    if let Some(key) = self.key {
                        plain(out, ",\"key\":", &key.to_string());
                    }
                }
                LogField::RequestId => plain(out, ",\"request_id\":", self.request_id()),
                LogField::Peer => plain(out, ",\"peer\":", self.peer()),
                LogField::Host => text(out, ",\"host\":", self.asked.host.as_deref()),
                LogField::UserAgent => {
                    text(out, ",\"user_agent\":", self.asked.user_agent.as_deref());
                }
                LogField::Upstream => {
                    let shown = self.upstream.map(ToString::to_string);
                    text(out, ",\"upstream\":", shown.as_deref());
                }
            }
        }
        if let Some(span) = &self.span {
            text(out, ",\"trace_id\":", Some(&span.trace_hex()));
        }
        out.push_str("}\n");
    }

    fn microseconds(&self) -> u64 {
        u64::try_from(self.took.as_micros()).unwrap_or(u64::MAX)
    }

    fn request_id(&self) -> &str {
        self.request_id.to_str().unwrap_or_default()
    }

    fn peer(&self) -> &str {
        self.asked.peer.as_ref().and_then(|peer| peer.to_str().ok()).unwrap_or_default()
    }
}

fn put(out: &mut String, before: &str, text: &str) {
    out.push_str(before);
    out.push_str(text);
}

/// Writes what a caller has sent, between quotation marks: it cannot begin another line.
fn put_quoted(out: &mut String, before: &str, text: Option<&str>) {
    if let Some(text) = text {
        put(out, before, &format!("{text:?}"));
    }
}

/// Writes a number, with zeros in front up to so many digits.
fn put_number(out: &mut String, number: u64, digits: usize) {
    let mut rest = number;
    let mut bytes = [b'0'; 20];
    let mut used = 0;
    for place in bytes.iter_mut().rev() {
        if rest == 0 && used >= digits {
            break;
        }
        *place = b'0' + u8::try_from(rest % 10).unwrap_or_default();
        rest /= 10;
        used += 1;
    }
    let shown = bytes.split_at_checked(bytes.len() - used).map_or(&[][..], |(_, shown)| shown);
    out.push_str(str::from_utf8(shown).unwrap_or_default());
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
    let fraction = now.subsec_nanosecond().unsigned_abs() / 10_u32.pow(9 - digits);
    put_number(out, fraction.into(), digits as usize);
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
    fn a_number_is_written_as_the_standard_library_writes_it() {
        for number in [0, 7, 10, 99, 1_000_000, u64::MAX] {
            for digits in [1, 6, 20] {
                let mut text = String::new();
                put_number(&mut text, number, digits);
                assert_eq!(text, format!("{number:0digits$}"));
            }
        }
    }

    #[test]
    fn a_line_is_one_json_document() {
        let id = HeaderValue::from_static("r-1");
        let asked = Asked {
            method: Method::POST,
            path: "/a\"b".into(),
            host: Some("api.test".into()),
            user_agent: Some("a\nb".into()),
            peer: Some(HeaderValue::from_static("10.0.0.7")),
        };
        let line = Line {
            asked: &asked,
            upstream: None,
            route: "/{*rest}",
            status: StatusCode::CREATED,
            took: Duration::from_millis(12),
            request_id: &id,
            key: Some(KeyDigest::from_bytes([7; 32])),
            outcome: Outcome::Replayed,
            span: None,
        };
        let mut text = String::new();
        line.json(&LogField::USUAL, &mut text);
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&document["message"], &document["level"]), (&"request".into(), &"INFO".into()));
        assert_eq!(document["path"], "/a\"b");
        assert_eq!(document["duration_s"], 0.012);
        assert_eq!(document["key"], "070707070707");
        assert_eq!(document.as_object().map(|members| members.len()), Some(11));
        text.clear();
        let chosen = [LogField::Status, LogField::Peer, LogField::Host, LogField::UserAgent];
        line.json(&chosen, &mut text);
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&document["peer"], &document["host"]),
            (&"10.0.0.7".into(), &"api.test".into())
        );
        assert_eq!(document["user_agent"], "a\nb");
        assert!(document.get("path").is_none() && document.get("key").is_none(), "{document}");
        text.clear();
        line.human(&chosen, &mut text);
        assert!(
            text.ends_with(" 201 peer=10.0.0.7 host=\"api.test\" user_agent=\"a\\nb\"\n"),
            "{text}"
        );
        text.clear();
        line.human(&LogField::USUAL, &mut text);
        assert!(
            text.contains("POST /a\"b 201 12.0ms replayed") && text.ends_with(" request_id=r-1\n"),
            "{text}"
        );
    }
}
