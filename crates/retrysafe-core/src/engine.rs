//! How do machine and store move together?
//!
//! The verbs people think in (begin, advance, renew, keep head, settle, resolve, expire, sweep, reap), written once over
//! any [`Store`]. Each reads a record, asks [`machine::decide`], and writes under the version it
//! read; whoever loses that race looks again. Three rules live here and nowhere else:
//!
//! * A begin whose write is ambiguous never executes. The caller says so with [`Engine::withdraw`].
//! * A settle whose write is ambiguous is repeated with the same fence: the lease comes back with
//!   the error.
//! * A result that comes too late changes nothing and is kept on the timeline as evidence.

use std::time::Duration;

use crate::fingerprint::{Fingerprint, RulesId};
use crate::flow::{FlowProgress, FlowVersion};
use crate::key::KeyDigest;
use crate::machine::{
    self, Begin, Decision, Event, Expire, KeepHead, LeaseCheck, LookUp, OwnerGone, Renew,
    ReplayFacts, Resolve, Settle, SettleReply, Verdict, Withdraw,
};
use crate::record::{
    About, Answer, AnswerHead, Becomes, Fence, First, Happened, LateResult, Moment, Outcome,
    Record, Standing, State, Write,
};
use crate::scope::{CredentialMark, Id, Scope};
use crate::store::{Filter, Page, Query, Stamped, Store, StoreError, StoreErrorKind, Swapped};
use crate::time::Time;

mod begin;
mod flow;
mod within;

use begin::{Directly, begin_over};

pub use flow::{Advanced, MovedIn, Unadvanced};
pub use within::NotSettled;

/// How often one verb looks again after losing a race. Each loss means that somebody else moved the
/// record, and a record has few moves to make; more than this is a store that breaks its contract.
const RACES_MAX: usize = 16;

/// How many records one sweep reads per page.
const SWEEP_PAGE: usize = 256;

/// After how many failures in a row a sweep takes the store for out of reach and ends. One record
/// may be held by somebody for long, and does not stop the sweep of the others.
const OUT_OF_REACH_MAX: usize = 5;

/// The verbs, over one store.
///
/// ```
/// use std::time::Duration;
/// use retrysafe_core::engine::{Ask, Begun, Engine};
/// use retrysafe_core::fingerprint::{Request, Rules};
/// use retrysafe_core::record::{About, Answer, Outcome};
/// use retrysafe_core::{Key, Scope, Store};
///
/// async fn once<S: Store>(engine: &Engine<S>, key: &Key) -> Result<(), Box<dyn std::error::Error>> {
///     let request = Request {
///         method: "POST",
///         authority: "shop.example",
///         path_and_query: "/payments",
///         headers: &http::HeaderMap::new(),
///         body: b"{}",
///     };
///     let ask = Ask {
///         scope: &Scope::anonymous(),
///         mark: None,
///         key: key.digest(),
///         prints: &Rules::default().print(&request),
///         about: &About::default(),
///         ttl: Duration::from_secs(86_400),
///         lease: Duration::from_secs(60),
///         owner: 7, // a random number, new for each attempt
///         request_id: None,
///     };
///     if let Begun::Execute(lease) = engine.begin(&ask).await? {
///         // … do the work, then give the lease back:
///         let done = Outcome::Completed(Answer::NotKept { status: None, location: None });
///         engine.settle(lease, &done).await.map_err(|unsettled| unsettled.error)?;
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Engine<S> {
    store: S,
}

/// A request, as far as the rules need to know it.
#[derive(Debug)]
pub struct Ask<'a, P: ?Sized> {
    /// Who is asking.
    pub scope: &'a Scope,
    /// Which credential it showed, where the scope alone proves nothing.
    pub mark: Option<CredentialMark>,
    /// What stands for the key.
    pub key: KeyDigest,
    /// What the request means.
    pub prints: &'a P,
    /// What an operator may see of it.
    pub about: &'a About,
    /// How long the record is kept once settled.
    pub ttl: Duration,
    /// How long the owner may be silent.
    pub lease: Duration,
    /// A random number of the caller's own, new for each attempt.
    pub owner: u64,
    /// The id of the request, by which logs know it, and its [span](crate::trace::begin_text), if it is traced.
    pub request_id: Option<&'a str>,
}

