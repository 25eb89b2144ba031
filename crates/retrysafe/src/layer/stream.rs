//! How is an answer passed on that cannot be kept?
//!
//! Its head is made durable first. Then the body goes to the caller piece by piece, however long that
//! takes, and the lease is renewed while bytes flow. When the body is whole, that is made durable before
//! the caller sees its end. A caller that leaves does not end the reading: the rest is read until the
//! attempt's time is used up, because only its end says whether the request was executed.

use std::any::Any;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap};
use http::response;
use http_body::{Body as HttpBody, Frame};
use retrysafe_core::engine::{Lease, Renewed};
use retrysafe_core::execution::{KeepingHead, Settling, Streaming, Told};
use retrysafe_core::policy::End;
use retrysafe_core::store::Store;
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use super::attempt::Attempt;
use super::attend::catch_panic;
use super::body::{Body, Piece};
use super::context::RequestContext;
use super::response_future::Answered;
use super::run_to_completion::AnswerSlot;
use super::running::{Flow, Run};
use super::settle::{settle_again, settle_once};

/// How many pieces may be on their way to the caller. More would only fill memory.
const PIECES_MAX: usize = 1;

/// Makes an answer's head durable, and then passes the answer on to its end.
#[expect(clippy::too_many_arguments, reason = "a stream is everything that an execution was")]
pub(super) async fn pass_on<S, R, E>(
    context: &Arc<RequestContext<S>>,
    attempt: &Attempt,
    keeping: KeepingHead,
    end: End,
    parts: response::Parts,
    body: Body<R>,
    run: Run,
    answer: AnswerSlot<Answered<R, E>>,
) where
    S: Store,
    R: HttpBody<Data = Bytes> + 'static,
    R::Error: Send,
{
    let announced = body.size_hint().exact().or_else(|| announced_length(&parts.headers));
    let (streaming, told) = keep_head(context, keeping, end).await;
    let flow = context.shared.running.starts_to_flow(streaming.lease().renewal());
    let (to_caller, pieces) = mpsc::channel(PIECES_MAX);
    let passed_on = Body::streamed(pieces, body.size_hint());
    answer.give(Ok(match told {
        Told::Answer(durable) => context.answer(parts, passed_on, &durable),
        told @ (Told::Refusal(_) | Told::Replay(..)) => {
            // Nobody hears it: a piece that is sent must not wait for a reader.
            drop(passed_on);
            context.tell(attempt.id(), told)
        }
    }));
    drop(answer);
    let mut body = Box::pin(body);
    let ended = pump(attempt, body.as_mut(), announced, &to_caller, &flow).await;
    let is_whole = matches!(ended, Ended::Whole(_));
    let (mut lease, settling) = match attempt.take_said() {
        Some(said) => streaming.said(context.policy(), context.now(), said),
        None => streaming.ended(context.policy(), context.now(), is_whole),
    };
    if let Some(ttl) = attempt.ttl() {
        lease.set_ttl(ttl);
    }
    let send_last = async move {
        let last = match ended {
            Ended::Whole(LastPieces { bytes, trailers }) => {
                for frame in [bytes, trailers].into_iter().flatten() {
                    // A caller that has left needs none of it.
                    let _ = to_caller.send(Piece::Frame(frame)).await;
                }
                Piece::End
            }
            Ended::Broken(error) => Piece::Broken(error),
            Ended::Panicked(panic) => Piece::Panicked(panic),
            // The caller sees that nothing more comes.
            Ended::GivenUp => return drop(to_caller),
        };
        let _ = to_caller.send(last).await;
    };
    settle_end(context, attempt, lease, settling, run, send_last).await;
}

/// Writes the head into the record, again if the store fails. Says what the caller is told.
async fn keep_head<S: Store>(
    context: &RequestContext<S>,
    mut keeping: KeepingHead,
    end: End,
) -> (Streaming, Told) {
    let policy = context.policy();
    loop {
        let renewal = keeping.lease().renewal();
        // A stream may last longer than any other execution: while bytes flow, its owner is alive.
        let lease_max = Duration::MAX;
        let kept =
            context.shared.engine.keep_head(renewal, keeping.head(), policy.lease, lease_max);
        match kept.await {
            Ok(Renewed::For(_)) => return keeping.kept(policy, end),
            Ok(Renewed::Lost) => return keeping.lost(policy, end),
            Err(_) => match keeping.failed(context.now()) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return keeping.not_durable(policy, end),
            },
        }
    }
}

