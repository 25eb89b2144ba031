//! Who finishes a flow whose owner died and whose caller never came back?
//!
//! [`Flows::complete`], one round at a time; [`Upkeep::complete`](crate::upkeep::Upkeep::complete) calls it again and again. A round looks for
//! flows that may go on and that nobody runs, begins each as a retry of its caller would, under a new fence, and runs it
//! to its end. Several processes may do so at once: of two that begin one record one wins.
//!
//! Callers come first. A flow is left alone for a while after its lease has ended or its phase has failed, and for
//! longer after each attempt: a phase that always fails costs one try an hour.

use std::sync::Arc;
use std::time::Duration;

use retrysafe_core::engine::Ask;
use retrysafe_core::event;
use retrysafe_core::record::{Record, Standing, State};
use retrysafe_core::store::{Filter, Query, Stamped, Store as _, StoreError};
use retrysafe_core::time::Time;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

use super::end::FlowEnd;
use super::flows::Flows;
use super::in_flight::BeginInFlight;
use super::runner::RunEnd;

/// How long a flow is left to its caller after its first attempt; twice as long after each further one.
const PATIENCE_MIN: Duration = Duration::from_secs(10);

/// The longest that a flow is left alone.
const PATIENCE_MAX: Duration = Duration::from_secs(60 * 60);

/// How many flows one round goes on with; the next round takes the rest.
const RUNS_MAX: usize = 1_000;

/// How many of them run at once: each may hold a connection of the pool.
const RUNS_AT_ONCE: usize = 4;

/// How many records one page of a scan holds.
const PAGE: usize = 256;

/// What one round of completing did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Completed {
    /// Flows that it brought to their end.
    pub finished: usize,
    /// Flows that it went on with and that are not at their end: a phase failed, or a call is unknown.
    pub unfinished: usize,
    /// Flows that could go on, by a version that is not registered here.
    pub held: usize,
    /// Flows that could not be begun, and records that could not be read.
    pub failed: usize,
}