/// What a request means, under the rules of today and of former days.
pub trait Prints: Sync {
    /// Its fingerprint under the present rules.
    fn current(&self) -> Fingerprint;

    /// Its fingerprint under the rules that an older record was made with, if they are still known.
    fn under(&self, scheme: u8, rules: RulesId) -> Option<Fingerprint>;
}

/// A request of which only the present fingerprint is known.
impl Prints for Fingerprint {
    fn current(&self) -> Fingerprint {
        *self
    }

    fn under(&self, scheme: u8, rules: RulesId) -> Option<Fingerprint> {
        (self.scheme() == scheme && self.rules() == rules).then_some(*self)
    }
}

/// The answer to a begin.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it lives for one match")]
pub enum Begun {
    /// The caller owns the record and executes.
    Execute(Lease),
    /// It was executed; this is the answer, and what else the record knows of it.
    Replay(Answer, ReplayFacts),
    /// Somebody is executing it; the lease ends in this long.
    InProgress(Duration),
    /// It is a flow of a version that the caller cannot run. Nothing has changed.
    Held(FlowVersion),
    /// The key belongs to another request.
    Mismatch,
    /// The record was begun with another credential, and may have been executed.
    CredentialChanged,
    /// Nobody knows whether it was executed. This is the head of its answer, if one had come.
    Unknown(Option<AnswerHead>),
}

/// The right to execute, until a time. It is given back by [`Engine::settle`].
#[must_use = "a lease that is not settled leaves its record to become unknown"]
#[derive(Debug)]
pub struct Lease {
    record: Record,
    granted_at: Time,
    fence: Fence,
    ttl: Option<Duration>,
}

/// Whose lease is to be renewed. It gives no right to execute or to settle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    id: Id,
    fence: Fence,
}

impl Renewal {
    /// The lease on this record under this fence.
    pub const fn new(id: Id, fence: Fence) -> Self {
        Self { id, fence }
    }

    /// The record's name.
    pub const fn id(self) -> Id {
        self.id
    }

    /// The fence of the owner.
    pub const fn fence(self) -> Fence {
        self.fence
    }
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The owner may be silent for this long, counted from the moment the renewal was asked for.
    For(Duration),
    /// The record is not the owner's any more, or its time is used up.
    Lost,
}

/// The answer to a settle.
#[derive(Debug)]
pub enum Settled {
    /// It holds, and is kept as this record.
    Done(Record),
    /// Somebody else has decided; nothing was changed.
    Lost {
        /// What holds instead, if there is a record and it is about the same request of the same
        /// credential. A late owner may come back after its record has expired and the key was used
        /// for another request, or after its record was released and begun with another credential;
        /// that one's answer is not for this one's caller.
        current: Option<Record>,
        /// Whether the two say opposite things about what was executed.
        contradiction: bool,
    },
}

/// A settle that could not be written. It may be repeated with the lease.
#[derive(Debug)]
pub struct Unsettled {
    /// The lease, to try again.
    pub lease: Lease,
    /// What went wrong.
    pub error: StoreError,
}

/// The answer to a verb of an operator or a reconciler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruled {
    /// It holds, and is kept as this record.
    Done(Record),
    /// The record was decided before, or is in a state in which this verb is not allowed.
    Refused(Record),
    /// There is no such record.
    Absent,
}

/// What one sweep did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Swept {
    /// Ended leases that are unknown now.
    pub doubted: usize,
    /// Records that could not be read or written. The sweep went on without them.
    pub failed: usize,
}

