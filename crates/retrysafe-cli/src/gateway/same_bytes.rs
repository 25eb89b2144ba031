//! Is a request the same as one before, byte for byte, and answered before anybody parses it?
//!
//! [`SameBytes`] stands between a connection of HTTP/1.1 and hyper. When hyper asks for bytes and [provably](super::between_messages)
//! holds nothing itself, the bytes that came are looked at: if they are exactly one request that is [known](super::known_bytes), and
//! its answer may be given again, the answer is written here, and hyper never hears of the request. All other bytes go to hyper as
//! they came.
//!
//! * hyper closes a connection on which no head comes for `head_time_max`, and does not see what is answered here. So a request goes
//!   to hyper from time to time ([`HEAD_TIME_PART`]), and its clock begins anew. A connection that falls idle is closed after
//!   `head_time_max`, or up to a quarter of it sooner.
//! * An answer that the caller does not take at once is sent before anything else is read or written, under the same limits as
//!   every answer ([`TimedWrites`](crate::slow_readers::TimedWrites) stands below), and under one more: hyper's clock for the next head goes on
//!   meanwhile. Until then its request is under way: a stop waits for it.
//! * After a stop hyper closes an idle connection, and asks for no more bytes. So nothing is answered here any more.
//! * A half-closed connection: the request is answered, and hyper sees the end.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::between_messages::Stand;
use super::under_way::{UnderWay, UnderWayCount};

/// For how much of `head_time_max` after hyper has begun to wait for a head requests are answered here. The next one goes to hyper.
const HEAD_TIME_PART: u32 = 4;

/// How many requests are answered before other connections of the thread have their turn.
const ANSWERS_PER_TURN_MAX: usize = 16;

/// Whoever knows requests by their bytes.
pub(super) trait AnswersBytes {
    /// What is held until an answer is sent.
    type Held: Unpin;

    /// Whether anything is ever answered.
    fn is_on(&self) -> bool;

    /// Answers a request by its bytes alone, if they are known, the answer may be given now, and it is not yet this late.
    fn answer(&self, bytes: &[u8], until: Instant) -> ByBytes<Self::Held>;

    /// hyper is given a request with these bytes, which came before, and nothing else until it was answered.
    fn given(&self, bytes: Bytes);
}

/// What became of some bytes.
pub(super) enum ByBytes<H> {
    /// This is the answer to the request that they are.
    Answered(Vec<u8>, H),
    /// They came before, and have no answer here.
    Repeated,
    /// Nothing is known of them, or nobody may answer them here.
    New,
}

/// A connection whose requests are answered here, if they are known.
pub(super) struct SameBytes<A: AnswersBytes, T> {
    io: T,
    answers: A,
    under_way: UnderWayCount,
    stand: Stand,
    /// Until when requests are answered here, if hyper is not given one before.
    until: Instant,
    wait_max: Duration,
    /// The answer that is on its way out.
    outgoing: Option<Outgoing<A::Held>>,
}

/// An answer on its way out.
struct Outgoing<H> {
    rest: Bytes,
    _held: H,
    _one: Option<UnderWay>,
}

impl<A: AnswersBytes, T: AsyncRead + AsyncWrite + Unpin> SameBytes<A, T> {
    /// A connection of HTTP/1.1 before its first byte, whose requests are counted while they are under way.
    pub(super) fn new(
        io: T,
        answers: A,
        under_way: UnderWayCount,
        head_time_max: Duration,
    ) -> Self {
        let stand = if answers.is_on() { Stand::Between } else { Stand::Unproven };
        let wait_max = head_time_max / HEAD_TIME_PART;
        let until = end_of(wait_max);
        Self { io, answers, under_way, stand, until, wait_max, outgoing: None }
    }

    /// hyper asks for bytes.
    fn asked(&mut self) {
        if self.stand == Stand::Flushed {
            // Its clock begins right after this, or has begun just now.
            self.until = end_of(self.wait_max);
        }
        self.stand = self.stand.asked();
    }

