//! Who calls whom between the callers' tasks and the disk?
//!
//! One thread owns the log. It takes whatever is queued, makes it one batch, and answers after the
//! flush; meanwhile the next batch gathers in the queue. There is no timer: an idle store answers at
//! once, a busy one in larger batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use tokio::sync::mpsc;

use super::ops::{LogWriter, WriterOp};

/// How many operations wait for the writer at most. Whoever comes later waits for a place, so that
/// a slow disk does not fill the memory.
pub(crate) const QUEUE_MAX: usize = 4_096;

/// Starts the writer's thread. It ends when `is_closing` is set and it is woken, after everything
/// that was queued before.
pub(crate) fn start(
    log: LogWriter,
    is_closing: Arc<AtomicBool>,
) -> std::io::Result<(mpsc::Sender<WriterOp>, JoinHandle<()>)> {
    let (send, receive) = mpsc::channel(QUEUE_MAX);
    let thread = std::thread::Builder::new().name("retrysafe-disk".into());
    Ok((send, thread.spawn(move || run(log, receive, &is_closing))?))
}

fn run(mut log: LogWriter, mut queue: mpsc::Receiver<WriterOp>, is_closing: &AtomicBool) {
    let mut ops = Vec::with_capacity(QUEUE_MAX);
    loop {
        if is_closing.load(Ordering::SeqCst) {
            queue.close();
        }
        if log.is_busy() {
            while ops.len() < QUEUE_MAX
                && let Ok(op) = queue.try_recv()
            {
                ops.push(op);
            }
        } else if queue.blocking_recv_many(&mut ops, QUEUE_MAX) == 0 {
            break;
        }
        log.commit(ops.drain(..));
    }
    log.close();
}
