//! How does Redis answer what PostgreSQL has decided?
//!
//! PostgreSQL decides everything: who executes, what holds, what is forgotten. Redis keeps copies of
//! completed answers, made after they were durable, and a replay that finds one costs the database
//! nothing. Whoever flushes, poisons, rolls back, slows or kills that Redis changes latency only: a copy
//! is served if its code, record, epoch and expiry are right (`copy`), and a Redis that does not answer
//! costs a bounded moment (`answers`).
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use retrysafe::core::Engine;
//! use retrysafe::stores::tiered::{TieredStore, TieredUrl};
//!
//! let url = TieredUrl {
//!     decide: "postgres://app@db.internal/payments".parse()?,
//!     answer: "redis://cache.internal:6379/0".parse()?,
//! };
//! let engine = Engine::new(TieredStore::open(&url).await?);
//! # let _ = engine;
//! # Ok(())
//! # }
//! ```
//!
//! What an operator has expired is served by other processes for a few seconds more, until they have
//! read the answer epoch (`epoch`).

mod answers;
mod copy;
mod epoch;
mod hmac;
mod rewritten;

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Weak};
use std::time::Instant;

use answers::{Answers, count_look};
use epoch::{Known, READ_EVERY, Reading};
use retrysafe_core::record::{Becomes, First, Record, State, Write};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{
    Census, ChangeHint, Inserted, LoadedUnless, Page, Query, Stamped, Store, StoreError, Swapped,
};
use rewritten::Rewritten;

use super::postgres::{ConnectError, PostgresStore, PostgresUrl};
use super::redis::RedisUrl;

/// Where it is decided, and where answers are copied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TieredUrl {
    /// The database that decides.
    pub decide: PostgresUrl,
    /// The Redis of copies. It may evict.
    pub answer: RedisUrl,
}

/// Why a pair of URLs is not understood.
#[derive(Debug)]
pub enum TieredUrlError {
    /// It is not `tiered:postgres://…|redis://…`.
    Form,
    /// The database's.
    Decide(ConnectError),
    /// The Redis'.
    Answer(super::redis::ConnectError),
}

/// A store in PostgreSQL whose answers are copied to Redis. Clones share their connections.
#[derive(Clone, Debug)]
pub struct TieredStore {
    decide: PostgresStore,
    answers: Arc<Answers>,
    known: Arc<Known>,
    rewritten: Arc<Rewritten>,
}

impl TieredStore {
    /// Connects to the database. The Redis of copies need not be there.
    ///
    /// # Errors
    ///
    /// If the database is out of reach, or cannot keep the promise.
    pub async fn open(url: &TieredUrl) -> Result<Self, ConnectError> {
        let decide = PostgresStore::open(&url.decide).await?;
        let asked = Instant::now();
        let (secret, epoch, now) = decide.answer_tier().await.map_err(ConnectError::of_store)?;
        let known = Arc::new(Known::new(secret, Reading { epoch, now }, asked));
        let answers = Answers::open(&url.answer);
        let store = Self { decide, answers, known, rewritten: Arc::default() };
        tokio::spawn(read_epochs(store.decide.clone(), Arc::downgrade(&store.known)));
        Ok(store)
    }

    /// The database that decides.
    #[cfg(feature = "outbox")]
    pub(super) fn decides(&self) -> &PostgresStore {
        &self.decide
    }

    /// What its records survive, for people.
    pub fn durability(&self) -> String {
        format!("{}; Redis serves copies", self.decide.durability())
    }

    /// Reads the answer epoch and the database's clock now, instead of within a few seconds.
    ///
    /// # Errors
    ///
    /// If the database is out of reach.
    pub async fn refresh(&self) -> Result<(), StoreError> {
        refresh(&self.decide, &self.known).await
    }

    /// A copy that may be served.
    async fn copy_of(&self, id: &Id) -> Option<Stamped<Record>> {
        let before = self.known.reading()?;
        let copy = self.answers.look(id).await?;
        // The look took a moment, in which the epoch may have risen.
        let Reading { epoch, now } = self.known.reading()?;
        let record = copy::open(&self.known.secret, epoch, id, copy, now)
            .filter(|record| before.epoch == epoch && self.rewritten.may_serve(record));
        count_look(if record.is_some() { "served" } else { "refused" });
        record.map(|record| Stamped { now, value: record })
    }

