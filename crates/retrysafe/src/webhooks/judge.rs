//! What does an event decide?
//!
//! Nothing, as a rule: most events say what is known already. An event decides about what is unknown, through the same doors as a
//! reconciler and an operator, with the fence that was read before. So of several that decide at once one does, and the others find
//! that they agree, or that they contradict. Evidence about a call moves its flow; it does not complete it.

mod decided;
mod effects;

use std::time::Duration;

use retrysafe_core::engine::{Engine, Ruled};
use retrysafe_core::flow::{RecoveryPoint, downstream_key};
use retrysafe_core::key::KeyDigest;
use retrysafe_core::machine::{Evidence, Verdict};
use retrysafe_core::mention::Mention;
use retrysafe_core::record::{Fence, Happened, Judge, Record, State};
use retrysafe_core::scope::{Id, Scope};
use retrysafe_core::store::{Filter, Query, Store, StoreError};
use retrysafe_core::time::Time;

use self::decided::{failed, is_doubled, is_failure, is_own};
use super::end::{EventEnd, EventSubject};
use super::event::{EventMeaning, EventName, happened_at, meaning, plain};
use super::inbox::{Inbox, NamedEffect};
use super::provider::{NamedBy, WebhookProvider};
use crate::evidence::{DocumentVerdict, JsonDocument};

/// How often a decision is tried again that somebody else has overtaken.
const RACES_MAX: usize = 4;

/// How many unknown records one page of a search has.
const PAGE: usize = 256;

/// How many pages a search reads: what is unknown is few, and an event may wait.
const PAGES_MAX: usize = 40;

/// How far the clocks of a provider and of the store may be apart. What is older than a request by more than this was before it.
const SKEW: Duration = Duration::from_secs(5 * 60);

/// How coarse the times of providers are: many tell whole seconds. What is older than a request by more than this may have been before
/// it, and decides nothing.
const GRAIN: Duration = Duration::from_secs(2);

/// How far an event's subject is searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SearchReach {
    /// Only where a name leads directly.
    Direct,
    /// Also among all records that are unknown.
    AllUnknown,
}

/// An event to be judged.
pub(super) struct JudgedEvent<'a> {
    pub(super) event_id: &'a str,
    pub(super) names: &'a [EventName],
    pub(super) payload: &'a [u8],
}

/// Judges the events of one provider.
pub(super) struct EventJudge<'a, S> {
    pub(super) engine: &'a Engine<S>,
    pub(super) inbox: Option<&'a Inbox>,
    pub(super) provider: &'a WebhookProvider,
    pub(super) reach: SearchReach,
    /// Records among which the event's subject may be, so that they need not be searched for.
    pub(super) seen: &'a [Record],
}

