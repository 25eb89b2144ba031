//! Is this likely a replay?
//!
//! A small table of keys that were last seen completed. A key found here is read first, on a
//! connection of its own and without a flush; one that is not found is inserted, which reads it as
//! well. A wrong hint costs a round trip and nothing else.

use std::sync::atomic::{AtomicU64, Ordering};

use retrysafe_core::record::{Record, Standing};
use retrysafe_core::scope::Id;

/// 512 KiB. Retries come soon after their first request, so the last keys are the likely ones.
const SLOTS: usize = 1 << 16;

pub(super) struct Hint {
    slots: Box<[AtomicU64]>,
}

impl Default for Hint {
    fn default() -> Self {
        Self { slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Hint {
    /// Remembers a record that was seen completed.
    pub(super) fn note(&self, record: &Record) {
        if record.standing() == Standing::Completed {
            let (slot, tag) = self.slot(&record.id);
            if let Some(slot) = slot {
                slot.store(tag, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn is_likely_settled(&self, id: &Id) -> bool {
        let (slot, tag) = self.slot(id);
        slot.is_some_and(|slot| slot.load(Ordering::Relaxed) == tag)
    }

    fn slot(&self, id: &Id) -> (Option<&AtomicU64>, u64) {
        let [tag, place] = match id.as_bytes().as_chunks::<8>().0 {
            [tag, place, ..] => [u64::from_le_bytes(*tag), u64::from_le_bytes(*place)],
            _ => [0, 0],
        };
        (self.slots.get(place as usize % SLOTS), tag)
    }
}
