//! What is the plainest store that keeps every promise?
//!
//! One mutex, one map from ids to encoded records, one number. Everything is read and written as
//! bytes, so that it can be damaged, and survives a restart, since the "disk" is only memory. A
//! [`Flaw`] breaks it in one place; it stands where the fault would stand in a real store. A
//! [`Quirk`] breaks nothing: it is another way to keep the promises.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use retrysafe_core::Key;
use retrysafe_core::codec::Stamp;
use retrysafe_core::conformance::{Bench, Damage, Owners, Reopen, Still};
use retrysafe_core::fingerprint::{Fingerprint, RulesId};
use retrysafe_core::machine::{Decision, OwnerGone, decide};
use retrysafe_core::record::{About, First, Record, State, Write};
use retrysafe_core::scope::{Id, Scope};
use retrysafe_core::store::{
    ChangeHint, Cursor, Inserted, LoadedUnless, Page, Query, Stamped, Store, StoreError,
    StoreErrorKind, Swapped,
};
use retrysafe_core::time::Time;

use crate::broken::Flaw;

/// What outlives the store.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    pub(crate) rows: BTreeMap<Id, Vec<u8>>,
    /// The last version given out.
    pub(crate) sequence: u64,
}

/// What a store may do otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quirk {
    /// A page of a scan begins with the record that the page before ended with.
    ScansRepeat,
    /// The store is a server that gets bytes, puts clock and version beside them, and looks no further.
    ServerStamps,
}

impl Quirk {
    /// By what a bench names it: beyond the number of any flaw.
    pub(crate) const SCANS_REPEAT: usize = usize::MAX - 1;
    pub(crate) const SERVER_STAMPS: usize = usize::MAX - 2;

    fn of(number: usize) -> Option<Self> {
        match number {
            Self::SCANS_REPEAT => Some(Self::ScansRepeat),
            Self::SERVER_STAMPS => Some(Self::ServerStamps),
            _ => None,
        }
    }
}

/// The plainest store, with one flaw or none.
#[derive(Debug)]
pub(crate) struct Plain {
    disk: Arc<Mutex<Disk>>,
    clock: Arc<AtomicU64>,
    flaw: Option<Flaw>,
    quirk: Option<Quirk>,
    /// What a flawed clock shows next.
    drift: AtomicU64,
}