impl<S: Store> EventJudge<'_, S> {
    /// Finds what an event is about, and decides about it where nobody has.
    ///
    /// # Errors
    ///
    /// The store's. The event may be judged again.
    pub(super) async fn judge(&self, event: &JudgedEvent<'_>) -> Result<EventEnd, StoreError> {
        let document = JsonDocument::parse(event.payload);
        let Some(document) = document else {
            return Ok(EventEnd::Ignored("it is not JSON".into()));
        };
        let verdict = match meaning(self.provider, &document, event.names) {
            EventMeaning::Evidence(verdict) => verdict,
            EventMeaning::Nothing(why) | EventMeaning::Malformed(why) => {
                return Ok(EventEnd::Ignored(why));
            }
        };
        // The first name that finds something is whom the event is about, also where that has to wait: a later name may
        // find somebody else.
        for name in event.names {
            match self.find(name, &document).await? {
                Subject::Record(record) => {
                    return self.judge_record(event, name, &document, &verdict, *record).await;
                }
                Subject::Effect(effect) => {
                    return self.judge_effect(event, &document, &verdict, name, effect).await;
                }
                Subject::Several => {
                    let why = format!("its {} fits more than one", name.by.name());
                    return Ok(EventEnd::Waits(why));
                }
                Subject::None => {}
            }
        }
        Ok(EventEnd::Waits("nothing here has a name that the event names".to_owned()))
    }

    async fn find(
        &self,
        name: &EventName,
        document: &JsonDocument<'_>,
    ) -> Result<Subject, StoreError> {
        match name.by {
            NamedBy::Id => {
                let Some(id) = Id::parse(&name.value) else { return Ok(Subject::None) };
                let record = self.engine.look(id).await?.value;
                let record = record.filter(|record| self.may_speak_of(record));
                Ok(record.map_or(Subject::None, |record| Subject::Record(Box::new(record))))
            }
            NamedBy::Key | NamedBy::RequestId => self.find_unknown(name, document).await,
            NamedBy::DownstreamKey => match self.find_effect(name).await? {
                Subject::None if !self.provider.calls.is_empty() => {
                    match self.find_seen(&name.value) {
                        Some(record) => Ok(Subject::Record(Box::new(record.clone()))),
                        None => self.find_unknown(name, document).await,
                    }
                }
                found @ (Subject::Record(_)
                | Subject::Effect(_)
                | Subject::Several
                | Subject::None) => Ok(found),
            },
            NamedBy::Effect | NamedBy::Reference => self.find_effect(name).await,
        }
    }

    /// The record that is making the call of this key, if it is among those at hand. The key is of that call alone, so no other record
    /// need be searched.
    fn find_seen(&self, key: &str) -> Option<&Record> {
        let mut seen = self.seen.iter().filter(|record| self.may_speak_of(record));
        seen.find(|record| self.is_call_of(record, key))
    }

    /// Looks for the one unknown record that has this name.
    async fn find_unknown(
        &self,
        name: &EventName,
        document: &JsonDocument<'_>,
    ) -> Result<Subject, StoreError> {
        if self.reach == SearchReach::Direct {
            return Ok(Subject::None);
        }
        let mut filter = unknown();
        match name.by {
            NamedBy::Key => {
                let digest = Id::parse(&name.value).map(|id| KeyDigest::from_bytes(*id.as_bytes()));
                filter.key = digest;
            }
            NamedBy::RequestId => {
                let request_id = Some(name.value.as_str().into());
                filter.mention = Some(Mention { key: None, key_digits: None, request_id });
            }
            NamedBy::Id | NamedBy::DownstreamKey | NamedBy::Effect | NamedBy::Reference => {}
        }
        let whose = self.provider.scope.as_ref().and_then(|pointer| plain(document, pointer));
        let mut query = Query { filter, after: None, limit: PAGE };
        let mut found: Option<Record> = None;
        for _ in 0..PAGES_MAX {
            let page = self.engine.store().scan(query.clone()).await?.value;
            for record in page.records.into_iter().filter(|record| self.may_speak_of(record)) {
                let fits = match name.by {
                    NamedBy::DownstreamKey => self.is_call_of(&record, &name.value),
                    NamedBy::Key | NamedBy::RequestId => is_of_scope(&record, whose.as_deref()),
                    NamedBy::Id | NamedBy::Effect | NamedBy::Reference => true,
                };
                if !fits {
                    continue;
                }
                // A scan may meet a record twice.
                if found.as_ref().is_some_and(|former| former.id != record.id) {
                    return Ok(Subject::Several);
                }
                found = Some(record);
            }
            match page.next {
                Some(cursor) => query.after = Some(cursor),
                None => {
                    return Ok(
                        found.map_or(Subject::None, |record| Subject::Record(Box::new(record)))
                    );
                }
            }
        }
        // Too many are unknown to tell whether it is the only one.
        Ok(Subject::None)
    }

    /// Whether the provider may decide about this record: another provider's secret must not.
    fn may_speak_of(&self, record: &Record) -> bool {
        self.provider.routes.as_ref().is_none_or(|routes| routes.contains(&record.about.route))
    }

    /// Whether this key is the one of the call that the record is making.
    fn is_call_of(&self, record: &Record, key: &str) -> bool {
        call_keys(self.provider, record).any(|call| *call == *key)
    }

    async fn judge_record(
        &self,
        event: &JudgedEvent<'_>,
        name: &EventName,
        document: &JsonDocument<'_>,
        verdict: &DocumentVerdict,
        mut record: Record,
    ) -> Result<EventEnd, StoreError> {
        let fence = self.provider.fence.as_ref().and_then(|pointer| plain(document, pointer));
        let fence = match fence.map(|text| text.parse::<u64>()).transpose() {
            Ok(fence) => fence,
            Err(_) => return Ok(EventEnd::Waits("its fence is not a number".into())),
        };
        let happened_at = happened_at(self.provider, document);
        let reason = format!("event {} of {}", event.event_id, self.provider.name);
        for _ in 0..RACES_MAX {
            // A key may be used again once its record is gone. What happened before is about the former request.
            let is_former_fence = fence.is_some_and(|fence| Fence(fence) < record.birth());
            if is_former_fence || happened_at.is_some_and(|at| at.plus(SKEW) < record.created_at) {
                return Ok(EventEnd::Waits(
                    "it happened before the request that it names began".into(),
                ));
            }
            let told = ToldEvent { name, verdict, fence, happened_at, reason: &reason };
            let evidence = match self.opinion(&told, &record) {
                Opinion::Decide(evidence) => evidence,
                Opinion::End(end) => return Ok(end),
            };
            let standing = evidence.standing().name();
            let ruling = Verdict {
                fence: record.fence,
                evidence,
                judge: Judge::Webhook,
                reason: reason.as_str().into(),
            };
            let decided = subject_of(&record);
            match self.engine.resolve(record.id, &ruling).await? {
                Ruled::Done(_) => {
                    let judge = Judge::Webhook.name();
                    let labels = [("standing", standing), ("judge", judge)];
                    metrics::counter!(retrysafe_core::event::RECONCILE_RESOLVED.name, &labels)
                        .increment(1);
                    return Ok(EventEnd::Applied(decided));
                }
                Ruled::Refused(current) if is_same_attempt(&current, &record) => {
                    return Ok(EventEnd::Waits("it says too little about what it names".into()));
                }
                Ruled::Refused(current) => record = current,
                Ruled::Absent => return Ok(EventEnd::Waits("what it names is gone".into())),
            }
        }
        Ok(EventEnd::Waits("what it names changes all the time".into()))
    }

    /// What is to be done about a record as it stands.
    fn opinion(&self, told: &ToldEvent<'_>, record: &Record) -> Opinion {
        let ToldEvent { name, verdict, fence, happened_at, reason } = *told;
        let waits = |why: &str| Opinion::End(EventEnd::Waits(why.to_owned()));
        let subject = subject_of(record);
        let agrees = |why| Opinion::End(EventEnd::Agrees(subject.clone(), why));
        let contradicts = |why| Opinion::End(EventEnd::Contradicts(subject.clone(), why));
        let is_executed = match verdict {
            DocumentVerdict::Executed(_) | DocumentVerdict::Declined(_) => true,
            DocumentVerdict::NotExecuted => false,
            DocumentVerdict::Pending | DocumentVerdict::Inconclusive(_) => {
                return waits("it says nothing final");
            }
        };
        match &record.state {
            State::InProgress { .. } => waits("what it names is still running"),
            State::Unknown { .. } => {
                let is_other = fence.is_some_and(|fence| Fence(fence) != record.fence);
                let is_call = record.flow.as_ref().is_some_and(|flow| flow.mark().is_some());
                if is_other && is_executed {
                    return contradicts(
                        "it says that a former attempt was executed, and there was another one since",
                    );
                }
                if is_other {
                    return agrees("it is about a former attempt");
                }
                if is_call && name.by != NamedBy::DownstreamKey {
                    return waits(
                        "what it names is a flow that was making a call: match by downstream_key, and list the call in `calls`",
                    );
                }
                // The record may have gone on to another call while this event was judged.
                if is_call && !self.is_call_of(record, &name.value) {
                    return waits("what it names is making another call by now");
                }
                // The key of a call is of one life of the record. Every other name may have meant a former one.
                let is_since = |from: Time| happened_at.is_some_and(|at| at.plus(GRAIN) >= from);
                if !is_call && fence.is_none() && !is_since(record.created_at) {
                    let why = match happened_at {
                        None => {
                            "it does not say when it happened, and the key may have been used before: set `created` or `fence`, or a person must decide"
                        }
                        Some(_) => {
                            "it happened shortly before the request that it names began, and the key may have been used before: set `fence`, or a person must decide"
                        }
                    };
                    return waits(why);
                }
                let is_declined = matches!(verdict, DocumentVerdict::Declined(_));
                if !is_call
                    && fence.is_none()
                    && record.attempts > 1
                    && (is_declined || !last_begin(record).is_some_and(is_since))
                {
                    return waits(
                        "it may be about a former one of several attempts: set `fence`, or a person must decide",
                    );
                }
                if !is_executed && fence.is_none() && record.attempts > 1 {
                    return waits(
                        "it says that something was not executed, and not which of several attempts: a person must decide",
                    );
                }
                let proven = if is_call {
                    verdict.clone().about_call()
                } else {
                    verdict.clone().about_request()
                };
                match proven {
                    Ok(evidence) => Opinion::Decide(evidence),
                    Err(why) => waits(&why),
                }
            }
            State::Completed { answer, .. } => {
                if is_own(record, reason) {
                    return Opinion::End(EventEnd::Applied(subject));
                }
                if is_doubled(verdict, record, fence) {
                    return contradicts(
                        "it says that a former attempt was executed, and another one was executed since: the effect may be there twice",
                    );
                }
                if !is_executed && record.attempts > 1 {
                    return agrees("it may be about a former attempt");
                }
                if !is_executed {
                    return contradicts(
                        "the request is completed, and the event says that it was not executed",
                    );
                }
                match (is_failure(verdict), failed(answer)) {
                    (Some(true), Some(false)) => contradicts(
                        "the request was answered as a success, and the event says that it failed",
                    ),
                    (Some(false), Some(true)) => contradicts(
                        "the request was answered as a failure, and the event says that it succeeded",
                    ),
                    (_, _) => agrees("it was known"),
                }
            }
            State::FailedRetryable { .. } => {
                if is_own(record, reason) {
                    return Opinion::End(EventEnd::Applied(subject));
                }
                if record.flow.is_some() {
                    return waits("what it names is a flow that somebody will go on with");
                }
                if is_executed {
                    return contradicts(
                        "it was decided that nothing was executed, and the event says that it was",
                    );
                }
                agrees("it was known")
            }
        }
    }
}

