//! When is a snapshot of the index taken?
//!
//! From time to time, beside the writer where there is a thread for it, and when the store is closed.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::Durability;
use super::snapshot::{self, LogPosition};
use super::tail::LogTail;

/// How many segments are written between two snapshots, at least.
const SEGMENTS_BETWEEN: u64 = 4;

/// Takes snapshots.
#[derive(Debug)]
pub(crate) struct SnapshotTaker {
    /// Whether the writer takes them itself, in an order that a test can repeat.
    is_inline: bool,
    /// How many bytes of log had been written when the last one was taken.
    written_then: u64,
    taking: Option<JoinHandle<()>>,
}

impl SnapshotTaker {
    pub(crate) fn new(is_inline: bool) -> Self {
        Self { is_inline, written_then: 0, taking: None }
    }

    /// Takes a snapshot if the log has grown enough: by several segments, and by more than the
    /// snapshot itself would be.
    pub(crate) fn keep(&mut self, tail: &LogTail, written: u64) {
        let segments = u64::from(tail.segment_bytes) * SEGMENTS_BETWEEN;
        let itself = (tail.reader.index.len() * snapshot::ENTRY * 2) as u64;
        let is_due = written - self.written_then >= segments.max(itself);
        let is_taking = self.taking.as_ref().is_some_and(|taking| !taking.is_finished());
        let has_failed = tail.reader.failure.get().is_some();
        if !is_due || is_taking || has_failed {
            return;
        }
        self.wait();
        self.written_then = written;
        let Some(job) = job(tail) else { return };
        if self.is_inline {
            job();
        } else {
            let thread = std::thread::Builder::new().name("retrysafe-snapshot".into());
            self.taking = thread.spawn(job).ok();
        }
    }

    /// Takes a snapshot now, for the next opening.
    pub(crate) fn take_last(&mut self, tail: &LogTail) {
        self.wait();
        if tail.reader.failure.get().is_none()
            && let Some(job) = job(tail)
        {
            job();
        }
    }

    /// Waits for a snapshot that is being taken.
    pub(crate) fn wait(&mut self) {
        if let Some(taking) = self.taking.take() {
            // Its failure was reported by itself, and costs nothing but time.
            let _ = taking.join();
        }
    }
}

/// The work of taking a snapshot of the log as it is now, to be done here or beside the writer.
pub(crate) fn job(tail: &LogTail) -> Option<impl FnOnce() + Send + 'static> {
    let reader = Arc::clone(&tail.reader);
    let generation = tail.generation;
    let offset = tail.end;
    let position = LogPosition { generation, offset, reaped: tail.reaped };
    if tail.durability == Durability::Process {
        // The snapshot is durable, so what it speaks of must be.
        tail.ring.newest()?.1.flush().ok()?;
    }
    Some(move || {
        let folder = &*reader.folder;
        if let Err(error) = snapshot::take(folder, &reader, position) {
            tracing::warn!(%error, "the disk store could not take a snapshot of its index");
            let _ = folder.remove(snapshot::NEW);
        }
    })
}