impl Plain {
    pub(crate) fn open(
        disk: Arc<Mutex<Disk>>,
        clock: Arc<AtomicU64>,
        flaw: Option<Flaw>,
        quirk: Option<Quirk>,
    ) -> Self {
        let store = Self { disk, clock, flaw, quirk, drift: AtomicU64::new(0) };
        let now = store.now();
        let mut disk = store.disk.lock().unwrap();
        if store.has(Flaw::SequenceIsNotDurable) {
            disk.sequence = 0;
        }
        let records: Vec<Record> =
            disk.rows.values().filter_map(|row| store.decode(row).ok()).collect();
        for record in records {
            if store.has(Flaw::OwnersAreForgotten) {
                continue;
            }
            if let Some(Decision::Write(write)) = decide(Some(&record), &OwnerGone, now) {
                let version = disk.next();
                let after = write.onto(&record, now, version);
                store.write(&mut disk, &after, now, || write.encode_unstamped(&record));
            }
        }
        drop(disk);
        store
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn now(&self) -> Time {
        let now = self.clock.load(Ordering::SeqCst);
        if self.has(Flaw::ClockGoesBack) {
            return Time::from_ms(now - self.drift.fetch_add(1, Ordering::SeqCst) % 2);
        }
        if self.has(Flaw::ClockIsTheCallers) {
            return Flaw::callers_time();
        }
        Time::from_ms(now)
    }

    /// The next version of this record.
    fn next_version(&self, disk: &mut Disk, current: Option<&Record>) -> u64 {
        if self.has(Flaw::VersionsRestart) {
            return current.map_or(1, |record| record.version + 1);
        }
        if self.has(Flaw::VersionsRestartAfterReaping) && disk.rows.is_empty() {
            disk.sequence = 0;
        }
        disk.next()
    }

    fn read(&self, disk: &Disk, id: &Id) -> Result<Option<Record>, StoreError> {
        match disk.rows.get(id).map(|row| self.decode(row)).transpose() {
            Err(_) if self.has(Flaw::DamageIsAbsence) => Ok(None),
            other => other,
        }
    }

    /// What is written for a record, which a server would make of these bytes.
    fn write(
        &self,
        disk: &mut Disk,
        record: &Record,
        now: Time,
        unstamped: impl FnOnce() -> Vec<u8>,
    ) {
        let mut kept = record.clone();
        if let Some(flaw) = self.flaw {
            flaw.spoil(&mut kept);
        }
        let row = match self.quirk {
            Some(Quirk::ServerStamps) => {
                let mut row = Stamp { version: record.version, now }.to_bytes().to_vec();
                row.extend_from_slice(&unstamped());
                sealed(row)
            }
            Some(Quirk::ScansRepeat) | None => kept.encode(),
        };
        disk.rows.insert(record.id, row);
    }

    fn decode(&self, row: &[u8]) -> Result<Record, StoreError> {
        let damaged = || StoreError::not_applied(StoreErrorKind::Damaged);
        if self.quirk != Some(Quirk::ServerStamps) {
            return Record::decode(row.to_vec()).map_err(|error| damaged().because(error));
        }
        let fields = row.len().checked_sub(4).ok_or_else(damaged)?;
        if sealed(row[..fields].to_vec()) != row {
            return Err(damaged());
        }
        let (stamp, bytes) = row[..fields].split_first_chunk().ok_or_else(damaged)?;
        Record::decode_stamped(Stamp::from_bytes(*stamp), bytes.to_vec())
            .map_err(|error| damaged().because(error))
    }

    fn is_gone(&self, record: &Record, now: Time) -> bool {
        let old = record.created_at.plus(record.ttl) <= now;
        match record.state {
            State::Unknown { .. } if self.has(Flaw::UnknownsExpire) => old,
            State::InProgress { lease_until, .. } if self.has(Flaw::LeasesFreeTheKey) => {
                lease_until <= now
            }
            State::Completed { .. } if self.has(Flaw::ExpiryCountsFromBirth) => old,
            State::Completed { expires_at, .. } if self.has(Flaw::ExpiryIsLate) => expires_at < now,
            State::InProgress { .. }
            | State::Completed { .. }
            | State::FailedRetryable { .. }
            | State::Unknown { .. } => record.is_expired(now),
        }
    }

    fn is_due(&self, record: &Record, now: Time) -> bool {
        let old = record.created_at.plus(record.ttl) <= now;
        match record.state {
            State::InProgress { .. } if self.has(Flaw::ReapTakesRunning) => old,
            State::Unknown { .. } if self.has(Flaw::ReapTakesUnknown) => old,
            State::FailedRetryable { .. } if self.has(Flaw::ReapTakesFlows) => old,
            State::InProgress { .. }
            | State::Completed { .. }
            | State::FailedRetryable { .. }
            | State::Unknown { .. } => self.is_gone(record, now),
        }
    }
}

impl Disk {
    fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }
}

/// These bytes with a checksum behind them.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

impl Store for Plain {
    async fn insert(&self, mut first: First) -> Result<Stamped<Inserted>, StoreError> {
        if self.has(Flaw::ScopeIsDropped) {
            first.id = Id::from_bytes(*first.key.as_bytes());
        }
        let id = first.id;
        if self.has(Flaw::InsertChecksThenActs) {
            let found = self.read(&self.disk.lock().unwrap(), &id)?;
            tokio::task::yield_now().await;
            if found.is_none() {
                self.disk.lock().unwrap().rows.remove(&id);
            }
        }
        let mut disk = self.disk.lock().unwrap();
        let now = self.now();
        let current = self.read(&disk, &id)?;
        if let Some(current) = &current
            && !self.is_gone(current, now)
            && !self.has(Flaw::InsertPretendsNew)
        {
            return Ok(Stamped { now, value: Inserted::Exists(current.clone()) });
        }
        let version = self.next_version(&mut disk, current.as_ref());
        let record = first.record(now, version);
        if !self.has(Flaw::InsertIsNotKept) {
            self.write(&mut disk, &record, now, || first.encode_unstamped());
        }
        Ok(Stamped { now, value: Inserted::New(record) })
    }

