//! What comes of asking about one record?

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use retrysafe_core::engine::{Engine, Ruled};
use retrysafe_core::event;
use retrysafe_core::machine::{Evidence, Proof, Verdict};
use retrysafe_core::policy::Absence;
use retrysafe_core::record::{Fence, Judge, Record, State, lookup_note};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{Store, StoreError};
use retrysafe_core::units;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::reconciler::{Lookup, LookupAnswer, Reconciler};
use crate::lookup_throttle::LookupThrottle;

/// What became of one question.
pub(super) enum Asked {
    Resolved(Box<Record>),
    StillUnknown,
    Failed(StoreError),
}

/// Which turn of the schedule a lookup is: of which attempt, and the how-manieth.
pub(super) type Turn = (Id, Fence, u32);

/// One unknown record that is asked about.
pub(super) struct Question<S, R> {
    pub engine: Arc<Engine<S>>,
    pub reconciler: Arc<R>,
    pub record: Record,
    pub lookup_max: Duration,
    pub settle_time: Duration,
    pub first_sight: Instant,
    /// Whether it is the schedule's turn. A person may ask at any time, and that uses up nothing.
    pub is_scheduled: bool,
    /// Who has said that it is asked too often.
    pub throttle: Arc<LookupThrottle<Turn>>,
}

/// What was learned from one question, and what became of it.
pub(super) struct Learned {
    pub asked: Asked,
    /// In words.
    pub found: Box<str>,
    /// What was answered.
    pub excerpt: Option<Box<str>>,
}

impl<S: Store, R: Reconciler> Question<S, R> {
    pub(super) async fn ask(self) -> Learned {
        let id = self.record.id;
        let fence = self.record.fence;
        // What is absent from the answer was absent when it was asked for, not later.
        let waited = self.first_sight.elapsed();
        let absence = absence(&*self.reconciler, &self.record);
        let LookupAnswer { found, excerpt } = self.look_up().await;
        let (evidence, reason) = match found {
            Lookup::Executed(answer) => (Evidence::Executed(answer), "found as executed"),
            Lookup::CallExecuted(result) => {
                (Evidence::CallExecuted(result), "the call was found as executed")
            }
            Lookup::NotExecuted(proof) => {
                (Evidence::NotExecuted(proof), "proven not to be executed")
            }
            Lookup::NotFound => match Proof::absence(absence, waited, self.settle_time) {
                Some(proof) => (Evidence::NotExecuted(proof), "not found after the settle time"),
                None => return self.learned_nothing("not found".into(), excerpt).await,
            },
            Lookup::Pending => return self.learned_nothing("pending".into(), excerpt).await,
            Lookup::AskedTooOften(pause) => return self.refused(pause, excerpt).await,
            Lookup::Inconclusive(why) => return self.learned_nothing(why, excerpt).await,
        };
        let standing = evidence.standing().name();
        let judge = Judge::Reconciler;
        let note = lookup_note(reason, excerpt.as_deref());
        let verdict = Verdict { fence, evidence, judge, reason: note };
        let asked = match self.engine.resolve(id, &verdict).await {
            Ok(Ruled::Done(record)) => {
                let judge = Judge::Reconciler.name();
                let counter = metrics::counter!(
                    event::RECONCILE_RESOLVED.name, "standing" => standing, "judge" => judge
                );
                counter.increment(1);
                tracing::info!(target: "retrysafe", key = %record.key, standing, "reconciled");
                Asked::Resolved(Box::new(record))
            }
            // The evidence says too little about this record: the answer of a flow whose phases are missing.
            Ok(Ruled::Refused(record)) if is_same_doubt(&record, &self.record) => {
                let why = format!("{reason}, which decides nothing about a flow in this place");
                return self.learned_nothing(why.into(), excerpt).await;
            }
            // Somebody else was faster, or the owner has told the truth meanwhile.
            Ok(Ruled::Refused(_) | Ruled::Absent) => Asked::StillUnknown,
            Err(error) => Asked::Failed(error),
        };
        Learned { asked, found: reason.into(), excerpt }
    }

