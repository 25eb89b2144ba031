//! What happened? Attempts on standard error, the answer on standard output.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use http::{HeaderMap, Method, Request, Response, Uri, Version};
use http_body::Body;
use http_body_util::BodyExt as _;
use retrysafe::client::{AnswerHead, BoxError, Error, Heard, Last, Next, Notice, Pending, Receipt};
use retrysafe_core::units::show_duration;
use serde_json::{Value, json};

use super::Attempts;
use crate::output::complain;

/// How much of an answer that is not final is shown. Problem documents are shorter.
const EXCERPT_CHARS_MAX: usize = 500;

/// Tells what happens, to people or to programs.
#[derive(Clone, Debug)]
pub(super) struct Teller {
    in_json: bool,
    shows_head: bool,
    attempts: Attempts,
}

impl Teller {
    pub(super) fn new(in_json: bool, shows_head: bool) -> Self {
        Self { in_json, shows_head, attempts: Arc::new(Mutex::new(Vec::new())) }
    }

    /// A new call is about to be sent.
    pub(super) fn begin<B>(&self, request: &Request<B>) {
        self.start(request.method(), request.uri(), None);
    }

    /// A journalled call is about to be sent again.
    pub(super) fn begin_again(&self, pending: &Pending) {
        let written = jiff::Timestamp::try_from(pending.written_at()).ok();
        self.start(pending.request().method(), pending.request().uri(), written);
    }

