//! What may happen next? **Start here.**
//!
//! This file is the whole promise as pure functions. [`decide_begin`] and [`decide`] look at a
//! record, at what is asked of it and at the store's clock, and say what to write or what to answer.
//! Everything else in this project carries records here and carries the decisions out. Each kind of
//! question has its own kind of answer, so that nobody has to handle one that cannot come.
//!
//! | record | event | decision |
//! | --- | --- | --- |
//! | none, or expired | begin | insert `in_progress` with a new fence: execute |
//! | any live record | begin, other request | mismatch, checked before the state |
//! | `in_progress`, `completed`, `unknown` | begin, other credential mark | credential changed |
//! | `in_progress`, lease live | begin | in progress |
//! | `in_progress`, lease over, not resumable | begin, lease check | `unknown` |
//! | `in_progress`, lease over, resumable | begin | the same with a new fence: execute from its recovery point |
//! | `in_progress`, lease over, resumable | lease check | not due: whoever begins goes on with it |
//! | `in_progress`, not resumable | its store was opened by another process | `unknown` |
//! | `in_progress`, resumable | the same | its lease ends |
//! | `completed` | begin | replay |
//! | `failed_retryable` | begin, with any mark | `in_progress` with a new fence and this mark: execute |
//! | `failed_retryable`, its flow holds work | begin, other credential mark | credential changed |
//! | a flow that would execute, of a version that the caller cannot run | begin | held: nothing changes |
//! | `unknown` | begin | unknown: no caller ever gets from here to execution |
//! | `in_progress` or `unknown`, same owner, no head, no flow | withdraw | `failed_retryable`: the owner never sent anything |
//! | `in_progress`, same owner, a flow | withdraw | its lease ends: a former owner may have sent |
//! | `in_progress` or `unknown`, same fence | settle | as settled, but of a flow see below |
//! | `completed`, `failed_retryable`, same fence | settle | the same again is fine, anything else contradicts |
//! | `in_progress`, same fence | renew | a longer lease, up to `lease_max` after it began |
//! | `in_progress`, same fence, given back | renew, keep head | lost: a lease that was ended is never revived |
//! | `in_progress`, same fence | keep head | the same, and the head of the answer is known |
//! | any other, or another fence | settle, renew, keep head | lost |
//! | `unknown`, same fence | resolve, with evidence | `completed` or `failed_retryable` with a new fence |
//! | `unknown`, another fence | resolve | decided: the evidence is about an attempt that is over |
//! | `unknown`, same fence | look up, the next one | `unknown`, asked about once more |
//! | `unknown`, same fence | look up, out of turn | the same; what was found is noted |
//! | `unknown` | look up of another attempt or of a former number | decided: another one counted |
//! | `completed`, `failed_retryable` | resolve | decided once, never flipped |
//! | `completed`, `failed_retryable` | expire | retention ends now |
//! | `in_progress`, `unknown`, a flow that holds work | expire | refused, at any age |
//!
//! A *flow* is resumable by its [recovery point](crate::flow): always while nothing outside is in
//! flight, up to a time while a call may be in flight whose provider remembers our key, and else
//! never. A plain request never is. What moves a flow is decided in [`flows`].
//!
//! | record of a flow | event | decision |
//! | --- | --- | --- |
//! | `in_progress`, same fence, same recovery point | advance | recovery point and output move; lease as it was |
//! | `unknown`, same fence, same recovery point | advance with a call's result | `in_progress` with its lease over and a new fence |
//! | `in_progress`, no first-sent mark | settle unknown | only the lease ends: nothing outside is in flight |
//! | first-sent mark, provider remembers our key | settle retryable or unknown | only the lease ends |
//! | first-sent mark, provider takes no key | settle retryable or unknown | `unknown` |
//! | first-sent mark | settle unknown, because the bytes would be others or the result cannot be kept | `unknown` |
//! | first-sent mark of this owner | call not sent | `failed_retryable` before the call, mark cleared |
//! | first-sent mark of a former owner | call not sent | only the lease ends |
//! | `in_progress` or `unknown`, another recovery point | settle completed | lost |
//! | `unknown`, first-sent mark | resolve, the call was executed | `in_progress` after the call, lease over, new fence |
//! | `unknown` | resolve, not executed | `failed_retryable`, before the call where there is a mark, new fence |
//! | `unknown` | resolve, executed without the whole answer | refused: phases are missing |
//!
//! What is deliberately absent: no event leads from an ended lease to the execution of a plain
//! request, nor to a call that the provider might take for a second one. The owner may be slow, not
//! dead, and a fence guards our record, not the world behind the handler. And no caller with another
//! credential mark moves a record that may have been executed, not even to `unknown`: the mark is the
//! only proof of who it is.

use std::time::Duration;

use bytes::Bytes;

use crate::flow::{FlowMove, FlowVersion, RecoveryPoint};
use crate::policy::Absence;
use crate::record::{
    Answer, AnswerHead, Becomes, Doubt, Fence, Happened, Judge, Outcome, Record, Standing, State,
    Write, note, reason,
};
use crate::scope::CredentialMark;
use crate::time::Time;
use crate::trace::TracedSpan;

pub mod flows;

/// A caller wants the request executed or answered.
#[derive(Clone, Copy, Debug)]
pub struct Begin<'a> {
    /// Whether the request's fingerprint is the record's.
    pub same_request: bool,
    /// Which credential the caller showed, where that counts.
    pub mark: Option<CredentialMark>,
    /// The caller's own random number.
    pub owner: u64,
    /// How long the caller may be silent once it owns the record.
    pub lease: Duration,
    /// The id of its request, by which logs know it, and its [span](crate::trace), if it is traced.
    pub request_id: Option<&'a str>,
    /// The flows that the caller can go on with. Empty for plain requests.
    pub flows: &'a [FlowVersion],
}

/// What a begin makes of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BeginDecision {
    /// There is no live record: insert one, and whoever succeeds executes.
    Insert,
    /// Write this onto the record. If the write wins, the caller owns the record and executes.
    Execute(Record, Write),
    /// Write this onto the record: its lease is over. Whether the write wins or not, nobody knows.
    Doubt(Record, Write),
    /// The key belongs to another request.
    Mismatch,
    /// The record was begun with another credential.
    CredentialChanged,
    /// Somebody is executing it, on a lease until then.
    InProgress(Time),
    /// It is a flow that could go on, but not by this caller: it has other code.
    Held(FlowVersion),
    /// It was executed; this is its answer, and what else the record knows of it.
    Replay(Answer, ReplayFacts),
    /// Nobody knows whether it was executed. This is the head of its answer, if one had come.
    Unknown(Option<AnswerHead>),
}

/// What a record knows of an answer, beside the answer itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayFacts {
    /// Until when the record keeps it.
    pub expires_at: Time,
    /// The span of the execution that it comes from, if that was traced.
    pub span: Option<TracedSpan>,
}