    /// Keeps the turn for later, unless it was refused too often.
    async fn refused(&self, pause: Option<Duration>, excerpt: Option<Box<str>>) -> Learned {
        let found = "asked too often";
        let lookups = match self.record.state {
            State::Unknown { lookups, .. } => lookups,
            State::InProgress { .. } | State::Completed { .. } | State::FailedRetryable { .. } => 0,
        };
        let turn = (self.record.id, self.record.fence, lookups);
        let provider = provider(&*self.reconciler, &self.record);
        let is_used_up = self.throttle.refuse(&provider, turn, pause);
        if is_used_up || !self.is_scheduled {
            return self.learned_nothing(found.into(), excerpt).await;
        }
        metrics::counter!(event::RECONCILE_FAILED.name).increment(1);
        tracing::warn!(
            target: "retrysafe",
            route = &*self.record.about.route,
            id = %self.record.id,
            pause_seconds = pause.map(|pause| pause.as_secs()),
            "reconcile_refused"
        );
        Learned { asked: Asked::StillUnknown, found: found.into(), excerpt }
    }

    /// Says what was learned, in the log and on the record's timeline. What was answered stays out of the log: it is
    /// the provider's, and may hold anything.
    async fn learned_nothing(&self, found: Box<str>, excerpt: Option<Box<str>>) -> Learned {
        metrics::counter!(event::RECONCILE_FAILED.name).increment(1);
        let record = &self.record;
        tracing::warn!(
            target: "retrysafe",
            route = &*record.about.route,
            key = %record.key,
            request_id = record.request_id(),
            id = %record.id,
            found = &*found,
            "reconcile_lookup"
        );
        let note = lookup_note(&found, excerpt.as_deref());
        let noted = if self.is_scheduled {
            self.engine.looked_up(record, &note).await
        } else {
            self.engine.looked_up_out_of_turn(record, &note).await
        };
        let asked = match noted {
            Ok(_) => Asked::StillUnknown,
            Err(error) => Asked::Failed(error),
        };
        Learned { asked, found, excerpt }
    }

    async fn look_up(&self) -> LookupAnswer {
        let reconciler = Arc::clone(&self.reconciler);
        let record = self.record.clone();
        // In a task of its own, so that a panic ends the lookup and nothing else; in a set, so that
        // the lookup ends with whoever asks.
        let mut lookup = JoinSet::new();
        lookup.spawn(async move { reconciler.look_up_closely(&record).await });
        match tokio::time::timeout(self.lookup_max, lookup.join_next()).await {
            Ok(Some(Ok(found))) => found,
            Ok(Some(Err(_)) | None) => Lookup::Inconclusive("the lookup panicked".into()).into(),
            Err(_) => {
                let length = units::show_duration(self.lookup_max);
                Lookup::Inconclusive(format!("no answer within {length}").into()).into()
            }
        }
    }
}

/// Whether nobody has decided about the attempt since it was seen.
fn is_same_doubt(now: &Record, seen: &Record) -> bool {
    now.unknown_since().is_some() && now.fence == seen.fence
}

/// Whom a reconciler asks about a record.
pub(super) fn provider<R: Reconciler>(reconciler: &R, record: &Record) -> Box<str> {
    catch_unwind(AssertUnwindSafe(|| reconciler.provider(record))).unwrap_or_else(|_| {
        metrics::counter!(event::UPKEEP_PANICS.name, "task" => "provider").increment(1);
        tracing::error!(target: "retrysafe", key = %record.key, "reconcile_provider_panicked");
        Box::default()
    })
}

/// What a reconciler says about an absence. It is asked in the middle of a round, and a bug about
/// one record must not end the round for all of them.
pub(super) fn absence<R: Reconciler>(reconciler: &R, record: &Record) -> Absence {
    catch_unwind(AssertUnwindSafe(|| reconciler.absence(record))).unwrap_or_else(|_| {
        metrics::counter!(event::UPKEEP_PANICS.name, "task" => "absence").increment(1);
        tracing::error!(target: "retrysafe", key = %record.key, "reconcile_absence_panicked");
        Absence::Inconclusive
    })
}
