//! How is a page read without holding up requests?
//!
//! A page is thousands of reads. Each is read on a thread of its own that gives way to all others: people who look
//! for a key must not make requests wait.

use std::sync::Arc;
use std::thread;

use retrysafe_core::store::{Page, Stamped, StoreError, StoreErrorKind};
use retrysafe_core::time::Time;
use tokio::sync::{Semaphore, oneshot};

use super::DiskStore;
use super::read::LogReader;

/// How many pages are read at once; others wait for their turn.
const PAGES_MAX: usize = 4;

/// How far a page's thread gives way: where the processors are busy it gets a tenth of what others get.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

pub(super) fn page_permits() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(PAGES_MAX))
}

impl DiskStore {
    /// Reads a page, not on a thread that serves requests.
    pub(super) async fn aside(
        &self,
        read: impl FnOnce(&LogReader) -> Result<(Time, Page), StoreError> + Send + 'static,
    ) -> Result<Stamped<Page>, StoreError> {
        let unavailable = || StoreError::not_applied(StoreErrorKind::Unavailable);
        let permit = Arc::clone(&self.page_permits).acquire_owned().await;
        let permit = permit.map_err(|closed| unavailable().because(closed))?;
        let reader = Arc::clone(&self.reader);
        let (reply, answer) = oneshot::channel();
        let read = move || {
            give_way();
            // Whoever asked may have gone.
            let _ = reply.send(read(&reader).map(|(now, value)| Stamped { now, value }));
            drop(permit);
        };
        let thread = thread::Builder::new().name("retrysafe-page".into()).spawn(read);
        thread.map_err(|error| unavailable().because(error))?;
        answer.await.unwrap_or_else(|panicked| Err(unavailable().because(panicked)))
    }
}

/// Only Linux has priorities of threads; elsewhere the whole process would give way.
#[cfg(target_os = "linux")]
fn give_way() {
    // A sandbox may forbid it. Then a page costs requests more, and nothing else.
    let _ = rustix::process::setpriority_process(None, NICE);
}

#[cfg(not(target_os = "linux"))]
fn give_way() {}
