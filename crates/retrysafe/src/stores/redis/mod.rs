//! How are records kept in Redis?
//!
//! For high rates and low stakes: what Redis has acknowledged, a crash or a fail-over may lose. What
//! it can promise is said when it is opened ([`RedisStore::durability`]); what it has lost is found out
//! where that is possible, and nothing new is granted for a while then. The page docs/redis.md says
//! what may be lost, when, and which store to choose instead.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use retrysafe::core::Engine;
//! use retrysafe::stores::redis::{RedisStore, Trust};
//!
//! let url = "redis://127.0.0.1:6379/0".parse()?;
//! // Once, for a new Redis. Never in a program's start: a Redis that has lost everything looks new.
//! RedisStore::init(&url, Trust::AtOnce).await?;
//! let engine = Engine::new(RedisStore::open(&url).await?);
//! # let _ = engine;
//! # Ok(())
//! # }
//! ```
//!
//! * Each operation is one script, and one round trip; see `lua/`. The server's clock is the clock.
//! * A version is the server's time in microseconds, and higher than any that its bucket has given out:
//!   a sequence of all records would live in one slot of a cluster.
//! * Running and unknown records have no Redis expiry. Settled ones have, past their own, so that a
//!   Redis whose reaper never runs does not fill up.
//! * The URL's settings are on [`RedisUrl`].

#[cfg(feature = "postgres")]
mod copies;
mod due;
mod error;
mod find;
mod link;
mod names;
mod nodes;
mod script;
mod settings;
mod sights;
mod tls;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
#[cfg(feature = "postgres")]
pub(in crate::stores) use copies::CopyNodes;
pub use error::ConnectError;
use names::bucket_of;
use nodes::Nodes;
use redis::Cmd;
use retrysafe_core::codec::Stamp;
use retrysafe_core::record::{First, Record, Write};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{
    Census, ChangeHint, Inserted, LoadedUnless, Page, Query, Stamped, Store, StoreError,
    StoreErrorKind, Swapped,
};
use retrysafe_core::time::Time;
use script::{Answer, Script, read_answer};
pub use settings::RedisUrl;
use wire::Wire;

use super::clock::Clock;
use super::quarantine;
pub use super::quarantine::Trust;
use super::watchers::Watchers;

/// The largest body of an answer that this store keeps. Redis serves one command at a time: a larger
/// value would hold up everybody else's.
pub const ANSWER_BYTES_MAX: usize = 8 << 20;

/// The largest value that is written: an answer, its headers, and a full timeline.
const VALUE_BYTES_MAX: usize = 2 * ANSWER_BYTES_MAX;

/// How long Redis itself keeps a settled record past its expiry. The reaper comes long before that.
const GRACE: Duration = Duration::from_secs(24 * 60 * 60);

/// The bytes of a value before the record's own.
const HEAD_BYTES: usize = 43;

/// A store of records in Redis. Clones share their connections.
#[derive(Clone)]
pub struct RedisStore {
    nodes: Arc<Nodes>,
    watchers: Watchers,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the URL: it holds a password.
        f.debug_struct("RedisStore").finish_non_exhaustive()
    }
}

impl RedisStore {
    /// Connects to all masters, and verifies them.
    ///
    /// # Errors
    ///
    /// If a server is out of reach, cannot keep the promise, or was never [initialised](Self::init).
    pub async fn open(url: &RedisUrl) -> Result<Self, ConnectError> {
        Self::open_by_clock(url, None).await
    }

    /// The same, by a clock that is turned by hand: for tests.
    ///
    /// # Errors
    ///
    /// See [`RedisStore::open`].
    pub async fn open_by_clock(url: &RedisUrl, clock: Option<Clock>) -> Result<Self, ConnectError> {
        let store = Self::connect(url, clock).await?;
        store.check_initialised().await?;
        Ok(store)
    }

    async fn connect(url: &RedisUrl, clock: Option<Clock>) -> Result<Self, ConnectError> {
        let nodes = Nodes::new((*url.settings).clone(), clock);
        nodes.find().await?;
        for (_, link) in nodes.routes().nodes() {
            nodes.reach(&link).await?;
        }
        if nodes.routes().0.iter().any(Option::is_none) {
            return Err(ConnectError::passing("the cluster has slots that no node serves"));
        }
        Ok(Self { nodes: Arc::new(nodes), watchers: Watchers::default() })
    }

    /// Says that this Redis may be trusted with new grants. An operator says so, once for a new Redis,
    /// and again after a loss or to end a quarantine: no program can tell an empty Redis that is new
    /// from one that has lost everything.
    ///
    /// # Errors
    ///
    /// If a server is out of reach, or cannot keep the promise.
    pub async fn init(url: &RedisUrl, trust: Trust) -> Result<(), ConnectError> {
        let store = Self::connect(url, None).await?;
        let hold_ms = match trust {
            Trust::AtOnce => 0,
            Trust::AfterQuarantine => store.nodes.hold_ms(),
        };
        let buckets: Vec<usize> = (0..names::BUCKETS).collect();
        let answers = store.nodes.call_all(&buckets, |wire, bucket| {
            let mut command = wire.run(Script::Init);
            command.arg(1).arg(store.nodes.names.bucket(bucket).map(|keys| &keys.meta));
            command.arg("").arg(&wire.facts().identity).arg(hold_ms);
            command
        });
        let failed = |error| ConnectError::passing("the server cannot be written").because(error);
        for answer in answers.await.map_err(failed)? {
            read_answer(answer).map_err(failed)?;
        }
        Ok(())
    }

