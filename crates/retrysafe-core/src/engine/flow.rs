//! How does the owner of a flow move it on?
//!
//! The verbs for records that have a recovery point: begin or go on, advance, read back, and say that a
//! call was not sent. A plain request needs none of them. What applies to an ambiguous write is said
//! once more, because a flow has many: the *write* is repeated, with the same fence and from the same
//! recovery point; a call never is.

use std::time::Duration;

use bytes::Bytes;

use super::begin::{Directly, begin_over};
use super::{
    Ask, Begun, Engine, Lease, NotSettled, Prints, RACES_MAX, Renewal, Ruled, Settled, Unsettled,
};
use crate::flow::{FlowProgress, FlowVersion, RequestDigest, downstream_key};
use crate::machine::flows::{
    Advance, AdvanceReply, BeforeWire, CallNotSent, FlowStep, SendDecision, decide_send,
};
use crate::machine::{self, Decision};
use crate::record::{
    Becomes, Doubt, Fence, Happened, LateResult, Outcome, Record, Standing, Write,
};
use crate::scope::Id;
use crate::store::{Stamped, Store, StoreError, StoreErrorKind, Swapped, Transactional};
use crate::time::Time;

/// The answer to an advance.
#[derive(Debug)]
pub enum Advanced {
    /// The recovery point has moved, and the lease goes on from there.
    Done(Lease),
    /// The result of a call came late and counts all the same. Somebody else goes on from there.
    Late,
    /// The flow would have more phases or bytes than it may. Nothing has changed.
    TooLarge(Lease),
    /// The record is not the owner's any more, or is at another recovery point. Nothing has changed;
    /// the late result of a call is kept as evidence.
    Lost,
}

/// An advance that could not be written. It may be repeated with the lease and the same step.
#[derive(Debug)]
pub struct Unadvanced {
    /// The lease, to try again.
    pub lease: Lease,
    /// What went wrong.
    pub error: StoreError,
}

/// A recovery point that has moved inside a transaction of the application's. It holds once that is
/// committed; see [`Lease::committed`].
#[must_use = "the lease goes on from here once the transaction is committed"]
#[derive(Debug)]
pub struct MovedIn {
    record: Record,
    now: Time,
}

impl<S: Store> Engine<S> {
    /// As [`begin`](Self::begin), by somebody who can go on with these flows. Where the lease has a
    /// [flow](Lease::flow), the execution goes on from its recovery point.
    ///
    /// # Errors
    ///
    /// See [`begin`](Self::begin).
    pub async fn begin_flow<P: Prints + ?Sized>(
        &self,
        ask: &Ask<'_, P>,
        flows: &[FlowVersion],
    ) -> Result<Begun, StoreError> {
        self.begin_named(ask.id(), ask, flows).await
    }

    /// As [`begin_flow`](Self::begin_flow), for whoever knows already what [`Ask::id`] says: it is a digest.
    ///
    /// # Errors
    ///
    /// See [`begin`](Self::begin).
    #[doc(hidden)]
    pub async fn begin_named<P: Prints + ?Sized>(
        &self,
        id: Id,
        ask: &Ask<'_, P>,
        flows: &[FlowVersion],
    ) -> Result<Begun, StoreError> {
        debug_assert_eq!(id, ask.id(), "another record's name");
        begin_over(&mut Directly(&self.store), id, ask, flows, None).await
    }

    /// As [`begin_flow`](Self::begin_flow). Where there is no record yet, the one that is made has this flow from its
    /// first moment on: no crash falls between the begin and the start.
    ///
    /// # Errors
    ///
    /// See [`begin`](Self::begin).
    pub async fn begin_started<P: Prints + ?Sized>(
        &self,
        ask: &Ask<'_, P>,
        flows: &[FlowVersion],
        start: &FlowProgress,
    ) -> Result<Begun, StoreError> {
        begin_over(&mut Directly(&self.store), ask.id(), ask, flows, Some(start)).await
    }

