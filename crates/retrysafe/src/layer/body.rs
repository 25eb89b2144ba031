//! What carries a body that was passed on, kept whole, or begun and not ended?
//!
//! A request that the layer does not guard keeps its own body. A guarded one was read whole before
//! anything was begun. An answer too large to keep is handed on as what was read of it, followed by
//! the rest.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, Version};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::arriving::BodyEnd;
use super::memory::Hold;
use crate::wait_a_turn::wait_a_turn;

/// How much room a body of several pieces has at first.
const ROOM_BYTES_MIN: usize = 16 << 10;

pin_project_lite::pin_project! {
    /// The body of requests and responses that have been through the layer. It is read as any other
    /// body is:
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http_body_util::{BodyExt, Full};
    /// use retrysafe::layer::Body;
    ///
    /// async fn read(body: Body<Full<Bytes>>) -> Bytes {
    ///     body.collect().await.map(|read| read.to_bytes()).unwrap_or_default()
    /// }
    /// # let _ = read;
    /// ```
    pub struct Body<B>
    where
        B: HttpBody,
    {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project_lite::pin_project! {
    #[project = KindNow]
    enum Kind<B>
    where
        B: HttpBody,
    {
        Passed { #[pin] body: B },
        // In a box: hardly any body has trailers, and every body would carry the room for them.
        Whole { data: Bytes, trailers: Option<Box<HeaderMap>> },
        Joined { head: Bytes, rest: Option<Pin<Box<B>>>, broken: Option<B::Error> },
        Streamed { pieces: mpsc::Receiver<Piece<B::Error>>, left: SizeHint, is_cut_off: bool },
    }
}

/// A piece of a body that somebody else reads, or how the body ended.
pub(super) enum Piece<E> {
    Frame(Frame<Bytes>),
    /// The whole body was handed on.
    End,
    /// The body broke off.
    Broken(E),
    /// The handler's body panicked.
    Panicked(Box<dyn Any + Send>),
}

/// What became of reading a body.
pub(super) enum Read<B: HttpBody> {
    /// All of it, within the bounds, and what it counts as.
    Whole(Bytes, Option<HeaderMap>, Hold),
    /// It is larger than allowed. What was read stands before the rest.
    Over(Body<B>),
    /// There is no memory for more of it. What was read stands before the rest.
    NoRoom(Body<B>),
    /// It did not end in time. What was read stands before the rest.
    Late(Body<B>),
    /// It broke off. What was read stands before the error; or there is none, and it only looks whole.
    Broken(Body<B>),
}

impl<B: HttpBody> Body<B> {
    /// A body as it came.
    pub(super) fn passed(body: B) -> Self {
        Self { kind: Kind::Passed { body } }
    }

    /// A body that was read whole.
    pub(super) fn whole(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self { kind: Kind::Whole { data, trailers: trailers.map(Box::new) } }
    }

    /// A body that somebody else reads, and hands on piece by piece.
    pub(super) fn streamed(pieces: mpsc::Receiver<Piece<B::Error>>, size: SizeHint) -> Self {
        Self { kind: Kind::Streamed { pieces, left: size, is_cut_off: false } }
    }

    /// Whether nobody reads the rest of this body any more, because a shutdown has
    /// [given it up](super::Drain::give_up). It then never ends by itself: whoever sends it ends the
    /// connection, so that the part is not taken for the whole.
    pub fn is_cut_off(&self) -> bool {
        matches!(self.kind, Kind::Streamed { is_cut_off: true, .. })
    }

    /// The body as it came, if it is still that.
    #[cfg(feature = "axum")]
    pub(super) fn passed_or(self, other: impl FnOnce(Self) -> B) -> B {
        match self.kind {
            Kind::Passed { body } => body,
            kind @ (Kind::Whole { .. } | Kind::Joined { .. } | Kind::Streamed { .. }) => {
                other(Self { kind })
            }
        }
    }

    fn joined(head: Bytes, rest: Option<Pin<Box<B>>>, broken: Option<B::Error>) -> Self {
        Self { kind: Kind::Joined { head, rest, broken } }
    }
}

/// Reads a body whole, up to `bytes_max`, as far as there is memory for it, and until `deadline`. Where it is the body of a request that
/// came in a `version` of HTTP, its end alone does not make it whole; see [`BodyEnd`].
pub(super) async fn read<B>(
    body: B,
    version: Option<Version>,
    bytes_max: usize,
    deadline: Option<Instant>,
    hold: Hold,
) -> Read<B>
where
    B: HttpBody<Data = Bytes>,
{
    // A length that is known to be too much is not worth reading up to the bound.
    if body.size_hint().lower() > bytes_max as u64 {
        return Read::Over(Body::passed(body));
    }
    if body.is_end_stream() {
        return Read::Whole(Bytes::new(), None, hold);
    }
    let mut body = Box::pin(body);
    let mut held = Held { first: Bytes::new(), more: Vec::new(), hold };
    let mut trailers = None;
    loop {
        let next = frame(body.as_mut());
        let frame = match deadline {
            None => next.await,
            Some(deadline) => match tokio::time::timeout_at(deadline, next).await {
                Ok(frame) => frame,
                Err(_) => return Read::Late(Body::joined(held.kept(), Some(body), None)),
            },
        };
        match frame {
            None => {
                match version.map_or(BodyEnd::Whole, |version| BodyEnd::of(&*body, version)) {
                    BodyEnd::Whole => {}
                    BodyEnd::WholeAfterATurn => wait_a_turn().await,
                    BodyEnd::Cut => return Read::Broken(Body::joined(held.kept(), None, None)),
                }
                let (data, hold) = held.join();
                return Read::Whole(data, trailers, hold);
            }
            Some(Err(error)) => return Read::Broken(Body::joined(held.kept(), None, Some(error))),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    let has_room = held.put(data, bytes_max);
                    if held.len() > bytes_max {
                        return Read::Over(Body::joined(held.kept(), Some(body), None));
                    }
                    if !has_room {
                        return Read::NoRoom(Body::joined(held.kept(), Some(body), None));
                    }
                }
                Err(frame) => trailers = frame.into_trailers().ok(),
            },
        }
    }
}

async fn frame<B: HttpBody>(mut body: Pin<&mut B>) -> Option<Result<Frame<B::Data>, B::Error>> {
    std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await
}

/// Frames as they come in. The first is kept as it is: most bodies have no second. Further ones are
/// copied behind it, because a frame is a piece of the connection's own buffer and would hold on to
/// all of that.
struct Held {
    first: Bytes,
    more: Vec<u8>,
    hold: Hold,
}

impl Held {
    fn len(&self) -> usize {
        self.first.len() + self.more.len()
    }

    /// Takes a frame. Says whether there was memory for it.
    fn put(&mut self, data: Bytes, bytes_max: usize) -> bool {
        if self.len() == 0 {
            self.first = data;
            return self.hold.grow_to(self.first.len());
        }
        let needed = self.len() + data.len();
        let mut has_room = true;
        if needed > self.more.capacity() {
            // Twice as much each time, and no more than may come. What is reserved counts, whether
            // it is filled yet or not.
            let twice = (self.more.capacity() * 2).max(ROOM_BYTES_MIN);
            let room = twice.min(bytes_max).max(needed);
            has_room = self.hold.grow_to(room);
            self.more.reserve_exact(room - self.more.len());
        }
        self.more.extend_from_slice(&std::mem::take(&mut self.first));
        self.more.extend_from_slice(&data);
        has_room
    }

    fn join(self) -> (Bytes, Hold) {
        let data = if self.more.is_empty() { self.first } else { self.more.into() };
        (data, self.hold)
    }

    fn kept(self) -> Bytes {
        let (data, hold) = self.join();
        hold.keep(data)
    }
}

impl<B: HttpBody> fmt::Debug for Body<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.kind {
            Kind::Passed { .. } => "Body(passed)",
            Kind::Whole { .. } => "Body(whole)",
            Kind::Joined { .. } => "Body(joined)",
            Kind::Streamed { .. } => "Body(streamed)",
        })
    }
}