    /// Notes the clock of an answer: a copy that is served later must not tell of an earlier time.
    fn noted<T>(&self, answer: Result<Stamped<T>, StoreError>) -> Result<Stamped<T>, StoreError> {
        if let Ok(stamped) = &answer {
            self.known.note_now(stamped.now);
        }
        answer
    }

    /// Copies a record that the database has, as of a moment at which this epoch held.
    fn copy_behind(&self, record: &Record, before: Option<Reading>) {
        let Some(Reading { epoch, now }) = before else { return };
        if let Some((copy, life)) = copy::seal(&self.known.secret, epoch, record, now) {
            self.answers.write(record.id, copy, life);
        }
    }
}

async fn refresh(decide: &PostgresStore, known: &Known) -> Result<(), StoreError> {
    let asked = Instant::now();
    let (_, epoch, now) = decide.answer_tier().await?;
    known.note(Reading { epoch, now }, asked);
    Ok(())
}

/// Reads the epoch for as long as the store is used.
async fn read_epochs(decide: PostgresStore, known: Weak<Known>) {
    loop {
        tokio::time::sleep(READ_EVERY).await;
        let Some(known) = known.upgrade() else { return };
        if let Err(error) = refresh(&decide, &known).await {
            tracing::debug!(%error, "the answer epoch was not read: the database serves all replays");
        }
    }
}

impl Store for TieredStore {
    async fn insert(&self, first: First) -> Result<Stamped<Inserted>, StoreError> {
        if let Some(found) = self.copy_of(&first.id).await {
            return Ok(found.map(Inserted::Exists));
        }
        let before = self.known.reading();
        let inserted = self.decide.insert(first).await?;
        self.known.note_now(inserted.now);
        if let Inserted::Exists(record) = &inserted.value {
            self.copy_behind(record, before);
        }
        Ok(inserted)
    }

    async fn swap(&self, from: Record, write: Write) -> Result<Stamped<Swapped>, StoreError> {
        let id = from.id;
        let is_expiry = matches!(write.becomes, Becomes::Expired);
        let may_have_copy = matches!(from.state, State::Completed { .. });
        let before = self.known.reading();
        let swapped = self.decide.swap(from, write).await;
        if is_expiry {
            // Whether the answer came or not: the epoch has risen if it was applied.
            self.known.doubt();
            self.answers.remove(id);
            // If it cannot be read now, the database serves all replays until it can.
            let _ = self.refresh().await;
        }
        let swapped = swapped?;
        self.known.note_now(swapped.now);
        if let Swapped::Done(record) = &swapped.value {
            if may_have_copy {
                self.rewritten.note(record);
            }
            self.copy_behind(record, before);
        }
        Ok(swapped)
    }

    async fn load(&self, id: Id) -> Result<Stamped<Option<Record>>, StoreError> {
        self.noted(self.decide.load(id).await)
    }

    async fn load_unless(&self, id: Id, version: u64) -> Result<Stamped<LoadedUnless>, StoreError> {
        self.noted(self.decide.load_unless(id, version).await)
    }

    fn change_hint(&self, id: Id) -> Option<ChangeHint> {
        self.decide.change_hint(id)
    }

    async fn scan(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        self.noted(self.decide.scan(query).await)
    }

    async fn reap(&self, limit: usize) -> Result<Stamped<usize>, StoreError> {
        self.noted(self.decide.reap(limit).await)
    }

    async fn probe(&self) -> Result<Stamped<()>, StoreError> {
        self.noted(self.decide.probe().await)
    }

    async fn latest(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        self.noted(self.decide.latest(query).await)
    }

    async fn census(&self) -> Result<Stamped<Census>, StoreError> {
        self.noted(self.decide.census().await)
    }
}

impl FromStr for TieredUrl {
    type Err = TieredUrlError;

    fn from_str(text: &str) -> Result<Self, TieredUrlError> {
        let pair = text.strip_prefix("tiered:").and_then(|pair| pair.split_once('|'));
        let (decide, answer) = pair.ok_or(TieredUrlError::Form)?;
        Ok(Self {
            decide: decide.parse().map_err(TieredUrlError::Decide)?,
            answer: answer.parse().map_err(TieredUrlError::Answer)?,
        })
    }
}

impl fmt::Display for TieredUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tiered:{}|{}", self.decide, self.answer)
    }
}

impl fmt::Display for TieredUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form => f.write_str("a tiered store is tiered:postgres://…|redis://…"),
            Self::Decide(error) => write!(f, "decide: {error}"),
            Self::Answer(error) => write!(f, "answer: {error}"),
        }
    }
}

impl std::error::Error for TieredUrlError {}