impl Flows {
    /// Goes on with flows that nobody runs, and that their callers have left.
    ///
    /// # Errors
    ///
    /// The store's, if it cannot even be read.
    pub async fn complete(&self) -> Result<Completed, StoreError> {
        let mut done = Completed::default();
        let mut under_way = JoinSet::new();
        let mut begun = 0;
        let ended_leases = Filter { lease_over: true, ..Filter::default() };
        let failed = Filter { standing: Some(Standing::FailedRetryable), ..Filter::default() };
        let mut unread = None;
        'reading: for filter in [ended_leases, failed] {
            let mut query = Query { filter, after: None, limit: PAGE };
            loop {
                let page = self.runner.engine.store().scan(query.clone()).await;
                let Stamped { now, value: page } = match page {
                    Ok(page) => page,
                    // What has begun goes on: to drop it now could leave a call without its answer.
                    Err(error) => {
                        unread = Some(error);
                        break 'reading;
                    }
                };
                done.failed += page.damaged.len();
                for record in page.records {
                    match self.turn(&record, now) {
                        Turn::NotOurs => {}
                        Turn::Held => done.held += 1,
                        Turn::Due if begun == RUNS_MAX => {}
                        Turn::Due => {
                            while under_way.len() >= RUNS_AT_ONCE {
                                self.wait_for_one(&mut under_way, &mut done).await;
                            }
                            let Some(permit) = self.may_finish() else { continue };
                            begun += 1;
                            let flows = self.clone();
                            under_way.spawn(async move {
                                let _permit = permit;
                                flows.finish(&record).await
                            });
                        }
                    }
                }
                match page.next {
                    Some(cursor) => query.after = Some(cursor),
                    None => break,
                }
            }
        }
        while !under_way.is_empty() {
            self.wait_for_one(&mut under_way, &mut done).await;
        }
        if let Some(error) = unread {
            return Err(error);
        }
        metrics::gauge!(event::FLOWS_HELD.name).set(done.held as f64);
        Ok(done)
    }

    /// Waits until one of those under way has ended. Where all of them take longer than a lease, the round goes on without
    /// them: they come to their own end, and hold up nobody else.
    async fn wait_for_one(&self, under_way: &mut JoinSet<RunEnd>, done: &mut Completed) {
        match tokio::time::timeout(self.runner.policy.lease, under_way.join_next()).await {
            Ok(ended) => done.note(ended),
            Err(_) => {
                done.unfinished += under_way.len();
                under_way.detach_all();
            }
        }
    }

    /// The right to go on with one more flow; none if too many take too long.
    fn may_finish(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.finishing).try_acquire_owned().ok()
    }

    fn turn(&self, record: &Record, now: Time) -> Turn {
        let Some(flow) = record.flow.as_deref() else { return Turn::NotOurs };
        let left_since = match record.state {
            State::InProgress { lease_until, .. } if record.resume_rule().permits(now) => {
                lease_until
            }
            // What has committed nothing is as good as never begun, and expires.
            State::FailedRetryable { settled_at, .. } if record.holds_work() => settled_at,
            State::InProgress { .. }
            | State::FailedRetryable { .. }
            | State::Completed { .. }
            | State::Unknown { .. } => return Turn::NotOurs,
        };
        if !self.codes.contains_key(flow.flow()) {
            return Turn::Held;
        }
        let doublings = record.attempts.saturating_sub(1).min(16);
        let patience = PATIENCE_MIN.saturating_mul(1 << doublings).min(PATIENCE_MAX);
        if now.since(left_since) >= patience { Turn::Due } else { Turn::NotOurs }
    }

    /// Goes on with one flow, as a retry of its caller would.
    async fn finish(&self, record: &Record) -> Result<FlowEnd, StoreError> {
        let ask = Ask {
            scope: &record.scope,
            mark: record.mark,
            key: record.key,
            prints: &record.fingerprint,
            about: &record.about,
            ttl: record.ttl,
            lease: self.runner.policy.lease,
            owner: self.next_owner(),
            request_id: None,
        };
        let in_flight = BeginInFlight::new(&self.runner, ask.id(), ask.owner);
        let held = match self.begin(&ask, None).await {
            Ok(Ok(held)) => held,
            Ok(Err(end)) => {
                in_flight.stands();
                return Ok(end);
            }
            Err(error) => {
                if !error.may_have_applied() {
                    in_flight.stands();
                }
                return Err(error);
            }
        };
        let code = held.lease.flow().and_then(|progress| self.codes.get(progress.flow()));
        // Without one it was finished and forgotten since the page was read, and this begin made a new record, which
        // is taken back.
        let Some(code) = code else { return Ok(FlowEnd::Mismatch) };
        in_flight.stands();
        let _renewing = self.renew(&held);
        self.runner.resume(code, held).await
    }
}

/// Whether a round goes on with a record.
enum Turn {
    Due,
    Held,
    /// It has no flow, is not to be gone on with, or is left to its caller for now.
    NotOurs,
}

impl Completed {
    fn note(&mut self, ended: Option<Result<Result<FlowEnd, StoreError>, tokio::task::JoinError>>) {
        match ended {
            None => {}
            Some(Ok(Ok(end))) if end.is_over() => self.finished += 1,
            Some(Ok(Ok(
                FlowEnd::PhaseFailed { .. }
                | FlowEnd::NotSent { .. }
                | FlowEnd::CallToRepeat { .. }
                | FlowEnd::Unknown,
            ))) => self.unfinished += 1,
            // Somebody else was first.
            Some(Ok(Ok(
                FlowEnd::Answered(_)
                | FlowEnd::AnsweredOnce(_)
                | FlowEnd::AnswerNotKept { .. }
                | FlowEnd::InProgress(_)
                | FlowEnd::Held(_)
                | FlowEnd::Mismatch
                | FlowEnd::CredentialChanged,
            ))) => {}
            Some(Ok(Err(error))) => {
                tracing::warn!(target: "retrysafe", %error, "flow_not_finished");
                self.failed += 1;
            }
            Some(Err(error)) => {
                tracing::warn!(target: "retrysafe", %error, "flow_not_finished");
                self.failed += 1;
            }
        }
    }
}
