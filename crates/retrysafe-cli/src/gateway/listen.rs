//! How do connections come in, and how do they end?
//!
//! One thread accepts and hands connections out in turn; each worker thread has a runtime of its
//! own, so that a request stays on one core from its first byte to its last. A stop lets idle
//! connections go at once and running requests come to their end.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use retrysafe_core::event;
use retrysafe_core::store::Store;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::body::{Broken, Reply};
use super::descriptors::Slotted;
use super::headers::Peer;
use super::known_bytes::PeerBytes;
use super::lasting_timer::HeadTimer;
use super::same_bytes::SameBytes;
use super::under_way::{UnderWay, UnderWayCount};
use super::wake_batcher::WakeBatcher;
use super::{Gateway, Worker, preface};
use crate::slow_readers::{self, StreamExecutor, StreamProgress, TimedWrites};

/// How long a TLS handshake may take, or on a plain connection the bytes that tell HTTP/2 from
/// HTTP/1.1.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// How large the head of a request may be. The parser looks at this bound between two reads, and the
/// last read may be as large again.
const HEAD_BYTES_MAX: usize = 128 << 10;

/// How many requests one HTTP/2 connection may have under way.
const STREAMS_MAX: u32 = 256;

/// How long an HTTP/2 connection may be silent before its caller is asked for a sign of life, and how
/// long that may take. A caller that vanished would otherwise hold its connection and its waiting
/// requests for ever; HTTP/1.1 has the time of the next head for that.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_MAX: Duration = Duration::from_secs(20);

/// How often idle connections to the upstream are looked through.
const TIDY_EVERY: Duration = Duration::from_secs(1);

/// The pause after a connection could not be accepted, mostly for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long after a stop a connection may be without a request before it is closed: a head that has
/// begun may still come whole, and the end of an answer may still be on its way out.
const LAST_HEAD_MAX: Duration = Duration::from_secs(5);

/// What a worker gets: a connection from somebody, counted since it was accepted.
struct Arrival {
    stream: std::net::TcpStream,
    peer: SocketAddr,
    slot: OwnedSemaphorePermit,
    one: OpenOne,
}

/// How many connections are open.
#[derive(Clone, Debug, Default)]
pub(crate) struct Open(Arc<AtomicUsize>);

/// One open connection.
struct OpenOne(Open);

impl Open {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    fn one(&self) -> OpenOne {
        let now = self.0.fetch_add(1, Ordering::AcqRel) + 1;
        metrics::gauge!(event::CONNECTIONS.name).set(now as f64);
        OpenOne(self.clone())
    }
}

impl Drop for OpenOne {
    fn drop(&mut self) {
        let before = self.0.0.fetch_sub(1, Ordering::AcqRel);
        metrics::gauge!(event::CONNECTIONS.name).set(before.saturating_sub(1) as f64);
    }
}

/// The threads that serve.
pub(crate) struct Workers {
    inboxes: Vec<mpsc::UnboundedSender<Arrival>>,
    threads: Vec<std::thread::JoinHandle<()>>,
    open: Open,
    /// How many more connections there may be. Past it new ones are closed at once.
    slots: Arc<Semaphore>,
}

impl Workers {
    /// Starts the threads. They end once their inboxes and their connections have.
    ///
    /// # Errors
    ///
    /// If a thread or a runtime cannot be made.
    pub(crate) fn start<S: Store>(
        gateway: &Arc<Gateway<S>>,
        threads: usize,
        stop: &watch::Receiver<bool>,
    ) -> io::Result<Self> {
        let slots = Arc::clone(&gateway.slots.callers);
        let mut workers = Self { inboxes: vec![], threads: vec![], open: Open::default(), slots };
        for number in 0..threads {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (inbox, connections) = mpsc::unbounded_channel();
            let worker = Arc::new(Worker::new(Arc::clone(gateway)));
            let stop = stop.clone();
            let thread = std::thread::Builder::new()
                .name(format!("worker-{number}"))
                .spawn(move || runtime.block_on(run(worker, connections, stop)))?;
            workers.inboxes.push(inbox);
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// Accepts connections until it is told to stop.
    pub(crate) async fn accept(&self, listener: &TcpListener, mut stop: watch::Receiver<bool>) {
        let mut turn = 0_usize;
        loop {
            let accepted = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                accepted = listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "accept_failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
                metrics::counter!(event::CONNECTIONS_REFUSED.name).increment(1);
                continue;
            };
            let Ok(stream) = stream.into_std() else { continue };
            turn = turn.wrapping_add(1);
            if let Some(inbox) = self.inboxes.get(turn % self.inboxes.len().max(1)) {
                // A worker that is gone takes no more; its connections close.
                let _ = inbox.send(Arrival { stream, peer, slot, one: self.open.one() });
            }
        }
    }

    /// How many connections are open.
    pub(crate) fn open(&self) -> usize {
        self.open.count()
    }

    /// Ends the threads.
    pub(crate) fn join(self) {
        drop(self.inboxes);
        for thread in self.threads {
            // A worker that panicked has said so already.
            let _ = thread.join();
        }
    }
}

async fn run<S: Store>(
    worker: Arc<Worker<S>>,
    mut connections: mpsc::UnboundedReceiver<Arrival>,
    stop: watch::Receiver<bool>,
) {
    let tidied = Arc::clone(&worker);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(TIDY_EVERY).await;
            tidied.tidy();
        }
    });
    let wake_batcher = WakeBatcher::start();
    while let Some(Arrival { stream, peer, slot, one }) = connections.recv().await {
        let Ok(stream) = TcpStream::from_std(stream) else { continue };
        let worker = Arc::clone(&worker);
        let stop = stop.clone();
        tokio::spawn(wake_batcher.batch_wakes_of(async move {
            // A connection that breaks is the caller's affair; what it had begun goes on.
            let _ = connection(worker, stream, peer, slot, stop).await;
            drop(one);
        }));
    }
}