/// What a name leads to.
enum Subject {
    Record(Box<Record>),
    Effect(NamedEffect),
    Several,
    None,
}

enum Opinion {
    Decide(Evidence),
    End(EventEnd),
}

/// An event as far as it speaks about one record.
#[derive(Clone, Copy)]
struct ToldEvent<'a> {
    name: &'a EventName,
    verdict: &'a DocumentVerdict,
    /// The fence that went with the request, if the event repeats it.
    fence: Option<u64>,
    /// When it happened, if it says so.
    happened_at: Option<Time>,
    reason: &'a str,
}

/// Records that are unknown.
pub(super) fn unknown() -> Filter {
    let standing = Some(retrysafe_core::record::Standing::Unknown);
    Filter { standing, ..Filter::default() }
}

/// Everything by which an event may name an unknown record, as the inbox keeps it.
pub(super) fn names_of(providers: &[WebhookProvider], record: &Record) -> Vec<String> {
    let key = Id::from_bytes(*record.key.as_bytes()).to_string();
    let mut names = vec![format!("id:{}", record.id), format!("key:{key}")];
    names.extend(record.request_ids().map(|id| format!("request:{id}")));
    let calls = providers.iter().flat_map(|provider| call_keys(provider, record));
    names.extend(calls.map(|key| format!("sent:{key}")));
    names
}

