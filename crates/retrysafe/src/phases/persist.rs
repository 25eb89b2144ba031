//! What must still be written when nobody waits for it any more?
//!
//! The store was away for longer than a caller waits, or the run was dropped. What its owner knows would be lost
//! with it: that it has begun and sent nothing, that a call was not made, what a call has answered. So it is
//! written on in the background, for as long as an attempt may last.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use retrysafe_core::engine::{Advanced, Lease, Renewal};
use retrysafe_core::execution::Withdrawing;
use retrysafe_core::machine::flows::FlowStep;
use retrysafe_core::record::{Doubt, Outcome};
use retrysafe_core::scope::Id;
use retrysafe_core::{Engine, Policy};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::stores::postgres::PostgresStore;

/// How many such writes are under way at once. In a long outage there may be more; their records become unknown, or
/// are gone on with, when their leases end. Memory stays bounded.
const WRITES_MAX: usize = 10_000;

/// What is not written yet.
#[derive(Debug)]
pub(super) enum Unwritten {
    /// A begin may have been written, and its owner has sent nothing.
    Begin { id: Id, owner: u64 },
    /// A first-sent mark may have been written, and its owner has sent nothing.
    Mark { held: Renewal, phase: u16 },
    /// The result of a call.
    CallResult { lease: Lease, step: FlowStep },
    /// The result of a call that cannot be the output of its phase.
    ResultNotKept { lease: Lease, result: Bytes },
    /// The answer of a flow that a call has ended, or the doubt about a phase that has committed alone.
    Outcome { lease: Lease, outcome: Outcome },
}

/// What became of one try.
enum Tried {
    Written,
    /// The begin is not there. It may still be on its way.
    NotFound(Unwritten),
    Failed(Unwritten),
}

/// Whoever writes in the background. Clones share their number of writes.
#[derive(Clone, Debug)]
pub(super) struct BackgroundWrites {
    engine: Engine<PostgresStore>,
    permits: Arc<Semaphore>,
}

impl BackgroundWrites {
    pub(super) fn new(engine: Engine<PostgresStore>) -> Self {
        Self { engine, permits: Arc::new(Semaphore::new(WRITES_MAX)) }
    }

    /// Writes on in the background, for as long as an attempt may last under this policy.
    pub(super) fn write_on(&self, policy: &Policy, unwritten: Unwritten) {
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        // Without a runtime nobody can write any more: the process ends.
        let (Ok(permit), Ok(runtime)) = (permit, tokio::runtime::Handle::try_current()) else {
            return tell_given_up();
        };
        let pace = Withdrawing::new(policy, Duration::ZERO);
        let this = self.clone();
        runtime.spawn(async move {
            let _permit = permit;
            this.write_until_done(unwritten, pace).await;
        });
    }

    async fn write_until_done(&self, mut unwritten: Unwritten, mut pace: Withdrawing) {
        let since = Instant::now();
        loop {
            let pause = match self.try_write(unwritten).await {
                Tried::Written => return,
                Tried::NotFound(again) => {
                    unwritten = again;
                    pace.found_nothing(since.elapsed())
                }
                Tried::Failed(again) => {
                    unwritten = again;
                    pace.failed(since.elapsed())
                }
            };
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return tell_given_up(),
            }
        }
    }

    async fn try_write(&self, unwritten: Unwritten) -> Tried {
        match unwritten {
            Unwritten::Begin { id, owner } => match self.engine.withdraw(id, owner).await {
                Ok(true) => Tried::Written,
                Ok(false) => Tried::NotFound(unwritten),
                Err(_) => Tried::Failed(unwritten),
            },
            Unwritten::Mark { held, phase } => {
                match self.engine.take_back_call(held, phase).await {
                    Ok(_) => Tried::Written,
                    Err(_) => Tried::Failed(unwritten),
                }
            }
            Unwritten::CallResult { lease, step } => {
                match self.engine.advance(lease, &step).await {
                    Ok(Advanced::Done(lease)) => {
                        // Nobody runs the flow any more: it is for whoever comes next. One try; else its lease ends.
                        let over = Outcome::Unknown(Doubt::AnswerLost);
                        drop(self.engine.settle(lease, &over).await);
                        Tried::Written
                    }
                    Ok(Advanced::Late | Advanced::Lost | Advanced::TooLarge(_)) => Tried::Written,
                    Err(unadvanced) => {
                        Tried::Failed(Unwritten::CallResult { lease: unadvanced.lease, step })
                    }
                }
            }
            Unwritten::ResultNotKept { lease, result } => {
                match self.engine.result_not_kept(lease, &result).await {
                    Ok(_) => Tried::Written,
                    Err(unsettled) => {
                        Tried::Failed(Unwritten::ResultNotKept { lease: unsettled.lease, result })
                    }
                }
            }
            Unwritten::Outcome { lease, outcome } => {
                match self.engine.settle(lease, &outcome).await {
                    Ok(_) => Tried::Written,
                    Err(unsettled) => {
                        Tried::Failed(Unwritten::Outcome { lease: unsettled.lease, outcome })
                    }
                }
            }
        }
    }
}

fn tell_given_up() {
    tracing::warn!(target: "retrysafe", "flow_write_given_up");
}