impl<S: Store> Engine<S> {
    /// The verbs over this store.
    pub fn new(store: S) -> Self {
        Self { store }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Asks for the right to execute a request, or for its answer.
    ///
    /// # Errors
    ///
    /// The store's. The caller must not execute; if the error
    /// [may have been applied](StoreError::may_have_applied), it should [withdraw](Self::withdraw).
    pub async fn begin<P: Prints + ?Sized>(&self, ask: &Ask<'_, P>) -> Result<Begun, StoreError> {
        begin_over(&mut Directly(&self.store), ask.id(), ask, &[], None).await
    }

    /// The answer to a begin of this request, from a record that was read before, if the store
    /// [vouches](crate::store::Voucher) for it. Waits for nothing and changes nothing. None: [begin](Self::begin).
    pub fn replay<'r>(
        &self,
        known: &'r Record,
        print: Fingerprint,
        mark: Option<CredentialMark>,
    ) -> Option<(&'r Answer, Time)> {
        let now = self.store.voucher()?.vouch(known.id, known.version)?;
        machine::replay(known, print == known.fingerprint, mark, now)
    }

    /// Takes back a begin whose acknowledgement was lost: the caller has not executed and will not.
    /// Says whether there was something to take back.
    ///
    /// # Errors
    ///
    /// The store's. It may be repeated; if it never succeeds, the record becomes unknown.
    pub async fn withdraw(&self, id: Id, owner: u64) -> Result<bool, StoreError> {
        let ruled = self.rule(id, &Withdraw { owner }).await?;
        Ok(matches!(ruled, Ruled::Done(_)))
    }

    /// Lengthens a lease while its owner executes. The record is read anew, so that whoever renews
    /// needs to know no more than whose lease it is.
    ///
    /// # Errors
    ///
    /// The store's. The lease stands as it was, or longer.
    pub async fn renew(
        &self,
        held: Renewal,
        lease: Duration,
        lease_max: Duration,
    ) -> Result<Renewed, StoreError> {
        self.extend(held.id, &Renew { fence: held.fence, lease, lease_max }).await
    }

    /// Makes the head of an answer durable that will not be kept whole, and lengthens the lease as
    /// [`renew`](Self::renew) does. Nothing of the answer may go to the caller before.
    ///
    /// # Errors
    ///
    /// The store's, where it cannot be told whether the head was kept. It may be repeated.
    pub async fn keep_head(
        &self,
        held: Renewal,
        head: &AnswerHead,
        lease: Duration,
        lease_max: Duration,
    ) -> Result<Renewed, StoreError> {
        let renew = Renew { fence: held.fence, lease, lease_max };
        let error = match self.extend(held.id, &KeepHead { head, renew }).await {
            Err(error) if error.may_have_applied() => error,
            answer => return answer,
        };
        match self.store.load(held.id).await {
            Ok(Stamped { now, value: Some(record) })
                if record.fence == held.fence
                    && record.standing() == Standing::InProgress
                    && record.state.head() == Some(head) =>
            {
                Ok(Renewed::of(&record, now))
            }
            Ok(_) | Err(_) => Err(error),
        }
    }

    /// Writes what keeps an owner believed, unless it has lost its record.
    async fn extend(&self, id: Id, event: &impl Event) -> Result<Renewed, StoreError> {
        let loaded = self.store.load(id).await?;
        let mut now = loaded.now;
        let mut current = loaded.value;
        for _ in 0..RACES_MAX {
            let write = machine::decide(current.as_ref(), event, now).and_then(Decision::write);
            let (Some(record), Some(write)) = (current, write) else { return Ok(Renewed::Lost) };
            let answer = self.store.swap(record, write).await?;
            now = answer.now;
            match answer.value {
                Swapped::Done(record) => return Ok(Renewed::of(&record, now)),
                Swapped::Lost(other) => current = other,
            }
        }
        Err(StoreError::not_applied(StoreErrorKind::Broken))
    }