/// How a body ended.
enum Ended<E> {
    /// It is whole, and this is what shows its end.
    Whole(LastPieces),
    /// It broke off.
    Broken(E),
    /// The handler's body panicked.
    Panicked(Box<dyn Any + Send>),
    /// Nobody wants the rest.
    GivenUp,
}

/// What a caller takes for the end of a body.
#[derive(Default)]
struct LastPieces {
    /// The last bytes, of a body that is known to end with them.
    bytes: Option<Frame<Bytes>>,
    trailers: Option<Frame<Bytes>>,
}

/// How long a body is going to be, where only the head of the answer says so.
fn announced_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reads a body to its end, and passes on all of it but what shows its end.
async fn pump<R: HttpBody<Data = Bytes>>(
    attempt: &Attempt,
    mut body: Pin<&mut Body<R>>,
    announced: Option<u64>,
    to_caller: &mpsc::Sender<Piece<R::Error>>,
    flow: &Flow,
) -> Ended<R::Error> {
    let mut given_up = pin!(given_up(attempt, to_caller));
    let mut pumping = pin!(catch_panic(async {
        let mut left = announced;
        let mut last = LastPieces::default();
        loop {
            let frame = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await;
            flow.moved();
            let frame = match frame {
                None => return Ended::Whole(last),
                Some(Err(error)) => return Ended::Broken(error),
                Some(Ok(frame)) => frame,
            };
            let Some(bytes) = frame.data_ref() else {
                last.trailers = Some(frame);
                return Ended::Whole(last);
            };
            left = left.map(|left| left.saturating_sub(bytes.len() as u64));
            if left == Some(0) || body.is_end_stream() {
                // Whoever knows the length sees the end in these. What follows them belongs to no answer.
                last.bytes.get_or_insert(frame);
                if body.is_end_stream() {
                    return Ended::Whole(last);
                }
            } else {
                // If the caller has left, the rest is read all the same.
                let _ = to_caller.send(Piece::Frame(frame)).await;
            }
        }
    }));
    std::future::poll_fn(|context| {
        if let Poll::Ready(ended) = pumping.as_mut().poll(context) {
            return Poll::Ready(ended.unwrap_or_else(Ended::Panicked));
        }
        given_up.as_mut().poll(context).map(|()| Ended::GivenUp)
    })
    .await
}

/// Waits until nobody wants the rest: a shutdown has waited for long enough, or the caller has left and
/// the time of the attempt is used up.
async fn given_up<E>(attempt: &Attempt, to_caller: &mpsc::Sender<Piece<E>>) {
    let mut asked_to_stop = pin!(async {
        while !attempt.is_given_up() {
            attempt.asked().await;
        }
    });
    let mut out_of_time = pin!(async {
        to_caller.closed().await;
        sleep_until(attempt.deadline()).await;
    });
    std::future::poll_fn(|context| {
        if asked_to_stop.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        out_of_time.as_mut().poll(context)
    })
    .await;
}

/// Makes the end of a stream durable, and then lets the caller see it. Where the store is away the
/// caller has all but the end by now, and gets that too after a while; the settle is tried on. Neither
/// that nor a shutdown waits for a caller that does not read.
async fn settle_end<S: Store>(
    context: &Arc<RequestContext<S>>,
    attempt: &Attempt,
    lease: Lease,
    settling: Settling,
    run: Run,
    send_last: impl Future<Output = ()> + Send + 'static,
) {
    let key = attempt.key();
    if let Err(lease) = settle_once(context, key, lease, &settling).await {
        let tell_at = context.moment(settling.tell_at());
        let mut again = pin!(settle_again(context, key, lease, settling));
        if tokio::time::timeout_at(tell_at, again.as_mut()).await.is_err() {
            context.report.not_durable(key);
            tokio::spawn(send_last);
            again.await;
            return;
        }
    }
    drop(run);
    tokio::spawn(send_last);
}
