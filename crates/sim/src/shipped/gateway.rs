//! What runs in a process that is a gateway?
//!
//! The gateway of the program `retrysafe`: its HTTP towards callers, its front door, routes and scopes, the layer, its proxy and its pool.
//! Callers and upstream are at the other ends of pipes in memory. What enters and leaves the process over them passes
//! through [`Tap`], which writes down what was sent, what came back and what was given up.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use retrysafe_cli::{InProcess, UpstreamIo};
use retrysafe_core::policy::{Absence, OnServerError};
use retrysafe_core::wire::FENCE;
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf,
};
use tokio::task::AbortHandle;

use super::answer::{self, RESPONSE_BYTES_MAX};
use super::options::{Kind, Options};
use super::plan::Plan;
use super::stage::{CONN, Life, SCOPE, Stage};
use super::store::SimStore;
use super::upstream::Upstream;
use super::witness::{Asker, conn_of};
use crate::history::{NONE, What};

/// How much is under way in a pipe at most: more than any message here.
const PIPE_BYTES: usize = 64 << 10;

/// The largest request that the upstream reads.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// A gateway process.
pub type Gateway = Arc<InProcess<SimStore>>;

/// Starts a gateway. Whatever belongs to it ends with the history.
pub fn boot(stage: &Stage, life: &Life, first_owner: u64) -> Result<Gateway, String> {
    let store = SimStore::new(stage, Asker::Layer(life.clone()));
    let upstream = Upstream { stage: stage.clone(), life: life.clone() };
    let dial = move || {
        let upstream = upstream.clone();
        Box::pin(async move { connect(upstream).await }) as retrysafe_cli::Connecting
    };
    let gateway = InProcess::new(&settings(stage.options(), 0), store, first_owner, dial)?;
    let gateway = Arc::new(gateway);
    let tidied = Arc::clone(&gateway);
    let life = life.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = life.death() => {}
            () = tidied.tidy() => {}
        }
    });
    Ok(gateway)
}

/// The configuration file of a gateway. A reload changes what may change without a restart: how long a duplicate waits, and how
/// long the upstream may take.
pub fn settings(options: &Options, number: u64) -> String {
    let on_server_error = match options.on_server_error {
        OnServerError::Release => "release",
        OnServerError::Store => "store",
        OnServerError::Unknown => "unknown",
    };
    let absence = match options.absence {
        Absence::Proof => "proof",
        Absence::Inconclusive => "inconclusive",
    };
    let on_store_error = if options.fails_open { "open" } else { "closed" };
    let &Options { lease_ms, lease_max_ms, ttl_ms, wait_max_ms, upstream_timeout_ms, .. } = options;
    let (wait_ms, timeout_ms) =
        (wait_max_ms * (1 + number % 3), upstream_timeout_ms + number % 2 * 100);
    format!(
        "upstream = \"http://upstream.example\"\nthreads = 1\n\
         [defaults]\nscope = [\"header:{SCOPE}\"]\nlease = \"{lease_ms}ms\"\nlease_max = \"{lease_max_ms}ms\"\n\
         ttl = \"{ttl_ms}ms\"\nwait_max = \"{wait_ms}ms\"\nupstream_timeout = \"{timeout_ms}ms\"\n\
         response_bytes_max = \"{RESPONSE_BYTES_MAX}B\"\non_server_error = \"{on_server_error}\"\n\
         on_store_error = \"{on_store_error}\"\nabsence = \"{absence}\"\n"
    )
}

/// Ends a task with whoever waits for it.
struct EndsWithThis(AbortHandle);

