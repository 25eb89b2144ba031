//! How do log lines reach standard output without holding anybody up?
//!
//! Every line, of an event or of a request, goes into a queue in memory, and one thread writes the
//! queue out. So a reader that is slow, or that does not read at all, never stops a request: past a
//! bound lines are dropped and counted, and the log says how many once the writer moves again.
//!
//! Events are written at once, requests up to a tenth of a second later. A crash loses what was not
//! written yet. An end by itself, also by a panic, waits for the writer, but not for ever.

use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use retrysafe_core::event;

/// How long a line may wait for others to be written with.
const WRITE_EVERY: Duration = Duration::from_millis(100);

/// How much is held back while nobody reads: some 30,000 lines. Beyond it lines are dropped.
const QUEUE_BYTES_MAX: usize = 8 << 20;

/// Past this the writer is woken early.
const QUEUE_BYTES_SOFT: usize = 64 << 10;

/// How much room an emptied queue keeps for the next lines. What a slow reader has made it grow to is given back.
const QUEUE_BYTES_KEPT: usize = 256 << 10;

/// How long an end waits for the last lines to be written: long enough for any disk, short enough
/// that a log which nobody reads does not hold up a stop.
const LAST_WRITE_MAX: Duration = Duration::from_secs(2);

/// Takes lines. Clones are one queue.
#[derive(Clone)]
pub(crate) struct LogQueue(Arc<Shared>);

/// The thread that writes a queue out. Dropping it writes what is left, within a bound.
pub(crate) struct LogWriter(LogQueue);

/// How long a line may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Haste {
    /// It is written at once.
    Now,
    /// It is written together with others.
    Soon,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the writer.
    wake: Condvar,
    /// Wakes whoever waits for the end of the writer.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    is_urgent: bool,
    /// How many lines were dropped since that was last said.
    dropped: u64,
    is_over: bool,
    has_ended: bool,
}

impl LogQueue {
    /// Starts the thread that writes the lines out.
    ///
    /// # Errors
    ///
    /// If there can be no thread.
    pub(crate) fn start(out: impl Write + Send + 'static) -> std::io::Result<(Self, LogWriter)> {
        let queue = Self(Arc::default());
        let writing = queue.clone();
        std::thread::Builder::new().name("log".into()).spawn(move || writing.write_out(out))?;
        Ok((queue.clone(), LogWriter(queue)))
    }

    /// Takes a line with its end, or drops it where the queue is full.
    pub(crate) fn put(&self, line: &[u8], haste: Haste) {
        let mut state = self.lock();
        if state.bytes.len() + line.len() > QUEUE_BYTES_MAX {
            state.dropped += 1;
            drop(state);
            return count_dropped(1);
        }
        state.bytes.extend_from_slice(line);
        if haste == Haste::Now || state.bytes.len() >= QUEUE_BYTES_SOFT {
            state.is_urgent = true;
            // Nobody waits while the writer writes, and then this costs nothing.
            self.0.wake.notify_one();
        }
    }

    fn write_out(&self, mut out: impl Write) {
        let mut bytes = Vec::new();
        loop {
            let (dropped, is_over) = self.take(&mut bytes);
            if dropped > 0 {
                // The queue is empty by now, so this line finds a place in it.
                tracing::warn!(dropped, "log lines were dropped: the log is read too slowly");
            }
            if is_over && bytes.is_empty() && dropped == 0 {
                break;
            }
            if out.write_all(&bytes).and_then(|()| out.flush()).is_err() {
                // There is nobody to tell but whoever looks at the metrics.
                count_dropped(bytes.iter().filter(|byte| **byte == b'\n').count() as u64);
            }
        }
        self.lock().has_ended = true;
        self.0.ended.notify_all();
    }

