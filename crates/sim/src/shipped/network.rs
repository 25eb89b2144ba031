//! What happens between a client and a gateway?
//!
//! [`Network`] is what the shipped client sends through. It delivers to one of the gateways, late,
//! twice or never; the answer may be lost, and the client may leave. What a gateway answers is read
//! whole and compared here, where it leaves the process.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header, response};
use http_body_util::Full;
use retrysafe_core::record::Standing;
use tokio::sync::oneshot;
use tower_service::Service;

use super::answer::exec_of;
use super::options::Kind;
use super::process::{self, Gateways};
use super::stage::{CALL, CONN, Conn, Life, Stage};
use crate::chance::Chance;
use crate::history::{Class, NONE, What};

/// The way from a client to the gateways.
#[derive(Clone)]
pub struct Network {
    pub stage: Stage,
    pub gateways: Gateways,
    pub key: u8,
    pub print: u8,
}

/// An answer as it left a gateway.
struct Answer {
    parts: response::Parts,
    body: Bytes,
    class: Class,
    exec: u16,
}

/// Says that an attempt was not heard of again, unless it is told otherwise.
struct Unheard<'a> {
    stage: &'a Stage,
    call: u16,
    conn: u16,
    heard: bool,
}

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        if !self.heard {
            self.stage.record(What::NotHeard { call: self.call, conn: self.conn });
        }
    }
}

impl Service<Request<Full<Bytes>>> for Network {
    type Response = Response<Full<Bytes>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Response<Full<Bytes>>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { this.send(request).await })
    }
}