    /// Gives a lease back with the outcome of its execution.
    ///
    /// # Errors
    ///
    /// The store's, together with the lease: the outcome may be settled again, with the same fence.
    pub async fn settle(&self, lease: Lease, outcome: &Outcome) -> Result<Settled, Unsettled> {
        let point = lease.record.recovery_point();
        let event = Settle { fence: lease.fence, outcome, ttl: lease.ttl, point };
        let (mut current, mut now) = (Some(lease.record.clone()), lease.granted_at);
        for _ in 0..RACES_MAX {
            let decision = machine::decide(current.as_ref(), &event, now);
            let (record, write) = match (decision, current) {
                (Some(Decision::Write(write)), Some(record)) => (record, write),
                (Some(Decision::Stands(SettleReply::Repeated)), Some(record)) => {
                    return Ok(Settled::Done(record));
                }
                (
                    Some(
                        Decision::Write(_)
                        | Decision::Stands(
                            SettleReply::Repeated | SettleReply::Contradicts | SettleReply::Lost,
                        ),
                    )
                    | None,
                    current,
                ) => {
                    return Ok(Box::pin(self.too_late(&lease, current, outcome)).await);
                }
            };
            match self.store.swap(record, write).await {
                Err(error) => return Err(Unsettled { lease, error }),
                Ok(answer) => {
                    now = answer.now;
                    match answer.value {
                        Swapped::Done(record) => return Ok(Settled::Done(record)),
                        Swapped::Lost(record) => current = record,
                    }
                }
            }
        }
        Err(Unsettled { lease, error: StoreError::maybe_applied(StoreErrorKind::Broken) })
    }

    /// Decides about an unknown record by evidence.
    ///
    /// # Errors
    ///
    /// The store's. It may be repeated: a verdict is decided once.
    pub async fn resolve(&self, id: Id, verdict: &Verdict) -> Result<Ruled, StoreError> {
        self.rule(id, &Resolve(verdict)).await
    }