impl<B: HttpBody<Data = Bytes>> HttpBody for Body<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            KindNow::Passed { body } => body.poll_frame(context),
            KindNow::Whole { data, trailers } => Poll::Ready(if data.is_empty() {
                trailers.take().map(|trailers| Ok(Frame::trailers(*trailers)))
            } else {
                Some(Ok(Frame::data(std::mem::take(data))))
            }),
            KindNow::Joined { head, rest, broken } => {
                if !head.is_empty() {
                    return Poll::Ready(Some(Ok(Frame::data(std::mem::take(head)))));
                }
                let next = match rest {
                    Some(body) => ready!(body.as_mut().poll_frame(context)),
                    None => broken.take().map(Err),
                };
                if next.is_none() {
                    *rest = None;
                }
                Poll::Ready(next)
            }
            KindNow::Streamed { pieces, left, is_cut_off } => {
                match ready!(pieces.poll_recv(context)) {
                    Some(Piece::Frame(frame)) => {
                        let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                        *left = less(left, bytes);
                        Poll::Ready(Some(Ok(frame)))
                    }
                    Some(Piece::Broken(error)) => Poll::Ready(Some(Err(error))),
                    Some(Piece::Panicked(panic)) => std::panic::resume_unwind(panic),
                    Some(Piece::End) => Poll::Ready(None),
                    // It must not look like an end. Nothing more comes: the server ends the connection.
                    None => {
                        *is_cut_off = true;
                        Poll::Pending
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Passed { body } => body.is_end_stream(),
            Kind::Whole { data, trailers } => data.is_empty() && trailers.is_none(),
            Kind::Joined { head, rest, broken } => {
                head.is_empty()
                    && broken.is_none()
                    && rest.as_ref().is_none_or(|rest| rest.is_end_stream())
            }
            // Only the channel knows, and it says so when it is asked for the next piece.
            Kind::Streamed { .. } => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Passed { body } => body.size_hint(),
            Kind::Whole { data, .. } => SizeHint::with_exact(data.len() as u64),
            Kind::Joined { head, rest, .. } => {
                let head = head.len() as u64;
                let mut hint = rest.as_ref().map(|rest| rest.size_hint()).unwrap_or_default();
                if let Some(upper) = hint.upper() {
                    hint.set_upper(upper.saturating_add(head));
                }
                hint.set_lower(hint.lower().saturating_add(head));
                hint
            }
            Kind::Streamed { left, .. } => *left,
        }
    }
}

/// What is left of a body's size when so many bytes of it are gone.
fn less(size: &SizeHint, bytes: u64) -> SizeHint {
    let mut left = SizeHint::new();
    if let Some(upper) = size.upper() {
        left.set_upper(upper.saturating_sub(bytes));
    }
    left.set_lower(size.lower().saturating_sub(bytes));
    left
}