    /// Answers a request, or takes note of what hyper is given. Says whether it was answered.
    fn answer(&mut self, bytes: &[u8]) -> bool {
        let by_bytes = self.answers.answer(bytes, self.until);
        if let ByBytes::Answered(answer, held) = by_bytes {
            let one = self.under_way.one();
            self.outgoing = Some(Outgoing { rest: answer.into(), _held: held, _one: one });
            return true;
        }
        self.stand = self.stand.given(bytes);
        if matches!(by_bytes, ByBytes::Repeated) && self.stand == Stand::Given {
            self.answers.given(Bytes::copy_from_slice(bytes));
        }
        false
    }

    /// Sends what is on its way out, before hyper sends anything. hyper was told to wait for bytes meanwhile, and nobody has looked for
    /// any: so it is to ask again.
    fn poll_outgoing_first(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.outgoing.is_some() {
            ready!(self.poll_outgoing(context))?;
            context.waker().wake_by_ref();
        }
        Poll::Ready(Ok(()))
    }

    /// Sends what is on its way out. Nothing else may be read or written before that.
    fn poll_outgoing(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(outgoing) = &mut self.outgoing else { return Poll::Ready(Ok(())) };
        let io = Pin::new(&mut self.io);
        let sent = ready!(poll_send(io, context, &mut outgoing.rest));
        self.outgoing = None;
        Poll::Ready(sent)
    }
}

/// When a time ends that begins now. One that ends after all time is over at once.
fn end_of(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or(now)
}

/// Writes bytes to their end, and flushes.
fn poll_send<T: AsyncWrite>(
    mut io: Pin<&mut T>,
    context: &mut Context<'_>,
    rest: &mut Bytes,
) -> Poll<io::Result<()>> {
    while !rest.is_empty() {
        let count = ready!(io.as_mut().poll_write(context, rest))?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        bytes::Buf::advance(rest, count);
    }
    io.poll_flush(context)
}

