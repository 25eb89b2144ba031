//! How are copies kept in Redis, and what may that cost?
//!
//! A look takes [`LOOK_MAX`] at the most. One that fails or is late ends all looks until Redis has
//! answered a ping, which one task asks for. So a slow or dead Redis costs the requests of one moment
//! this much, and all others nothing. Copies are written behind the answer, a bounded number at a time;
//! what finds no place is not copied.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Value;
use retrysafe_core::event::COPIES;
use retrysafe_core::scope::Id;
use tokio::sync::Semaphore;

use crate::stores::redis::{CopyNodes, RedisUrl};

/// How long a request may wait for a copy.
pub(super) const LOOK_MAX: Duration = Duration::from_millis(50);

/// How often a Redis that has failed is tried.
const MEND_PAUSE: Duration = Duration::from_millis(500);

/// How many copies are written at a time.
const WRITES_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Answers {
    nodes: CopyNodes,
    is_well: AtomicBool,
    writes: Arc<Semaphore>,
}

impl Answers {
    /// Copies under this URL. Redis need not be there yet.
    pub(super) fn open(url: &RedisUrl) -> Arc<Self> {
        let answers = Arc::new(Self {
            nodes: CopyNodes::new(url),
            is_well: AtomicBool::new(false),
            writes: Arc::new(Semaphore::new(WRITES_MAX)),
        });
        tokio::spawn(mend(Arc::downgrade(&answers)));
        answers
    }

    /// What Redis has under this name. A Redis that has failed is not asked.
    pub(super) async fn look(self: &Arc<Self>, id: &Id) -> Option<Vec<u8>> {
        if !self.is_well.load(Ordering::Relaxed) {
            count_look("failed");
            return None;
        }
        let get = |key: &str| redis::cmd("GET").arg(key).take();
        match tokio::time::timeout(LOOK_MAX, self.nodes.ask(id, get)).await {
            Ok(Ok(Value::BulkString(copy))) => Some(copy),
            Ok(Ok(_)) => {
                count_look("absent");
                None
            }
            Ok(Err(_)) | Err(_) => {
                count_look("failed");
                self.failed();
                None
            }
        }
    }

    /// Writes a copy behind the answer.
    pub(super) fn write(self: &Arc<Self>, id: Id, copy: Vec<u8>, life: Duration) {
        let life_ms = u64::try_from(life.as_millis()).unwrap_or(u64::MAX).max(1);
        self.behind(id, move |key| {
            redis::cmd("SET").arg(key).arg(copy.as_slice()).arg("PX").arg(life_ms).take()
        });
    }

    /// Removes a copy. If that fails, the answer epoch ends it all the same.
    pub(super) fn remove(self: &Arc<Self>, id: Id) {
        self.behind(id, |key| redis::cmd("DEL").arg(key).take());
    }

    fn behind(
        self: &Arc<Self>,
        id: Id,
        command: impl Fn(&str) -> redis::Cmd + Send + Sync + 'static,
    ) {
        if !self.is_well.load(Ordering::Relaxed) {
            return;
        }
        let Ok(place) = Arc::clone(&self.writes).try_acquire_owned() else { return };
        let answers = Arc::clone(self);
        tokio::spawn(async move {
            if answers.nodes.ask(&id, command).await.is_err() {
                answers.failed();
            }
            drop(place);
        });
    }

    fn failed(self: &Arc<Self>) {
        if self.is_well.swap(false, Ordering::Relaxed) {
            tracing::warn!("the Redis of answers fails: the database serves all replays meanwhile");
            tokio::spawn(mend(Arc::downgrade(self)));
        }
    }
}

/// Counts what came of a look.
pub(super) fn count_look(what: &'static str) {
    metrics::counter!(COPIES.name, "look" => what).increment(1);
}

/// Tries until Redis answers, or nobody wants it any more.
async fn mend(answers: Weak<Answers>) {
    loop {
        {
            let Some(answers) = answers.upgrade() else { return };
            if answers.nodes.is_there().await {
                answers.is_well.store(true, Ordering::Relaxed);
                return;
            }
        }
        tokio::time::sleep(MEND_PAUSE).await;
    }
}
