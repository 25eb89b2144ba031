//! What does the writer do with each thing that is asked of it?
//!
//! The writer alone decides, one thing after the other, against the index and against what the batch
//! already holds: of two inserts of one id in a batch the second finds the first, of two swaps of
//! one version the second loses. Whoever learns of something that is not durable yet is answered
//! after the flush, too.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use retrysafe_core::record::{First, Record, Write};
use retrysafe_core::store::{Inserted, Stamped, StoreError, StoreErrorKind, Swapped};

use super::append::{LogAppender, ReserveUse};
use super::clean::SegmentCleaner;
use super::index::{IndexEntry, ReapMark, prefix_of};
use super::pending::{PendingAnswer, Reply};
use super::read::LogReader;
use super::snapshot_taker::SnapshotTaker;
#[cfg(test)]
use super::tail::LogTail;

/// How many records are reaped between two batches: a fraction of a millisecond, so that nobody
/// waits for the reaper.
const REAP_STEP: usize = 1_024;

/// How old the mark of the clock may become while the store is idle. An opening refuses a wall clock
/// that is weeks ahead of the mark, so a store that is open but idle must not let it grow old.
const CLOCK_MARK_AGE_MAX: Duration = Duration::from_secs(3_600);

/// Something that is asked of the writer.
#[derive(Debug)]
pub(crate) enum WriterOp {
    Insert(Box<First>, Reply<Inserted>),
    Swap(Box<(Record, Write)>, Reply<Swapped>),
    Reap(usize, Reply<usize>),
    Probe(Reply<()>),
    /// Wakes the writer to end.
    Close,
}

/// The writer's side of the store: does one thing after the other.
#[derive(Debug)]
pub(crate) struct LogWriter {
    /// What readers share with the writer.
    pub(crate) reader: Arc<LogReader>,
    appender: LogAppender,
    cleaner: SegmentCleaner,
    snapshots: SnapshotTaker,
    reaps: VecDeque<PendingReap>,
}

/// A reap that goes on from batch to batch.
#[derive(Debug)]
pub(crate) struct PendingReap {
    left: usize,
    done: usize,
    reply: Reply<usize>,
}

impl LogWriter {
    pub(crate) fn new(appender: LogAppender, snapshots: SnapshotTaker) -> Self {
        Self {
            reader: Arc::clone(&appender.reader),
            appender,
            snapshots,
            cleaner: SegmentCleaner::default(),
            reaps: VecDeque::new(),
        }
    }

    /// The end of the log.
    #[cfg(test)]
    pub(crate) fn tail(&self) -> &LogTail {
        &self.appender.tail
    }

    /// How many entries were copied forward.
    #[cfg(test)]
    pub(crate) fn copied(&self) -> u64 {
        self.appender.copied()
    }

    /// Whoever adds entries past the questions and answers: the salvage.
    pub(crate) fn appender(&mut self) -> &mut LogAppender {
        &mut self.appender
    }

    /// Does what is asked, durably, and answers.
    pub(crate) fn commit(&mut self, ops: impl IntoIterator<Item = WriterOp>) {
        for op in ops {
            match op {
                WriterOp::Insert(first, reply) => self.insert(*first, reply),
                WriterOp::Swap(swap, reply) => {
                    let (from, write) = *swap;
                    self.swap(from, &write, reply);
                }
                WriterOp::Probe(reply) => self.probe(reply),
                WriterOp::Close => {}
                WriterOp::Reap(left, reply) => {
                    self.reaps.push_back(PendingReap { left, done: 0, reply })
                }
            }
            if self.appender.is_batch_full() {
                self.appender.flush();
            }
        }
        self.reap();
        self.cleaner.step(&mut self.appender);
        self.appender.flush();
        self.appender.keep_spares();
        self.snapshots.keep(&self.appender.tail, self.appender.written());
    }

    /// Whether there is something to go on with though nobody asks for anything.
    pub(crate) fn is_busy(&self) -> bool {
        !self.reaps.is_empty()
    }