    /// Moves the recovery point of a flow.
    ///
    /// # Errors
    ///
    /// The store's, together with the lease: the same step may be tried again. If it was applied, the
    /// second try says so.
    pub async fn advance(&self, lease: Lease, step: &FlowStep) -> Result<Advanced, Unadvanced> {
        let event = Advance { fence: lease.fence, step };
        let mut current = Some(lease.record.clone());
        let mut now = lease.granted_at;
        for _ in 0..RACES_MAX {
            let decision = machine::decide(current.as_ref(), &event, now);
            let (record, write) = match (decision, current) {
                (Some(Decision::Write(write)), Some(record)) => (record, write),
                (Some(Decision::Stands(AdvanceReply::Repeated)), Some(record)) => {
                    return Ok(Advanced::Done(lease.at(record, now)));
                }
                (Some(Decision::Stands(AdvanceReply::TooLarge)), _) => {
                    return Ok(Advanced::TooLarge(lease));
                }
                (
                    Some(
                        Decision::Write(_)
                        | Decision::Stands(AdvanceReply::Repeated | AdvanceReply::Lost),
                    )
                    | None,
                    current,
                ) => {
                    self.keep_late_result(&lease, current, step).await;
                    return Ok(Advanced::Lost);
                }
            };
            match self.store.swap(record, write).await {
                Err(error) => return Err(Unadvanced { lease, error }),
                Ok(answer) => {
                    now = answer.now;
                    match answer.value {
                        Swapped::Done(record) if record.fence != lease.fence => {
                            return Ok(Advanced::Late);
                        }
                        Swapped::Done(record) => return Ok(Advanced::Done(lease.at(record, now))),
                        Swapped::Lost(record) => current = record,
                    }
                }
            }
        }
        Err(Unadvanced { lease, error: StoreError::maybe_applied(StoreErrorKind::Broken) })
    }

    /// Says that the call of this phase was not made: none of its bytes has left since the owner has
    /// its lease. The lease is given back.
    ///
    /// # Errors
    ///
    /// The store's, together with the lease: it may be tried again.
    pub async fn call_not_sent(&self, lease: Lease, phase: u16) -> Result<Ruled, Unsettled> {
        let ruled = self.take_back_call(lease.renewal(), phase).await;
        ruled.map_err(|error| Unsettled { lease, error })
    }

    /// As [`call_not_sent`](Self::call_not_sent), by an owner that has no lease any more: its first-sent mark may have
    /// been written, nobody has told it so, and it has sent nothing.
    ///
    /// # Errors
    ///
    /// The store's. It may be tried again.
    pub async fn take_back_call(&self, held: Renewal, phase: u16) -> Result<Ruled, StoreError> {
        self.rule(held.id(), &CallNotSent { fence: held.fence(), phase }).await
    }

    /// Keeps the result of a call on the timeline, as evidence: it was made, and its result cannot be the output of its
    /// phase. The record is unknown after that, whatever its provider remembers: the same call again would have the
    /// same result.
    ///
    /// # Errors
    ///
    /// The store's, together with the lease: it may be tried again.
    pub async fn result_not_kept(
        &self,
        lease: Lease,
        result: &Bytes,
    ) -> Result<Settled, Unsettled> {
        let mut current = match self.store.load(lease.record.id).await {
            Ok(loaded) => loaded.value,
            Err(error) => return Err(Unsettled { lease, error }),
        };
        for _ in 0..RACES_MAX {
            match self.note_result(lease.fence, current, result).await {
                Ok(Swapped::Done(_) | Swapped::Lost(None)) => break,
                Ok(Swapped::Lost(other)) => current = other,
                Err(error) => return Err(Unsettled { lease, error }),
            }
        }
        self.settle(lease, &Outcome::Unknown(Doubt::ResultNotKept)).await
    }

    /// Reads what became of an ambiguous write: the lease as the record stands now. None if it is
    /// lost. Nothing is decided about a flow before.
    ///
    /// # Errors
    ///
    /// The store's, together with the lease: it may be tried again.
    pub async fn read_back(&self, lease: Lease) -> Result<Option<Lease>, Unsettled> {
        let Stamped { now, value } = match self.store.load(lease.record.id).await {
            Ok(loaded) => loaded,
            Err(error) => return Err(Unsettled { lease, error }),
        };
        let is_own = |record: &Record| {
            let is_open = match record.standing() {
                Standing::InProgress | Standing::Unknown => true,
                Standing::Completed | Standing::FailedRetryable => false,
            };
            is_open && record.fence == lease.fence
        };
        Ok(value.filter(is_own).map(|record| lease.at(record, now)))
    }

    /// The lease of an owner that has only its record's name and fence: a handler whose lease is held
    /// by the layer around it, and that goes on with a flow. None if it is lost.
    ///
    /// # Errors
    ///
    /// The store's. It may be tried again.
    pub async fn lease_of(&self, held: Renewal) -> Result<Option<Lease>, StoreError> {
        let Stamped { now, value } = self.store.load(held.id()).await?;
        let is_own = |record: &Record| {
            record.standing() == Standing::InProgress && record.fence == held.fence()
        };
        Ok(value.filter(is_own).map(|record| Lease::new(record, now)))
    }