    /// Waits for lines and takes them in the place of those that were written. Says how many were dropped, and whether it is over.
    ///
    /// The two buffers change places, so that neither has to grow again with every write.
    fn take(&self, bytes: &mut Vec<u8>) -> (u64, bool) {
        let waited = self.0.wake.wait_timeout_while(self.lock(), WRITE_EVERY, |state| {
            !state.is_over && !state.is_urgent
        });
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_urgent = false;
        bytes.clear();
        bytes.shrink_to(QUEUE_BYTES_KEPT);
        std::mem::swap(&mut state.bytes, bytes);
        (std::mem::take(&mut state.dropped), state.is_over)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        let queue = &self.0;
        let mut state = queue.lock();
        state.is_over = true;
        queue.0.wake.notify_one();
        // Whether it ended in time or not, there is nothing left to do about it.
        drop(queue.0.ended.wait_timeout_while(state, LAST_WRITE_MAX, |state| !state.has_ended));
    }
}

/// Takes the lines of events, each in one piece.
impl Write for LogQueue {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.put(line, Haste::Now);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn count_dropped(lines: u64) {
    metrics::counter!(event::LOG_LINES_DROPPED.name).increment(lines);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// An output that takes nothing before it is told to, and shows what it took.
    struct Stuck {
        go: Receiver<()>,
        taken: Sender<Vec<u8>>,
    }

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let _ = self.go.recv();
            let _ = self.taken.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn stuck() -> (LogQueue, LogWriter, Sender<()>, Receiver<Vec<u8>>) {
        let ((let_go, go), (taken, seen)) = (channel(), channel());
        let (queue, writer) = LogQueue::start(Stuck { go, taken }).unwrap();
        (queue, writer, let_go, seen)
    }

    #[test]
    fn a_stuck_output_costs_lines_and_never_memory_or_time() {
        let (queue, _writer, let_go, seen) = stuck();
        let line = [b'x'; 1 << 10];
        for _ in 0..QUEUE_BYTES_MAX / line.len() * 3 {
            queue.put(&line, Haste::Now);
        }
        let dropped = queue.lock().dropped;
        assert!(dropped > 0 && queue.lock().bytes.len() <= QUEUE_BYTES_MAX, "{dropped}");
        drop(let_go);
        let taken: usize = seen.iter().take(2).map(|bytes| bytes.len()).sum();
        assert_eq!(
            taken as u64 / line.len() as u64,
            (QUEUE_BYTES_MAX / line.len() * 3) as u64 - dropped
        );
    }

    // The writer's buffer and the queue's change places: what was written must not be written again.
    #[test]
    fn each_line_is_written_once_and_a_large_queue_gives_its_room_back() {
        let (queue, writer, let_go, seen) = stuck();
        queue.put(b"a\n", Haste::Now);
        let_go.send(()).unwrap();
        assert_eq!(seen.recv().unwrap(), b"a\n");
        queue.put(b"b\n", Haste::Now);
        let_go.send(()).unwrap();
        assert_eq!(seen.recv().unwrap(), b"b\n");
        queue.put(&vec![b'x'; QUEUE_BYTES_KEPT * 4], Haste::Now);
        let_go.send(()).unwrap();
        assert_eq!(seen.recv().unwrap().len(), QUEUE_BYTES_KEPT * 4);
        // The buffer of that line is emptied with the next one, and given back with the one after it.
        for line in [b"c\n", b"d\n"] {
            queue.put(line, Haste::Now);
            let_go.send(()).unwrap();
            assert_eq!(seen.recv().unwrap(), line);
        }
        drop(let_go);
        drop(writer);
        assert_eq!(seen.iter().count(), 0, "nothing is written twice");
        assert!(queue.lock().bytes.capacity() <= QUEUE_BYTES_KEPT);
    }

    #[test]
    fn the_end_writes_what_is_left() {
        let (queue, writer, let_go, seen) = stuck();
        queue.put(b"last words\n", Haste::Soon);
        drop(let_go);
        drop(writer);
        assert_eq!(seen.recv().unwrap(), b"last words\n");
    }

    #[test]
    fn the_end_does_not_wait_for_a_stuck_output() {
        let (queue, writer, _kept, _seen) = stuck();
        queue.put(b"never\n", Haste::Now);
        // It would hang here.
        drop(writer);
    }
}
