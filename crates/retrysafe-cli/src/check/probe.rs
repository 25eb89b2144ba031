//! How is a request sent, and what was heard?
//!
//! Every request has a connection of its own, so that nothing is resent behind our back and a
//! connection can be dropped at will. The pace is bounded.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use super::request::Shot;
use crate::dial::Dialler;

/// The largest answer that is read. A checker compares answers; it does not download.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// How much of what an error says is told. A paragraph, not a page.
const DETAIL_CHARS_MAX: usize = 400;

/// What came back.
#[derive(Clone, Debug)]
pub(crate) enum Heard {
    /// An answer.
    Answer(Answer),
    /// No connection.
    Refused(String),
    /// A connection, and no whole answer.
    Broken(String),
    /// No answer in time.
    Silence,
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Sends requests, not too fast.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    patience: Duration,
    gap: Duration,
    next: Arc<tokio::sync::Mutex<Instant>>,
    dialler: Dialler,
}

impl Probe {
    pub(crate) fn new(patience: Duration, rate: u16) -> Self {
        Self {
            patience,
            gap: Duration::from_secs(1) / u32::from(rate.max(1)),
            next: Arc::new(tokio::sync::Mutex::new(Instant::now())),
            dialler: Dialler::default(),
        }
    }

    /// How long an answer may take.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// Sends a request and reads its answer.
    pub(crate) async fn send(&self, shot: &Shot) -> Heard {
        self.pace(1).await;
        self.fire(shot).await
    }

    /// Sends several requests at once.
    pub(crate) async fn send_all(&self, shots: Vec<Shot>) -> Vec<Heard> {
        self.pace(shots.len() as u32).await;
        let running: Vec<_> = shots
            .into_iter()
            .map(|shot| {
                let probe = self.clone();
                tokio::spawn(async move { probe.fire(&shot).await })
            })
            .collect();
        let mut heard = Vec::with_capacity(running.len());
        for task in running {
            heard.push(task.await.unwrap_or(Heard::Silence));
        }
        heard
    }

    /// Sends a request whole and drops the connection without reading the answer.
    pub(crate) async fn send_and_leave(&self, shot: &Shot) -> Result<(), String> {
        use tokio::io::AsyncWriteExt as _;
        self.pace(1).await;
        let mut stream = self.dialler.dial(&shot.url).await.map_err(|error| error.to_string())?;
        let mut head = format!(
            "{} {} HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n",
            shot.method,
            shot.url.path_and_query().map_or("/", |path| path.as_str()),
            shot.url.authority().map_or("", |authority| authority.as_str()),
            shot.body.len()
        )
        .into_bytes();
        for (name, value) in &shot.headers {
            head.extend_from_slice(name.as_str().as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        head.extend_from_slice(&shot.body);
        stream.write_all(&head).await.map_err(|error| error.to_string())?;
        stream.shutdown().await.map_err(|error| error.to_string())
    }

    async fn pace(&self, count: u32) {
        let mut next = self.next.lock().await;
        tokio::time::sleep_until(*next).await;
        *next = Instant::now() + self.gap * count;
    }

    async fn fire(&self, shot: &Shot) -> Heard {
        match timeout(self.patience, self.exchange(shot)).await {
            Ok(heard) => heard,
            Err(_) => Heard::Silence,
        }
    }

    async fn exchange(&self, shot: &Shot) -> Heard {
        let stream = match self.dialler.dial(&shot.url).await {
            Ok(stream) => stream,
            Err(error) => return Heard::Refused(error.to_string()),
        };
        let mut request = http::Request::new(Full::new(shot.body.clone()));
        *request.method_mut() = shot.method.clone();
        *request.uri_mut() = shot
            .url
            .path_and_query()
            .and_then(|path| path.as_str().parse().ok())
            .unwrap_or_else(|| http::Uri::from_static("/"));
        for (name, value) in &shot.headers {
            request.headers_mut().append(name.clone(), value.clone());
        }
        // A case may call the machine by another name than the one that was dialled.
        if let Some(host) = shot.url.authority().and_then(|a| a.as_str().parse().ok()) {
            request.headers_mut().entry(http::header::HOST).or_insert(host);
        }
        let answer = async {
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            // The connection ends with its only exchange, also with one that nobody waits for any more.
            let _driver = ConnectionTask(tokio::spawn(connection).abort_handle());
            let response = sender.send_request(request).await?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map(|b| b.to_bytes());
            Ok::<_, hyper::Error>((parts, body))
        };
        match answer.await {
            Ok((parts, Ok(body))) => {
                Heard::Answer(Answer { status: parts.status, headers: parts.headers, body })
            }
            Ok((_, Err(error))) => Heard::Broken(error.to_string()),
            Err(error) => Heard::Broken(error.to_string()),
        }
    }
}

/// The task of a connection, which ends with this.
struct ConnectionTask(AbortHandle);

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Heard {
    /// The answer, if there is one.
    pub(crate) fn answer(&self) -> Option<&Answer> {
        match self {
            Self::Answer(answer) => Some(answer),
            Self::Refused(_) | Self::Broken(_) | Self::Silence => None,
        }
    }

    /// The answer, if it is a success.
    pub(crate) fn success(&self) -> Option<&Answer> {
        self.answer().filter(|answer| answer.status.is_success() && !answer.is_in_flight())
    }
}

impl std::fmt::Display for Heard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Answer(answer) => write!(f, "{}", answer.status.as_u16()),
            Self::Refused(error) => write!(f, "no connection ({error})"),
            Self::Broken(error) => write!(f, "no whole answer ({error})"),
            Self::Silence => f.write_str("no answer in time"),
        }
    }
}

impl Answer {
    /// The first value of a header, as text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The machine-readable code of an error, in a problem document or in Stripe's shape.
    pub(crate) fn code(&self) -> Option<String> {
        let json: serde_json::Value = serde_json::from_slice(&self.body).ok()?;
        let code = json.get("code").or_else(|| json.pointer("/error/code"));
        code.and_then(|code| code.as_str()).map(str::to_owned)
    }

    /// What an error says to people, in a problem document or in Stripe's shape, as far as it fits into a message.
    pub(crate) fn detail(&self) -> Option<String> {
        let json: serde_json::Value = serde_json::from_slice(&self.body).ok()?;
        let detail = json.get("detail").or_else(|| json.pointer("/error/message"))?.as_str()?;
        Some(detail.chars().take(DETAIL_CHARS_MAX).collect())
    }

    /// Whether it says, with a success status, that the first request is still running.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.status == StatusCode::ACCEPTED && self.code().as_deref() == Some("request_in_progress")
    }

    /// Whether it says that it is a replay.
    pub(crate) fn is_marked(&self) -> bool {
        [
            "idempotent-replayed",
            "idempotency-replayed",
            "x-idempotency-replayed",
            "idempotency-replay",
        ]
        .iter()
        .any(|name| self.header(name).is_some_and(|value| !value.eq_ignore_ascii_case("false")))
    }
}