/// Something else that is asked of a record.
pub trait Event {
    /// What is answered when nothing is to be written.
    type Reply: std::fmt::Debug;

    /// What it makes of a live record, by the store's clock.
    fn decide(&self, live: &Record, now: Time) -> Decision<Self::Reply>;
}

/// What is to be done about a live record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<R> {
    /// Write this. If the write wins, the event has happened.
    Write(Write),
    /// The record stands as it is; this is the answer.
    Stands(R),
}

/// A caller whose begin was ambiguous says that it did not execute, whatever became of it.
#[derive(Clone, Copy, Debug)]
pub struct Withdraw {
    /// The random number it began with.
    pub owner: u64,
}

/// The owner is still executing.
#[derive(Clone, Copy, Debug)]
pub struct Renew {
    /// The fence it began with.
    pub fence: Fence,
    /// How long it may be silent from now on.
    pub lease: Duration,
    /// How long one attempt may be renewed in all.
    pub lease_max: Duration,
}

/// The owner is still executing, and the head of an answer has come that will not be kept whole.
#[derive(Clone, Copy, Debug)]
pub struct KeepHead<'a> {
    /// The head.
    pub head: &'a AnswerHead,
    /// Whose it is, and for how long.
    pub renew: Renew,
}

/// The owner says how the execution ended.
#[derive(Clone, Copy, Debug)]
pub struct Settle<'a> {
    /// The fence it began with.
    pub fence: Fence,
    /// How it ended.
    pub outcome: &'a Outcome,
    /// Another time to live, where the handler asked for one.
    pub ttl: Option<Duration>,
    /// The recovery point at which it ended. None for a plain request. A flow is completed from its
    /// own recovery point only: an owner that is mistaken about it would leave phases out.
    pub point: Option<RecoveryPoint>,
}

/// Somebody has evidence about an unknown record.
#[derive(Clone, Copy, Debug)]
pub struct Resolve<'a>(pub &'a Verdict);

/// A reconciler asked about an unknown record and learned nothing final.
#[derive(Clone, Copy, Debug)]
pub struct LookUp<'a> {
    /// The attempt that it asked about.
    pub fence: Fence,
    /// How many lookups there had been before it asked. Of reconcilers that ask at the same time
    /// one counts. None: a person had it asked out of turn, which does not count.
    pub lookups: Option<u32>,
    /// What it learned: a [note](crate::record::lookup_note).
    pub found: &'a str,
}

/// An operator ends the retention of a settled record.
#[derive(Clone, Copy, Debug)]
pub struct Expire<'a> {
    /// The attempt that the operator has seen: another one is not forgotten. None: whichever stands there.
    pub fence: Option<Fence>,
    /// Why.
    pub reason: &'a str,
}

/// The sweeper looks for ended leases.
#[derive(Clone, Copy, Debug)]
pub struct LeaseCheck;

/// A store with one owner process was opened: nobody can still be executing.
#[derive(Clone, Copy, Debug)]
pub struct OwnerGone;

/// The asker does not own the record any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

/// Not in this state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// There is nothing to do yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotDue;

/// Why a settle writes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleReply {
    /// The same was said before; it holds.
    Repeated,
    /// The asker says the opposite of what it settled before.
    Contradicts,
    /// The asker does not own the record any more.
    Lost,
}

/// Why a word about an unknown record writes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleReply {
    /// It was decided before, or another one counted.
    Decided,
    /// Not in this state.
    Refused,
}

/// A decision about an unknown record, and what it rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The attempt that it is about: the fence of the record when the evidence was looked for.
    /// Lookups and people are slow. Meanwhile the record may have been decided, begun again and
    /// come to be unknown again, and proof about the first attempt says nothing about the second.
    pub fence: Fence,
    /// What the evidence shows.
    pub evidence: Evidence,
    /// Who found it.
    pub judge: Judge,
    /// In words, for the timeline.
    pub reason: Box<str>,
}

/// What shows how an unknown execution ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// It was executed. The answer itself where it is known, else the mere fact. The mere fact says
    /// nothing about the phases of a flow.
    Executed(Answer),
    /// The call that a flow was making was executed, and this is its result.
    CallExecuted(Bytes),
    /// It was not executed and cannot be any more.
    NotExecuted(Proof),
}

/// Proof that a request was not executed and cannot be any more.
///
/// "The provider does not know it" is no proof: the request may still be on its way, or its sender
/// may have been paused before it sent. So this type has no constructor from a mere absence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof(());

impl Proof {
    /// The transaction in which it would have happened was rolled back.
    pub const fn rolled_back() -> Self {
        Self(())
    }

    /// The downstream has refused this key or fence for good: a late request would bounce.
    pub const fn burnt() -> Self {
        Self(())
    }

    /// A person has looked, and answers for it with a reason.
    pub const fn operator() -> Self {
        Self(())
    }

    /// The downstream does not know it. That counts only where the route says so, and only when
    /// `waited` is at least the settle time that the route's downstream needs.
    pub fn absence(rule: Absence, waited: Duration, settle_time: Duration) -> Option<Self> {
        match rule {
            Absence::Proof if waited >= settle_time => Some(Self(())),
            Absence::Proof | Absence::Inconclusive => None,
        }
    }
}

/// Decides what an event makes of a record, by the store's clock. None: there is no live record.
pub fn decide<E: Event>(
    record: Option<&Record>,
    event: &E,
    now: Time,
) -> Option<Decision<E::Reply>> {
    let live = record.filter(|record| !record.is_expired(now))?;
    Some(event.decide(live, now))
}

/// Decides what a begin makes of a record, by the store's clock.
pub fn decide_begin(record: Option<Record>, begin: &Begin<'_>, now: Time) -> BeginDecision {
    let Some(record) = record.filter(|record| !record.is_expired(now)) else {
        return BeginDecision::Insert;
    };
    if !begin.same_request {
        return BeginDecision::Mismatch;
    }
    let is_other_mark = record.mark != begin.mark;
    let span = record.span();
    match record.state {
        State::InProgress { .. } | State::Completed { .. } | State::Unknown { .. }
            if is_other_mark =>
        {
            BeginDecision::CredentialChanged
        }
        // Phases have taken place: they are for the credential that they were begun with.
        State::FailedRetryable { .. } if is_other_mark && record.holds_work() => {
            BeginDecision::CredentialChanged
        }
        State::InProgress { lease_until, .. } if lease_until > now => {
            BeginDecision::InProgress(lease_until)
        }
        State::InProgress { .. } if record.resume_rule().permits(now) => execute(record, begin),
        State::InProgress { .. } => BeginDecision::Doubt(record, doubt(Doubt::LeaseEnded)),
        State::Completed { answer, expires_at, .. } => {
            BeginDecision::Replay(answer, ReplayFacts { expires_at, span })
        }
        State::FailedRetryable { .. } => execute(record, begin),
        State::Unknown { head, .. } => BeginDecision::Unknown(head),
    }
}

