//! How are connections to the upstream kept, and how far did a send get?
//!
//! A pool of our own, because the one question that matters after a failed send is whether a byte of
//! the request was written, and the answer must be proof: hyper hands the request back if and only
//! if its connection never began to write it. Only then is another connection tried, and only once.
//! Whatever else goes wrong after that point is a lost answer.
//!
//! Over HTTP/2 a connection has one request at a time, too: what breaks a connection then leaves one outcome unknown, not a hundred, and
//! no request waits for its turn after its lease was looked at.
//!
//! An upstream that sends bytes which belong to no answer cannot be asked twice over one connection: the
//! next request would be answered with them, whomever they are for. Such bytes are looked for before each
//! use, but they may come just after the look. So once they were seen, connections are used once each for
//! [`DISTRUST`].

use std::collections::VecDeque;
use std::error::Error;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use retrysafe::layer::Attempt;
use retrysafe_core::problem::Refusal;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use super::connect::{Connector, Exchange, SpokeUnasked};
use super::descriptors::Slotted;
use super::http_form::{in_http1, in_http2};
use super::lasting_timer::LastingTimer;
use super::outgoing::Outgoing;
use super::sender::{Sender, is_refused_stream};
use super::upload::{Patience, TooSlow, Upload};

/// How long a connection may be idle. Shorter than the shortest keep-alive of common servers (Node:
/// five seconds), so that we close first instead of racing with the upstream's close.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// How many idle connections one thread keeps.
const IDLE_CONNECTIONS_MAX: usize = 512;

/// How long a connection may take to come about. Nothing has been sent by then.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// How long a connection whose answer was read may take to be free again. Its task needs one turn
/// for that, unless the upstream answered before it had read the request: then the connection is busy
/// for as long as that request's caller goes on sending.
const READY_MAX: Duration = Duration::from_millis(10);

/// How long no connection is used twice after an upstream spoke unasked. Whatever made it do that is
/// likely to happen again, and a new connection for each request costs little.
const DISTRUST: Duration = Duration::from_secs(60);

/// How much of an answer is read ahead of whoever takes it, and so how large its head may be. A slow
/// reader keeps this much, and as much again on its way to it.
const ANSWER_BUFFER_BYTES_MAX: usize = 128 << 10;

/// The same for HTTP/2, whose heads are counted in another unit.
const ANSWER_BUFFER_BYTES_MAX_H2: u32 = 128 << 10;

/// How many fields the head of an answer may have. The parser fills room for so many with each answer, some 5,400 instructions; its own
/// bound of a hundred, which costs nothing, is less than some servers need for cookies and links.
const ANSWER_FIELDS_MAX: usize = 512;

/// The connections of one thread.
#[derive(Clone)]
pub(crate) struct Pool(Arc<PoolShared>);

struct PoolShared {
    idle: Mutex<IdleConnections>,
    /// How many more connections all threads may have.
    slots: Arc<Semaphore>,
}

#[derive(Default)]
struct IdleConnections {
    list: VecDeque<Box<Connection>>,
    /// Those whose answer was read before their request was written: the upstream may take the rest, or
    /// may not.
    unwritten: Vec<Connection>,
    /// Until then none is kept.
    distrusted_until: Option<Instant>,
}

/// A connection, and what is known of the last request that was sent over it. In a box for as long as it lives: it passes through many
/// hands with each request.
struct Connection {
    sender: Sender,
    exchange: Exchange,
    task: ConnectionTask,
    /// The time limit of whatever is waited for.
    timer: LastingTimer,
    /// Since when it is idle, if it is.
    idle_since: Instant,
    upload: Upload,
    /// For how long its upstream may take nothing of the request.
    pause_max: Duration,
    /// The generation of the connector that made it: there may be several upstreams, and a reload may name others.
    generation: u64,
}

/// The task of a connection, which ends with this. By itself it would wait for as long as an upstream
/// does not read, and hold on to the request.
struct ConnectionTask(Option<AbortHandle>);

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// A connection whose answer is being read.
pub(crate) struct Held {
    connection: Box<Connection>,
    pool: Pool,
}

/// How far a send got.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nothing was sent.
    NotSent(String),
    /// Nothing was sent, because the checks have found the upstream unhealthy.
    Unhealthy,
    /// It was sent, at least in part, and no answer came.
    Lost {
        /// Whether time ran out.
        timed_out: bool,
        /// What went wrong.
        why: String,
    },
    /// The caller's body did not arrive whole, so neither did the request.
    CallersFault(Refusal),
}

impl Pool {
    /// A pool without connections, which takes a slot for each.
    pub(crate) fn new(slots: Arc<Semaphore>) -> Self {
        Self(Arc::new(PoolShared { idle: Mutex::default(), slots }))
    }

