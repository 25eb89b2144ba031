//! What is the caller told while its request runs?
//!
//! A handler runs to its end. Meanwhile its caller may have to be told something: that the handler
//! has asked to [release](Attempt::release_caller) it, or that the time of the attempt is used up. And
//! a shutdown that has waited for long enough gives the rest up.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use http_body::Body as HttpBody;
use retrysafe_core::execution::ASK_AGAIN;
use retrysafe_core::problem::Refusal;
use tokio::sync::futures::Notified;
use tokio::time::{Sleep, sleep_until};

use super::attempt::Attempt;
use super::context::RequestContext;
use super::response_future::Answered;
use super::run_to_completion::AnswerSlot;
use super::shared::LateAnswer;

/// Whoever watches over an execution while its caller waits.
pub(super) struct Attendance<'a, S, R: HttpBody, E> {
    context: &'a RequestContext<S>,
    attempt: &'a Attempt,
    answer: &'a AnswerSlot<Answered<R, E>>,
    time_is_up: Option<Pin<Box<Sleep>>>,
    late: Option<LateAnswer>,
}

/// What comes while a handler runs.
enum Came<T> {
    Done(T),
    TimeIsUp,
    Asked,
}

impl<'a, S, R: HttpBody, E> Attendance<'a, S, R, E> {
    pub(super) fn new(
        context: &'a RequestContext<S>,
        attempt: &'a Attempt,
        answer: &'a AnswerSlot<Answered<R, E>>,
    ) -> Self {
        let time_is_up = Some(Box::pin(sleep_until(attempt.deadline())));
        Self { context, attempt, answer, time_is_up, late: None }
    }

    /// The right to go on after the caller was told to ask again, where that was needed.
    pub(super) fn into_late_answer(self) -> Option<LateAnswer> {
        self.late
    }

    /// Whether the caller still waits for this execution's own answer.
    pub(super) fn is_awaited(&self) -> bool {
        !self.answer.is_given()
    }

    /// Lets some work of the execution run to its end. `None` if it is given up.
    pub(super) async fn attend<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        loop {
            let mut asked = pin!(self.attempt.asked());
            match self.next(work.as_mut(), asked.as_mut()).await {
                Came::Done(done) => return Some(done),
                // The handler is not killed, and its late settle still counts.
                Came::TimeIsUp => {
                    let timed_out = true;
                    self.tell(&Refusal::AnswerLost { timed_out, retry_after: ASK_AGAIN });
                }
                Came::Asked if self.attempt.is_given_up() => return None,
                Came::Asked if self.is_awaited() => {
                    self.late = Some(self.context.shared.late_answers.one_more()?);
                    let retry_after =
                        self.context.pace(self.attempt.id(), self.context.policy().lease);
                    self.tell(&Refusal::AnswerLate { retry_after });
                }
                Came::Asked => {}
            }
        }
    }

    fn tell(&self, refusal: &Refusal) {
        if self.is_awaited() {
            self.answer.give(Ok(self.context.refuse(refusal)));
        }
    }

    /// Waits for what comes first. The work counts before everything else.
    async fn next<T>(
        &mut self,
        mut work: Pin<&mut impl Future<Output = T>>,
        mut asked: Pin<&mut Notified<'_>>,
    ) -> Came<T> {
        std::future::poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Came::Done(done));
            }
            if asked.as_mut().poll(context).is_ready() {
                return Poll::Ready(Came::Asked);
            }
            self.poll_time(context).map(|()| Came::TimeIsUp)
        })
        .await
    }

    fn poll_time(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(time_is_up) = &mut self.time_is_up else { return Poll::Pending };
        let polled = time_is_up.as_mut().poll(context);
        if polled.is_ready() {
            self.time_is_up = None;
        }
        polled
    }
}

/// Runs work to its end, or to its panic. What it held is dropped within the same fence, so a panic in
/// a destructor is caught as well.
pub(crate) async fn catch_panic<T>(work: impl Future<Output = T>) -> std::thread::Result<T> {
    let mut work = pin!(work);
    std::future::poll_fn(|context| {
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        polled.map_or_else(|panic| Poll::Ready(Err(panic)), |polled| polled.map(Ok))
    })
    .await
}