/// The answer that a begin gets from a record that somebody has at hand, and until when: what [`decide_begin`] says where it
/// says replay. For whoever answers from the same record time and again.
pub fn replay(
    record: &Record,
    same_request: bool,
    mark: Option<CredentialMark>,
    now: Time,
) -> Option<(&Answer, Time)> {
    match &record.state {
        State::Completed { answer, expires_at, .. } => {
            let is_for_this_one = same_request && record.mark == mark && !record.is_expired(now);
            is_for_this_one.then_some((answer, *expires_at))
        }
        State::InProgress { .. } | State::FailedRetryable { .. } | State::Unknown { .. } => None,
    }
}

/// The caller takes over, from the recovery point on if there is one and the caller has its code.
fn execute(record: Record, begin: &Begin<'_>) -> BeginDecision {
    if let Some(flow) = &record.flow
        && !begin.flows.contains(flow.flow())
    {
        return BeginDecision::Held(flow.flow().clone());
    }
    let becomes = Becomes::Begun { owner: begin.owner, lease: begin.lease, mark: begin.mark };
    let request_id = begin.request_id.and_then(crate::record::request_id);
    let what = Some(Happened::Began(request_id));
    BeginDecision::Execute(record, Write { becomes, new_fence: true, what, ttl: None })
}

impl Event for Withdraw {
    type Reply = Lost;

    fn decide(&self, live: &Record, _: Time) -> Decision<Lost> {
        // Settled records have no owner. A head is proof that this owner did send.
        if live.state.owner() != Some(self.owner) || live.state.head().is_some() {
            return Decision::Stands(Lost);
        }
        match (&live.state, &live.flow) {
            (State::InProgress { .. } | State::Unknown { .. }, None) => {
                let what = Happened::Settled(Standing::FailedRetryable, None);
                Decision::Write(write(Becomes::FailedRetryable, Some(what)))
            }
            // This owner has sent nothing, but whoever left the recovery point may have.
            (State::InProgress { .. }, Some(_)) => Decision::Write(end_lease(None)),
            (State::Unknown { .. }, Some(_))
            | (State::Completed { .. } | State::FailedRetryable { .. }, _) => {
                Decision::Stands(Lost)
            }
        }
    }
}

impl Renew {
    fn renews(&self, live: &Record, now: Time) -> bool {
        match live.state {
            // Past `lease_max` a renewal could not extend anything: the owner is not believed any
            // more, though its late settle still counts.
            State::InProgress { begun_at, .. } => {
                live.fence == self.fence
                    && begun_at.plus(self.lease_max) > now
                    && !live.is_given_back()
            }
            State::Completed { .. } | State::FailedRetryable { .. } | State::Unknown { .. } => {
                false
            }
        }
    }
}

impl Event for Renew {
    type Reply = Lost;

    fn decide(&self, live: &Record, now: Time) -> Decision<Lost> {
        let Self { lease, lease_max, .. } = *self;
        if !self.renews(live, now) {
            return Decision::Stands(Lost);
        }
        Decision::Write(write(Becomes::Renewed { lease, lease_max }, None))
    }
}

impl Event for KeepHead<'_> {
    type Reply = Lost;

    fn decide(&self, live: &Record, now: Time) -> Decision<Lost> {
        let Renew { lease, lease_max, .. } = self.renew;
        if !self.renew.renews(live, now) {
            return Decision::Stands(Lost);
        }
        let head = self.head.clone();
        Decision::Write(write(Becomes::HeadKept { head, lease, lease_max }, None))
    }
}

impl Event for Settle<'_> {
    type Reply = SettleReply;

    fn decide(&self, live: &Record, _: Time) -> Decision<SettleReply> {
        if live.fence != self.fence {
            return Decision::Stands(SettleReply::Lost);
        }
        match (&live.state, self.outcome) {
            (State::Unknown { .. }, Outcome::Unknown(_)) => Decision::Stands(SettleReply::Repeated),
            (State::InProgress { .. } | State::Unknown { .. }, Outcome::Completed(_))
                if live.recovery_point() != self.point =>
            {
                Decision::Stands(SettleReply::Lost)
            }
            (State::InProgress { .. } | State::Unknown { .. }, outcome) => {
                if let Some(decision) = flows::settle_of_flow(live, outcome) {
                    return decision;
                }
                let status = outcome.status().map(|status| status.as_u16());
                Decision::Write(Write {
                    becomes: match outcome {
                        Outcome::Completed(answer) => Becomes::Completed(answer.clone()),
                        Outcome::Retryable(_) => Becomes::FailedRetryable,
                        Outcome::Unknown(doubt) => Becomes::Unknown(*doubt),
                    },
                    new_fence: false,
                    what: Some(Happened::Settled(outcome.standing(), status)),
                    ttl: self.ttl,
                })
            }
            (State::Completed { answer, .. }, Outcome::Completed(again)) if answer == again => {
                Decision::Stands(SettleReply::Repeated)
            }
            (State::FailedRetryable { .. }, Outcome::Retryable(_)) => {
                Decision::Stands(SettleReply::Repeated)
            }
            (
                State::Completed { .. } | State::FailedRetryable { .. },
                Outcome::Completed(_) | Outcome::Retryable(_) | Outcome::Unknown(_),
            ) => Decision::Stands(SettleReply::Contradicts),
        }
    }
}

impl Event for Resolve<'_> {
    type Reply = RuleReply;

    fn decide(&self, live: &Record, _: Time) -> Decision<RuleReply> {
        let Self(verdict) = *self;
        match &live.state {
            State::InProgress { .. } => Decision::Stands(RuleReply::Refused),
            State::Completed { .. } | State::FailedRetryable { .. } => {
                Decision::Stands(RuleReply::Decided)
            }
            State::Unknown { .. } if live.fence != verdict.fence => {
                Decision::Stands(RuleReply::Decided)
            }
            State::Unknown { .. } => {
                let Some(becomes) = verdict.evidence.makes_of(live) else {
                    return Decision::Stands(RuleReply::Refused);
                };
                let standing = verdict.evidence.standing();
                let what = Happened::Resolved(standing, verdict.judge, reason(&verdict.reason));
                // The former owner may still wake up; with a new fence it loses from now on.
                Decision::Write(Write { new_fence: true, ..write(becomes, Some(what)) })
            }
        }
    }
}

impl Event for LookUp<'_> {
    type Reply = RuleReply;

    fn decide(&self, live: &Record, _: Time) -> Decision<RuleReply> {
        match &live.state {
            State::Unknown { lookups, .. }
                if (live.fence, *lookups) == (self.fence, self.lookups.unwrap_or(*lookups)) =>
            {
                let what = Happened::LookedUp(note(self.found));
                let is_counted = self.lookups.is_some();
                let becomes = if is_counted { Becomes::LookedUp } else { Becomes::Same };
                Decision::Write(write(becomes, Some(what)))
            }
            State::Unknown { .. } | State::Completed { .. } | State::FailedRetryable { .. } => {
                Decision::Stands(RuleReply::Decided)
            }
            State::InProgress { .. } => Decision::Stands(RuleReply::Refused),
        }
    }
}