    /// Notes what a reconciler has learned about an unknown record that it had read: nothing final.
    /// Refused where the record was decided meanwhile, or another reconciler's lookup counted.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn looked_up(&self, seen: &Record, found: &str) -> Result<Ruled, StoreError> {
        let State::Unknown { lookups, .. } = seen.state else {
            return Ok(Ruled::Refused(seen.clone()));
        };
        self.rule(seen.id, &LookUp { fence: seen.fence, lookups: Some(lookups), found }).await
    }

    /// Notes what was learned about an unknown record when a person had it asked out of turn: nothing final. That uses up
    /// nothing of the reconciler's schedule.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn looked_up_out_of_turn(
        &self,
        seen: &Record,
        found: &str,
    ) -> Result<Ruled, StoreError> {
        self.rule(seen.id, &LookUp { fence: seen.fence, lookups: None, found }).await
    }

    /// Makes the records unknown that owners have left in progress who cannot be alive, and says
    /// how many there were. Damaged ones stay as they are: each is an error of its own key.
    ///
    /// # Errors
    ///
    /// The store's. It may be repeated.
    pub async fn doubt_owners(&self, is_gone: impl Fn(u64) -> bool) -> Result<usize, StoreError> {
        let standing = Some(Standing::InProgress);
        let filter = Filter { standing, ..Filter::default() };
        let mut query = Query { filter, after: None, limit: SWEEP_PAGE };
        let mut doubted = 0;
        loop {
            let Stamped { now, value: page } = self.store.scan(query.clone()).await?;
            for record in page.records {
                doubted += usize::from(self.doubt_owner(record, now, &is_gone).await?);
            }
            match page.next {
                Some(cursor) => query.after = Some(cursor),
                None => return Ok(doubted),
            }
        }
    }

    /// Makes one such record unknown, unless its owner has told the truth at the last moment or
    /// somebody who is alive owns it by now.
    async fn doubt_owner(
        &self,
        mut record: Record,
        mut now: Time,
        is_gone: &impl Fn(u64) -> bool,
    ) -> Result<bool, StoreError> {
        for _ in 0..RACES_MAX {
            let is_left = matches!(record.state, State::InProgress { owner, .. } if is_gone(owner));
            let write = machine::decide(Some(&record), &OwnerGone, now).and_then(Decision::write);
            let (Some(write), true) = (write, is_left) else { return Ok(false) };
            let answer = self.store.swap(record, write).await?;
            now = answer.now;
            match answer.value {
                Swapped::Done(_) => return Ok(true),
                Swapped::Lost(None) => return Ok(false),
                Swapped::Lost(Some(current)) => record = current,
            }
        }
        Err(StoreError::not_applied(StoreErrorKind::Broken))
    }

    /// Ends the retention of a settled record, for a reason. Where the attempt is named that was seen, another one is left as it is.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn expire(
        &self,
        id: Id,
        seen: Option<Fence>,
        reason: &str,
    ) -> Result<Ruled, StoreError> {
        self.rule(id, &Expire { fence: seen, reason }).await
    }

    /// Reads a record that is not expired.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn look(&self, id: Id) -> Result<Stamped<Option<Record>>, StoreError> {
        let found = self.store.load(id).await?;
        let now = found.now;
        Ok(found.map(|record| record.filter(|record| !record.is_expired(now))))
    }

    /// Makes ended leases unknown, at most `limit` of them. Safe to run in several processes at
    /// once, and a record that cannot be read or written does not stop it; a store that is out of
    /// reach does.
    ///
    /// # Errors
    ///
    /// The store's, if it cannot even be read.
    pub async fn sweep(&self, limit: usize) -> Result<Swept, StoreError> {
        let mut swept = Swept::default();
        let mut out_of_reach = 0;
        let mut query = Query {
            filter: Filter { lease_over: true, ..Filter::default() },
            after: None,
            limit: 0,
        };
        while swept.doubted < limit {
            query.limit = SWEEP_PAGE.min(limit - swept.doubted);
            let Stamped { now, value: Page { records, damaged, next } } =
                self.store.scan(query.clone()).await?;
            swept.failed += damaged.len();
            for record in records {
                match self.expire_lease(record, now).await {
                    Ok(doubted) => {
                        swept.doubted += usize::from(doubted);
                        out_of_reach = 0;
                    }
                    Err(error) => {
                        swept.failed += 1;
                        out_of_reach += usize::from(error.kind() == StoreErrorKind::Unavailable);
                    }
                }
                if out_of_reach == OUT_OF_REACH_MAX {
                    return Ok(swept);
                }
            }
            match next {
                Some(cursor) => query.after = Some(cursor),
                None => break,
            }
        }
        Ok(swept)
    }

    /// Deletes expired records, at most `limit` of them, and says how many.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn reap(&self, limit: usize) -> Result<usize, StoreError> {
        self.store.reap(limit).await.map(|answer| answer.value)
    }

    async fn expire_lease(&self, record: Record, now: Time) -> Result<bool, StoreError> {
        let write = machine::decide(Some(&record), &LeaseCheck, now).and_then(Decision::write);
        let Some(write) = write else { return Ok(false) };
        // A losing swap means that the owner has settled or renewed meanwhile: all the better.
        let answer = self.store.swap(record, write).await?;
        Ok(matches!(answer.value, Swapped::Done(_)))
    }

    /// Loads a record and applies one event to it, looking again while others win.
    async fn rule(&self, id: Id, event: &impl Event) -> Result<Ruled, StoreError> {
        let loaded = self.store.load(id).await?;
        let (mut current, mut now) = (loaded.value, loaded.now);
        for _ in 0..RACES_MAX {
            let Some(record) = current else { return Ok(Ruled::Absent) };
            let write = match machine::decide(Some(&record), event, now) {
                Some(Decision::Write(write)) => write,
                Some(Decision::Stands(_)) => return Ok(Ruled::Refused(record)),
                None => return Ok(Ruled::Absent),
            };
            let answer = self.store.swap(record, write).await?;
            now = answer.now;
            match answer.value {
                Swapped::Done(record) => return Ok(Ruled::Done(record)),
                Swapped::Lost(record) => current = record,
            }
        }
        Err(StoreError::not_applied(StoreErrorKind::Broken))
    }

    /// Keeps a result that came too late on the timeline, as evidence. One try: if it fails, the
    /// caller's own event still counts the contradiction.
    async fn too_late(&self, lease: &Lease, current: Option<Record>, outcome: &Outcome) -> Settled {
        let contradiction =
            current.as_ref().is_some_and(|record| contradicts(record, lease.fence, outcome));
        let told = |record: &Record| {
            record.timeline.iter().any(
                |moment| matches!(&moment.what, Happened::LateResult(late) if late.fence == lease.fence),
            )
        };
        let current = match current {
            Some(record) if outcome.standing() != Standing::Unknown && !told(&record) => {
                let write = Write {
                    becomes: Becomes::Same,
                    new_fence: false,
                    what: Some(Happened::LateResult(Box::new(LateResult::new(
                        lease.fence,
                        outcome,
                    )))),
                    ttl: None,
                };
                match self.store.swap(record.clone(), write).await {
                    Ok(Stamped { value: Swapped::Done(record), .. }) => Some(record),
                    Ok(Stamped { value: Swapped::Lost(current), .. }) => current,
                    Err(_) => Some(record),
                }
            }
            current => current,
        };
        let current = current.filter(|record| {
            record.fingerprint == lease.record.fingerprint && record.mark == lease.record.mark
        });
        Settled::Lost { current, contradiction }
    }
}