    /// Sends a request and waits for the head of its answer.
    ///
    /// # Errors
    ///
    /// How far it got.
    pub(crate) async fn send(
        &self,
        connector: &Connector,
        request: Request<Outgoing>,
        patience: Patience,
        attempt: Option<&Attempt>,
    ) -> Result<(Response<Incoming>, Held), Failure> {
        let mut now = Instant::now();
        let upload = Upload::new(now);
        let mut request = request.map(|body| upload.watch(body));
        let mut reused = self.idle_connection(connector.generation(), &mut now).await;
        loop {
            let was_reused = reused.is_some();
            let mut connection = match reused.take() {
                Some(reused) => reused,
                None => {
                    let connecting = self.connect(connector, patience.with_upstream, &upload);
                    let connection = Box::pin(connecting).await?;
                    now = Instant::now();
                    connection
                }
            };
            connection.upload = upload.clone();
            connection.pause_max = patience.with_upstream;
            upload.begin(now);
            let Connection { sender, exchange, timer, .. } = &mut *connection;
            // An upstream over TLS may choose another HTTP for each connection.
            let sent = match sender {
                Sender::Http1(sender) => {
                    if request.version() == Version::HTTP_2 {
                        request = in_http1(request);
                    }
                    // Over HTTP/2 each answer names its request.
                    exchange.asked(was_reused);
                    let answer = pin!(sender.try_send_request(request));
                    upload.wait_for_answer(answer, timer, patience, attempt, now).await
                }
                Sender::Http2(sender) => {
                    let told = "the host that the request names cannot be said in HTTP/2";
                    let is_tls = connector.is_tls();
                    let mut request =
                        in_http2(request, is_tls).map_err(|_| Failure::NotSent(told.into()))?;
                    request.body_mut().count_pieces();
                    let answer = Box::pin(sender.try_send_request(request));
                    upload.wait_for_answer(pin!(answer), timer, patience, attempt, now).await
                }
            };
            let mut error = match sent {
                Ok(Ok(response)) => {
                    connection.exchange.answered();
                    return Ok((response, Held { connection, pool: self.clone() }));
                }
                Ok(Err(error)) => error,
                Err(TooSlow::Caller) => return Err(Failure::CallersFault(Refusal::BodyTimeout)),
                Err(TooSlow::Upstream) => {
                    return Err(Failure::Lost { timed_out: true, why: "no answer in time".into() });
                }
            };
            if is_unasked(error.error()) {
                self.distrust();
            }
            match error.take_message() {
                // The connection was closed while it was idle, before it began to write.
                Some(unsent) if was_reused => {
                    request = unsent;
                    now = Instant::now();
                }
                Some(_) => return Err(Failure::NotSent(error.into_error().to_string())),
                None if upload.has_failed() => {
                    return Err(Failure::CallersFault(Refusal::BodyBroken));
                }
                None if is_refused_stream(error.error()) => {
                    return Err(Failure::NotSent("the upstream refused the stream unread".into()));
                }
                None => {
                    let why = error.into_error().to_string();
                    return Err(Failure::Lost { timed_out: false, why });
                }
            }
        }
    }

    /// Closes the connections that have been idle for too long, and those whose upstream has answered
    /// and takes nothing of the request any more.
    pub(crate) fn tidy(&self) {
        let mut connections = self.connections();
        let list = std::mem::take(&mut connections.list);
        for idle in list {
            if idle.idle_since.elapsed() < IDLE_MAX && !idle.sender.is_closed() {
                connections.list.push_back(idle);
            } else {
                connections.let_go(*idle);
            }
        }
        connections.unwritten.retain(|idle| idle.is_unwritten() && !idle.is_stuck());
    }

    fn connections(&self) -> MutexGuard<'_, IdleConnections> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses each connection once from now on, for a while.
    fn distrust(&self) {
        let now = Instant::now();
        let mut idle = self.connections();
        idle.list.clear();
        let is_new = idle.distrusted_until.is_none_or(|until| until <= now);
        idle.distrusted_until = now.checked_add(DISTRUST);
        if is_new {
            tracing::warn!(
                seconds = DISTRUST.as_secs(),
                "upstream_spoke_unasked: it sent bytes that belong to no answer, so each request gets a \
                 connection of its own for a while"
            );
        }
    }

    /// The connection that was used last, so that a lull lets the others go. If it had to be waited for, `now` is later.
    async fn idle_connection(&self, generation: u64, now: &mut Instant) -> Option<Box<Connection>> {
        loop {
            let mut idle = self.connections().take_last(generation)?;
            // A connection of HTTP/2 takes another request at any time, also while the body of the one before is being sent.
            let is_taken = !idle.sender.is_http1() && !idle.upload.is_over();
            let is_stale = now.saturating_duration_since(idle.idle_since) > IDLE_MAX;
            if !is_taken && !is_stale && !idle.sender.is_closed() {
                if idle.sender.is_ready() {
                    return Some(idle);
                }
                let is_ready = Box::pin(timeout(READY_MAX, idle.sender.ready())).await;
                *now = Instant::now();
                if matches!(is_ready, Ok(Ok(()))) {
                    return Some(idle);
                }
            }
            self.connections().let_go(*idle);
        }
    }