    /// What its records survive, for people.
    pub fn durability(&self) -> String {
        let mut words: Vec<&str> = Vec::new();
        for (_, link) in self.nodes.routes().nodes() {
            let said = link.any().map_or(wire::Durability::Unsaid, |wire| wire.facts().durability);
            if !words.contains(&said.words()) {
                words.push(said.words());
            }
        }
        format!(
            "answers survive a crash of this process; {}. A fail-over may lose what its replica has \
             not got; nothing new is executed for {} after one, and a retry that comes later, of a \
             request that was lost, runs again",
            words.join("; "),
            retrysafe_core::units::show_duration(self.nodes.settings.quarantine)
        )
    }

    /// Until when nothing new is granted, as far as this process knows. It may be in the past.
    pub fn held_until(&self) -> Time {
        self.nodes.held_until()
    }

    /// Records of this process that wait for nobody else are told of changes by this.
    fn changed(&self, record: &Record) {
        self.nodes.note_seen(bucket_of(&record.id), record.version);
        self.watchers.changed(&record.id);
    }

    /// Runs a script about one record.
    async fn ask(
        &self,
        id: &Id,
        is_write: bool,
        build: impl Fn(&Wire, &names::BucketKeys) -> Cmd + Sync,
    ) -> Result<(Time, Answer), StoreError> {
        let bucket = bucket_of(id);
        let keys = self.nodes.names.bucket(bucket).ok_or_else(error::nonsense)?;
        let value = self.nodes.call(bucket, is_write, |wire| build(wire, keys)).await?;
        let (now, answer) = read_answer(value)?;
        match &answer {
            Answer::Held { until, is_new } => self.nodes.note_held(*until, *is_new),
            // It was waited for.
            Answer::Done(version) => self.nodes.note_replicated(bucket, *version),
            Answer::Found(value) => {
                let version = stamp_of(value).map_or(u64::MAX, |stamp| stamp.version);
                self.nodes.ensure_replicated(bucket, version).await?;
            }
            Answer::Known | Answer::Gone | Answer::Damaged | Answer::Absent => {}
        }
        Ok((now, answer))
    }

    async fn load_but(
        &self,
        id: Id,
        known: Option<u64>,
    ) -> Result<Stamped<LoadedUnless>, StoreError> {
        let known = known.map(|version| version.to_string()).unwrap_or_default();
        let load = |wire: &Wire, keys: &names::BucketKeys| {
            let mut command = wire.run(Script::Load);
            command.arg(1).arg(keys.record(&id));
            command.arg(self.nodes.clock()).arg(id.as_bytes().as_slice()).arg(&known);
            command
        };
        let (now, answer) = self.ask(&id, false, load).await?;
        let value = match answer {
            Answer::Known => LoadedUnless::AsKnown,
            Answer::Gone => LoadedUnless::Changed(None),
            Answer::Found(value) => LoadedUnless::Changed(Some(self.record_of(&id, value)?)),
            Answer::Done(_) | Answer::Damaged | Answer::Held { .. } | Answer::Absent => {
                return Err(refusal(&answer));
            }
        };
        Ok(Stamped { now, value })
    }

    /// The record that a value is.
    fn record_of(&self, id: &Id, value: Vec<u8>) -> Result<Record, StoreError> {
        let record = decode(id, value.into())?;
        self.nodes.note_seen(bucket_of(id), record.version);
        Ok(record)
    }
}

/// The record that a value is. Its head was checked by the script that has read it.
fn decode(id: &Id, value: Bytes) -> Result<Record, StoreError> {
    let damaged = || StoreError::not_applied(StoreErrorKind::Damaged);
    let stamp = stamp_of(&value).ok_or_else(damaged)?;
    if value.len() < HEAD_BYTES {
        return Err(damaged());
    }
    let record = Record::decode_stamped(stamp, value.slice(HEAD_BYTES..))
        .map_err(|error| damaged().because(error))?;
    if record.id == *id {
        Ok(record)
    } else {
        Err(damaged().because("the value is another record's"))
    }
}

/// Version and clock of a value's write.
fn stamp_of(value: &[u8]) -> Option<Stamp> {
    let stamp = value.get(2..2 + Stamp::LENGTH).and_then(|bytes| bytes.try_into().ok());
    stamp.map(Stamp::from_bytes)
}

/// The record that a write has made of the bytes that were sent.
fn written(bytes: Vec<u8>, now: Time, version: u64) -> Result<Record, StoreError> {
    let broken = |error| StoreError::maybe_applied(StoreErrorKind::Broken).because(error);
    Record::decode_stamped(Stamp { version, now }, bytes).map_err(broken)
}

