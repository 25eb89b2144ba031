//! How do spans come to a collector, and what if it is away?
//!
//! One task takes spans from a bounded queue and sends them in batches. A collector that is away or busy is asked again a few times;
//! then its batch is dropped and counted. Meanwhile the queue fills, and what does not fit is dropped and counted too: nobody waits.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use metrics::Counter;
use retrysafe_core::event;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::span::FinishedSpan;
use super::variables::{Encoding, TraceSettings};
use super::{json, protobuf};
use crate::dial::Dialler;

/// How often a batch is sent, at most.
const TRIES_MAX: u32 = 3;

/// The pause before the second try; each further one is twice as long.
const PAUSE: Duration = Duration::from_secs(1);

/// Statuses of a collector that is busy or away, by OTLP: it may take the same batch later.
const TRIED_AGAIN: [u16; 4] = [429, 502, 503, 504];

/// How often the log says that spans are lost.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Where finished spans are put.
#[derive(Debug)]
pub(super) struct SpanQueue {
    sender: mpsc::Sender<Queued>,
    dropped: Counter,
}

enum Queued {
    /// In a box: the queue has its room from the start.
    Span(Box<FinishedSpan>),
    /// Somebody wants to know when everything before this was sent.
    Flush(oneshot::Sender<()>),
}

impl SpanQueue {
    /// A queue, and the task that empties it, on the present runtime.
    pub(super) fn start(settings: TraceSettings) -> Self {
        let (sender, queued) = mpsc::channel(settings.queue_max);
        let dropped = metrics::counter!(event::SPANS_DROPPED.name);
        let exporter = SpanExporter {
            settings,
            dialler: Dialler::default(),
            exported: metrics::counter!(event::SPANS_EXPORTED.name),
            dropped: dropped.clone(),
            warned_at: None,
        };
        tokio::spawn(exporter.run(queued));
        Self { sender, dropped }
    }

    /// Takes a span, or drops it.
    pub(super) fn put(&self, span: FinishedSpan) {
        if self.sender.try_send(Queued::Span(Box::new(span))).is_err() {
            self.dropped.increment(1);
        }
    }

    /// Waits until everything that was put so far was sent or dropped.
    pub(super) async fn flush(&self) {
        let (done, is_done) = oneshot::channel();
        if self.sender.send(Queued::Flush(done)).await.is_ok() {
            // If the task is gone, there is nothing to wait for.
            let _ = is_done.await;
        }
    }
}

/// Sends batches.
struct SpanExporter {
    settings: TraceSettings,
    dialler: Dialler,
    exported: Counter,
    dropped: Counter,
    warned_at: Option<Instant>,
}

/// Why a batch was not taken.
struct NotTaken {
    why: String,
    may_be_tried_again: bool,
}

impl NotTaken {
    fn passing(error: impl std::fmt::Display) -> Self {
        Self { why: error.to_string(), may_be_tried_again: true }
    }
}

impl SpanExporter {
    async fn run(mut self, mut queued: mpsc::Receiver<Queued>) {
        let mut batch = Vec::new();
        while let Some(first) = queued.recv().await {
            let due = Instant::now() + self.settings.delay;
            let mut next = Some(first);
            let mut waiting = None;
            while let Some(item) = next {
                match item {
                    Queued::Span(span) => batch.push(*span),
                    Queued::Flush(done) => {
                        waiting = Some(done);
                        break;
                    }
                }
                if batch.len() >= self.settings.batch_max {
                    break;
                }
                next = tokio::time::timeout_at(due, queued.recv()).await.ok().flatten();
            }
            self.send(&batch).await;
            batch.clear();
            if let Some(done) = waiting {
                // Whoever waited may have gone.
                let _ = done.send(());
            }
        }
    }

    /// Sends a batch, or drops it.
    async fn send(&mut self, batch: &[FinishedSpan]) {
        if batch.is_empty() {
            return;
        }
        let count = batch.len() as u64;
        let body = match self.settings.encoding {
            Encoding::Json => json::encode(&self.settings.resource, batch),
            Encoding::Protobuf => protobuf::encode(&self.settings.resource, batch),
        };
        let body = Bytes::from(body);
        let mut pause = PAUSE;
        for attempt in 1..=TRIES_MAX {
            match self.try_once(body.clone()).await {
                Ok(()) => return self.exported.increment(count),
                Err(not_taken) if attempt == TRIES_MAX || !not_taken.may_be_tried_again => {
                    self.dropped.increment(count);
                    self.warn(count, &not_taken.why);
                    return;
                }
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause *= 2;
        }
    }

    async fn try_once(&self, body: Bytes) -> Result<(), NotTaken> {
        let patience = self.settings.timeout;
        match tokio::time::timeout(patience, self.exchange(body)).await {
            Ok(exchanged) => exchanged,
            Err(_) => Err(NotTaken::passing(format!("no answer within {patience:?}"))),
        }
    }

    /// One request over a connection of its own: a batch is rare.
    async fn exchange(&self, body: Bytes) -> Result<(), NotTaken> {
        let uri = &self.settings.endpoint;
        let stream = self.dialler.dial(uri).await.map_err(NotTaken::passing)?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(NotTaken::passing)?;
        let request = self.request(body).map_err(NotTaken::passing)?;
        let asked = async {
            let answer = sender.send_request(request).await.map_err(NotTaken::passing)?;
            let status = answer.status();
            if !status.is_success() {
                let may_be_tried_again = TRIED_AGAIN.contains(&status.as_u16());
                return Err(NotTaken { why: format!("status {status}"), may_be_tried_again });
            }
            // What else it says is not needed; the connection ends with this.
            Ok(())
        };
        tokio::select! {
            biased;
            answered = asked => answered,
            ended = connection => match ended {
                Ok(()) => Err(NotTaken::passing("the connection was closed")),
                Err(error) => Err(NotTaken::passing(error)),
            },
        }
    }

    fn request(&self, body: Bytes) -> Result<Request<Full<Bytes>>, http::Error> {
        let uri = &self.settings.endpoint;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let kind = match self.settings.encoding {
            Encoding::Json => "application/json",
            Encoding::Protobuf => "application/x-protobuf",
        };
        let host = uri.authority().map_or("", |authority| authority.as_str());
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::HOST, host)
            .header(header::CONTENT_TYPE, kind)
            .header(header::USER_AGENT, concat!("retrysafe/", env!("CARGO_PKG_VERSION")));
        for (name, value) in &self.settings.headers {
            request = request.header(name, value);
        }
        request.body(Full::new(body))
    }

    /// Says now and then that spans are lost.
    fn warn(&mut self, dropped: u64, why: &str) {
        if self.warned_at.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            self.warned_at = Some(Instant::now());
            tracing::warn!(dropped, why, endpoint = %self.settings.endpoint, "spans_dropped");
        }
    }
}