    async fn load(&self, id: Id) -> Result<Stamped<Option<Record>>, StoreError> {
        let disk = self.disk.lock().unwrap();
        let now = self.now();
        let record = self.read(&disk, &id)?;
        Ok(Stamped { now, value: record })
    }

    async fn swap(&self, from: Record, mut write: Write) -> Result<Stamped<Swapped>, StoreError> {
        if self.has(Flaw::FencesStay) {
            write.new_fence = false;
        }
        let mut blind = self.has(Flaw::SwapIgnoresVersion);
        if self.has(Flaw::SwapChecksThenActs) {
            let found = self.read(&self.disk.lock().unwrap(), &from.id)?;
            tokio::task::yield_now().await;
            blind = found.is_some_and(|found| found.version == from.version);
        }
        let mut disk = self.disk.lock().unwrap();
        let now = self.now();
        let current = self.read(&disk, &from.id)?;
        let won = match &current {
            Some(current) => blind || current.version == from.version,
            None => self.has(Flaw::SwapRaisesTheDead),
        };
        if !won {
            let current = current.filter(|_| !self.has(Flaw::LosersLearnNothing));
            return Ok(Stamped { now, value: Swapped::Lost(current) });
        }
        let version = self.next_version(&mut disk, current.as_ref());
        let record = write.onto(&from, now, version);
        self.write(&mut disk, &record, now, || write.encode_unstamped(&from));
        Ok(Stamped { now, value: Swapped::Done(record) })
    }

    async fn load_unless(&self, id: Id, version: u64) -> Result<Stamped<LoadedUnless>, StoreError> {
        let Stamped { now, value } = self.load(id).await?;
        let value = match value {
            Some(_) if self.has(Flaw::ChangesGoUnnoticed) => LoadedUnless::AsKnown,
            Some(record) if record.version == version => LoadedUnless::AsKnown,
            changed => LoadedUnless::Changed(changed),
        };
        Ok(Stamped { now, value })
    }

    fn change_hint(&self, _: Id) -> Option<ChangeHint> {
        self.has(Flaw::HintsNeverCome).then(|| ChangeHint::new(std::future::pending()))
    }

    async fn scan(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        let disk = self.disk.lock().unwrap();
        let now = self.now();
        let mut page = Page::default();
        let offsets = self.has(Flaw::ScansCountPlaces);
        let after = query.after.as_ref().map(|cursor| cursor.0.as_slice());
        let mut place = 0usize;
        for (id, row) in &disk.rows {
            let record = self.decode(row);
            let matches = record.as_ref().map_or(true, |record| query.filter.matches(record, now));
            if !matches {
                continue;
            }
            place += 1;
            let seen = match after {
                Some(after) if offsets => place.to_be_bytes().as_slice() <= after,
                Some(after) => id.as_bytes().as_slice() <= after,
                None => false,
            };
            if seen {
                continue;
            }
            match record {
                Ok(record) => page.records.push(record),
                Err(_) if self.has(Flaw::DamageIsAbsence) => {}
                Err(_) => page.damaged.push(*id),
            }
            if page.records.len() + page.damaged.len() == query.page_len() {
                let cursor = match page.records.as_slice() {
                    _ if offsets => place.to_be_bytes().to_vec(),
                    // From here the last record comes again; but not in pages of one, which would
                    // never end.
                    [.., before, last]
                        if self.quirk == Some(Quirk::ScansRepeat) && last.id == *id =>
                    {
                        before.id.as_bytes().to_vec()
                    }
                    _ => id.as_bytes().to_vec(),
                };
                page.next = Some(Cursor(cursor));
                break;
            }
        }
        Ok(Stamped { now, value: page })
    }