/// What an answer means that is none to the question.
fn refusal(answer: &Answer) -> StoreError {
    match answer {
        Answer::Damaged => StoreError::not_applied(StoreErrorKind::Damaged),
        Answer::Held { until, .. } => quarantine::held(*until, quarantine::Server::Redis),
        Answer::Absent => StoreError::not_applied(StoreErrorKind::Held).because(NOT_INITIALISED),
        Answer::Done(_) | Answer::Found(_) | Answer::Known | Answer::Gone => error::nonsense(),
    }
}

/// What a Redis without identity is told.
const NOT_INITIALISED: &str = "this Redis holds no store: it is new, or it has lost everything. If it \
     is new, run `retrysafe store init`; if it has lost records, `retrysafe store init --after-loss`";

impl Store for RedisStore {
    async fn insert(&self, first: First) -> Result<Stamped<Inserted>, StoreError> {
        let id = first.id;
        let bytes = first.encode_unstamped();
        let due = due::Due::of_first(&first);
        let insert = |wire: &Wire, keys: &names::BucketKeys| {
            let mut command = wire.run(Script::Insert);
            command.arg(5).arg(keys.record(&id)).arg(&keys.meta).arg(&keys.all);
            command.arg(&keys.leases).arg(&keys.expiries);
            command.arg(self.nodes.clock()).arg(id.as_bytes().as_slice()).arg(bytes.as_slice());
            command.arg(due.length_ms).arg(&wire.facts().identity);
            command.arg(self.nodes.seen(bucket_of(&id))).arg(self.nodes.hold_ms());
            command
        };
        let (now, answer) = self.ask(&id, true, insert).await?;
        let value = match answer {
            Answer::Done(version) => {
                let record = written(bytes, now, version)?;
                self.changed(&record);
                Inserted::New(record)
            }
            Answer::Found(value) => Inserted::Exists(self.record_of(&id, value)?),
            Answer::Known
            | Answer::Gone
            | Answer::Damaged
            | Answer::Held { .. }
            | Answer::Absent => return Err(refusal(&answer)),
        };
        Ok(Stamped { now, value })
    }

    async fn load(&self, id: Id) -> Result<Stamped<Option<Record>>, StoreError> {
        let Stamped { now, value } = self.load_but(id, None).await?;
        match value {
            LoadedUnless::Changed(record) => Ok(Stamped { now, value: record }),
            LoadedUnless::AsKnown => Err(error::nonsense()),
        }
    }

    async fn load_unless(&self, id: Id, version: u64) -> Result<Stamped<LoadedUnless>, StoreError> {
        self.load_but(id, Some(version)).await
    }

    fn change_hint(&self, id: Id) -> Option<ChangeHint> {
        // Of this process's own writes. Those of others are seen at the next look.
        Some(self.watchers.hint(id))
    }

    async fn swap(&self, from: Record, write: Write) -> Result<Stamped<Swapped>, StoreError> {
        let id = from.id;
        let bytes = write.encode_unstamped(&from);
        if bytes.len() > VALUE_BYTES_MAX {
            return Err(StoreError::not_applied(StoreErrorKind::Full)
                .because("the answer is larger than this store keeps"));
        }
        let due = due::Due::of_write(&from, &write);
        let is_grant = u8::from(due::is_grant(&write));
        let swap = |wire: &Wire, keys: &names::BucketKeys| {
            let mut command = wire.run(Script::Swap);
            command.arg(5).arg(keys.record(&id)).arg(&keys.meta);
            command.arg(&keys.leases).arg(&keys.unknown).arg(&keys.expiries);
            command.arg(self.nodes.clock()).arg(id.as_bytes().as_slice()).arg(bytes.as_slice());
            command.arg(from.version).arg(due.kind).arg(due.length_ms).arg(due.latest_ms);
            command.arg(due::ms(GRACE)).arg(is_grant).arg(&wire.facts().identity);
            command.arg(self.nodes.seen(bucket_of(&id))).arg(self.nodes.hold_ms());
            command
        };
        let (now, answer) = self.ask(&id, true, swap).await?;
        let value = match answer {
            Answer::Done(version) => {
                let record = written(bytes, now, version)?;
                self.changed(&record);
                Swapped::Done(record)
            }
            Answer::Found(value) => Swapped::Lost(Some(self.record_of(&id, value)?)),
            Answer::Gone => Swapped::Lost(None),
            Answer::Known | Answer::Damaged | Answer::Held { .. } | Answer::Absent => {
                return Err(refusal(&answer));
            }
        };
        Ok(Stamped { now, value })
    }

    async fn scan(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        self.scan_page(query).await
    }

    async fn reap(&self, limit: usize) -> Result<Stamped<usize>, StoreError> {
        self.reap_some(limit).await
    }

    async fn probe(&self) -> Result<Stamped<()>, StoreError> {
        self.probe_masters().await
    }

    async fn census(&self) -> Result<Stamped<Census>, StoreError> {
        self.count().await
    }
}
