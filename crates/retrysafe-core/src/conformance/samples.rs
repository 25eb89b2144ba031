//! What do the cases store, ask and expect?
//!
//! Whole milliseconds everywhere: stores keep times to the millisecond.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};

use super::stand::{AnyStore, Stand};
use super::{Fault, Faulty};
use crate::engine::{Ask, Begun, Engine, Lease};
use crate::fingerprint::{Fingerprint, RulesId};
use crate::key::{Key, KeyDigest};
use crate::record::{
    About, Answer, AnswerHead, Becomes, Doubt, First, Happened, Outcome, Record, Standing, Write,
};
use crate::response::StoredResponse;
use crate::scope::{CredentialMark, Id, Scope};
use crate::store::{Cursor, Filter, Inserted, Query, Stamped, Store, Swapped};

/// How long sample records are kept once settled.
pub(super) const TTL: Duration = Duration::from_secs(3_600);

/// How long sample owners may be silent.
pub(super) const LEASE: Duration = Duration::from_secs(60);

/// Longer than anything a sample record waits for.
pub(super) const AGES: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// How many tasks race. More than the runtime has threads, so that some are always waiting.
pub(super) const RACERS: usize = 32;

/// More pages than any case has records: a scan that goes on longer goes round.
const PAGES_MAX: usize = 100_000;

pub(super) fn scope(name: &str) -> Scope {
    Scope::of([("tenant", name.as_bytes())])
}

pub(super) fn key(text: &str) -> KeyDigest {
    Key::new(text).unwrap().digest()
}

/// A request that means `meaning`.
pub(super) fn print(meaning: u8) -> Fingerprint {
    Fingerprint::from_parts(1, RulesId::from_bytes([7; 8]), [meaning; 32])
}

pub(super) fn first(key_text: &str) -> First {
    first_in(&scope("acme"), key_text)
}

pub(super) fn first_in(scope: &Scope, key_text: &str) -> First {
    let key = key(key_text);
    First {
        id: Id::of(scope, &key),
        scope: scope.clone(),
        key,
        fingerprint: print(1),
        mark: None,
        about: About { method: "POST".into(), route: "/pay".into(), path: "/pay".into() },
        ttl: TTL,
        lease: LEASE,
        owner: 1,
        request_id: None,
        flow: None,
    }
}

pub(super) fn response(body: impl Into<Bytes>) -> StoredResponse {
    let name = HeaderName::from_static("content-type");
    let value = HeaderValue::from_static("application/octet-stream");
    StoredResponse { status: StatusCode::CREATED, headers: vec![(name, value)], body: body.into() }
}

pub(super) fn answer(body: impl Into<Bytes>) -> Answer {
    Answer::Kept(response(body))
}

pub(super) fn done(body: impl Into<Bytes>) -> Outcome {
    Outcome::Completed(answer(body))
}

fn write(becomes: Becomes, what: Option<Happened>) -> Write {
    Write { becomes, new_fence: false, what, ttl: None }
}

pub(super) fn complete(answer: Answer) -> Write {
    let code = answer.status().map(|status| status.as_u16());
    let what = Happened::Settled(Standing::Completed, code);
    write(Becomes::Completed(answer), Some(what))
}

pub(super) fn fail() -> Write {
    let what = Happened::Settled(Standing::FailedRetryable, None);
    write(Becomes::FailedRetryable, Some(what))
}

pub(super) fn doubt() -> Write {
    let what = Happened::Doubted(Doubt::LeaseEnded);
    write(Becomes::Unknown(Doubt::LeaseEnded), Some(what))
}

pub(super) fn look_up() -> Write {
    write(Becomes::LookedUp, Some(Happened::LookedUp("pending".into())))
}

pub(super) fn renew(lease: Duration) -> Write {
    write(Becomes::Renewed { lease, lease_max: AGES * 2 }, None)
}

pub(super) fn head(status: u16, location: Option<&'static str>) -> AnswerHead {
    let status = StatusCode::from_u16(status).unwrap();
    AnswerHead { status, location: location.map(HeaderValue::from_static) }
}

pub(super) fn keep_head(head: AnswerHead) -> Write {
    write(Becomes::HeadKept { head, lease: LEASE, lease_max: AGES * 2 }, None)
}

pub(super) fn touch() -> Write {
    write(Becomes::Same, None)
}

pub(super) fn take_over(owner: u64) -> Write {
    Write {
        becomes: Becomes::Begun { owner, lease: LEASE, mark: None },
        new_fence: true,
        what: Some(Happened::Began(Some("r-2".into()))),
        ttl: None,
    }
}

pub(super) async fn insert(store: &impl Store, first: First) -> Stamped<Inserted> {
    store.insert(first).await.expect("the insert is answered")
}

/// Inserts what must be new.
pub(super) async fn new(store: &impl Store, first: First) -> Record {
    match insert(store, first).await.value {
        Inserted::New(record) => record,
        Inserted::Exists(record) => panic!("not new: {record:?} exists"),
    }
}

/// Inserts what must exist already.
pub(super) async fn existing(store: &impl Store, first: First) -> Record {
    match insert(store, first).await.value {
        Inserted::Exists(record) => record,
        Inserted::New(record) => panic!("{record:?} is new, although a live record exists"),
    }
}

pub(super) async fn swap(store: &impl Store, from: &Record, write: Write) -> Swapped {
    store.swap(from.clone(), write).await.expect("the swap is answered").value
}

/// Swaps what must win.
pub(super) async fn swapped(store: &impl Store, from: &Record, write: Write) -> Record {
    match swap(store, from, write).await {
        Swapped::Done(record) => record,
        Swapped::Lost(current) => panic!("lost from version {} to {current:?}", from.version),
    }
}

