//! How are expired records removed, and the server tried?
//!
//! Reaping and reading many records share a connection of their own, one at a time, so that a sweep
//! of a large table never stands in the way of a request. A probe has another, so that it does not
//! wait for a sweep.

use std::time::Duration;

use retrysafe_core::store::{Stamped, StoreError, StoreErrorKind};
use tokio::sync::Mutex;
use tokio_postgres::types::Type;

use super::connect::{Fault, Wire};
use super::row::{Cells as _, ms, time};
use super::settings::Expiry;
use super::{PostgresStore, broken};

/// How many records one transaction of the reaper removes. It holds their locks for as long as it
/// takes, and an insert over an expired record waits for it.
const REAP_MAX: usize = 500;

/// How many partitions one reap drops at the most.
const DROPS_MAX: usize = 4;

/// How long partitions that were made ahead last: they are made for a day more than is needed.
#[cfg(feature = "sqlx")]
const PREPARED_FOR: Duration = Duration::from_secs(3_600);

/// How long a page of a scan may take, as a multiple of the deadline of a request.
const PATIENCE: u32 = 6;

impl PostgresStore {
    pub(super) async fn reap_some(&self, limit: usize) -> Result<Stamped<usize>, StoreError> {
        let keep = self.inner.shared.settings.expiry == Expiry::Keep;
        let mut reaped = 0;
        loop {
            let most = (limit - reaped).min(REAP_MAX);
            let most = i32::try_from(most).unwrap_or(i32::MAX);
            let rows = self
                .with_wire(async |wire| {
                    let parameters: &[(&(dyn tokio_postgres::types::ToSql + Sync), Type)] =
                        &[(&most, Type::INT4), (&keep, Type::BOOL)];
                    let (begun, rows, committed) = tokio::join!(
                        biased;
                        wire.client.batch_execute(&wire.begin),
                        wire.client.query_typed(include_str!("sql/reap.sql"), parameters),
                        wire.client.batch_execute("COMMIT"),
                    );
                    begun.and(rows).and_then(|rows| committed.map(|()| rows))
                })
                .await?;
            let told = |at| rows.first().and_then(|row| row.number(at));
            let (now, count) = (time(told(0).ok_or_else(broken)?), told(1).ok_or_else(broken)?);
            let count = usize::try_from(count).map_err(|_| broken())?;
            reaped += count;
            if count < REAP_MAX || reaped >= limit {
                self.drop_days(ms(now)).await;
                return Ok(Stamped { now, value: reaped });
            }
        }
    }

    /// Sees to the partitions that a transaction of the application will write to, so that it does
    /// not have to make them itself. Asked of the server once an hour for each length of life.
    #[cfg(feature = "sqlx")]
    pub(super) async fn prepare(&self, ttl: Duration) {
        let days = ttl.as_secs() / 86_400;
        let fresh = |prepared: &std::collections::HashMap<u64, std::time::Instant>| {
            prepared.get(&days).is_some_and(|at| at.elapsed() < PREPARED_FOR)
        };
        if fresh(&*self.inner.prepared.lock().await) {
            return;
        }
        let ttl_ms = super::row::length_ms(ttl);
        let made = self
            .with_wire(async |wire| {
                let parameters: &[(&(dyn tokio_postgres::types::ToSql + Sync), Type)] =
                    &[(&ttl_ms, Type::INT8)];
                wire.client.query_typed("SELECT retrysafe.prepare_v1($1)", parameters).await
            })
            .await;
        match made {
            Ok(_) => {
                self.inner.prepared.lock().await.insert(days, std::time::Instant::now());
            }
            // The write itself makes what is missing.
            Err(error) => tracing::debug!(%error, "partitions were not made ahead"),
        }
    }

    /// Drops partitions that are over. One that is in use right now is left for the next time.
    async fn drop_days(&self, now: i64) {
        let days = self.inner.shared.settings.audit_days;
        for _ in 0..DROPS_MAX {
            let dropped = self
                .with_wire(async |wire| {
                    wire.client
                        .query_typed_one(
                            "SELECT retrysafe.drop_day($1, $2)",
                            &[(&now, Type::INT8), (&days, Type::INT4)],
                        )
                        .await
                })
                .await;
            match dropped {
                Ok(row) if row.flag(0) == Some(true) => {}
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
    async fn with_wire_of<T>(
        &self,
        held: &Mutex<Option<Wire>>,
        work: impl AsyncFnOnce(&Wire) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, StoreError> {
        let shared = &self.inner.shared;
        let mut held = held.lock().await;
        let wire = match held.take().filter(|wire| !wire.client.is_closed()) {
            Some(wire) => wire,
            None => Wire::verified(&shared.settings, &shared.identity).await.map_err(|error| {
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