impl Event for Expire<'_> {
    type Reply = Refused;

    fn decide(&self, live: &Record, _: Time) -> Decision<Refused> {
        let is_seen = self.fence.is_none_or(|seen| seen == live.fence);
        match live.state {
            State::Completed { .. } | State::FailedRetryable { .. }
                if is_seen && !live.holds_work() =>
            {
                let what = Happened::Expired(reason(self.reason));
                Decision::Write(write(Becomes::Expired, Some(what)))
            }
            State::Completed { .. }
            | State::FailedRetryable { .. }
            | State::InProgress { .. }
            | State::Unknown { .. } => Decision::Stands(Refused),
        }
    }
}

impl Event for LeaseCheck {
    type Reply = NotDue;

    fn decide(&self, live: &Record, now: Time) -> Decision<NotDue> {
        match live.lease_until() {
            Some(lease_until) if lease_until <= now && !live.resume_rule().permits(now) => {
                Decision::Write(doubt(Doubt::LeaseEnded))
            }
            Some(_) | None => Decision::Stands(NotDue),
        }
    }
}

impl Event for OwnerGone {
    type Reply = NotDue;

    fn decide(&self, live: &Record, now: Time) -> Decision<NotDue> {
        match live.lease_until() {
            Some(lease_until) if live.resume_rule().permits(now) => {
                // Somebody else may go on with it at once.
                let is_live = lease_until > now;
                if is_live { Decision::Write(end_lease(None)) } else { Decision::Stands(NotDue) }
            }
            Some(_) => Decision::Write(doubt(Doubt::OwnerGone)),
            None => Decision::Stands(NotDue),
        }
    }
}

impl<R> Decision<R> {
    /// The write, where there is something to write.
    pub fn write(self) -> Option<Write> {
        match self {
            Self::Write(write) => Some(write),
            Self::Stands(_) => None,
        }
    }
}

impl Evidence {
    /// The standing a record has after this.
    pub fn standing(&self) -> Standing {
        match self {
            Self::Executed(_) => Standing::Completed,
            Self::CallExecuted(_) => Standing::InProgress,
            Self::NotExecuted(_) => Standing::FailedRetryable,
        }
    }

    /// What it makes of an unknown record; none if it says too little about this one.
    fn makes_of(&self, live: &Record) -> Option<Becomes> {
        match (self, &live.flow) {
            (Self::Executed(answer), None) => Some(Becomes::Completed(answer.clone())),
            (Self::Executed(answer @ Answer::Kept(_)), Some(_)) => {
                Some(Becomes::Completed(answer.clone()))
            }
            // Its call was executed, perhaps. The phases after it were not.
            (Self::Executed(Answer::NotKept { .. }), Some(_)) => None,
            (Self::CallExecuted(output), Some(flow)) => {
                let is_about_it = flow.mark().is_some() && flow.has_room_for(output);
                is_about_it.then(|| Becomes::Advanced(FlowMove::PhaseDone(output.clone())))
            }
            (Self::CallExecuted(_), None) => None,
            (Self::NotExecuted(Proof(())), _) => Some(Becomes::FailedRetryable),
        }
    }
}

fn doubt(why: Doubt) -> Write {
    write(Becomes::Unknown(why), Some(Happened::Doubted(why)))
}

/// Nobody executes it any more, and it is in progress still.
fn end_lease(status: Option<u16>) -> Write {
    write(Becomes::LeaseEnded, Some(Happened::Settled(Standing::InProgress, status)))
}