/// Swaps what must lose.
pub(super) async fn beaten(store: &impl Store, from: &Record, write: Write) -> Option<Record> {
    match swap(store, from, write).await {
        Swapped::Lost(current) => current,
        Swapped::Done(record) => panic!("version {} won: {record:?}", from.version),
    }
}

pub(super) async fn load(store: &impl Store, id: Id) -> Option<Record> {
    store.load(id).await.expect("the load is answered").value
}

pub(super) async fn reap(store: &impl Store, limit: usize) -> usize {
    store.reap(limit).await.expect("the reap is answered").value
}

/// A new record that stands like this.
pub(super) async fn standing(store: &impl Store, key: &str, standing: Standing) -> Record {
    let record = new(store, first(key)).await;
    match standing {
        Standing::InProgress => record,
        Standing::Completed => swapped(store, &record, complete(answer(key.to_owned()))).await,
        Standing::FailedRetryable => swapped(store, &record, fail()).await,
        Standing::Unknown => swapped(store, &record, doubt()).await,
    }
}

/// All records that match, page after page, in the store's order. No page is over its limit. A
/// record that the scan returns again is here once, as it was last.
pub(super) async fn all(store: &impl Store, filter: Filter, limit: usize) -> Vec<Record> {
    let mut found: Vec<Record> = Vec::new();
    let mut places = BTreeMap::new();
    let mut after = None;
    for _ in 0..PAGES_MAX {
        let (page, next) = page(store, &filter, after, limit).await;
        for record in page {
            let place = *places.entry(record.id).or_insert(found.len());
            match found.get_mut(place) {
                Some(met) => *met = record,
                None => found.push(record),
            }
        }
        match next {
            Some(cursor) => after = Some(cursor),
            None => return found,
        }
    }
    panic!("a scan of {filter:?} does not end");
}

pub(super) async fn page(
    store: &impl Store,
    filter: &Filter,
    after: Option<Cursor>,
    limit: usize,
) -> (Vec<Record>, Option<Cursor>) {
    let query = Query { filter: filter.clone(), after, limit };
    let length = query.page_len();
    let page = store.scan(query).await.expect("the scan is answered").value;
    assert!(page.records.len() <= length, "a page of {length} has {}", page.records.len());
    assert_eq!(page.damaged, [], "nothing is damaged");
    (page.records, page.next)
}

/// Sorted, so that two sets of ids can be compared.
pub(super) fn ids<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<Id> {
    let mut ids: Vec<Id> = records.into_iter().map(|record| record.id).collect();
    ids.sort();
    ids
}

/// Runs tasks that start together, and gives their answers in order.
pub(super) async fn race<T, F>(count: usize, mut task: impl FnMut(usize) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let start = Arc::new(tokio::sync::Barrier::new(count));
    let tasks: Vec<_> = (0..count)
        .map(|n| {
            let (start, task) = (Arc::clone(&start), task(n));
            tokio::spawn(async move {
                start.wait().await;
                task.await
            })
        })
        .collect();
    let mut answers = Vec::with_capacity(count);
    for task in tasks {
        match task.await {
            Ok(answer) => answers.push(answer),
            Err(failed) => std::panic::resume_unwind(failed.into_panic()),
        }
    }
    answers
}

/// The verbs over this store, with other tasks taking turns between their steps. A store that
/// answers at once would otherwise run each verb of a race from end to end.
pub(super) fn shaken(bench: &Stand) -> Engine<Arc<Faulty<AnyStore>>> {
    Engine::new(Arc::new(Faulty::seeded(bench.store(), 7, 1_000, &[Fault::Delayed])))
}

/// A request, as the engine is asked about it.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) scope: Scope,
    pub(super) mark: Option<CredentialMark>,
    pub(super) key: KeyDigest,
    pub(super) print: Fingerprint,
    pub(super) about: About,
    pub(super) ttl: Duration,
    pub(super) lease: Duration,
}

impl Request {
    pub(super) fn new(key_text: &str) -> Self {
        let first = first(key_text);
        Self {
            scope: first.scope,
            mark: first.mark,
            key: first.key,
            print: first.fingerprint,
            about: first.about,
            ttl: first.ttl,
            lease: first.lease,
        }
    }

    /// Another request under the same key.
    pub(super) fn meaning(&self, meaning: u8) -> Self {
        Self { print: print(meaning), ..self.clone() }
    }

    pub(super) fn id(&self) -> Id {
        Id::of(&self.scope, &self.key)
    }

    pub(super) fn ask(&self, owner: u64) -> Ask<'_, Fingerprint> {
        Ask {
            scope: &self.scope,
            mark: self.mark,
            key: self.key,
            prints: &self.print,
            about: &self.about,
            ttl: self.ttl,
            lease: self.lease,
            owner,
            request_id: None,
        }
    }

    /// Begins what the store answers.
    pub(super) async fn begin(&self, engine: &Engine<impl Store>, owner: u64) -> Begun {
        engine.begin(&self.ask(owner)).await.expect("the begin is answered")
    }

    /// Begins what must be executed.
    pub(super) async fn execute(&self, engine: &Engine<impl Store>, owner: u64) -> Lease {
        match self.begin(engine, owner).await {
            Begun::Execute(lease) => lease,
            other => panic!("not executed: {other:?}"),
        }
    }

    /// Begins what must be replayed.
    pub(super) async fn replay(&self, engine: &Engine<impl Store>) -> Answer {
        match self.begin(engine, 0).await {
            Begun::Replay(answer, _) => answer,
            other => panic!("not replayed: {other:?}"),
        }
    }

    /// The record, which must be there.
    pub(super) async fn record(&self, engine: &Engine<impl Store>) -> Record {
        load(engine.store(), self.id()).await.expect("the record is there")
    }
}
