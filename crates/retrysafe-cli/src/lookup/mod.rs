//! What does whoever could know say about what nobody knows?
//!
//! One question over HTTP about one request, call or effect, and the meaning of its answer by the rules of a table (`[reconcile]`,
//! `[lookups.NAME]`, `[effects.KIND.lookup]`). Whatever the table does not name says nothing: a page of HTML, a redirect, an
//! answer that is too large or encoded. Nothing is decided here.

mod exchange;
mod link;
mod list;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HOST, RETRY_AFTER,
    USER_AGENT,
};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body_util::Empty;
use retrysafe::evidence::{self, DocumentVerdict, JsonDocument, excerpt};
use retrysafe_core::retry::retry_after;
use retrysafe_core::time::Time;

use crate::config::lookup::LookupRules;
use crate::dial::Stream;
use crate::percent;

const AGENT: &str = concat!("retrysafe/", env!("CARGO_PKG_VERSION"));

/// What is asked about. What stands for it in the URL is written so that it stays one part of the URL.
pub(crate) struct LookupQuestion<'a> {
    /// The placeholders of the URL and their values.
    pub values: Vec<(&'static str, &'a str)>,
    /// What an item of a list must hold.
    pub identity: &'a str,
    /// When what is asked about began.
    pub began_at: Time,
}

/// What was found, before anybody decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LookupFound {
    /// A document says this.
    Document(DocumentVerdict),
    /// Nobody knows it there.
    Absent,
    /// It was asked too often. It may be asked again after so long, if it says so.
    TooOften(Option<Duration>),
}

/// What was found, and what was answered.
pub(crate) struct ProviderAnswer {
    pub found: LookupFound,
    pub excerpt: Option<Box<str>>,
}

/// A connection that is being made.
pub(crate) type Dialling<'a> =
    Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + Send + 'a>>;

/// The way to whoever is asked.
pub(crate) trait LookupServer: Sync {
    /// A new connection.
    fn dial(&self) -> Dialling<'_>;
    /// What the header `Host` says.
    fn host(&self) -> io::Result<HeaderValue>;
}

/// An answer as it came.
struct RawAnswer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl LookupFound {
    fn inconclusive(why: impl Into<String>) -> Self {
        Self::Document(DocumentVerdict::Inconclusive(why.into().into()))
    }
}

/// Asks once.
pub(crate) async fn ask(
    rules: &LookupRules,
    question: &LookupQuestion<'_>,
    server: &impl LookupServer,
) -> ProviderAnswer {
    let path = fill(rules, question, SystemTime::now());
    match &rules.list {
        Some(list) => list::search(rules, list, question, path, server).await,
        None => match get(rules, &path, server).await {
            Ok(answer) => {
                let found = meaning(rules, &answer);
                ProviderAnswer { found, excerpt: Some(shown(rules, &answer)) }
            }
            Err(why) => ProviderAnswer { found: LookupFound::inconclusive(why), excerpt: None },
        },
    }
}

/// What an answer means.
fn meaning(rules: &LookupRules, answer: &RawAnswer) -> LookupFound {
    if let Some(pause) = too_often(answer) {
        return LookupFound::TooOften(pause);
    }
    let is_absent_status = rules.absent_statuses.contains(&answer.status.as_u16());
    if is_absent_status && rules.absent_when.is_empty() {
        return LookupFound::Absent;
    }
    if let Some(why) = unreadable(answer, is_absent_status) {
        return LookupFound::inconclusive(why);
    }
    let Some(document) = JsonDocument::parse(&answer.body) else {
        let status = answer.status.as_u16();
        return LookupFound::inconclusive(format!("status {status}, and the answer is not JSON"));
    };
    let says_absent = evidence::fits(&rules.absent_when, &document);
    if is_absent_status {
        let status = answer.status.as_u16();
        return if says_absent {
            LookupFound::Absent
        } else {
            LookupFound::inconclusive(format!(
                "status {status}, but `absent_when` does not fit the answer"
            ))
        };
    }
    match (says_absent, rules.documents.read_document(&document)) {
        (false, verdict) => LookupFound::Document(verdict),
        (true, DocumentVerdict::Inconclusive(_)) => LookupFound::Absent,
        (
            true,
            DocumentVerdict::Executed(_)
            | DocumentVerdict::Declined(_)
            | DocumentVerdict::NotExecuted
            | DocumentVerdict::Pending,
        ) => LookupFound::inconclusive(
            "`absent_when` and the rules of an outcome both fit the answer",
        ),
    }
}