async fn connection<S: Store>(
    worker: Arc<Worker<S>>,
    stream: TcpStream,
    peer: SocketAddr,
    slot: OwnedSemaphorePermit,
    stop: watch::Receiver<bool>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let live = worker.live();
    let peer = Peer::new(peer.ip(), live.tls.is_some());
    let Some(acceptor) = &live.tls else {
        let may_be_h2 = live.config.h2c;
        drop(live);
        if !may_be_h2 {
            return serve(worker, Slotted::new(TokioIo::new(stream), slot), peer, stop, false)
                .await;
        }
        let begin = tokio::time::timeout(HANDSHAKE_MAX, preface::read(stream));
        let (is_h2, stream) = tokio::select! {
            begun = begin => begun??,
            // Nothing was asked yet.
            () = stopped(stop.clone()) => return Ok(()),
        };
        return serve(worker, Slotted::new(TokioIo::new(stream), slot), peer, stop, is_h2).await;
    };
    let handshake = tokio::time::timeout(HANDSHAKE_MAX, acceptor.accept(stream));
    let stream = tokio::select! {
        stream = handshake => stream??,
        // Nothing was asked yet.
        () = stopped(stop.clone()) => return Ok(()),
    };
    let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    drop(live);
    serve(worker, Slotted::new(TokioIo::new(stream), slot), peer, stop, is_h2).await
}

/// Waits for a stop.
async fn stopped(mut stop: watch::Receiver<bool>) {
    // The sender outlives the workers; if it did not, that would be a stop as well.
    let _ = stop.wait_for(|stop| *stop).await;
}

pub(super) async fn serve<S: Store, T: Read + Write + Unpin + Send + 'static>(
    worker: Arc<Worker<S>>,
    io: T,
    peer: Peer,
    stop: watch::Receiver<bool>,
    is_h2: bool,
) -> io::Result<()> {
    let peer = Arc::new(peer);
    let (head_time_max, write_time_max) = {
        let live = worker.live();
        (live.config.head_time_max, live.config.write_time_max)
    };
    let io = TimedWrites::new(io, write_time_max);
    let under_way = UnderWay::default();
    let count = under_way.count();
    // Both stay until the connection ends: `UnderWayCount::is_none` counts them.
    let counted = under_way.clone();
    let answers = PeerBytes { worker: Arc::clone(&worker), peer: Arc::clone(&peer) };
    let service = service_fn(move |request: Request<Incoming>| {
        let worker = Arc::clone(&worker);
        let peer = Arc::clone(&peer);
        let one = counted.clone();
        async move {
            let response = worker.handle(&peer, request).await;
            let stream = StreamProgress::here();
            let counted = |body| Counted { body, rest: Bytes::new(), stream, _one: one };
            Ok::<_, Infallible>(response.map(counted))
        }
    });
    if is_h2 {
        let connection = http2::Builder::new(StreamExecutor { time_max: write_time_max })
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_MAX)
            .serve_connection(io, service);
        return until(connection, stop, &count, |connection| connection.graceful_shutdown()).await;
    }
    let io = SameBytes::new(TokioIo::new(io), answers, under_way.count(), head_time_max);
    let connection = http1::Builder::new()
        .timer(HeadTimer::default())
        .header_read_timeout(head_time_max)
        .max_buf_size(HEAD_BYTES_MAX)
        // A caller may close its sending side and still wait for the answer.
        .half_close(true)
        .serve_connection(TokioIo::new(io), service)
        .with_upgrades();
    until(connection, stop, &count, |connection| connection.graceful_shutdown()).await
}

