//! What follows when a server may have forgotten what it has acknowledged?
//!
//! Nothing new is granted for a while: until whoever was executing has ended, and whoever retries has
//! stopped. The end of that quarantine is kept in the server itself, so that all processes know it,
//! those that start later as well. Here is what the stores that can be caught in one share.

use std::sync::atomic::{AtomicU64, Ordering};

use retrysafe_core::event::{STORE_CHANGED, STORE_HELD_UNTIL};
use retrysafe_core::store::{StoreError, StoreErrorKind};
use retrysafe_core::time::Time;

/// How far an operator trusts a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// It is new, or has lost nothing.
    AtOnce,
    /// It has lost records: nothing new is granted until the quarantine is over.
    AfterQuarantine,
}

/// Which kind of server it is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Server {
    #[cfg(feature = "postgres")]
    Postgres,
    #[cfg(feature = "redis")]
    Redis,
}

/// Until when nothing new is granted, as far as this process has found out.
#[derive(Debug, Default)]
pub(super) struct HeldUntil(AtomicU64);

impl HeldUntil {
    pub(super) fn get(&self) -> Time {
        Time::from_ms(self.0.load(Ordering::Relaxed))
    }

    /// Notes what the server says. What is new is counted, and told once.
    pub(super) fn note(&self, until: Time, is_new: bool, server: Server) {
        let before = self.0.fetch_max(until.as_ms(), Ordering::Relaxed);
        let seconds = before.max(until.as_ms()) / 1_000;
        metrics::gauge!(STORE_HELD_UNTIL.name).set(seconds as f64);
        if is_new && before.saturating_add(1_000) < until.as_ms() {
            metrics::counter!(STORE_CHANGED.name).increment(1);
            tracing::error!(
                held_until_ms = until.as_ms(),
                "this {} is not the server that granted before, or it has lost acknowledged writes: \
                 nothing new is executed until then; see {}",
                server.name(),
                server.page()
            );
        }
    }
}

/// What is told to whom nothing is granted.
pub(super) fn held(until: Time, server: Server) -> StoreError {
    StoreError::not_applied(StoreErrorKind::Held).because(format!(
        "this {} may have lost acknowledged writes: nothing new is granted before {} ms since 1970 \
         (see {})",
        server.name(),
        until.as_ms(),
        server.page()
    ))
}

impl Server {
    const fn name(self) -> &'static str {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres => "PostgreSQL",
            #[cfg(feature = "redis")]
            Self::Redis => "Redis",
        }
    }

    /// The page of the manual about it.
    const fn page(self) -> &'static str {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres => "docs/postgres.md",
            #[cfg(feature = "redis")]
            Self::Redis => "docs/redis.md",
        }
    }
}
