//! What does the simulated store hold?
//!
//! One table, one sequence and one clock; and what is asked of it and answered.

use retrysafe_core::Id;
use retrysafe_core::record::{First, Record, Write};
use retrysafe_core::store::{Inserted, Page, Query, Swapped};
use retrysafe_core::time::Time;

use crate::history::STORE_EPOCH_MS;

/// The store's state.
#[derive(Default)]
pub struct Records {
    records: Vec<Option<(Record, u8)>>,
    sequence: u64,
    offset: i64,
    offset_max: i64,
}

/// What is asked.
#[derive(Clone)]
pub enum Request {
    Insert(First),
    Load(Id),
    Swap(Box<(Record, Write)>),
    Scan(Query),
    Reap(usize),
}

/// What is answered.
pub enum Reply {
    Inserted(Inserted),
    Loaded(Option<Record>),
    Swapped(Swapped),
    Scanned(Page),
    Reaped(usize),
}

impl Records {
    /// The store's clock.
    pub fn clock(&self, now_ms: u64) -> Time {
        Time::from_ms((STORE_EPOCH_MS + now_ms).saturating_add_signed(self.offset))
    }

    /// Sets the clock forward or back.
    pub fn jump(&mut self, by: i64) {
        self.offset = self.offset.saturating_add(by);
        self.offset_max = self.offset_max.max(self.offset);
    }

    /// Sets the clock right again: ahead, as far as it has ever been. Says by how much.
    pub fn steady(&mut self) -> i64 {
        let by = self.offset_max - self.offset;
        self.offset = self.offset_max;
        by
    }

    /// What is there, for the harness.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &Record)> {
        self.records
            .iter()
            .enumerate()
            .filter_map(|(key, kept)| kept.as_ref().map(|(record, _)| (key as u8, record)))
    }

    /// The record of a key, and what its request means.
    pub fn get(&self, key: u8) -> Option<&(Record, u8)> {
        self.records.get(usize::from(key)).and_then(Option::as_ref)
    }

    /// Replaces the record of a key.
    pub fn set(&mut self, key: u8, kept: Option<(Record, u8)>) {
        while self.records.len() <= usize::from(key) {
            self.records.push(None);
        }
        if let Some(slot) = self.records.get_mut(usize::from(key)) {
            *slot = kept;
        }
    }

    /// A number that was never used before.
    pub fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }
}
