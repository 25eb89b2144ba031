//! How are expired records removed, and the server tried?
//!
//! Reaping and reading many records share a connection of their own, one at a time, so that a sweep
//! of a large table never stands in the way of a request. A probe has another, so that it does not
//! wait for a sweep.

use std::time::Duration;

use retrysafe_core::store::{Stamped, StoreError, StoreErrorKind};
use tokio::sync::Mutex;
use tokio_postgres::types::Type;

use super::connect::Wire;
use super::fault::Fault;
use super::fields::time;
use super::row::Cells as _;
use super::{PostgresStore, broken};

/// How many records one transaction of the reaper removes. It holds their locks for as long as it
/// takes, and an insert over an expired record waits for it.
const REAP_MAX: usize = 500;

/// How many partitions one reap drops at the most.
const DROPS_MAX: usize = 4;

/// How long a page of a scan may take, as a multiple of the deadline of a request.
const PATIENCE: u32 = 6;

impl PostgresStore {
    pub(super) async fn reap_some(&self, limit: usize) -> Result<Stamped<usize>, StoreError> {
        let expiry = self.inner.shared.settings.expiry;
        let mut reaped = 0;
        loop {
            let most = (limit - reaped).min(REAP_MAX);
            let most = i32::try_from(most).unwrap_or(i32::MAX);
            let rows =
                self.with_wire(async |wire| wire.reap(None, Some(most), expiry).await).await?;
            let told = |at| rows.first().and_then(|row| row.number(at));
            let (now, count) = (time(told(0).ok_or_else(broken)?), told(1).ok_or_else(broken)?);
            let count = usize::try_from(count).map_err(|_| broken())?;
            reaped += count;
            if count < REAP_MAX || reaped >= limit {
                self.make_days().await;
                self.drop_days().await;
                return Ok(Stamped { now, value: reaped });
            }
        }
    }

    /// Makes the partitions of the days to come, so that nobody has to at midnight in a transaction of their own.
    async fn make_days(&self) {
        let made = self
            .with_wire(async |wire| wire.client.batch_execute("SELECT retrysafe.make_days()").await)
            .await;
        if let Err(error) = made {
            tracing::debug!(%error, "the partitions of the next days are left for the next time");
        }
    }

    /// Drops partitions that are over. One that is in use right now is left for the next time.
    async fn drop_days(&self) {
        let days = self.inner.shared.settings.audit_days;
        for _ in 0..DROPS_MAX {
            let dropped = self
                .with_wire(async |wire| {
                    wire.client
                        .query_typed_one("SELECT retrysafe.drop_day($1)", &[(&days, Type::INT4)])
                        .await
                })
                .await;
            match dropped {
                Ok(row) if row.try_get(0).unwrap_or(false) => {}
                Ok(_) => return,
                Err(error) => {
                    tracing::debug!(%error, "a partition is left for the next time");
                    return;
                }
            }
        }
    }

    /// Writes what every commit after a lost one writes, a row that is no record, and waits for the
    /// standby as a begin would.
    pub(super) async fn probe_server(&self) -> Result<Stamped<()>, StoreError> {
        let (now, is_warned) = self
            .with_wire_of(&self.inner.probe, async |wire| {
                let warned = wire.warned();
                let (begun, written, now, committed) = tokio::join!(
                    biased;
                    wire.client.batch_execute(&wire.begin),
                    wire.client.batch_execute(include_str!("sql/barrier.sql")),
                    wire.client.query_typed_one("SELECT retrysafe.now_ms()", &[]),
                    wire.client.batch_execute("COMMIT"),
                );
                let now = begun.and(written).and(now).and_then(|now| committed.map(|()| now))?;
                Ok((now, wire.warned() != warned))
            })
            .await?;
        if is_warned {
            return Err(StoreError::not_applied(StoreErrorKind::Unavailable)
                .because("the wait for the standby was cancelled"));
        }
        Ok(Stamped { now: time(now.number(0).ok_or_else(broken)?), value: () })
    }

    /// Runs something on the connection for upkeep, opening it if need be.
    pub(super) async fn with_wire<T>(
        &self,
        work: impl AsyncFnOnce(&Wire) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, StoreError> {
        self.with_wire_of(&self.inner.upkeep, work).await
    }

    /// Runs something on this connection, opening it if need be. Whoever is dropped meanwhile takes
    /// the connection along.
    pub(super) async fn with_wire_of<T>(
        &self,
        held: &Mutex<Option<Wire>>,
        work: impl AsyncFnOnce(&Wire) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, StoreError> {
        let shared = &self.inner.shared;
        let mut held = held.lock().await;
        let wire = match held.take().filter(|wire| !wire.client.is_closed()) {
            Some(wire) => wire,
            None => shared.wire().await.map_err(|error| {
                StoreError::not_applied(StoreErrorKind::Unavailable).because(error)
            })?,
        };
        let patience: Duration = shared.settings.deadline * PATIENCE;
        match tokio::time::timeout(patience, work(&wire)).await {
            Ok(Ok(done)) => {
                *held = Some(wire);
                Ok(done)
            }
            Ok(Err(error)) => Err(match Fault::of(&error) {
                Fault::Refused(code) => {
                    *held = Some(wire);
                    Fault::refusal(&code)
                }
                Fault::Lost => {
                    StoreError::maybe_applied(StoreErrorKind::Unavailable).because(error)
                }
            }),
            Err(_) => Err(StoreError::maybe_applied(StoreErrorKind::Unavailable)),
        }
    }
}