/// Whether what holds and what the late owner of `fence` reports cannot both be true.
fn contradicts(record: &Record, fence: Fence, outcome: &Outcome) -> bool {
    // The first moment of a record is never forgotten. If it is later than the owner, the record is
    // of another generation and says nothing about what this owner did.
    if record.timeline.first().is_some_and(|birth| birth.fence > fence) {
        return false;
    }
    let began_since =
        |moment: &Moment| matches!(moment.what, Happened::Began(_)) && moment.fence > fence;
    match (record.standing(), outcome) {
        // A flow that went on without this owner comes to the same end.
        (Standing::InProgress, Outcome::Completed(_)) if record.flow.is_some() => false,
        (Standing::FailedRetryable | Standing::InProgress, Outcome::Completed(_)) => true,
        // "I did not, another attempt did" is no contradiction; "I did not, yet it happened" is.
        (Standing::Completed, Outcome::Retryable(_)) => !record.timeline.iter().any(began_since),
        (Standing::Completed, Outcome::Completed(late)) => match &record.state {
            State::Completed { answer, .. } => answer != late,
            State::InProgress { .. } | State::FailedRetryable { .. } | State::Unknown { .. } => {
                false
            }
        },
        (
            Standing::InProgress
            | Standing::Completed
            | Standing::FailedRetryable
            | Standing::Unknown,
            Outcome::Completed(_) | Outcome::Retryable(_) | Outcome::Unknown(_),
        ) => false,
    }
}

impl<P: Prints + ?Sized> Ask<'_, P> {
    /// The name of the record that this is about.
    pub fn id(&self) -> Id {
        Id::of(self.scope, &self.key)
    }

    fn first(&self, id: Id, flow: Option<&FlowProgress>) -> First {
        First {
            id,
            scope: self.scope.clone(),
            key: self.key,
            fingerprint: self.prints.current(),
            mark: self.mark,
            about: self.about.clone(),
            ttl: self.ttl,
            lease: self.lease,
            owner: self.owner,
            request_id: self.request_id.and_then(crate::record::request_id),
            flow: flow.cloned().map(Box::new),
        }
    }

    /// This request's begin, as the machine sees it beside a record.
    fn begin<'b>(&'b self, record: Option<&Record>, flows: &'b [FlowVersion]) -> Begin<'b> {
        Begin {
            same_request: record.is_some_and(|record| self.is_same(record)),
            mark: self.mark,
            owner: self.owner,
            lease: self.lease,
            request_id: self.request_id,
            flows,
        }
    }

    fn is_same(&self, record: &Record) -> bool {
        let (scheme, rules) = (record.fingerprint.scheme(), record.fingerprint.rules());
        self.prints.under(scheme, rules) == Some(record.fingerprint)
    }
}

impl Renewed {
    fn of(record: &Record, now: Time) -> Self {
        let left = record.lease_until().map(|until| now.until(until)).unwrap_or_default();
        // Zero: `lease_max` is used up, and the write could not reach past now.
        if left.is_zero() { Self::Lost } else { Self::For(left) }
    }
}

impl Lease {
    pub(crate) fn new(record: Record, granted_at: Time) -> Self {
        let fence = record.fence;
        Self { record, granted_at, fence, ttl: None }
    }

    /// The record's name.
    pub fn id(&self) -> Id {
        self.record.id
    }

    /// What somebody needs who renews this lease while its owner is busy executing.
    pub fn renewal(&self) -> Renewal {
        Renewal { id: self.record.id, fence: self.fence }
    }

    /// The fence to show to whatever is behind us, so that it too can refuse a late owner.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The how-manieth attempt this is, from one.
    pub fn attempt(&self) -> u32 {
        self.record.attempts
    }