/// The key of the call that a record is making, if the provider may speak of that call.
fn call_keys<'a>(
    provider: &'a WebhookProvider,
    record: &'a Record,
) -> impl Iterator<Item = Box<str>> + 'a {
    let calling = record.flow.as_ref().and_then(|flow| match flow.recovery_point() {
        RecoveryPoint::Calling(place) => Some((&*flow.flow().name, place)),
        RecoveryPoint::Before(_) => None,
    });
    let calls = provider.calls.iter();
    let calls = calls.filter(move |call| calling == Some((&*call.flow, call.place)));
    calls.map(|call| downstream_key(record.id, record.birth(), &call.phase))
}

fn subject_of(record: &Record) -> EventSubject {
    let fence = i64::try_from(record.fence.0).unwrap_or(i64::MAX);
    EventSubject { name: record_name(record), fence }
}

/// What an event is matched to, as the inbox keeps it.
pub(super) fn record_name(record: &Record) -> String {
    format!("record {}", record.id)
}

/// Whether a record is of the scope that all callers share, or of the one that the event names. A caller that has chosen the key or the
/// request's id of another one must not get the answer of that one.
fn is_of_scope(record: &Record, whose: Option<&str>) -> bool {
    if record.scope == Scope::anonymous() {
        return true;
    }
    match record.scope.parts().as_slice() {
        [(_, value)] => whose == Some(value.as_str()),
        _ => false,
    }
}

/// When the present attempt began, by the store's clock, if that is remembered.
fn last_begin(record: &Record) -> Option<Time> {
    let begins = record.timeline.iter().filter(|it| matches!(it.what, Happened::Began(_)));
    begins.map(|moment| moment.at).next_back()
}

/// Whether nothing was decided meanwhile.
fn is_same_attempt(one: &Record, other: &Record) -> bool {
    one.fence == other.fence && one.standing() == other.standing()
}
