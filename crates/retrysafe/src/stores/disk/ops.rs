//! What does the writer do with each thing that is asked of it?
//!
//! The writer alone decides, one thing after the other, against the index and against what the batch
//! already holds: of two inserts of one id in a batch the second finds the first, of two swaps of
//! one version the second loses. Whoever learns of something that is not durable yet is answered
//! after the flush, too.

use std::time::Duration;

use retrysafe_core::record::{First, Record, Write};
use retrysafe_core::store::{Inserted, Stamped, StoreError, StoreErrorKind, Swapped};

use super::index::{ReapMark, prefix_of};
use super::log::{Answer, LogWriter, Reply, ReserveUse};

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

/// A reap that goes on from batch to batch.
#[derive(Debug)]
pub(crate) struct PendingReap {
    left: usize,
    done: usize,
    reply: Reply<usize>,
}

impl LogWriter {
    /// Does what is asked, durably, and answers.
    pub(crate) fn commit(&mut self, ops: impl IntoIterator<Item = WriterOp>) {
        for op in ops {
            match op {
                WriterOp::Insert(first, reply) => self.insert(&first, reply),
                WriterOp::Swap(from, reply) => self.swap(&from.0, &from.1, reply),
                WriterOp::Probe(reply) => self.probe(reply),
                WriterOp::Close => {}
                WriterOp::Reap(left, reply) => {
                    self.reaps.push_back(PendingReap { left, done: 0, reply })
                }
            }
            if self.is_batch_full() {
                self.flush();
            }
        }
        self.reap();
        self.clean();
        self.flush();
        self.keep_spares();
        self.keep_snapshot();
    }

    /// Whether there is something to go on with though nobody asks for anything.
    pub(crate) fn is_busy(&self) -> bool {
        !self.reaps.is_empty()
    }

    fn insert(&mut self, first: &First, reply: Reply<Inserted>) {
        if let Err(error) = self.shared.check() {
            return drop(reply.send(Err(error)));
        }
        let now = self.shared.clock.now();
        let (current, is_durable) = match self.pending(&first.id) {
            Some(record) => (Ok(Some(record.clone())), false),
            None => (self.shared.find(&first.id), true),
        };
        let previous = match current {
            Err(error) => return drop(reply.send(Err(error))),
            Ok(Some(record)) if !record.is_expired(now) => {
                let answer = Stamped { now, value: Inserted::Exists(record) };
                if is_durable {
                    let present = self.shared.check_folder();
                    drop(reply.send(present.map(|()| answer)));
                } else {
                    self.batch.answer(Answer::Inserted(reply, answer));
                }
                return;
            }
            Ok(expired) => expired.map_or(0, |record| record.version),
        };
        let record = first.record(now, self.sequence + 1);
        match self.append(&record, previous, ReserveUse::Kept) {
            Err(error) => drop(reply.send(Err(error))),
            Ok(()) => {
                let answer = Stamped { now, value: Inserted::New(record) };
                self.batch.answer(Answer::Inserted(reply, answer));
            }
        }
    }

    fn swap(&mut self, from: &Record, write: &Write, reply: Reply<Swapped>) {
        if let Err(error) = self.shared.check() {
            return drop(reply.send(Err(error)));
        }
        let now = self.shared.clock.now();
        if let Some(record) = self.pending(&from.id) {
            // The batch changes it, so the version that was read is not the current one.
            let value = Swapped::Lost(Some(record.clone()));
            return self.batch.answer(Answer::Swapped(reply, Stamped { now, value }));
        }
        if self.shared.index.get(prefix_of(&from.id), from.version).is_none() {
            let current = self.shared.check_folder().and_then(|()| self.shared.find(&from.id));
            let lost = current.map(|record| Stamped { now, value: Swapped::Lost(record) });
            return drop(reply.send(lost));
        }
        let record = write.onto(from, now, self.sequence + 1);
        match self.append(&record, from.version, ReserveUse::Usable) {
            Err(error) => drop(reply.send(Err(error))),
            Ok(()) => {
                let answer = Stamped { now, value: Swapped::Done(record) };
                self.batch.answer(Answer::Swapped(reply, answer));
            }
        }
    }

    /// Finds out whether a begin would be durable: whether there is room for one, and whether what is
    /// written now, a header without entries, is flushed.
    fn probe(&mut self, reply: Reply<()>) {
        let room = self.shared.check().and_then(|()| self.room_for_a_begin());
        if let Err(error) = room {
            return drop(reply.send(Err(error)));
        }
        let now = self.shared.clock.now();
        self.batch.mark();
        self.batch.answer(Answer::Probed(reply, Stamped { now, value: () }));
    }

    /// Goes on with the first reap in the queue.
    ///
    /// Records are reaped in the order in which they expire, so the log need not name them: each
    /// header says how far it has come. A record that is back after a crash, because no such header
    /// was flushed, is what it was: expired. It cannot hide a later record of its id, because the
    /// log is given up from its old end only.
    fn reap(&mut self) {
        let Some(mut reaping) = self.reaps.pop_front() else { return };
        if let Err(error) = self.shared.check() {
            return drop(reaping.reply.send(Err(error)));
        }
        let now = self.shared.clock.now();
        let step = reaping.left.min(REAP_STEP);
        let segments = &mut self.segments;
        let index = &self.shared.index;
        let until = ReapMark { due: now.as_ms(), version: u64::MAX };
        let (done, last) = index.reap(until, step, |entry| segments.lost(entry.slot, entry.length));
        if let Some(last) = last {
            self.reaped = last;
        }
        if last.is_some() || self.clock_mark.until(now) > CLOCK_MARK_AGE_MAX {
            self.batch.mark();
        }
        reaping.done += done;
        reaping.left -= done;
        if done == step && reaping.left > 0 {
            self.reaps.push_front(reaping);
            return;
        }
        let answer = Stamped { now, value: reaping.done };
        self.batch.answer(Answer::Reaped(reaping.reply, answer));
    }

    /// Refuses what is still waiting when the writer ends.
    pub(crate) fn refuse_rest(&mut self) {
        for reaping in self.reaps.drain(..) {
            let closed = StoreError::not_applied(StoreErrorKind::Unavailable);
            drop(reaping.reply.send(Err(closed)));
        }
    }
}