    /// How long the owner may be silent, counted from the moment the begin was asked for.
    pub fn length(&self) -> Duration {
        self.record.lease_until().map(|until| self.granted_at.until(until)).unwrap_or_default()
    }

    /// When the record would expire if it were settled at the moment the lease was granted.
    pub fn expires_at(&self) -> Time {
        self.granted_at.plus(self.ttl.unwrap_or(self.record.ttl))
    }

    /// Keeps the record for another time once it is settled.
    pub fn set_ttl(&mut self, ttl: Duration) {
        self.ttl = Some(ttl);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::machine::{Evidence, Proof};
    use crate::record::{Doubt, Judge};
    use crate::store::Inserted;

    /// A store that breaks its contract: it has this record, and no swap of it ever wins.
    struct Contrary {
        record: Record,
        asked: AtomicUsize,
    }

    impl Contrary {
        fn answer<T>(&self, value: T) -> Result<Stamped<T>, StoreError> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            Ok(Stamped { now: self.record.created_at, value })
        }
    }

    impl Store for Contrary {
        async fn insert(&self, _: First) -> Result<Stamped<Inserted>, StoreError> {
            self.answer(Inserted::Exists(self.record.clone()))
        }

        async fn load(&self, _: Id) -> Result<Stamped<Option<Record>>, StoreError> {
            self.answer(Some(self.record.clone()))
        }

        async fn swap(&self, _: Record, _: Write) -> Result<Stamped<Swapped>, StoreError> {
            self.answer(Swapped::Lost(Some(self.record.clone())))
        }

        async fn scan(&self, _: Query) -> Result<Stamped<Page>, StoreError> {
            self.answer(Page::default())
        }

        async fn reap(&self, _: usize) -> Result<Stamped<usize>, StoreError> {
            self.answer(0)
        }
    }