/// After how long to ask again, if an answer says that it was asked too often: 429, or 503 with a time.
fn too_often(answer: &RawAnswer) -> Option<Option<Duration>> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let told = answer.headers.get(RETRY_AFTER);
    let pause = told.and_then(|value| retry_after(value.as_bytes(), now.as_secs()));
    let is_told = answer.status == StatusCode::SERVICE_UNAVAILABLE && pause.is_some();
    (is_told || answer.status == StatusCode::TOO_MANY_REQUESTS).then_some(pause)
}

/// Why nothing of an answer is read, if nothing is.
fn unreadable(answer: &RawAnswer, is_absent_status: bool) -> Option<String> {
    let status = answer.status.as_u16();
    if answer.status.is_redirection() {
        return Some(format!("status {status}: redirects are not followed"));
    }
    if !answer.status.is_success() && !is_absent_status {
        return Some(format!("status {status}"));
    }
    let encoding = answer.headers.get(CONTENT_ENCODING)?;
    (!encoding.as_bytes().eq_ignore_ascii_case(b"identity")).then(|| {
        format!("status {status}, and the answer is encoded, though nobody asked for that")
    })
}

/// The path with its placeholders filled. Every value is written so that it stays one part of the path or the query.
fn fill(rules: &LookupRules, question: &LookupQuestion<'_>, now: SystemTime) -> String {
    let mut path = String::new();
    let mut rest = rules.template.as_str();
    while let Some((before, after)) = rest.split_once('{') {
        let Some((name, after)) = after.split_once('}') else { break };
        path.push_str(before);
        let value = question.values.iter().find(|(known, _)| *known == name);
        let value = value.map(|(_, value)| (*value).to_owned());
        let value = value.or_else(|| window(rules, question, now, name)).unwrap_or_default();
        path.push_str(&percent::encoded(&value));
        rest = after;
    }
    path.push_str(rest);
    path
}

/// The beginning and the end of the window of time in which what is asked about must be.
fn window(
    rules: &LookupRules,
    question: &LookupQuestion<'_>,
    now: SystemTime,
    name: &str,
) -> Option<String> {
    let before = rules.list.as_ref().map_or(Duration::ZERO, |list| list.window_before);
    let from = SystemTime::UNIX_EPOCH + Duration::from_millis(question.began_at.as_ms());
    let from = from.checked_sub(before).unwrap_or(SystemTime::UNIX_EPOCH);
    // What is written at this moment may have a later time, by another clock.
    let until = now + before;
    let seconds = |at: SystemTime| {
        at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs().to_string()
    };
    let date = |at: SystemTime| {
        let whole = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let at = jiff::Timestamp::from_second(i64::try_from(whole).unwrap_or(i64::MAX));
        at.map(|at| at.to_string()).unwrap_or_default()
    };
    match name {
        "from" => Some(seconds(from)),
        "until" => Some(seconds(until)),
        "from_iso" => Some(date(from)),
        "until_iso" => Some(date(until)),
        _ => None,
    }
}

/// Asks for one path.
async fn get(
    rules: &LookupRules,
    path: &str,
    server: &impl LookupServer,
) -> Result<RawAnswer, String> {
    let host = server.host().map_err(|error| error.to_string())?;
    let mut request = Request::get(path)
        .header(HOST, host)
        .header(ACCEPT, "application/json")
        .header(ACCEPT_ENCODING, "identity")
        .header(USER_AGENT, AGENT)
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    for (name, value) in &rules.headers {
        request.headers_mut().append(name, value.clone());
    }
    let stream = server.dial().await.map_err(|error| format!("no connection: {error}"))?;
    exchange::exchange(stream, request).await
}

/// What an operator sees of an answer: its status, its media type and its first bytes, without the secrets of the question.
fn shown(rules: &LookupRules, answer: &RawAnswer) -> Box<str> {
    let secrets: Vec<&str> =
        rules.headers.iter().filter_map(|(_, value)| value.to_str().ok()).collect();
    // `Bearer x` may be repeated as `x`.
    let parts = secrets.iter().filter_map(|secret| secret.split_once(' ').map(|(_, part)| part));
    let secrets: Vec<&str> = secrets.iter().copied().chain(parts).collect();
    let media_type = answer.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = media_type.map(|text| text.chars().take(40).collect::<String>());
    let status = answer.status.as_u16();
    let start = excerpt(&answer.body, &secrets);
    match media_type {
        Some(media_type) => format!("{status} {media_type}: {start}").into(),
        None => format!("{status}: {start}").into(),
    }
}

#[cfg(test)]
mod tests;