fn write(becomes: Becomes, what: Option<Happened>) -> Write {
    Write { becomes, new_fence: false, what, ttl: None }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::flows::{Advance, CallNotSent, FlowStep};
    use super::*;
    use crate::flow::{FirstSentMark, RequestDigest};
    use crate::record::{About, First};
    use crate::scope::{Id, Scope};

    const NOW: Time = Time::from_ms(1_000_000);
    const LEASE: Duration = Duration::from_secs(60);
    const OWNER: u64 = 1;
    const FENCE: Fence = Fence(10);

    /// Every decision there is: the module's table, with nothing left out. `!` marks a new fence.
    const TABLE: &str = "\
event                       | none      | running     | overdue     | completed   | failed      | unknown     | gone      | gone failed
begin                       | insert    | in progress | → unknown   | replay      | → begun !   | unknown     | insert    | insert
begin, other request        | insert    | mismatch    | mismatch    | mismatch    | mismatch    | mismatch    | insert    | insert
begin, other mark           | insert    | changed     | changed     | changed     | → begun !   | changed     | insert    | insert
begin, other in both        | insert    | mismatch    | mismatch    | mismatch    | mismatch    | mismatch    | insert    | insert
withdraw, owner             | absent    | → failed    | → failed    | lost        | lost        | → failed    | absent    | absent
withdraw, other owner       | absent    | lost        | lost        | lost        | lost        | lost        | absent    | absent
renew                       | absent    | → renewed   | → renewed   | lost        | lost        | lost        | absent    | absent
renew, lease_max used up    | absent    | lost        | lost        | lost        | lost        | lost        | absent    | absent
renew, other fence          | absent    | lost        | lost        | lost        | lost        | lost        | absent    | absent
keep head                   | absent    | → head      | → head      | lost        | lost        | lost        | absent    | absent
keep head, lease_max used up | absent   | lost        | lost        | lost        | lost        | lost        | absent    | absent
keep head, other fence      | absent    | lost        | lost        | lost        | lost        | lost        | absent    | absent
settle completed            | absent    | → completed | → completed | repeated    | contradicts | → completed | absent    | absent
settle completed otherwise  | absent    | → completed | → completed | contradicts | contradicts | → completed | absent    | absent
settle retryable            | absent    | → failed    | → failed    | contradicts | repeated    | → failed    | absent    | absent
settle unknown              | absent    | → unknown   | → unknown   | contradicts | contradicts | repeated    | absent    | absent
settle, other fence         | absent    | lost        | lost        | lost        | lost        | lost        | absent    | absent
resolve executed            | absent    | refused     | refused     | decided     | decided     | → completed ! | absent    | absent
resolve not executed        | absent    | refused     | refused     | decided     | decided     | → failed !  | absent    | absent
resolve, other fence        | absent    | refused     | refused     | decided     | decided     | decided     | absent    | absent
look up                     | absent    | refused     | refused     | decided     | decided     | → looked up | absent    | absent
look up, other fence        | absent    | refused     | refused     | decided     | decided     | decided     | absent    | absent
look up, other number       | absent    | refused     | refused     | decided     | decided     | decided     | absent    | absent
expire                      | absent    | refused     | refused     | → expired   | → expired   | refused     | absent    | absent
lease check                 | absent    | not due     | → unknown   | not due     | not due     | not due     | absent    | absent
owner gone                  | absent    | → unknown   | → unknown   | not due     | not due     | not due     | absent    | absent
";

    /// What is decided about a record, in the words of the table.
    type Decide<'a> = Box<dyn Fn(Option<&Record>) -> String + 'a>;

    fn asked<'a, E: Event + 'a>(event: E) -> Decide<'a> {
        Box::new(move |record| match decide(record, &event, NOW) {
            None => "absent".to_owned(),
            Some(Decision::Stands(reply)) => {
                format!("{reply:?}").to_lowercase().replace("notdue", "not due")
            }
            Some(Decision::Write(write)) => in_words(&write),
        })
    }

    fn begun<'a>(begin: Begin<'a>) -> Decide<'a> {
        Box::new(move |record| {
            let decision = decide_begin(record.cloned(), &begin, NOW);
            let replayed =
                record.and_then(|record| replay(record, begin.same_request, begin.mark, NOW));
            let replayed = replayed.map(|(answer, until)| (answer.clone(), until));
            match &decision {
                BeginDecision::Replay(answer, facts) => {
                    assert_eq!(replayed, Some((answer.clone(), facts.expires_at)));
                }
                BeginDecision::Insert
                | BeginDecision::Execute(..)
                | BeginDecision::Doubt(..)
                | BeginDecision::Mismatch
                | BeginDecision::CredentialChanged
                | BeginDecision::InProgress(_)
                | BeginDecision::Held(_)
                | BeginDecision::Unknown(_) => assert_eq!(replayed, None, "{decision:?}"),
            }
            decision_in_words(&decision)
        })
    }

    fn decision_in_words(decision: &BeginDecision) -> String {
        match decision {
            BeginDecision::Insert => "insert".into(),
            BeginDecision::Execute(_, write) | BeginDecision::Doubt(_, write) => in_words(write),
            BeginDecision::Mismatch => "mismatch".into(),
            BeginDecision::CredentialChanged => "changed".into(),
            BeginDecision::InProgress(_) => "in progress".into(),
            BeginDecision::Held(_) => "held".into(),
            BeginDecision::Replay(..) => "replay".into(),
            BeginDecision::Unknown(_) => "unknown".into(),
        }
    }

    fn in_words(write: &Write) -> String {
        let becomes = match &write.becomes {
            Becomes::Same => "same",
            Becomes::Begun { .. } => "begun",
            Becomes::Renewed { .. } => "renewed",
            Becomes::HeadKept { .. } => "head",
            Becomes::Advanced(FlowMove::Started { .. }) => "started",
            Becomes::Advanced(FlowMove::CallMarked(_)) => "marked",
            Becomes::Advanced(FlowMove::PhaseDone(_)) => "phase done",
            Becomes::LeaseEnded => "lease over",
            Becomes::Completed(_) => "completed",
            Becomes::FailedRetryable => "failed",
            Becomes::Unknown(_) => "unknown",
            Becomes::LookedUp => "looked up",
            Becomes::Expired => "expired",
        };
        format!("→ {becomes}{}", if write.new_fence { " !" } else { "" })
    }

    #[test]
    fn every_state_and_event_is_decided_as_the_table_says() {
        let records = records();
        let completed = completed("x");
        let otherwise = completed_otherwise();
        let retryable = Outcome::Retryable(None);
        let unknown = Outcome::Unknown(Doubt::Said);
        let executed = verdict(true);
        let not_executed = verdict(false);
        let former = Verdict { fence: Fence(9), ..verdict(false) };
        let other_mark = Some(CredentialMark::of(b"other"));
        let begin = |same_request, mark| {
            let request_id = Some("r-2");
            begun(Begin { same_request, mark, owner: 2, lease: LEASE, request_id, flows: &[] })
        };
        let look_up =
            |fence, lookups| asked(LookUp { fence, lookups: Some(lookups), found: "nothing" });
        let renewal = |fence, lease_max| Renew { fence, lease: LEASE, lease_max };
        let head = head();
        let keep_head =
            |fence, lease_max| asked(KeepHead { head: &head, renew: renewal(fence, lease_max) });
        let settle = |fence, outcome| asked(Settle { fence, outcome, ttl: None, point: None });
        let events = [
            ("begin", begin(true, None)),
            ("begin, other request", begin(false, None)),
            ("begin, other mark", begin(true, other_mark)),
            ("begin, other in both", begin(false, other_mark)),
            ("withdraw, owner", asked(Withdraw { owner: OWNER })),
            ("withdraw, other owner", asked(Withdraw { owner: 2 })),
            ("renew", asked(renewal(FENCE, LEASE * 100))),
            ("renew, lease_max used up", asked(renewal(FENCE, Duration::ZERO))),
            ("renew, other fence", asked(renewal(Fence(9), LEASE * 100))),
            ("keep head", keep_head(FENCE, LEASE * 100)),
            ("keep head, lease_max used up", keep_head(FENCE, Duration::ZERO)),
            ("keep head, other fence", keep_head(Fence(9), LEASE * 100)),
            ("settle completed", settle(FENCE, &completed)),
            ("settle completed otherwise", settle(FENCE, &otherwise)),
            ("settle retryable", settle(FENCE, &retryable)),
            ("settle unknown", settle(FENCE, &unknown)),
            ("settle, other fence", settle(Fence(9), &completed)),
            ("resolve executed", asked(Resolve(&executed))),
            ("resolve not executed", asked(Resolve(&not_executed))),
            ("resolve, other fence", asked(Resolve(&former))),
            ("look up", look_up(FENCE, 0)),
            ("look up, other fence", look_up(Fence(9), 0)),
            ("look up, other number", look_up(FENCE, 1)),
            ("expire", asked(Expire { fence: Some(FENCE), reason: "why" })),
            ("lease check", asked(LeaseCheck)),
            ("owner gone", asked(OwnerGone)),
        ];
        let standings: BTreeSet<Standing> =
            records.iter().filter_map(|(_, record)| Some(record.as_ref()?.standing())).collect();
        assert_eq!(standings.len(), Standing::ALL.len(), "every state is in the table");

        let mut told = TABLE.lines();
        assert_eq!(cells(told.next().unwrap())[1..], records.each_ref().map(|(name, _)| *name));
        for (event_name, decided) in &events {
            let expected = cells(told.next().expect("the table has a line for each event"));
            assert_eq!(expected[0], *event_name);
            for ((state, record), expected) in records.iter().zip(&expected[1..]) {
                assert_eq!(decided(record.as_ref()), *expected, "{event_name} of {state}");
            }
        }
        assert_eq!(told.next(), None);
    }

    fn cells(line: &str) -> Vec<&str> {
        line.split('|').map(str::trim).collect()
    }

    fn head() -> AnswerHead {
        AnswerHead { status: http::StatusCode::OK, location: None }
    }

    fn completed(body: &'static str) -> Outcome {
        Outcome::Completed(Answer::Kept(crate::response::StoredResponse {
            status: http::StatusCode::OK,
            headers: vec![],
            body: body.into(),
        }))
    }

    fn completed_otherwise() -> Outcome {
        Outcome::Completed(Answer::NotKept { status: None, location: None })
    }

    fn verdict(executed: bool) -> Verdict {
        let answer = Answer::NotKept { status: None, location: None };
        let evidence = if executed {
            Evidence::Executed(answer)
        } else {
            Evidence::NotExecuted(Proof::burnt())
        };
        Verdict { fence: FENCE, evidence, judge: Judge::Operator, reason: "why".into() }
    }

    fn in_progress() -> Record {
        let (scope, key) = (Scope::anonymous(), crate::key::Key::new("k").unwrap().digest());
        let fingerprint = crate::fingerprint::Fingerprint::from_parts(
            1,
            crate::fingerprint::RulesId::from_bytes([0; 8]),
            [0; 32],
        );
        let id = Id::of(&scope, &key);
        let about = About::default();
        let ttl = Duration::from_secs(3_600);
        let (mark, lease, owner, request_id) = (None, LEASE, OWNER, None);
        First {
            id,
            scope,
            key,
            fingerprint,
            mark,
            about,
            ttl,
            lease,
            owner,
            request_id,
            flow: None,
        }
        .record(NOW, FENCE.0)
    }

    /// What an event writes, which must write.
    fn written<E: Event>(record: &Record, event: &E, now: Time) -> Write {
        decide(Some(record), event, now).and_then(Decision::write).expect("it is written")
    }

    fn settled(outcome: &Outcome, at: Time) -> Record {
        let begun = in_progress();
        let event = Settle { fence: FENCE, outcome, ttl: None, point: None };
        written(&begun, &event, at).onto(&begun, at, FENCE.0 + 1)
    }

    /// A record in every state: live, its lease over, expired.
    fn records() -> [(&'static str, Option<Record>); 8] {
        let mut overdue = in_progress();
        let (begun_at, lease_until) = (Time::from_ms(1), NOW);
        overdue.state = State::InProgress { owner: OWNER, begun_at, lease_until, head: None };
        let long_ago = Time::default();
        let mut gone =
            [settled(&completed("x"), long_ago), settled(&Outcome::Retryable(None), long_ago)];
        for record in &mut gone {
            match &mut record.state {
                State::Completed { expires_at, .. } | State::FailedRetryable { expires_at, .. } => {
                    *expires_at = NOW;
                }
                State::InProgress { .. } | State::Unknown { .. } => panic!("{record:?}"),
            }
        }
        let [gone, gone_failed] = gone;
        [
            ("none", None),
            ("running", Some(in_progress())),
            ("overdue", Some(overdue)),
            ("completed", Some(settled(&completed("x"), NOW))),
            ("failed", Some(settled(&Outcome::Retryable(None), NOW))),
            ("unknown", Some(settled(&Outcome::Unknown(Doubt::Said), NOW))),
            ("gone", Some(gone)),
            ("gone failed", Some(gone_failed)),
        ]
    }

    #[test]
    fn no_event_leads_a_plain_request_from_an_ended_lease_or_from_unknown_to_execution() {
        let completed = completed("x");
        let retryable = Outcome::Retryable(None);
        let verdict = verdict(true);
        let mark = Some(CredentialMark::of(b"other"));
        let flows = [ride()];
        for (state, record) in records() {
            if !matches!(state, "overdue" | "unknown") {
                continue;
            }
            let mut events = vec![
                asked(Withdraw { owner: OWNER }),
                asked(Settle { fence: FENCE, outcome: &completed, ttl: None, point: None }),
                asked(Settle { fence: FENCE, outcome: &retryable, ttl: None, point: None }),
                asked(Resolve(&verdict)),
                asked(LeaseCheck),
                asked(OwnerGone),
            ];
            for (same_request, mark) in [(true, None), (true, mark), (false, None), (false, mark)] {
                let (owner, lease, request_id) = (OWNER, LEASE, None);
                let flows = &flows[..];
                let begin = Begin { same_request, mark, owner, lease, request_id, flows };
                events.push(begun(begin));
            }
            for decided in events {
                let decision = decided(record.as_ref());
                assert!(decision != "insert" && !decision.contains("begun"), "{state}: {decision}");
            }
        }
    }

    /// Every decision about a flow. `between` has committed a phase, `calling` has a first-sent mark.
    const FLOW_TABLE: &str = "\
event                      | plain       | between     | keyed       | forgotten   | unkeyed     | left between | left keyed  | left forgotten | left unkeyed | unknown keyed | unknown unkeyed | released    | released start
begin                      | in progress | in progress | in progress | in progress | in progress | → begun !   | → begun !   | → unknown   | → unknown    | unknown     | unknown     | → begun !   | → begun !
begin, other flow          | in progress | in progress | in progress | in progress | in progress | held        | held        | → unknown   | → unknown    | unknown     | unknown     | held        | held
begin, other mark          | changed     | changed     | changed     | changed     | changed     | changed     | changed     | changed     | changed      | changed     | changed     | changed     | → begun !
start                      | → started   | lost        | lost        | lost        | lost        | lost        | lost        | lost        | lost         | lost        | lost        | lost        | lost
commit 1                   | lost        | → phase done | lost       | lost        | lost        | → phase done | lost       | lost        | lost         | lost        | lost        | lost        | lost
commit 0 again             | lost        | repeated    | lost        | lost        | lost        | repeated    | lost        | lost        | lost         | lost        | lost        | lost        | lost
commit 0 otherwise         | lost        | lost        | lost        | lost        | lost        | lost        | lost        | lost        | lost         | lost        | lost        | lost        | lost
call 1                     | lost        | → marked    | repeated    | repeated    | repeated    | → marked    | repeated    | repeated    | repeated     | lost        | lost        | lost        | lost
result 1                   | lost        | lost        | → phase done | → phase done | → phase done | lost     | → phase done | → phase done | → phase done | → phase done ! | → phase done ! | lost   | lost
result 1, other fence      | lost        | lost        | lost        | lost        | lost        | lost        | lost        | lost        | lost         | lost        | lost        | lost        | lost
not sent 1                 | lost        | lost        | → failed    | → failed    | → failed    | lost        | → failed    | → failed    | → failed     | → failed    | → failed    | lost        | lost
settle completed, at 1     | lost        | → completed | lost        | lost        | lost        | → completed | lost        | lost        | lost         | lost        | lost        | contradicts | contradicts
settle completed, calling  | lost        | lost        | → completed | → completed | → completed | lost        | → completed | → completed | → completed  | → completed | → completed | contradicts | contradicts
settle retryable           | → failed    | → failed    | → lease over | → lease over | → unknown  | → failed    | → lease over | → lease over | → unknown   | repeated    | repeated    | repeated    | repeated
settle unknown             | → unknown   | → lease over | → lease over | → lease over | → unknown  | → lease over | → lease over | → lease over | → unknown  | repeated    | repeated    | contradicts | contradicts
settle other bytes         | → unknown   | → lease over | → unknown  | → unknown   | → unknown   | → lease over | → unknown  | → unknown   | → unknown    | repeated    | repeated    | contradicts | contradicts
renew                      | → renewed   | → renewed   | → renewed   | → renewed   | → renewed   | lost        | lost        | lost        | lost         | lost        | lost        | lost        | lost
withdraw                   | → failed    | → lease over | → lease over | → lease over | → lease over | → lease over | → lease over | → lease over | → lease over | lost   | lost        | lost        | lost
resolve executed, whole    | refused     | refused     | refused     | refused     | refused     | refused     | refused     | refused     | refused      | → completed ! | → completed ! | decided   | decided
resolve executed, fact     | refused     | refused     | refused     | refused     | refused     | refused     | refused     | refused     | refused      | refused     | refused     | decided     | decided
resolve call executed      | refused     | refused     | refused     | refused     | refused     | refused     | refused     | refused     | refused      | → phase done ! | → phase done ! | decided | decided
resolve not executed       | refused     | refused     | refused     | refused     | refused     | refused     | refused     | refused     | refused      | → failed !  | → failed !  | decided     | decided
expire                     | refused     | refused     | refused     | refused     | refused     | refused     | refused     | refused     | refused      | refused     | refused     | refused     | → expired
lease check                | not due     | not due     | not due     | not due     | not due     | not due     | not due     | → unknown   | → unknown    | not due     | not due     | not due     | not due
owner gone                 | → unknown   | → lease over | → lease over | → unknown  | → unknown   | not due     | not due     | → unknown   | → unknown    | not due     | not due     | not due     | not due
";

    fn ride() -> FlowVersion {
        FlowVersion::new("ride", 1)
    }

    fn flow_record(moves: &[FlowMove], ends: Option<&dyn Fn(Record) -> Record>) -> Record {
        let mut record = in_progress();
        for (version, moved) in (FENCE.0 + 1..).zip(moves) {
            record = write(Becomes::Advanced(moved.clone()), None).onto(&record, NOW, version);
        }
        ends.map_or(record.clone(), |ends| ends(record))
    }

    /// The records of the table for flows, in its order.
    fn flow_records() -> [Record; 13] {
        let started = || FlowMove::Started { flow: ride(), input: "in".into() };
        let between = || vec![started(), FlowMove::PhaseDone("o".into())];
        let calling = |resume_until| {
            let digest = RequestDigest::of(b"charge");
            let mark = FirstSentMark { digest, set_by: FENCE, resume_until };
            [between(), vec![FlowMove::CallMarked(mark)]].concat()
        };
        let (later, now) = (Some(Time::from_ms(NOW.as_ms() + 1)), Some(NOW));
        let becomes = |becomes: Becomes| {
            move |record: Record| write(becomes.clone(), None).onto(&record, NOW, FENCE.0 + 9)
        };
        let left: &dyn Fn(Record) -> Record =
            &|record: Record| end_lease(None).onto(&record, NOW, FENCE.0 + 9);
        let unknown: &dyn Fn(Record) -> Record = &becomes(Becomes::Unknown(Doubt::Said));
        let released: &dyn Fn(Record) -> Record = &becomes(Becomes::FailedRetryable);
        [
            flow_record(&[], None),
            flow_record(&between(), None),
            flow_record(&calling(later), None),
            flow_record(&calling(now), None),
            flow_record(&calling(None), None),
            flow_record(&between(), Some(left)),
            flow_record(&calling(later), Some(left)),
            flow_record(&calling(now), Some(left)),
            flow_record(&calling(None), Some(left)),
            flow_record(&calling(later), Some(unknown)),
            flow_record(&calling(None), Some(unknown)),
            flow_record(&between(), Some(released)),
            flow_record(&[started()], Some(released)),
        ]
    }

    #[test]
    fn every_state_and_event_of_a_flow_is_decided_as_the_table_says() {
        let (flows, others) = ([ride()], [FlowVersion::new("ride", 2)]);
        let begin = |mark, flows| {
            let (same_request, request_id) = (true, None);
            begun(Begin { same_request, mark, owner: 2, lease: LEASE, request_id, flows })
        };
        let output = |text: &'static str| Bytes::from_static(text.as_bytes());
        let commit = |phase, text| FlowStep::Commit { phase, output: output(text) };
        let digest = RequestDigest::of(b"charge");
        let steps = [
            FlowStep::Start { flow: ride(), input: output("in") },
            commit(1, "o2"),
            commit(0, "o"),
            commit(0, "other"),
            FlowStep::Call { phase: 1, digest, repeatable_for: Some(LEASE) },
            FlowStep::CallResult { phase: 1, output: output("r") },
        ];
        let [start, next, again, otherwise, call, result] = &steps;
        let advance = |fence, step| asked(Advance { fence, step });
        let whole = completed("x");
        let retryable = Outcome::Retryable(None);
        let (said, other_bytes) =
            (Outcome::Unknown(Doubt::Said), Outcome::Unknown(Doubt::OtherBytes));
        let settle = |outcome, point| asked(Settle { fence: FENCE, outcome, ttl: None, point });
        let (at_1, calling_1) = (RecoveryPoint::Before(1), RecoveryPoint::Calling(1));
        let fact = verdict(true);
        let Outcome::Completed(answer) = completed("x") else { panic!() };
        let found = Verdict { evidence: Evidence::Executed(answer), ..verdict(true) };
        let called = Verdict { evidence: Evidence::CallExecuted(output("r")), ..verdict(true) };
        let not_executed = verdict(false);
        let other_mark = Some(CredentialMark::of(b"other"));
        let events = [
            ("begin", begin(None, &flows[..])),
            ("begin, other flow", begin(None, &others[..])),
            ("begin, other mark", begin(other_mark, &flows[..])),
            ("start", advance(FENCE, start)),
            ("commit 1", advance(FENCE, next)),
            ("commit 0 again", advance(FENCE, again)),
            ("commit 0 otherwise", advance(FENCE, otherwise)),
            ("call 1", advance(FENCE, call)),
            ("result 1", advance(FENCE, result)),
            ("result 1, other fence", advance(Fence(9), result)),
            ("not sent 1", asked(CallNotSent { fence: FENCE, phase: 1 })),
            ("settle completed, at 1", settle(&whole, Some(at_1))),
            ("settle completed, calling", settle(&whole, Some(calling_1))),
            ("settle retryable", settle(&retryable, None)),
            ("settle unknown", settle(&said, None)),
            ("settle other bytes", settle(&other_bytes, None)),
            ("renew", asked(Renew { fence: FENCE, lease: LEASE, lease_max: LEASE * 100 })),
            ("withdraw", asked(Withdraw { owner: OWNER })),
            ("resolve executed, whole", asked(Resolve(&found))),
            ("resolve executed, fact", asked(Resolve(&fact))),
            ("resolve call executed", asked(Resolve(&called))),
            ("resolve not executed", asked(Resolve(&not_executed))),
            ("expire", asked(Expire { fence: Some(FENCE), reason: "why" })),
            ("lease check", asked(LeaseCheck)),
            ("owner gone", asked(OwnerGone)),
        ];
        let records = flow_records();
        let mut told = FLOW_TABLE.lines();
        let states = cells(told.next().unwrap());
        assert_eq!(states.len(), records.len() + 1);
        for (event_name, decided) in &events {
            let expected = cells(told.next().expect("the table has a line for each event"));
            assert_eq!(expected[0], *event_name);
            for ((state, record), expected) in states[1..].iter().zip(&records).zip(&expected[1..])
            {
                assert_eq!(decided(Some(record)), *expected, "{event_name} of {state}");
            }
        }
        assert_eq!(told.next(), None);
    }

    /// Both tables as rows, for whoever writes another implementation (docs/vectors.md). The tests above hold the tables to
    /// what is decided. `UPDATE_VECTORS=1 cargo test -p retrysafe-core --lib state_table` writes the file anew.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "the vectors are a file")]
    fn the_vectors_of_the_state_table_are_these_tables() {
        let mut rows = Vec::new();
        for (records, table) in [("plain", TABLE), ("flow", FLOW_TABLE)] {
            let mut lines = table.lines().map(cells);
            let states = lines.next().unwrap();
            for line in lines {
                for (state, cell) in states.iter().zip(&line).skip(1) {
                    let result = match cell.strip_prefix("→ ") {
                        None => serde_json::json!({ "answers": cell }),
                        Some(becomes) => serde_json::json!({
                            "writes": becomes.trim_end_matches(" !"),
                            "new_fence": becomes.ends_with(" !"),
                        }),
                    };
                    let event = line.first();
                    rows.push(serde_json::json!({
                        "records": records, "state": state, "event": event, "result": result,
                    }));
                }
            }
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/vectors/states.json");
        if std::env::var_os("UPDATE_VECTORS").is_some() {
            let lines: Vec<String> = rows.iter().map(|row| format!("  {row}")).collect();
            std::fs::write(path, format!("[\n{}\n]\n", lines.join(",\n"))).unwrap();
        }
        let kept: Vec<serde_json::Value> =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(kept.len(), rows.len(), "{path}");
        for (kept, row) in kept.iter().zip(&rows) {
            assert_eq!(kept, row, "{path} is not what is decided now");
        }
    }

    /// A former owner's bytes may be on their way.
    #[test]
    fn a_mark_of_a_former_owner_is_not_cleared() {
        let [.., left_keyed, _, _, _, _, _, _] = flow_records();
        let begin = Becomes::Begun { owner: 2, lease: LEASE, mark: None };
        let takeover = Write { new_fence: true, ..write(begin, None) };
        let taken = takeover.onto(&left_keyed, NOW, FENCE.0 + 20);
        let event = CallNotSent { fence: taken.fence, phase: 1 };
        assert_eq!(written(&taken, &event, NOW).becomes, Becomes::LeaseEnded);
        let unknown = write(Becomes::Unknown(Doubt::Said), None).onto(&taken, NOW, FENCE.0 + 21);
        assert_eq!(decide(Some(&unknown), &event, NOW), Some(Decision::Stands(Lost)));
    }

    #[test]
    fn a_released_flow_that_holds_work_is_kept_for_ever() {
        let [.., released, released_start] = flow_records();
        assert_eq!(released.expires_at(), Some(Time::NEVER));
        assert!(!released.is_expired(Time::NEVER));
        assert!(released_start.is_expired(NOW.plus(released_start.ttl)));
        let moved = released.flow.map(|flow| (flow.mark().is_some(), flow.outputs().len()));
        assert_eq!(moved, Some((false, 1)));
    }

    /// An owner whose answer has begun to come did send, whatever it says later.
    #[test]
    fn a_record_with_a_head_is_not_withdrawn() {
        let head = head();
        let begun = in_progress();
        let renew = Renew { fence: FENCE, lease: LEASE, lease_max: LEASE };
        let keep = KeepHead { head: &head, renew };
        let running = written(&begun, &keep, NOW).onto(&begun, NOW, FENCE.0 + 1);
        let unknown = written(&running, &OwnerGone, NOW).onto(&running, NOW, FENCE.0 + 2);
        for record in [running, unknown] {
            let decision = decide(Some(&record), &Withdraw { owner: OWNER }, NOW);
            assert_eq!(decision, Some(Decision::Stands(Lost)), "{record:?}");
        }
    }

    #[test]
    fn a_mark_is_another_one_where_only_one_side_has_one() {
        let mark = Some(CredentialMark::of(b"token"));
        let begin = |record: Record, mark| {
            let same_request = true;
            let (request_id, flows) = (None, &[][..]);
            let begin = Begin { same_request, mark, owner: 2, lease: LEASE, request_id, flows };
            decide_begin(Some(record), &begin, NOW)
        };
        let marked = Record { mark, ..in_progress() };
        assert_eq!(begin(marked.clone(), None), BeginDecision::CredentialChanged);
        assert_eq!(begin(in_progress(), mark), BeginDecision::CredentialChanged);
        assert!(matches!(begin(marked, mark), BeginDecision::InProgress(_)));
    }

    #[test]
    fn what_is_written_is_told_on_the_timeline() {
        let completed = completed("x");
        let settle = Settle { fence: FENCE, outcome: &completed, ttl: Some(LEASE), point: None };
        let write = written(&in_progress(), &settle, NOW);
        assert_eq!(write.ttl, Some(LEASE), "the handler's own time to live is kept");
        assert_eq!(write.what, Some(Happened::Settled(Standing::Completed, Some(200))));
        let long = "é".repeat(1_000);
        let unknown = settled(&Outcome::Unknown(Doubt::Said), NOW);
        let verdict = Verdict { reason: long.as_str().into(), ..verdict(false) };
        let write = written(&unknown, &Resolve(&verdict), NOW);
        let Some(Happened::Resolved(standing, judge, why)) = write.what else { panic!() };
        assert_eq!((standing, judge), (Standing::FailedRetryable, Judge::Operator));
        assert_eq!(&*why, &*reason(&long), "a reason is cut");
    }

    #[test]
    fn absence_is_proof_only_where_the_route_says_so_and_after_its_time() {
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        assert_eq!(Proof::absence(Absence::Inconclusive, minute, second), None);
        assert_eq!(Proof::absence(Absence::Proof, second, minute), None);
        assert!(Proof::absence(Absence::Proof, minute, minute).is_some());
    }
}