    async fn connect(
        &self,
        connector: &Connector,
        patience: Duration,
        upload: &Upload,
    ) -> Result<Box<Connection>, Failure> {
        let limit = CONNECT_MAX.min(patience);
        let slot = match timeout(limit, Arc::clone(&self.0.slots).acquire_owned()).await {
            Ok(Ok(slot)) => slot,
            Ok(Err(_)) | Err(_) => {
                return Err(Failure::NotSent("too many connections to the upstream".into()));
            }
        };
        let (sender, exchange, task) = self.open(connector, limit, slot).await?;
        Ok(Box::new(Connection {
            sender,
            exchange,
            task,
            timer: LastingTimer::default(),
            idle_since: Instant::now(),
            upload: upload.clone(),
            pause_max: patience,
            generation: connector.generation(),
        }))
    }

    /// Connects; the connection keeps its slot until it has ended.
    async fn open(
        &self,
        connector: &Connector,
        limit: Duration,
        slot: OwnedSemaphorePermit,
    ) -> Result<(Sender, Exchange, ConnectionTask), Failure> {
        let stream = match timeout(limit, connector.connect()).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(Failure::NotSent(error.to_string())),
            Err(_) => return Err(Failure::NotSent("the connection took too long".into())),
        };
        let exchange = stream.exchange();
        let is_http2 = stream.is_http2();
        let stream = Slotted::new(TokioIo::new(stream), slot);
        let not_sent = |error: hyper::Error| Failure::NotSent(error.to_string());
        if is_http2 {
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .max_header_list_size(ANSWER_BUFFER_BYTES_MAX_H2)
                .handshake(stream)
                .await
                .map_err(not_sent)?;
            let task = tokio::spawn(async move {
                // Whatever goes wrong here is told to whoever waits for the answer.
                let _ = connection.await;
            });
            let task = ConnectionTask(Some(task.abort_handle()));
            return Ok((Sender::Http2(sender), exchange, task));
        }
        let (sender, connection) = http1::Builder::new()
            .max_headers(ANSWER_FIELDS_MAX)
            .max_buf_size(ANSWER_BUFFER_BYTES_MAX)
            .handshake(stream)
            .await
            .map_err(not_sent)?;
        let pool = self.clone();
        let task = tokio::spawn(async move {
            // Whatever else goes wrong here is told to whoever waits for the answer.
            if connection.with_upgrades().await.is_err_and(|error| is_unasked(&error)) {
                pool.distrust();
            }
        });
        let task = ConnectionTask(Some(task.abort_handle()));
        Ok((Sender::Http1(sender), exchange, task))
    }
}

impl IdleConnections {
    /// The connection of a connector that was used last. Those of connectors that a reload took away end by `tidy`.
    fn take_last(&mut self, generation: u64) -> Option<Box<Connection>> {
        let place = self.list.iter().rposition(|idle| idle.generation == generation)?;
        self.list.remove(place)
    }

    /// Lets go of a connection that is not used again. One that still writes may do so.
    fn let_go(&mut self, idle: Connection) {
        if idle.is_unwritten() {
            self.unwritten.push(idle);
        }
    }
}

impl Connection {
    /// Whether the request is not written yet, as far as the connection knows.
    fn is_unwritten(&self) -> bool {
        let sender = &self.sender;
        let is_free = if sender.is_http1() { sender.is_ready() } else { self.upload.is_over() };
        !sender.is_closed() && !is_free
    }

    /// Whether the upstream takes nothing any more.
    fn is_stuck(&self) -> bool {
        self.upload.waits_for_upstream_since().is_some_and(|since| since.elapsed() > self.pause_max)
    }
}

/// Whether a connection ended because the upstream sent bytes that belong to no answer: seen by us, or by
/// the client itself, whose error for that is the one kind that has neither a name nor a cause.
fn is_unasked(error: &hyper::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let seen_by_us = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
            .is_some_and(|error| error.is::<SpokeUnasked>());
        if seen_by_us || error.downcast_ref().is_some_and(is_nameless) {
            return true;
        }
        cause = error.source();
    }
    false
}

fn is_nameless(error: &hyper::Error) -> bool {
    let has_name = error.is_parse()
        || error.is_user()
        || error.is_canceled()
        || error.is_closed()
        || error.is_incomplete_message()
        || error.is_body_write_aborted()
        || error.is_shutdown()
        || error.is_timeout();
    !has_name && error.source().is_none()
}

impl Held {
    /// The answer was read whole: the connection may be used again.
    pub(crate) fn give_back(self) {
        let Self { mut connection, pool } = self;
        let now = Instant::now();
        connection.idle_since = now;
        let mut connections = pool.connections();
        if connections.distrusted_until.is_some_and(|until| now < until) {
            return connections.let_go(*connection);
        }
        if connections.list.len() >= IDLE_CONNECTIONS_MAX
            && let Some(oldest) = connections.list.pop_front()
        {
            connections.let_go(*oldest);
        }
        connections.list.push_back(connection);
    }

    /// The answer switches to another protocol: the connection is handed over.
    pub(crate) fn hand_over(mut self) {
        self.connection.task.0 = None;
    }
}