impl<A: AnswersBytes + Unpin, T: AsyncRead + AsyncWrite + Unpin> AsyncRead for SameBytes<A, T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.asked();
        for _ in 0..ANSWERS_PER_TURN_MAX {
            ready!(this.poll_outgoing(context))?;
            let before = into.filled().len();
            ready!(Pin::new(&mut this.io).poll_read(context, into))?;
            let bytes = into.filled().get(before..).unwrap_or_default();
            match this.stand {
                Stand::Unproven => return Poll::Ready(Ok(())),
                Stand::Between if !bytes.is_empty() => {
                    if !this.answer(bytes) {
                        return Poll::Ready(Ok(()));
                    }
                    // hyper is given nothing of it.
                    into.set_filled(before);
                }
                Stand::Between | Stand::Lacking(_) | Stand::Given | Stand::Flushed => {
                    this.stand = this.stand.given(bytes);
                    return Poll::Ready(Ok(()));
                }
            }
        }
        ready!(this.poll_outgoing(context))?;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<A: AnswersBytes + Unpin, T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for SameBytes<A, T> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_outgoing_first(context))?;
        this.stand = this.stand.wrote();
        Pin::new(&mut this.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_outgoing_first(context))?;
        this.stand = this.stand.wrote();
        Pin::new(&mut this.io).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_outgoing_first(context))?;
        ready!(Pin::new(&mut this.io).poll_flush(context))?;
        this.stand = this.stand.flushed(this.under_way.is_none());
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_outgoing_first(context))?;
        Pin::new(&mut this.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use http_body_util::{BodyExt, Full};
    use hyper::body::{Body, Frame, Incoming, SizeHint};
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioIo, TokioTimer};
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Knows all requests to `/known`, and the answer that the service would give.
    #[derive(Clone, Default)]
    struct Known {
        answered: Arc<AtomicUsize>,
        given: Arc<Mutex<Vec<Bytes>>>,
        is_off: bool,
    }

    impl AnswersBytes for Known {
        type Held = ();

        fn is_on(&self) -> bool {
            !self.is_off
        }

        fn answer(&self, bytes: &[u8], until: Instant) -> ByBytes<()> {
            let known = (0..=9).find(|number| bytes == known(*number));
            match known {
                Some(_) if Instant::now() >= until => ByBytes::New,
                Some(number) => {
                    self.answered.fetch_add(1, Ordering::Relaxed);
                    ByBytes::Answered(answer(&format!("/known/{number}"), b"body"), ())
                }
                None => ByBytes::Repeated,
            }
        }

        fn given(&self, bytes: Bytes) {
            self.given.lock().unwrap().push(bytes);
        }
    }

    /// An answer whose request is under way until hyper drops it.
    struct Told {
        body: Full<Bytes>,
        hides_length: bool,
        _one: UnderWay,
    }

    impl Body for Told {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Pin::new(&mut self.body).poll_frame(context)
        }

        fn size_hint(&self) -> SizeHint {
            if self.hides_length { SizeHint::default() } else { self.body.size_hint() }
        }
    }

    fn known(number: u8) -> Vec<u8> {
        format!("POST /known/{number} HTTP/1.1\r\ncontent-length: 4\r\n\r\nbody").into_bytes()
    }

    fn other(number: u8) -> Vec<u8> {
        format!("POST /other/{number} HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc").into_bytes()
    }

    fn answer(path: &str, body: &[u8]) -> Vec<u8> {
        let body = [path.as_bytes(), b" ", body].concat();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        [head.into_bytes(), body].concat()
    }

    /// What a caller reads who writes these pieces, one after the other, over a pipe with this much room, and closes its sending side.
    fn play(pieces: &[Vec<u8>], room: usize, known: &Known) -> Vec<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (caller, io) = tokio::io::duplex(room);
            let under_way = UnderWay::default();
            let count = under_way.count();
            let _of_the_connection = under_way.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let one = under_way.clone();
                async move {
                    let path = request.uri().path().to_owned();
                    let is_early = path == "/early";
                    let body = if is_early {
                        Bytes::new()
                    } else {
                        request.collect().await.unwrap().to_bytes()
                    };
                    let answer = [path.as_bytes(), b" ", &body].concat();
                    let hides_length = path.starts_with("/c");
                    let body = Told { body: Full::from(answer), hides_length, _one: one };
                    Ok::<_, Infallible>(Response::new(body))
                }
            });
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder.timer(TokioTimer::new()).half_close(true).auto_date_header(false);
            let serving = if known.is_off {
                tokio::spawn(builder.serve_connection(TokioIo::new(io), service))
            } else {
                let io = SameBytes::new(io, known.clone(), count, Duration::from_secs(60));
                tokio::spawn(builder.serve_connection(TokioIo::new(io), service))
            };
            let (mut reading, mut writing) = tokio::io::split(caller);
            let written = pieces.to_vec();
            let writer = tokio::spawn(async move {
                for piece in written {
                    if writing.write_all(&piece).await.is_err() {
                        return;
                    }
                    // Whoever reads has read it before the next one comes, if there is room for an answer.
                    for _ in 0..8 {
                        tokio::task::yield_now().await;
                    }
                }
                let _ = writing.shutdown().await;
            });
            let mut seen = Vec::new();
            // The clock goes on only when nobody has anything to do.
            let ended =
                tokio::time::timeout(Duration::from_secs(3_600), reading.read_to_end(&mut seen));
            assert!(ended.await.is_ok(), "nobody does anything: {pieces:?}");
            writer.await.unwrap();
            let _ = serving.await;
            seen
        })
    }

    fn pieces_of(stream: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (stream.len() + 1)).collect();
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for cut in cuts.into_iter().chain([stream.len()]) {
            pieces.push(stream[from..cut].to_vec());
            from = cut;
        }
        pieces
    }

    /// One of the messages that callers send.
    fn message(kind: u8, number: u8) -> Vec<u8> {
        let text = |text: String| text.into_bytes();
        match kind {
            0..=3 => known(number),
            4 => other(number),
            5 => text(format!("GET /get/{number} HTTP/1.1\r\n\r\n")),
            6 => text(format!(
                "POST /c/{number} HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
            )),
            7 => text(format!("GET /last/{number} HTTP/1.1\r\nconnection: close\r\n\r\n")),
            8 => text(format!("POST /lf/{number} HTTP/1.1\ncontent-length: 2\n\nab")),
            9 => text("\r\n".to_owned()),
            10 => text(format!("BROKEN\u{1} /{number} HTTP/1.1\r\n\r\n")),
            _ => text(format!("GET /old/{number} HTTP/1.0\r\n\r\n")),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

        /// Whoever writes whatever, in whichever pieces, reads what hyper alone would have answered.
        #[test]
        fn a_caller_reads_what_hyper_alone_would_answer(
            messages in proptest::collection::vec((0_u8..12, 0_u8..10), 1..9),
            cuts in proptest::collection::vec(0_usize..600, 0..6),
            is_cut_between in any::<bool>(),
            room in prop_oneof![Just(1_usize), 2_usize..70, Just(4_096)],
        ) {
            let messages: Vec<_> = messages.iter().map(|(kind, number)| message(*kind, *number)).collect();
            let pieces =
                if is_cut_between { messages } else { pieces_of(&messages.concat(), &cuts) };
            let off = Known { is_off: true, ..Known::default() };
            let alone = play(&pieces, room, &off);
            prop_assert_eq!(off.answered.load(Ordering::Relaxed), 0);
            let seen = play(&pieces, room, &Known::default());
            prop_assert_eq!(String::from_utf8_lossy(&seen), String::from_utf8_lossy(&alone));
        }
    }

    #[test]
    fn known_requests_are_answered_between_others() {
        let messages = [known(1), other(1), known(2), known(2), message(5, 1), known(3)];
        let expected = [
            answer("/known/1", b"body"),
            answer("/other/1", b"abc"),
            answer("/known/2", b"body"),
            answer("/known/2", b"body"),
            answer("/get/1", b""),
            answer("/known/3", b"body"),
        ];
        for room in [1, 30, 4_096] {
            let known = Known::default();
            assert_eq!(play(&messages, room, &known), expected.concat(), "{room}");
            if room == 4_096 {
                assert_eq!(known.answered.load(Ordering::Relaxed), 4);
                let given = known.given.lock().unwrap();
                assert_eq!(*given, [other(1), message(5, 1)], "hyper is given these alone");
            }
        }
    }

    /// hyper sends such an answer before it reads the rest of the request, which it has by then.
    #[test]
    fn an_answer_before_the_body_was_read_is_no_exception() {
        let early = b"POST /early HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc".to_vec();
        let messages = [known(1), early, known(2), other(1), known(3)];
        let seen = play(&messages, 4_096, &Known::default());
        let alone = play(&messages, 4_096, &Known { is_off: true, ..Known::default() });
        assert_eq!(String::from_utf8_lossy(&seen), String::from_utf8_lossy(&alone));
        assert!(seen.ends_with(&answer("/known/3", b"body")));
    }

    #[test]
    fn after_what_is_odd_nothing_is_answered_here() {
        for odd in [6, 8] {
            let known = Known::default();
            let messages = [message(odd, 1), super::tests::known(1)];
            let seen = play(&messages, 4_096, &known);
            assert!(seen.ends_with(b"/known/1 body"), "{}", String::from_utf8_lossy(&seen));
            assert_eq!(known.answered.load(Ordering::Relaxed), 0);
        }
        let two = [[known(1), known(2)].concat(), known(3)];
        let known = Known::default();
        let seen = play(&two, 4_096, &known);
        let expected = [1, 2, 3].map(|number| answer(&format!("/known/{number}"), b"body"));
        assert_eq!(seen, expected.concat());
        assert_eq!(known.answered.load(Ordering::Relaxed), 0);
    }
}