    fn start(&self, method: &Method, url: &Uri, written: Option<jiff::Timestamp>) {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner).clear();
        match written {
            Some(written) => self.remark(&format!("{method} {url}, begun at {written:.0}")),
            None => self.remark(&format!("{method} {url}")),
        }
    }

    /// What the client calls on every attempt.
    pub(super) fn observer(&self) -> impl Fn(&Notice<'_>) + Send + Sync + 'static {
        let teller = self.clone();
        move |notice| match notice {
            Notice::Sending { attempt: 1, key: Some(key) } => {
                teller.remark(&format!("  key {}", key.as_str()));
            }
            Notice::Heard { attempt, heard, why, next } => {
                let cause = why.map(causes);
                teller.attempt(*attempt, *heard, cause.as_deref(), *next);
            }
            Notice::Sending { .. } => {}
            // There may be more to hear one day; it is not needed here.
            _ => {}
        }
    }

    fn attempt(&self, number: u32, heard: Heard<'_>, why: Option<&str>, next: Next) {
        let what = match heard {
            Heard::Answer(AnswerHead { status, code, .. }) => match code {
                Some(code) => format!("{status} {code}"),
                None => status.to_string(),
            },
            Heard::NotSent => format!("not sent ({})", why.unwrap_or("no connection")),
            Heard::Lost => format!("no answer ({})", why.unwrap_or("out of time")),
        };
        let then = match next {
            Next::Retry(pause) => format!("again in {}", show_duration(whole_ms(pause))),
            Next::Done => "final".to_owned(),
            Next::OutcomeUnknown => "it may have happened".to_owned(),
            Next::GiveUp => "given up".to_owned(),
        };
        self.remark(&format!("  attempt {number}: {what}; {then}"));
        let (status, code) = match heard {
            Heard::Answer(AnswerHead { status, code, .. }) => (Some(status), code),
            Heard::NotSent | Heard::Lost => (None, None),
        };
        let (then, pause_ms) = match next {
            Next::Retry(pause) => ("retry", Some(whole_ms(pause).as_millis() as u64)),
            Next::Done => ("done", None),
            Next::OutcomeUnknown => ("outcome_unknown", None),
            Next::GiveUp => ("give_up", None),
        };
        let may_have_been_sent = !matches!(heard, Heard::NotSent);
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner).push(json!({
            "attempt": number, "status": status, "code": code, "sent": may_have_been_sent,
            "why": why, "next": then, "pause_ms": pause_ms,
        }));
    }

    /// There is an answer: it is written out whole.
    ///
    /// # Errors
    ///
    /// If its rest did not come, or nobody took it.
    pub(super) async fn answered<B>(
        &self,
        answer: Response<B>,
        receipt: Option<&Receipt>,
    ) -> Result<(), BoxError>
    where
        B: Body<Data = bytes::Bytes, Error: Into<BoxError>> + Unpin,
    {
        let (parts, mut body) = answer.into_parts();
        let mut held = Vec::new();
        let mut out = io::stdout().lock();
        if self.shows_head {
            write_head(&mut out, parts.version, parts.status, &parts.headers)?;
        }
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.map_err(Into::into)?.into_data() {
                if self.in_json { held.extend_from_slice(&data) } else { out.write_all(&data)? }
            }
        }
        if self.in_json {
            let mut document = self.document("answer", receipt);
            document.insert("status".into(), parts.status.as_u16().into());
            document.insert("headers".into(), header_pairs(&parts.headers));
            let (name, text) = match String::from_utf8(held) {
                Ok(text) => ("body", text),
                Err(bytes) => {
                    let engine = base64::engine::general_purpose::STANDARD;
                    ("body_base64", engine.encode(bytes.as_bytes()))
                }
            };
            document.insert(name.into(), text.into());
            writeln!(out, "{}", Value::Object(document))?;
        }
        Ok(out.flush()?)
    }

    /// There is no final answer.
    pub(super) fn failed(&self, error: &Error) {
        // Only an answer has a text of its own to show.
        let mut last = None;
        if let Some(Last::Answer(answer)) = error.ended().map(|ended| &ended.last) {
            let text = String::from_utf8_lossy(answer.body()).into_owned();
            last = Some(text.chars().take(EXCERPT_CHARS_MAX).collect::<String>());
        }
        if !self.in_json {
            complain(&error.to_string());
            if let Some(last) = last {
                complain(&last);
            }
            if let Error::OutcomeUnknown(ended) = error
                && let Some(key) = ended.receipt.key()
            {
                complain(&format!(
                    "ask again with the same key, never with a new one: --key {}",
                    key.as_str()
                ));
            }
            return;
        }
        let outcome = match error {
            Error::OutcomeUnknown(_) => "outcome_unknown",
            Error::GaveUp(_) => "gave_up",
            Error::Refused(_) => "not_sent",
        };
        let mut document = self.document(outcome, error.ended().map(|ended| &ended.receipt));
        document.insert("error".into(), error.to_string().into());
        document.insert("last_body".into(), last.into());
        crate::output::say(&Value::Object(document).to_string());
    }

    fn document(&self, outcome: &str, receipt: Option<&Receipt>) -> serde_json::Map<String, Value> {
        let attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let key = receipt.and_then(Receipt::key).map(|key| key.as_str().to_owned());
        serde_json::Map::from_iter([
            ("outcome".to_owned(), outcome.into()),
            ("key".to_owned(), key.into()),
            ("attempts".to_owned(), attempts.into()),
        ])
    }

    fn remark(&self, text: &str) {
        if !self.in_json {
            complain(text);
        }
    }
}

fn whole_ms(pause: std::time::Duration) -> std::time::Duration {
    std::time::Duration::from_millis(pause.as_millis().try_into().unwrap_or(u64::MAX))
}

/// An error with its causes, since "error sending request" alone helps nobody.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

fn write_head(
    out: &mut impl Write,
    version: Version,
    status: impl Display,
    headers: &HeaderMap,
) -> io::Result<()> {
    writeln!(out, "{version:?} {status}")?;
    for (name, value) in headers {
        writeln!(out, "{name}: {}", String::from_utf8_lossy(value.as_bytes()))?;
    }
    writeln!(out)
}

fn header_pairs(headers: &HeaderMap) -> Value {
    let pairs = headers
        .iter()
        .map(|(name, value)| json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())]));
    pairs.collect()
}