    /// Runs what is never pending.
    fn now<F: Future>(future: F) -> F::Output {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer,
            Poll::Pending => panic!("the store answers at once"),
        }
    }

    fn print(rules: u8) -> Fingerprint {
        Fingerprint::from_parts(1, RulesId::from_bytes([rules; 8]), [rules; 32])
    }

    fn first() -> First {
        let (scope, key) = (Scope::anonymous(), crate::key::Key::new("k").unwrap().digest());
        First {
            id: Id::of(&scope, &key),
            scope,
            key,
            fingerprint: print(1),
            mark: None,
            about: About::default(),
            ttl: Duration::from_secs(60),
            lease: Duration::from_secs(60),
            owner: 1,
            request_id: None,
            flow: None,
        }
    }

    /// The verbs over a contrary store whose record was written like this.
    fn contrary(becomes: Becomes) -> Engine<Contrary> {
        let at = Time::from_ms(1_000);
        let write = Write { becomes, new_fence: false, what: None, ttl: None };
        let record = write.onto(&first().record(at, 1), at, 2);
        Engine::new(Contrary { record, asked: AtomicUsize::new(0) })
    }

    fn begin(engine: &Engine<Contrary>, prints: &dyn Prints) -> Result<Begun, StoreError> {
        let first = first();
        let (ttl, lease) = (first.ttl, first.lease);
        let (scope, about) = (&first.scope, &first.about);
        let (mark, key, request_id) = (first.mark, first.key, None);
        let ask = Ask { scope, mark, key, prints, about, ttl, lease, owner: 2, request_id };
        now(engine.begin(&ask))
    }

    fn is_broken(error: &StoreError, engine: &Engine<Contrary>) {
        assert_eq!(error.kind(), StoreErrorKind::Broken);
        assert!(engine.store().asked.load(Ordering::Relaxed) <= RACES_MAX + 1);
    }

    #[test]
    fn verbs_give_up_on_a_store_on_which_nobody_ever_wins() {
        let engine = contrary(Becomes::FailedRetryable);
        is_broken(&begin(&engine, &print(1)).unwrap_err(), &engine);

        let engine = contrary(Becomes::Same);
        let lease = Lease::new(engine.store().record.clone(), Time::from_ms(1_000));
        let length = Duration::from_secs(60);
        is_broken(&now(engine.renew(lease.renewal(), length, length)).unwrap_err(), &engine);

        let engine = contrary(Becomes::Same);
        let unsettled = now(engine.settle(lease, &Outcome::Retryable(None))).unwrap_err();
        is_broken(&unsettled.error, &engine);
        assert!(unsettled.error.may_have_applied(), "nothing it says is to be relied on");
        assert_eq!(unsettled.lease.fence(), engine.store().record.fence, "the lease comes back");

        let engine = contrary(Becomes::Unknown(Doubt::Said));
        let verdict = Verdict {
            fence: engine.store().record.fence,
            evidence: Evidence::NotExecuted(Proof::operator()),
            judge: Judge::Operator,
            reason: "r".into(),
        };
        is_broken(&now(engine.resolve(first().id, &verdict)).unwrap_err(), &engine);
    }

    /// A late owner that tried to renew took over what it found: the record of a later request with
    /// the same key. Its caller was then answered with that request's answer.
    #[test]
    fn an_owner_that_renews_too_late_is_not_told_a_later_requests_answer() {
        let answer = Answer::NotKept { status: None, location: None };
        let mut engine = contrary(Becomes::Completed(answer));
        let mut mine = engine.store.record.clone();
        mine.state = first().record(Time::from_ms(1_000), 1).state;
        engine.store.record.fence = Fence(7);
        engine.store.record.fingerprint = print(2);
        let lease = Lease::new(mine, Time::from_ms(1_000));
        let length = Duration::from_secs(60);
        assert_eq!(now(engine.renew(lease.renewal(), length, length)).unwrap(), Renewed::Lost);
        let settled = now(engine.settle(lease, &Outcome::Retryable(None))).unwrap();
        assert!(matches!(settled, Settled::Lost { current: None, .. }), "{settled:?}");
    }

    /// Its record was released, and a refreshed credential began it anew: that one's answer is not for
    /// the caller of the old one, who may be somebody else.
    #[test]
    fn a_late_owner_is_not_told_the_answer_of_another_credential() {
        let answer = Answer::NotKept { status: None, location: None };
        let mut engine = contrary(Becomes::Completed(answer));
        let mine = first().record(Time::from_ms(1_000), 1);
        engine.store.record.fence = Fence(7);
        engine.store.record.mark = Some(CredentialMark::of(b"refreshed"));
        let lease = Lease::new(mine, Time::from_ms(1_000));
        let settled = now(engine.settle(lease, &Outcome::Retryable(None))).unwrap();
        assert!(matches!(settled, Settled::Lost { current: None, .. }), "{settled:?}");
    }

    #[test]
    fn a_request_is_compared_under_the_rules_that_its_record_was_made_with() {
        /// A request whose meaning is known under the rules 1 and 2.
        struct Both;

        impl Prints for Both {
            fn current(&self) -> Fingerprint {
                print(2)
            }

            fn under(&self, scheme: u8, rules: RulesId) -> Option<Fingerprint> {
                let known = [print(1), print(2)];
                known.into_iter().find(|print| (print.scheme(), print.rules()) == (scheme, rules))
            }
        }

        let answer = Answer::NotKept { status: None, location: None };
        let engine = contrary(Becomes::Completed(answer));
        assert!(matches!(begin(&engine, &Both), Ok(Begun::Replay(..))));
        assert!(matches!(begin(&engine, &print(1)), Ok(Begun::Replay(..))));
        assert!(
            matches!(begin(&engine, &print(2)), Ok(Begun::Mismatch)),
            "its rules are not known"
        );
    }

    #[test]
    fn a_lease_tells_its_length_and_the_end_of_retention_from_the_grant() {
        let granted_at = Time::from_ms(1_000);
        let mut lease = Lease::new(first().record(granted_at, 1), granted_at);
        assert_eq!(lease.length(), Duration::from_secs(60));
        assert_eq!(lease.expires_at(), Time::from_ms(61_000));
        lease.set_ttl(Duration::from_secs(5));
        assert_eq!(lease.expires_at(), Time::from_ms(6_000));
        assert_eq!((lease.attempt(), lease.fence(), lease.id()), (1, Fence(1), first().id));
    }
}