/// An answer whose request is under way until it is dropped. Over HTTP/2 it is handed out in small
/// frames.
pub(super) struct Counted {
    body: Reply,
    /// What is left of a piece that is handed out.
    rest: Bytes,
    stream: Option<Arc<StreamProgress>>,
    _one: UnderWay,
}

impl Body for Counted {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = &mut *self;
        let Some(stream) = &this.stream else {
            return Pin::new(&mut this.body).poll_frame(context);
        };
        if this.rest.is_empty() {
            stream.idles();
            let frame = match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                ended => return Poll::Ready(ended),
            };
            let is_large = |data: &Bytes| data.len() > slow_readers::PROGRESS_BYTES_MIN;
            if !frame.data_ref().is_some_and(is_large) {
                stream.handed_out();
                return Poll::Ready(Some(Ok(frame)));
            }
            this.rest = frame.into_data().unwrap_or_default();
        }
        stream.handed_out();
        Poll::Ready(Some(Ok(Frame::data(slow_readers::next_frame(&mut this.rest)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let rest = self.rest.len() as u64;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(hint.lower().saturating_add(rest));
        hint
    }
}

/// Serves a connection; when a stop is asked for, lets it end after the request that is under way.
async fn until<C: Future<Output = hyper::Result<()>>>(
    connection: C,
    stop: watch::Receiver<bool>,
    under_way: &UnderWayCount,
    shut_down: impl FnOnce(Pin<&mut C>),
) -> io::Result<()> {
    let mut connection = pin!(connection);
    if let Some(ended) = ended_before(connection.as_mut(), stop).await {
        return ended.map_err(io::Error::other);
    }
    shut_down(connection.as_mut());
    loop {
        let was_idle = under_way.is_none();
        match tokio::time::timeout(LAST_HEAD_MAX, connection.as_mut()).await {
            Ok(ended) => return ended.map_err(io::Error::other),
            // A head that does not come: nothing was asked that could be lost.
            Err(_) if was_idle && under_way.is_none() => return Ok(()),
            Err(_) => {}
        }
    }
}

/// Serves a connection until it ends; or gives nothing, if a stop is asked for before.
///
/// A connection is polled several times for each request. Whether a stop is asked for is a look at a number then; the list of those who are
/// woken by a stop is entered once.
async fn ended_before<T>(
    mut connection: Pin<&mut impl Future<Output = T>>,
    stop: watch::Receiver<bool>,
) -> Option<T> {
    // Without a budget: a poll that finds the budget used up would not enter the list.
    let mut stopped = pin!(tokio::task::unconstrained(stopped(stop.clone())));
    let mut woken_by_stop: Option<Waker> = None;
    poll_fn(|context| {
        if let Poll::Ready(ended) = connection.as_mut().poll(context) {
            return Poll::Ready(Some(ended));
        }
        let is_entered = woken_by_stop.as_ref().is_some_and(|it| it.will_wake(context.waker()));
        if is_entered && stop.has_changed().is_ok_and(|has_changed| !has_changed) {
            return Poll::Pending;
        }
        woken_by_stop = Some(context.waker().clone());
        stopped.as_mut().poll(context).map(|()| None)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// A connection that is served for ever, and notes that it is.
    fn endless(is_served: &Arc<AtomicBool>) -> impl Future<Output = ()> + use<> {
        let is_served = Arc::clone(is_served);
        poll_fn(move |_| {
            is_served.store(true, Ordering::Relaxed);
            Poll::Pending
        })
    }

    async fn until_served(is_served: &AtomicBool) {
        while !is_served.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_stop_wakes_a_connection_that_is_idle() {
        let (tell, stop) = watch::channel(false);
        let is_served = Arc::default();
        let connection = endless(&is_served);
        let ended = tokio::spawn(async move { ended_before(pin!(connection), stop).await });
        until_served(&is_served).await;
        // Whoever is told that nothing has changed goes on.
        tell.send(false).unwrap();
        is_served.store(false, Ordering::Relaxed);
        until_served(&is_served).await;
        assert!(!ended.is_finished());
        tell.send(true).unwrap();
        assert_eq!(ended.await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_stop_that_was_asked_for_before_is_heard_and_so_is_the_end_of_whoever_asks() {
        let (_tell, stop) = watch::channel(true);
        assert_eq!(ended_before(pin!(std::future::pending::<()>()), stop).await, None);
        let (tell, stop) = watch::channel(false);
        let is_served = Arc::default();
        let connection = endless(&is_served);
        let ended = tokio::spawn(async move { ended_before(pin!(connection), stop).await });
        until_served(&is_served).await;
        drop(tell);
        assert_eq!(ended.await.unwrap(), None);
    }

    #[tokio::test]
    async fn the_end_of_a_connection_is_its_end() {
        let (_tell, stop) = watch::channel(false);
        assert_eq!(ended_before(pin!(std::future::ready(7)), stop).await, Some(7));
    }
}
