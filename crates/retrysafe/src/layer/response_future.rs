//! What does a caller of the service wait for?

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Response;
use http_body::Body as HttpBody;

use super::body::Body;
use super::run_to_completion::RunToCompletion;

/// The answer to a guarded request.
pub(super) type Answered<R, E> = Result<Response<Body<R>>, E>;

pin_project_lite::pin_project! {
    /// The answer of [`Idempotency`](super::Idempotency), to come.
    pub struct ResponseFuture<F, R, E>
    where
        R: HttpBody,
        R: Send,
        R: 'static,
        R::Error: Send,
        E: Send,
        E: 'static,
    {
        #[pin]
        kind: Kind<F, R, E>,
    }
}

pin_project_lite::pin_project! {
    #[project = KindNow]
    enum Kind<F, R, E>
    where
        R: HttpBody,
        R: Send,
        R: 'static,
        R::Error: Send,
        E: Send,
        E: 'static,
    {
        Passed { #[pin] future: F },
        Guarded { future: RunToCompletion<Answered<R, E>> },
        Ready { answer: Option<Answered<R, E>> },
    }
}

impl<F, R, E> ResponseFuture<F, R, E>
where
    R: HttpBody + Send + 'static,
    R::Error: Send,
    E: Send + 'static,
{
    pub(super) fn passed(future: F) -> Self {
        Self { kind: Kind::Passed { future } }
    }

    /// An answer that is there already.
    pub(super) fn ready(answer: Answered<R, E>) -> Self {
        Self { kind: Kind::Ready { answer: Some(answer) } }
    }

    pub(super) fn guarded(future: RunToCompletion<Answered<R, E>>) -> Self {
        Self { kind: Kind::Guarded { future } }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: HttpBody + Send + 'static,
    R::Error: Send,
    E: Send + 'static,
{
    type Output = Answered<R, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            KindNow::Guarded { future } => Pin::new(future).poll(context),
            // It is given once; whoever asks a second time waits in vain, as after any future's end.
            KindNow::Ready { answer } => answer.take().map_or(Poll::Pending, Poll::Ready),
            KindNow::Passed { future } => {
                let response = ready!(future.poll(context));
                Poll::Ready(response.map(|response| response.map(Body::passed)))
            }
        }
    }
}

impl<F, R, E> fmt::Debug for ResponseFuture<F, R, E>
where
    R: HttpBody + Send + 'static,
    R::Error: Send,
    E: Send + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