    async fn probe(&self) -> Result<Stamped<()>, StoreError> {
        if self.has(Flaw::ProbesAreRecords) {
            let scope = Scope::anonymous();
            let key = Key::new("probe").unwrap().digest();
            let first = First {
                id: Id::of(&scope, &key),
                scope,
                key,
                fingerprint: Fingerprint::from_parts(1, RulesId::from_bytes([0; 8]), [0; 32]),
                mark: None,
                about: About::default(),
                ttl: Duration::ZERO,
                lease: Duration::ZERO,
                owner: 0,
                request_id: None,
                flow: None,
            };
            return self.insert(first).await.map(|inserted| inserted.map(drop));
        }
        Ok(Stamped { now: self.now(), value: () })
    }

    async fn reap(&self, limit: usize) -> Result<Stamped<usize>, StoreError> {
        let mut disk = self.disk.lock().unwrap();
        let now = self.now();
        let limit = if self.has(Flaw::ReapIgnoresLimit) { usize::MAX } else { limit };
        let due: Vec<Id> = disk
            .rows
            .iter()
            .filter(|(_, row)| self.decode(row).is_ok_and(|record| self.is_due(&record, now)))
            .map(|(id, _)| *id)
            .take(limit)
            .collect();
        for id in &due {
            disk.rows.remove(id);
        }
        Ok(Stamped { now, value: due.len() })
    }
}

/// A bench with the plain store, broken by the flaw of this number; sound by default.
#[derive(Debug)]
pub(crate) struct PlainBench<const FLAW: usize = { usize::MAX }> {
    store: Arc<Plain>,
    disk: Arc<Mutex<Disk>>,
    clock: Arc<AtomicU64>,
}

impl<const FLAW: usize> PlainBench<FLAW> {
    fn flaw() -> Option<Flaw> {
        Flaw::ALL.get(FLAW).copied()
    }

    fn open(disk: &Arc<Mutex<Disk>>, clock: &Arc<AtomicU64>) -> Arc<Plain> {
        let quirk = Quirk::of(FLAW);
        Arc::new(Plain::open(Arc::clone(disk), Arc::clone(clock), Self::flaw(), quirk))
    }
}

impl<const FLAW: usize> Bench for PlainBench<FLAW> {
    type Store = Plain;

    async fn fresh() -> Self {
        let disk = Arc::new(Mutex::new(Disk::default()));
        let clock = Arc::new(AtomicU64::new(1_700_000_000_000));
        Self { store: Self::open(&disk, &clock), disk, clock }
    }

    fn store(&self) -> Arc<Plain> {
        Arc::clone(&self.store)
    }

    async fn advance(&self, by: Duration) {
        self.clock.fetch_add(by.as_millis() as u64, Ordering::SeqCst);
    }
}

impl<const FLAW: usize> Still for PlainBench<FLAW> {}

impl<const FLAW: usize> Damage for PlainBench<FLAW> {
    async fn flip(&self, id: Id, at: usize) {
        let mut disk = self.disk.lock().unwrap();
        let row = disk.rows.get_mut(&id).expect("there is something to damage");
        let at = at % row.len();
        row[at] ^= 0x40;
    }

    async fn make_newer(&self, id: Id) {
        let mut disk = self.disk.lock().unwrap();
        let row = disk.rows.get_mut(&id).expect("there is something to rewrite");
        if Quirk::of(FLAW) == Some(Quirk::ServerStamps) {
            let (stamp, bytes) = row.split_at(Stamp::LENGTH);
            let mut bytes = bytes[..bytes.len() - 8].to_vec();
            bytes[0] = u8::MAX;
            *row = sealed([stamp, &sealed(bytes)].concat());
            return;
        }
        row[0] = u8::MAX;
        row.truncate(row.len() - 4);
        *row = sealed(std::mem::take(row));
    }
}

impl<const FLAW: usize> Reopen for PlainBench<FLAW> {
    async fn reopen(&mut self) -> Owners {
        if Self::flaw() == Some(Flaw::ClockIsNotDurable) {
            self.clock.store(1_700_000_000_000, Ordering::SeqCst);
        }
        self.store = Self::open(&self.disk, &self.clock);
        Owners::Gone
    }
}