impl Network {
    async fn send(&self, request: Request<Full<Bytes>>) -> io::Result<Response<Full<Bytes>>> {
        let stage = &self.stage;
        let text = request.headers().get(CALL).and_then(|value| value.to_str().ok());
        let call: u16 = text.and_then(|text| text.parse().ok()).unwrap_or(NONE);
        let number = stage.with(|state| state.count(&[50, call.into()]));
        let mut chance = stage.chance(&[50, call.into(), number]);
        let lease = stage.options().lease_ms;
        let gateway = self.pick(&mut chance);
        let conn = self.invoke(call, gateway);
        let twice = stage.strikes(&mut chance, Kind::RequestTwice, 20);
        let way_ms = chance.between(1, 10);
        let mut unheard = Unheard { stage, call, conn, heard: false };
        stage.sleep(way_ms).await;
        if stage.strikes(&mut chance, Kind::ClientLost, 8) {
            return self.lose(&mut chance).await;
        }
        let Some((life, service)) = self.connect(gateway) else {
            unheard.heard = true;
            stage.record(What::NotConnected { call });
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        if twice {
            self.copy(call, request.clone(), &mut chance);
            // Which of the two comes first?
            stage.sleep(chance.pick(0, &[lease / 10, lease / 2])).await;
        }
        let answer = self.deliver(life, service, request, conn, &mut chance).await;
        let Ok(answer) = answer.await else { return Err(io::ErrorKind::ConnectionReset.into()) };
        stage.sleep(chance.between(1, 10)).await;
        if stage.strikes(&mut chance, Kind::ClientLost, 10) {
            return self.lose(&mut chance).await;
        }
        unheard.heard = true;
        let Answer { parts, body, class, exec } = answer;
        let status = parts.status.as_u16();
        stage.record(What::Heard { call, conn, class, status, body: exec });
        Ok(Response::from_parts(parts, Full::new(body)))
    }

    /// Whatever stands in between sends a request that it has taken once more.
    fn copy(&self, call: u16, request: Request<Full<Bytes>>, chance: &mut Chance) {
        let gateway = self.pick(chance);
        let copy = self.invoke(call, gateway);
        let ms = chance.scaled(1, self.stage.options().lease_ms);
        let mut chance = self.stage.chance(&[51, copy.into()]);
        let this = self.clone();
        tokio::spawn(async move {
            this.stage.sleep(ms).await;
            // Nobody hears what becomes of the copy.
            if let Some((life, service)) = this.connect(gateway) {
                this.deliver(life, service, request, copy, &mut chance).await.await.ok();
            }
        });
    }

    /// Nothing comes back: the connection breaks after a while, or never.
    async fn lose(&self, chance: &mut Chance) -> io::Result<Response<Full<Bytes>>> {
        if chance.percent(50) {
            std::future::pending::<()>().await;
        }
        self.stage.sleep(chance.scaled(1, self.stage.options().lease_ms)).await;
        Err(io::ErrorKind::ConnectionReset.into())
    }

    fn pick(&self, chance: &mut Chance) -> u8 {
        chance.below(self.stage.options().gateways.into()) as u8
    }

    /// Notes an attempt on its way to a gateway.
    fn invoke(&self, call: u16, gateway: u8) -> u16 {
        let &Self { key, print, .. } = self;
        self.stage.with(|state| {
            let conn = state.conns.len() as u16;
            state.conns.push(Conn { key, print, failed: false });
            state.record(What::Invoked { call, conn, key, print, gateway });
            conn
        })
    }

    /// The process that listens there, if one does.
    fn connect(&self, gateway: u8) -> Option<(Life, process::Service)> {
        let found = self.gateways.alive(gateway, |process| {
            process.accepts.then(|| (process.life.clone(), process.service.clone()))
        });
        found.flatten()
    }

    /// Hands a request to a gateway. What comes back is its answer, unless the connection breaks.
    async fn deliver(
        &self,
        life: Life,
        service: process::Service,
        mut request: Request<Full<Bytes>>,
        conn: u16,
        chance: &mut Chance,
    ) -> oneshot::Receiver<Answer> {
        let (reply, answer) = oneshot::channel();
        let value = HeaderValue::try_from(format!("c{conn}"));
        request.headers_mut().insert(CONN, value.unwrap_or(HeaderValue::from_static("c")));
        let leaves = self.stage.strikes(chance, Kind::Disconnect, 20);
        let leave_ms = chance.scaled(1, 2 * self.stage.options().lease_ms);
        // A gateway may or may not notice that its client has gone.
        let notices = chance.percent(50);
        let serving = serve(self.stage.clone(), life, service, request, conn);
        let leave = Leave { after_ms: leaves.then_some(leave_ms), notices };
        tokio::spawn(connection(self.stage.clone(), serving, leave, conn, reply));
        answer
    }
}

/// When a client leaves.
struct Leave {
    after_ms: Option<u64>,
    notices: bool,
}

/// One connection at a gateway, as a server keeps it: when the client leaves, what serves it is
/// dropped. A process that dies takes its connections with it, without running a destructor.
async fn connection(
    stage: Stage,
    (life, serving): (Life, Pin<Box<dyn Future<Output = Option<Answer>> + Send>>),
    leave: Leave,
    conn: u16,
    mut reply: oneshot::Sender<Answer>,
) {
    let mut serving = serving;
    let left = async {
        match (leave.after_ms, leave.notices) {
            (Some(ms), _) => stage.sleep(ms).await,
            (None, true) => reply.closed().await,
            (None, false) => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = life.death() => {
            drop(reply);
            // It goes nowhere: everything that leaves a dead process stays in it.
            serving.await;
        }
        answer = &mut serving => {
            if let Some(answer) = answer {
                // The client may have gone.
                let _ = reply.send(answer);
            }
        }
        () = left => {
            stage.record(What::Disconnected { conn });
            drop(serving);
        }
    }
}

type Serving = (Life, Pin<Box<dyn Future<Output = Option<Answer>> + Send>>);

/// A gateway's part: the shipped service, and its answer read whole. None if it breaks off.
fn serve(
    stage: Stage,
    life: Life,
    service: process::Service,
    request: Request<Full<Bytes>>,
    conn: u16,
) -> Serving {
    let of = life.clone();
    let serving = async move {
        life.pass(&stage).await;
        // A process that was told to stop closes connections whose requests it has not read.
        if life.is_closed() {
            return None;
        }
        let (parts, body) = service.answer(request).await?;
        life.pass(&stage).await;
        let exec = exec_of(&body);
        let class = classify(&stage, &parts, &body, exec);
        note_answer(&stage, conn, &parts, class, exec);
        Some(Answer { parts, body, class, exec })
    };
    (of, Box::pin(serving))
}

fn note_answer(stage: &Stage, conn: u16, parts: &response::Parts, class: Class, exec: u16) {
    let seconds = parts.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_after = seconds.and_then(|text| text.parse().ok()).unwrap_or(0);
    let status = parts.status.as_u16();
    stage.with(|state| {
        let head = state.head_number(&parts.headers);
        let failed = state.conn(conn).is_some_and(|conn| conn.failed);
        // A timeout of the store, and what the breaker refuses, show here for the first time.
        if matches!(class, Class::Unavailable | Class::Unprotected) && !failed {
            state.record(What::BeginFailed { conn, ambiguous: false });
        }
        state.record(What::Answered { conn, class, status, body: exec, retry_after, head });
    });
}

/// What kind of answer it is, as any client can see it; and for an execution's own answer, what its
/// owner had settled when it left.
fn classify(stage: &Stage, parts: &response::Parts, body: &[u8], exec: u16) -> Class {
    if parts.headers.contains_key("retrysafe-unprotected") {
        return Class::Unprotected;
    }
    if parts.headers.contains_key("idempotent-replayed") {
        return Class::Replay;
    }
    let media_type = parts.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if media_type == Some(b"application/problem+json") {
        let text = std::str::from_utf8(body).unwrap_or_default();
        let code = text.split_once("\"code\":\"").and_then(|(_, rest)| rest.split_once('"'));
        return match code.map(|(code, _)| code) {
            Some("request_in_progress") if parts.status.as_u16() == 409 => Class::InProgress,
            Some("idempotency_key_reused") => Class::Mismatch,
            Some("response_not_stored") => Class::Gone,
            Some("store_unavailable") => Class::Unavailable,
            Some("upstream_unreachable") => Class::Unreachable,
            Some(_) | None => Class::Unknown,
        };
    }
    // What is passed on piece by piece is answered before its end is settled, and says so itself.
    if parts.headers.get("retrysafe-outcome").is_some_and(|word| word == "unknown") {
        return Class::Doubtful;
    }
    let (settled, to_settle) = stage
        .with(|state| state.exec(exec).map_or((None, None), |exec| (exec.settled, exec.to_settle)));
    match settled {
        // An answer that asks its caller to come again is no final one, also where that could not be written down.
        None if to_settle == Some(Standing::FailedRetryable) => Class::Released,
        Some(Standing::FailedRetryable) => Class::Released,
        Some(Standing::Unknown) => Class::Doubtful,
        Some(Standing::Completed | Standing::InProgress) | None => Class::First,
    }
}
