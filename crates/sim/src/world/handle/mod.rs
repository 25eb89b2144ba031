//! What does the product hold when it holds a store?
//!
//! A [`Handle`]: the core's [`Store`] over the simulated wire, bound to whoever asks, so that the
//! history can say who wrote what. In the cached profile it looks into the cache first. The cache
//! serves completed records only, of the same request, well before their retention ends; it never
//! grants execution, and losing it costs nothing but time.

mod mutant;

pub use mutant::write as tampered;

use std::future::poll_fn;

use retrysafe_core::fingerprint::Fingerprint;
use retrysafe_core::record::{First, Record, Standing, Write};
use retrysafe_core::store::{
    Inserted, Page, Query, Stamped, Store, StoreError, StoreErrorKind, Swapped,
};
use retrysafe_core::time::Time;
use retrysafe_core::{Engine, Id};

use super::wire::{Request, Response};
use super::{Event, Sim, World};
use crate::fault::Fault;
use crate::history::{By, STORE_EPOCH_MS, What};
use crate::options::{Kind, Options, Profile};

/// The store, for somebody.
#[derive(Clone)]
pub struct Handle {
    pub(super) sim: Sim,
    pub(super) by: By,
    pub(super) fault: Option<Fault>,
    pub(super) profile: Profile,
}

/// The tier in front of the store.
#[derive(Default)]
pub struct Cache {
    entries: Vec<Option<Record>>,
    under_way: Vec<(u8, Record)>,
}

impl Sim {
    /// The verbs, for somebody.
    pub fn engine(&self, by: By) -> Engine<Handle> {
        let (fault, profile) = self.with(|world| (world.options.fault, world.options.profile));
        Engine::new(Handle { sim: self.clone(), by, fault, profile })
    }
}

impl Handle {
    pub(super) async fn ask(&self, request: Request) -> Result<Stamped<Response>, StoreError> {
        let op = self.sim.with(|world| world.issue(self.by, request));
        poll_fn(|_| self.sim.with(|world| world.heard(op))).await
    }

    pub(super) fn key(&self, id: &Id) -> Result<u8, StoreError> {
        self.sim.with(|world| world.tables.key(id)).ok_or_else(broken)
    }

    pub(super) async fn insert_in_store(
        &self,
        first: First,
    ) -> Result<Stamped<Inserted>, StoreError> {
        let Stamped { now, value } = self.ask(Request::Insert(first)).await?;
        let Response::Inserted(value) = value else { return Err(broken()) };
        Ok(Stamped { now, value })
    }

    async fn insert_behind_cache(&self, first: First) -> Result<Stamped<Inserted>, StoreError> {
        let key = self.key(&first.id)?;
        if let Some(hit) = self.sim.with(|world| world.read_cache(key, &first.fingerprint)) {
            return Ok(hit.map(Inserted::Exists));
        }
        let answer = self.insert_in_store(first).await?;
        if let Inserted::Exists(record) = &answer.value {
            self.sim.with(|world| world.fill_cache(key, record));
        }
        Ok(answer)
    }
}

impl Store for Handle {
    async fn insert(&self, first: First) -> Result<Stamped<Inserted>, StoreError> {
        match (self.fault, self.profile) {
            (Some(fault), _) if fault.is_about_insert() => mutant::insert(self, fault, first).await,
            (_, Profile::Cached) => self.insert_behind_cache(first).await,
            (_, Profile::Durable | Profile::SingleOwner | Profile::FailOver) => {
                self.insert_in_store(first).await
            }
        }
    }

    async fn load(&self, id: Id) -> Result<Stamped<Option<Record>>, StoreError> {
        let key = self.key(&id)?;
        let Stamped { now, value } = self.ask(Request::Load(key)).await?;
        let Response::Loaded(value) = value else { return Err(broken()) };
        Ok(Stamped { now, value: value.map(|record| mutant::shown(self, record)) })
    }

