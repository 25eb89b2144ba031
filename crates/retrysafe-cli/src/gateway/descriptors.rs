//! How many connections does the operating system permit?
//!
//! Each connection is a file descriptor, and so is each segment of a store, each health check and
//! each file that a reload reads. A process that has none left cannot even say that it is not ready.
//! So the limit is raised as far as it goes, some descriptors are set aside, and the rest is divided
//! between callers and the upstream: a connection that is served may need one to the upstream.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::small_message::poll_write_pieces;
use crate::admin;

/// How many connections there may be towards either side, whatever the system permits: each costs
/// some memory too.
const CONNECTIONS_MAX: usize = 30_000;

/// Fewer connections than this make no gateway.
const CONNECTIONS_MIN: usize = 8;

/// What the store may open after the start: 64 segments of a disk store, 4 GiB of records.
const STORE_MORE: usize = 64;

/// What a reload, a lookup of a name or of an unknown outcome may need for a moment.
const MOMENTARY: usize = 32;

/// What the runtime of each thread that serves needs.
const PER_THREAD: usize = 4;

/// What is set aside.
const RESERVED: usize = admin::CONNECTIONS_MAX + STORE_MORE + MOMENTARY;

/// How many more connections there may be, towards either side.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionSlots {
    pub callers: Arc<Semaphore>,
    pub upstream: Arc<Semaphore>,
}

/// A connection, which keeps its slot for as long as it has its descriptor: also when it speaks
/// another protocol by now.
pub(crate) struct Slotted<T> {
    io: T,
    _slot: OwnedSemaphorePermit,
}

impl ConnectionSlots {
    /// So many towards either side.
    pub(crate) fn new(each: usize) -> Self {
        let slots = || Arc::new(Semaphore::new(each));
        Self { callers: slots(), upstream: slots() }
    }

    /// What this process may have, once its store and its listeners are open and before its threads
    /// have started.
    ///
    /// # Errors
    ///
    /// If that is too little to serve anybody.
    pub(crate) fn permitted(threads: usize) -> Result<Self, String> {
        let limit = raise_limit();
        let open = open_now() + threads * PER_THREAD;
        within(limit, open).map(Self::new).ok_or_else(|| {
            let needed = open + RESERVED + 2 * CONNECTIONS_MIN;
            format!(
                "the limit of open files (RLIMIT_NOFILE) is {limit}, and at least {needed} are \
                 needed: raise it with `ulimit -n`, LimitNOFILE= (systemd) or --ulimit (containers)"
            )
        })
    }
}

/// How many connections a limit permits towards either side, beside what is open already.
fn within(limit: usize, open: usize) -> Option<usize> {
    let left = limit.checked_sub(open)?.checked_sub(RESERVED)?;
    Some((left / 2).min(CONNECTIONS_MAX)).filter(|each| *each >= CONNECTIONS_MIN)
}

/// Raises the limit as far as this process may, and says what it is now.
pub(crate) fn raise_limit() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let limit = match raised {
        Ok(()) => maximum,
        // Some systems have a limit of their own below the one that they show.
        Err(_) => current,
    };
    // No limit is none.
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// How many descriptors are open.
fn open_now() -> usize {
    // A system without this folder: the runtimes, the listeners, the log and a small store.
    const GUESSED: usize = 64;
    std::fs::read_dir("/dev/fd").map_or(GUESSED, Iterator::count)
}

impl<T> Slotted<T> {
    pub(crate) fn new(io: T, slot: OwnedSemaphorePermit) -> Self {
        Self { io, _slot: slot }
    }
}

impl<T: Read + Unpin> Read for Slotted<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, into)
    }
}

impl<T: Write + Unpin> Write for Slotted<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        poll_write_pieces(&mut self.io, context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_and_upstream_share_what_is_left() {
        let within = |limit| within(limit, 40);
        assert_eq!(within(1 << 20), Some(CONNECTIONS_MAX));
        assert_eq!(within(usize::MAX), Some(CONNECTIONS_MAX));
        assert_eq!(within(1_024), Some((1_024 - 40 - RESERVED) / 2));
        assert_eq!(within(40 + RESERVED + 2 * CONNECTIONS_MIN), Some(CONNECTIONS_MIN));
        assert_eq!(within(40 + RESERVED + 2 * CONNECTIONS_MIN - 1), None);
        assert_eq!(within(10), None);
    }
}