    /// Keeps the result of a call that came too late on the timeline, as evidence. One try.
    async fn keep_late_result(&self, lease: &Lease, current: Option<Record>, step: &FlowStep) {
        let FlowStep::CallResult { output, .. } = step else { return };
        // It is a note, and the record stands without it.
        drop(self.note_result(lease.fence, current, output).await);
    }

    /// Notes the result of a call, once for each owner.
    async fn note_result(
        &self,
        fence: Fence,
        current: Option<Record>,
        result: &Bytes,
    ) -> Result<Swapped, StoreError> {
        let Some(record) = current else { return Ok(Swapped::Lost(None)) };
        let is_told = record.timeline.iter().any(
            |moment| matches!(&moment.what, Happened::LateResult(late) if late.fence == fence),
        );
        if is_told {
            return Ok(Swapped::Done(record));
        }
        let late = LateResult::of_call(fence, result);
        let what = Some(Happened::LateResult(Box::new(late)));
        let write = Write { becomes: Becomes::Same, new_fence: false, what, ttl: None };
        self.store.swap(record, write).await.map(|answer| answer.value)
    }
}

impl<S: Store> Engine<S> {
    /// As [`advance`](Self::advance), inside the caller's transaction, as its last statement: the phase
    /// is over if and only if that commits. On a lost fence, or from another recovery point, the
    /// transaction is made to fail.
    ///
    /// The lease stays with the caller. If the transaction was rolled back, the phase may be tried
    /// again; if its commit was ambiguous, [`read_back`](Self::read_back) says which it was.
    ///
    /// # Errors
    ///
    /// See [`NotSettled`]. The transaction is to be rolled back.
    pub async fn advance_in<T: Send>(
        &self,
        tx: &mut T,
        lease: &Lease,
        step: &FlowStep,
    ) -> Result<MovedIn, NotSettled>
    where
        S: Transactional<T>,
    {
        let event = Advance { fence: lease.fence, step };
        let mut current = Some(lease.record.clone());
        let mut now = lease.granted_at;
        for _ in 0..RACES_MAX {
            let write = machine::decide(current.as_ref(), &event, now).and_then(Decision::write);
            let (Some(write), Some(record)) = (write, current.take()) else {
                // A step that was made before is refused too: the rows of this transaction would be
                // there a second time.
                let why = "the flow is not where this phase starts; nothing of it may be committed";
                self.store.refuse_in(tx, why).await;
                return Err(NotSettled::Lost);
            };
            let answer = self.store.swap_in(tx, record, write).await.map_err(NotSettled::Store)?;
            now = answer.now;
            match answer.value {
                Swapped::Done(record) => return Ok(MovedIn { record, now }),
                Swapped::Lost(record) => current = record,
            }
        }
        Err(NotSettled::Store(StoreError::not_applied(StoreErrorKind::Broken)))
    }
}

impl Lease {
    /// How far the flow has come, if it is one. None for a flow too whose first commit is still to come.
    pub fn flow(&self) -> Option<&FlowProgress> {
        self.record.flow.as_deref()
    }

    /// The key with which the call of this phase is sent; see [`downstream_key`].
    pub fn downstream_key(&self, phase: &str) -> Box<str> {
        downstream_key(self.record.id, self.record.birth(), phase)
    }

    /// The lease after the transaction was committed in which its flow has moved.
    pub fn committed(self, moved: MovedIn) -> Self {
        self.at(moved.record, moved.now)
    }

    /// The last look before a call's first byte: see [`decide_send`]. `is_repeatable` says whether the
    /// provider remembers our key, by the code that runs now. `elapsed` counts from before the
    /// question was sent whose answer was this lease, on a clock that runs through suspend.
    pub fn may_send(
        &self,
        digest: &RequestDigest,
        is_repeatable: bool,
        elapsed: Duration,
        deadline: Duration,
    ) -> SendDecision {
        let (record, read_at) = (&self.record, self.granted_at);
        decide_send(&BeforeWire { record, read_at, elapsed, deadline, digest, is_repeatable })
    }

    fn at(self, record: Record, now: Time) -> Self {
        Self { record, granted_at: now, ..self }
    }
}