    async fn swap(&self, from: Record, write: Write) -> Result<Stamped<Swapped>, StoreError> {
        let (key, version) = (self.key(&from.id)?, from.version);
        drop(from);
        let (write, force) = mutant::write(self, write);
        let Stamped { now, value } = self.ask(Request::Swap { key, version, write, force }).await?;
        let Response::Swapped(value) = value else { return Err(broken()) };
        if let (Profile::Cached, Swapped::Done(record)) = (self.profile, &value) {
            self.sim.with(|world| world.fill_cache(key, record));
        }
        let value = match value {
            Swapped::Lost(Some(record)) => Swapped::Lost(Some(mutant::shown(self, record))),
            Swapped::Lost(None) | Swapped::Done(_) => value,
        };
        Ok(Stamped { now, value })
    }

    async fn scan(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        let Stamped { now, value } = self.ask(Request::Scan(query)).await?;
        let Response::Scanned(value) = value else { return Err(broken()) };
        Ok(Stamped { now, value })
    }

    async fn reap(&self, limit: usize) -> Result<Stamped<usize>, StoreError> {
        let Stamped { now, value } = self.ask(Request::Reap { limit }).await?;
        let Response::Reaped(value) = value else { return Err(broken()) };
        Ok(Stamped { now, value })
    }
}

pub fn broken() -> StoreError {
    StoreError::not_applied(StoreErrorKind::Broken)
}

impl Options {
    /// How long before the end of a retention the cache stops to serve: more than the two clocks
    /// may differ. The nemesis keeps its jumps within it where there is a cache.
    pub fn cache_margin_ms(&self) -> u64 {
        self.ttl_ms / 2
    }
}

impl Cache {
    pub fn clear(&mut self) {
        self.entries.clear();
        self.under_way.clear();
    }

    pub fn flush(&mut self) {
        self.entries.clear();
    }

    pub fn fills(&mut self, fill: u16) {
        if let Some((key, record)) = self.under_way.get(usize::from(fill)).cloned() {
            while self.entries.len() <= usize::from(key) {
                self.entries.push(None);
            }
            if let Some(entry) = self.entries.get_mut(usize::from(key)) {
                *entry = Some(record);
            }
        }
    }
}

impl World {
    /// A completed record of the same request whose retention is far from over. Anything else is
    /// the store's to answer.
    pub(super) fn read_cache(&mut self, key: u8, mine: &Fingerprint) -> Option<Stamped<Record>> {
        let entry = self.cache.entries.get(usize::from(key))?.as_ref()?;
        let now = Time::from_ms(STORE_EPOCH_MS + self.now);
        let ends = entry.expires_at()?.as_ms();
        let agrees = self.store.record(key).is_some_and(|record| record.fence == entry.fence);
        let outlives = self.options.fault == Some(Fault::CacheOutlives);
        if ends <= now.as_ms() + self.options.cache_margin_ms() && !outlives {
            self.record(What::CacheRefused { key });
            return None;
        }
        if entry.fingerprint != *mine {
            return None;
        }
        let record = entry.clone();
        // A reader that takes the end of a retention lightly also takes it for later than it is.
        let now = if outlives { record.created_at } else { now };
        self.record(What::CacheServed { key, agrees });
        Some(Stamped { now, value: record })
    }

    /// Sends a copy of a completed record to the cache, where it may arrive late or never.
    fn fill_cache(&mut self, key: u8, record: &Record) {
        if record.standing() != Standing::Completed {
            return;
        }
        if self.strike(Kind::Flush, 10) {
            return;
        }
        let ms = if self.strike(Kind::Flush, 30) {
            self.chance.scaled(1, 2 * self.options.ttl_ms)
        } else {
            self.chance.between(1, 8)
        };
        let fill = self.cache.under_way.len() as u16;
        self.cache.under_way.push((key, record.clone()));
        self.after(ms, Event::CacheFills(fill));
    }
}