impl Drop for EndsWithThis {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends a request over a connection of its own. When this is dropped, the caller has hung up.
pub async fn ask(
    gateway: Gateway,
    mut request: Request<Full<Bytes>>,
) -> Option<Response<GatewayBody>> {
    let (callers, ours) = tokio::io::duplex(PIPE_BYTES);
    tokio::spawn(async move { gateway.serve(ours).await });
    let (mut sender, connection) = http1::handshake(TokioIo::new(callers)).await.ok()?;
    let connection = EndsWithThis(tokio::spawn(connection).abort_handle());
    // Most callers name no host in their target, and some do.
    if conn_of(request.headers().get(CONN).and_then(|id| id.to_str().ok()))
        .is_some_and(|conn| conn % 4 > 0)
        && let Some(path) = request.uri().path_and_query().cloned()
    {
        *request.uri_mut() = Uri::from(path);
    }
    let response = sender.send_request(request).await.ok()?;
    Some(response.map(|body| GatewayBody { body, _sender: sender, _connection: connection }))
}

/// An answer that keeps its connection.
pub struct GatewayBody {
    pub body: Incoming,
    _sender: http1::SendRequest<Full<Bytes>>,
    _connection: EndsWithThis,
}

/// What is under way on a connection to the upstream.
type Asked = Arc<Mutex<Option<(u16, Plan)>>>;

/// Connects to the upstream, or is refused.
async fn connect(upstream: Upstream) -> io::Result<Box<dyn UpstreamIo>> {
    let Upstream { stage, life } = &upstream;
    life.pass(stage).await;
    let name = [22, life.gateway.into(), life.epoch.into()];
    let number = stage.with(|state| state.count(&name));
    let mut chance = stage.chance(&[name.as_slice(), &[number]].concat());
    stage.sleep(chance.between(0, 3)).await;
    if stage.strikes(&mut chance, Kind::UpstreamRefuses, 20) {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
    let asked = Asked::default();
    tokio::spawn(serve(upstream.clone(), theirs, Arc::clone(&asked)));
    Ok(Box::new(Tap { pipe: ours, upstream, asked, under_way: None, passing: None }))
}

/// Where bytes leave and enter the process.
struct Tap {
    pipe: DuplexStream,
    upstream: Upstream,
    asked: Asked,
    /// The execution whose answer has not begun.
    under_way: Option<(u16, Plan)>,
    passing: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Tap {
    /// Waits while the process stands still, and for ever if it is dead.
    fn poll_pass(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Upstream { stage, life } = &self.upstream;
        if self.passing.is_none() && !life.stands_still(stage) {
            return Poll::Ready(());
        }
        let passing = self.passing.get_or_insert_with(|| {
            let stage = stage.clone();
            let life = life.clone();
            Box::pin(async move { life.pass(&stage).await })
        });
        ready!(passing.as_mut().poll(context));
        self.passing = None;
        Poll::Ready(())
    }

    /// The first bytes of a request leave the process.
    fn note_sent(&mut self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let field = |name: &str| {
            let mut lines = text.lines().take_while(|line| !line.is_empty());
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": ").map(str::to_owned))
        };
        let conn = conn_of(field(CONN).as_deref()).unwrap_or(NONE);
        let fence = field(FENCE.as_str()).and_then(|fence| fence.parse().ok());
        let sent = self.upstream.send_over_wire(conn, fence);
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(sent);
        self.under_way = Some(sent);
    }
}

impl AsyncWrite for Tap {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_pass(context));
        if self.under_way.is_none() && !bytes.is_empty() {
            self.note_sent(bytes);
        }
        Pin::new(&mut self.pipe).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(context)
    }
}

impl AsyncRead for Tap {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_pass(context));
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.pipe).poll_read(context, buffer));
        if buffer.filled().len() > before
            && let Some((exec, plan)) = self.under_way.take()
        {
            let whole = plan.whole && plan.piece_ms < self.upstream.silence_ms();
            self.upstream.stage.record(What::GotAnswer { exec, whole });
        }
        Poll::Ready(read)
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let Upstream { stage, life } = &self.upstream;
        if let Some((exec, _)) = self.under_way
            && !life.is_dead()
        {
            stage.record(What::GaveUp { exec });
        }
    }
}

/// The upstream's part of a connection: it answers request after request, until it loses one.
async fn serve(upstream: Upstream, mut pipe: DuplexStream, asked: Asked) {
    let stage = upstream.stage.clone();
    while read_request(&mut pipe).await.is_some() {
        let sent = asked.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((exec, plan)) = sent else { return };
        let mut chance = stage.chance(&[23, exec.into()]);
        if !plan.arrives || !upstream.work(exec, plan).await || !plan.answers {
            // The connection breaks, or nobody says another word.
            if chance.percent(50) {
                std::future::pending::<()>().await;
            }
            return;
        }
        let written = write_answer(&stage, &mut pipe, exec, plan, chance.percent(50)).await;
        // Some servers hang up after an answer.
        if written.is_err() || !plan.whole || chance.percent(20) {
            return;
        }
    }
}

/// Reads a request to its end. None if there is none any more.
async fn read_request(pipe: &mut DuplexStream) -> Option<()> {
    let mut bytes = Vec::new();
    while bytes.len() < REQUEST_BYTES_MAX {
        if pipe.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.and_then(|length| length.parse().ok()).unwrap_or(0);
        if body.len() >= length {
            return Some(());
        }
    }
    None
}

/// Writes an answer, with a length or in chunks. One that is not whole breaks off before its end.
async fn write_answer(
    stage: &Stage,
    pipe: &mut DuplexStream,
    exec: u16,
    plan: Plan,
    has_length: bool,
) -> io::Result<()> {
    let body = answer::body(exec, plan.long, plan.whole);
    let mut head = format!("HTTP/1.1 {} Whatever\r\n", plan.status);
    for (name, value) in &answer::headers(exec) {
        head.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap_or_default()));
    }
    if let Some(word) = answer::said(plan.said).map(answer::outcome_word) {
        head.push_str(&format!("retrysafe-outcome: {word}\r\n"));
    }
    let missing = usize::from(!plan.whole);
    head.push_str(&if has_length {
        format!("content-length: {}\r\n\r\n", body.len() + missing)
    } else {
        "transfer-encoding: chunked\r\n\r\n".to_owned()
    });
    pipe.write_all(head.as_bytes()).await?;
    let half = if plan.piece_ms > 0 { body.len() / 2 } else { body.len() };
    for piece in [body.slice(..half), body.slice(half..)] {
        if piece.is_empty() {
            continue;
        }
        if has_length {
            pipe.write_all(&piece).await?;
        } else {
            let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), &piece, b"\r\n"].concat();
            pipe.write_all(&chunk).await?;
        }
        stage.sleep(plan.piece_ms).await;
    }
    if plan.whole && !has_length {
        pipe.write_all(b"0\r\n\r\n").await?;
    }
    Ok(())
}
