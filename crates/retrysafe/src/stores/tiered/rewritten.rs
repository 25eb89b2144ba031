//! Which answers has this process written again after they were copied?
//!
//! A completed record is seldom written again: evidence that came late is noted on it. Its copy is written
//! behind, so a copy of the version before may be found for a moment. This process does not serve that one.
//! Two records may share a place: then a copy is passed over without need, and the database answers.

use std::sync::atomic::{AtomicU64, Ordering};

use retrysafe_core::record::Record;
use retrysafe_core::scope::Id;

/// How many places there are. Versions are of one sequence, so sharing a place only costs a look.
const PLACES: usize = 1_024;

/// The lowest version that may be served, by place.
#[derive(Debug)]
pub(super) struct Rewritten(Box<[AtomicU64]>);

impl Default for Rewritten {
    fn default() -> Self {
        Self(std::iter::repeat_with(AtomicU64::default).take(PLACES).collect())
    }
}

impl Rewritten {
    /// Notes the version that counts from now on.
    pub(super) fn note(&self, record: &Record) {
        if let Some(place) = self.place(&record.id) {
            place.fetch_max(record.version, Ordering::AcqRel);
        }
    }

    /// Whether a copy is at least as new as what this process has written.
    pub(super) fn may_serve(&self, copy: &Record) -> bool {
        self.place(&copy.id).is_some_and(|lowest| copy.version >= lowest.load(Ordering::Acquire))
    }

    fn place(&self, id: &Id) -> Option<&AtomicU64> {
        let [.., a, b] = *id.as_bytes();
        self.0.get(usize::from(u16::from_le_bytes([a, b])) % PLACES)
    }
}
