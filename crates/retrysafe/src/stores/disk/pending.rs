//! What waits to become durable, and who waits for it?
//!
//! A batch gathers entries and the answers that are given once it is durable. Of an id that the batch
//! changes it knows the record that will be, so that whoever comes later in the batch decides by that.

use retrysafe_core::record::Record;
use retrysafe_core::scope::Id;
use retrysafe_core::store::{Inserted, Stamped, StoreError, Swapped};
use tokio::sync::oneshot;

use super::format::{
    BATCH_BYTES, BatchHeader, ENTRY_BYTES, EntryHeader, EntryPlace, LogState, PAGE, TRAILER_BYTES,
    batch_bytes, checksum_of,
};
use crate::id_map::IdMap;

/// What a batch is padded with, and its trailer written over.
const ZEROS: [u8; PAGE + TRAILER_BYTES] = [0; PAGE + TRAILER_BYTES];

/// Entries that are not durable yet, and who waits for them.
#[derive(Debug)]
pub(crate) struct PendingBatch {
    /// Room for the batch's header, then the entries.
    bytes: Vec<u8>,
    entries: Vec<PendingEntry>,
    answers: Vec<PendingAnswer>,
    /// Which answer holds the last pending change of an id.
    latest: IdMap<usize>,
    /// Whether it is to be written even without entries, for the sake of its header.
    is_marked: bool,
    /// Where in the newest segment that begins which this batch holds anew. See
    /// [`BatchHeader::after`].
    renews: Option<u32>,
}

/// An entry of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingEntry {
    pub(crate) header: EntryHeader,
    /// Where the record's bytes begin in the batch.
    pub(crate) at: usize,
}

/// What to say once the batch is durable, and to whom.
#[derive(Debug)]
pub(crate) enum PendingAnswer {
    Inserted(Reply<Inserted>, Stamped<Inserted>),
    Swapped(Reply<Swapped>, Stamped<Swapped>),
    Reaped(Reply<usize>, Stamped<usize>),
    Probed(Reply<()>, Stamped<()>),
}

/// Where an answer goes.
pub(crate) type Reply<T> = oneshot::Sender<Result<Stamped<T>, StoreError>>;

/// Where a batch is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchPlace {
    pub(crate) store: u64,
    pub(crate) generation: u64,
    pub(crate) offset: u32,
    /// See [`BatchHeader::after`].
    pub(crate) after: u32,
}

impl PendingAnswer {
    fn tell(self, verdict: Result<(), StoreError>) {
        // A caller that went away does not want to know.
        match self {
            Self::Inserted(to, answer) => drop(to.send(verdict.map(|()| answer))),
            Self::Swapped(to, answer) => drop(to.send(verdict.map(|()| answer))),
            Self::Reaped(to, answer) => drop(to.send(verdict.map(|()| answer))),
            Self::Probed(to, answer) => drop(to.send(verdict.map(|()| answer))),
        }
    }

    fn record(&self) -> Option<&Record> {
        match self {
            Self::Inserted(_, Stamped { value: Inserted::New(record), .. })
            | Self::Swapped(_, Stamped { value: Swapped::Done(record), .. }) => Some(record),
            Self::Inserted(_, Stamped { value: Inserted::Exists(_), .. })
            | Self::Swapped(_, Stamped { value: Swapped::Lost(_), .. })
            | Self::Reaped(..)
            | Self::Probed(..) => None,
        }
    }
}

impl PendingBatch {
    pub(crate) fn new() -> Self {
        Self {
            bytes: vec![0; BATCH_BYTES],
            entries: Vec::new(),
            latest: IdMap::default(),
            answers: Vec::new(),
            is_marked: false,
            renews: None,
        }
    }

    /// The record that an id will have once the batch is durable, if the batch changes it.
    pub(crate) fn record(&self, id: &Id) -> Option<&Record> {
        self.answers.get(*self.latest.get(id)?)?.record()
    }

    /// Writes the batch even if it stays empty.
    pub(crate) fn mark(&mut self) {
        self.is_marked = true;
    }

    /// Makes this batch hold what stands at the end of the newest segment from there on.
    pub(crate) fn renew_from(&mut self, offset: u32) {
        self.renews = Some(offset);
        self.is_marked = true;
    }

    pub(crate) fn renews(&self) -> Option<u32> {
        self.renews
    }

    /// Whether there is nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && !self.is_marked
    }

    /// Answers when the batch is durable.
    pub(crate) fn answer(&mut self, answer: PendingAnswer) {
        if let Some(record) = answer.record() {
            self.latest.insert(record.id, self.answers.len());
        }
        self.answers.push(answer);
    }

    /// How many bytes it has on disk, so far.
    pub(crate) fn bytes_on_disk(&self) -> usize {
        batch_bytes(self.bytes.len() - BATCH_BYTES)
    }

    /// What is written, once it is sealed.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn entries(&self) -> &[PendingEntry] {
        &self.entries
    }

    /// Adds room for an entry's header and lets `put_record` add its record. The entry is not part of
    /// the batch before it is [admitted](Self::admit). Says where the entry begins, and how long its
    /// record is.
    pub(crate) fn draft(&mut self, put_record: impl FnOnce(&mut Vec<u8>)) -> (usize, u32) {
        let start = self.bytes.len();
        self.bytes.resize(start + ENTRY_BYTES, 0);
        put_record(&mut self.bytes);
        (start, (self.bytes.len() - start - ENTRY_BYTES) as u32)
    }

    /// Makes the draft that the bytes end with an entry.
    pub(crate) fn admit(&mut self, header: EntryHeader) {
        let at = self.bytes.len() - header.length as usize;
        self.entries.push(PendingEntry { header, at });
    }

    /// Takes out the draft that begins there.
    pub(crate) fn take_draft(&mut self, start: usize) -> Vec<u8> {
        self.bytes.split_off(start)
    }

    /// Puts a draft back, perhaps into another batch. Says where it begins now.
    pub(crate) fn put_draft(&mut self, draft: &[u8]) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(draft);
        start
    }

    /// Whether there is anything before an entry that begins there.
    pub(crate) fn has_entries_before(start: usize) -> bool {
        start > BATCH_BYTES
    }

    /// Where a draft would begin.
    pub(crate) fn draft_start(&self) -> usize {
        self.bytes.len()
    }

    /// Fills in the headers of the batch and of its entries.
    pub(crate) fn seal(&mut self, place: BatchPlace, state: LogState) {
        let BatchPlace { store, generation, offset, after } = place;
        for PendingEntry { header, at } in &self.entries {
            let start = *at - ENTRY_BYTES;
            let place = EntryPlace { store, generation, offset: offset + start as u32 };
            header.encode(self.bytes.get_mut(start..).unwrap_or_default(), place);
        }
        let body = self.bytes.get(BATCH_BYTES..).unwrap_or_default();
        let length = body.len() as u32;
        let checksum = checksum_of(body);
        let header = BatchHeader { store, generation, offset, length, after, checksum, state };
        let padding = header.bytes_on_disk() - self.bytes.len();
        self.bytes.extend_from_slice(ZEROS.get(..padding).unwrap_or_default());
        header.encode(&mut self.bytes);
    }

    /// Tells everybody who waits, and begins anew.
    pub(crate) fn end(&mut self, verdict: impl Fn() -> Result<(), StoreError>) {
        for answer in self.answers.drain(..) {
            answer.tell(verdict());
        }
        self.bytes.truncate(BATCH_BYTES);
        self.entries.clear();
        self.latest.clear();
        self.is_marked = false;
        self.renews = None;
    }
}