    fn insert(&mut self, first: First, reply: Reply<Inserted>) {
        if let Err(error) = self.reader.check() {
            return drop(reply.send(Err(error)));
        }
        let now = self.reader.clock.now();
        let (current, is_durable) = match self.appender.batch.record(&first.id) {
            Some(record) => (Ok(Some(record.clone())), false),
            None => (self.reader.find(&first.id), true),
        };
        let previous = match current {
            Err(error) => return drop(reply.send(Err(error))),
            Ok(Some(record)) if !record.is_expired(now) => {
                let answer = Stamped { now, value: Inserted::Exists(record) };
                if is_durable {
                    let present = self.reader.check_folder();
                    drop(reply.send(present.map(|()| answer)));
                } else {
                    self.appender.batch.answer(PendingAnswer::Inserted(reply, answer));
                }
                return;
            }
            Ok(expired) => expired.map_or(0, |record| record.version),
        };
        let record = first.into_record(now, self.appender.tail.sequence + 1);
        match self.appender.append(&record, previous, ReserveUse::Kept) {
            Err(error) => drop(reply.send(Err(error))),
            Ok(()) => {
                let answer = Stamped { now, value: Inserted::New(record) };
                self.appender.batch.answer(PendingAnswer::Inserted(reply, answer));
            }
        }
    }

    fn swap(&mut self, from: Record, write: &Write, reply: Reply<Swapped>) {
        if let Err(error) = self.reader.check() {
            return drop(reply.send(Err(error)));
        }
        let now = self.reader.clock.now();
        if let Some(record) = self.appender.batch.record(&from.id) {
            // The batch changes it, so the version that was read is not the current one.
            let value = Swapped::Lost(Some(record.clone()));
            return self
                .appender
                .batch
                .answer(PendingAnswer::Swapped(reply, Stamped { now, value }));
        }
        if self.reader.index.get(prefix_of(&from.id), from.version).is_none() {
            let current = self.reader.check_folder().and_then(|()| self.reader.find(&from.id));
            let lost = current.map(|record| Stamped { now, value: Swapped::Lost(record) });
            return drop(reply.send(lost));
        }
        let previous = from.version;
        // The version is the same, so what the caller has read is what is kept.
        let record = write.over(from, now, self.appender.tail.sequence + 1);
        match self.appender.append(&record, previous, ReserveUse::Usable) {
            Err(error) => drop(reply.send(Err(error))),
            Ok(()) => {
                let answer = Stamped { now, value: Swapped::Done(record) };
                self.appender.batch.answer(PendingAnswer::Swapped(reply, answer));
            }
        }
    }

    /// Finds out whether a begin would be durable: whether there is room for one, and whether what is
    /// written now, a header without entries, is flushed.
    fn probe(&mut self, reply: Reply<()>) {
        let room = self.reader.check().and_then(|()| self.appender.find_room_for_a_begin());
        if let Err(error) = room {
            return drop(reply.send(Err(error)));
        }
        let now = self.reader.clock.now();
        self.appender.batch.mark();
        self.appender.batch.answer(PendingAnswer::Probed(reply, Stamped { now, value: () }));
    }

    /// Goes on with the first reap in the queue.
    ///
    /// Records are reaped in the order in which they expire, so the log need not name them: each
    /// header says how far it has come. A record that is back after a crash, because no such header
    /// was flushed, is what it was: expired. It cannot hide a later record of its id, because the
    /// log is given up from its old end only.
    fn reap(&mut self) {
        let Some(mut reaping) = self.reaps.pop_front() else { return };
        if let Err(error) = self.reader.check() {
            return drop(reaping.reply.send(Err(error)));
        }
        let now = self.reader.clock.now();
        let step = reaping.left.min(REAP_STEP);
        let tail = &mut self.appender.tail;
        let until = ReapMark { due: now.as_ms(), version: u64::MAX };
        let gone = |entry: IndexEntry| tail.ring.lost(entry.slot, entry.length);
        let (done, last) = self.reader.index.reap(until, step, gone);
        if let Some(last) = last {
            tail.reaped = last;
        }
        if last.is_some() || tail.clock_mark.until(now) > CLOCK_MARK_AGE_MAX {
            self.appender.batch.mark();
        }
        reaping.done += done;
        reaping.left -= done;
        if done == step && reaping.left > 0 {
            self.reaps.push_front(reaping);
            return;
        }
        let answer = Stamped { now, value: reaping.done };
        self.appender.batch.answer(PendingAnswer::Reaped(reaping.reply, answer));
    }

    /// Waits for whatever runs beside the writer.
    pub(crate) fn await_threads(&mut self) {
        self.appender.await_spare();
        self.snapshots.wait();
    }

    /// Ends the log in good order. The mark that comes last covers the last batch: from now on
    /// damage to it is not taken for a write that a crash has torn.
    pub(crate) fn close(&mut self) {
        for reaping in self.reaps.drain(..) {
            let closed = StoreError::not_applied(StoreErrorKind::Unavailable);
            drop(reaping.reply.send(Err(closed)));
        }
        self.appender.batch.mark();
        self.appender.flush();
        self.await_threads();
        self.snapshots.take_last(&self.appender.tail);
    }
}
