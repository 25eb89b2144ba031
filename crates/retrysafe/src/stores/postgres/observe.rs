//! Is this the server that was here before, and what if it is not?
//!
//! A standby that was promoted is on a new timeline. The database itself keeps on which one it was
//! written last, and whether commits were waited for by a synchronous standby. Every statement that
//! writes compares the two (`hold_v1`), so a pooler that was pointed at another server is noticed as
//! well; a statement that finds a change writes nothing until the change was noted here.
//!
//! | before the change | after it |
//! | --- | --- |
//! | commits were waited for by a synchronous standby | nothing is lost, nothing is held |
//! | they were not | nothing new is granted until the quarantine is over |
//! | the same, and the URL says `failover=continue` | what was lost runs again |
//! | another cluster: a copy that was restored | nothing new is granted until the quarantine is over |

use std::time::Duration;

use retrysafe_core::store::{StoreError, StoreErrorKind};
use retrysafe_core::time::Time;
use retrysafe_core::units::show_duration;
use tokio_postgres::types::{ToSql, Type};

use super::connect::Wire;
use super::fault::ConnectError;
use super::fields::{length_ms, time};
use super::identity::Identity;
use super::lane::Shared;
use super::row::Cells as _;
use super::settings::{PostgresUrl, Settings};
use super::{PostgresStore, migrate};
use crate::stores::quarantine::{Server, Trust};

/// What `observe_v1` says.
struct Observed {
    now: Time,
    held_until: Time,
    is_new: bool,
    is_awaited: bool,
}

impl Shared {
    /// A verified connection, to a server that is known to the database.
    pub(super) async fn wire(&self) -> Result<Wire, ConnectError> {
        let wire = Wire::verified(&self.settings, &self.identity).await?;
        let knows_loss = self.identity.knows_loss(wire.timeline);
        let observed = within(&self.settings, wire.observe(&self.settings, knows_loss)).await?;
        let Observed { now, held_until, is_new, is_awaited } = observed;
        self.identity.note(wire.timeline, is_awaited);
        if held_until > now {
            self.held_until.note(held_until, is_new, Server::Postgres);
        } else if is_new {
            tracing::warn!(timeline = wire.timeline, "a standby was promoted; nothing is held");
        }
        Ok(wire)
    }
}

impl Wire {
    async fn observe(
        &self,
        settings: &Settings,
        knows_loss: bool,
    ) -> Result<Observed, ConnectError> {
        let lock_ms = lock_ms(settings);
        let hold_ms = length_ms(settings.hold_for.unwrap_or_default());
        let goes_on = settings.hold_for.is_none();
        let parameters: [(&(dyn ToSql + Sync), Type); 6] = [
            (&self.sync, Type::TEXT),
            (&lock_ms, Type::INT4),
            (&self.system, Type::TEXT),
            (&hold_ms, Type::INT8),
            (&goes_on, Type::BOOL),
            (&knows_loss, Type::BOOL),
        ];
        let warned = self.warned();
        let asked = self.client.query_typed(include_str!("sql/observe.sql"), &parameters).await;
        let failed =
            |error| ConnectError::because("which server was here before cannot be read", error);
        let rows = asked.map_err(failed)?;
        let Some(row) = rows.first() else {
            return Err(ConnectError::new(
                "the table retrysafe.server is empty: nobody knows what this server has lost. Run \
                 `retrysafe store init`, with --after-loss if it has lost records",
            ));
        };
        if self.warned() != warned {
            return Err(ConnectError::unreplicated());
        }
        let told = |at| row.number(at).ok_or_else(ConnectError::silence).map(time);
        Ok(Observed {
            now: told(0)?,
            held_until: told(1)?,
            is_new: row.try_get(2).map_err(failed)?,
            is_awaited: row.try_get(3).map_err(failed)?,
        })
    }
}

impl PostgresStore {
    /// Says how far this server may be trusted with new grants: an operator ends a quarantine because
    /// nothing was lost, or begins one because records were lost in a way that no program can see,
    /// such as a restored copy.
    ///
    /// # Errors
    ///
    /// If the server is out of reach, or cannot keep the promise.
    pub async fn init(url: &PostgresUrl, trust: Trust) -> Result<(), ConnectError> {
        let settings = &url.settings;
        let wire = Wire::verified(settings, &Identity::default()).await?;
        migrate::ensure(&wire, settings.migrate).await?;
        let (lock_ms, hold_for) = (lock_ms(settings), settings.hold_for.unwrap_or_default());
        let hold_ms = match trust {
            Trust::AtOnce => 0,
            Trust::AfterQuarantine => length_ms(hold_for),
        };
        let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
            (&wire.sync, Type::TEXT),
            (&lock_ms, Type::INT4),
            (&wire.system, Type::TEXT),
            (&hold_ms, Type::INT8),
        ];
        let trusted = async {
            let asked = wire.client.query_typed(include_str!("sql/trust.sql"), &parameters).await;
            asked.map_err(|error| ConnectError::because("the server cannot be written", error))
        };
        within(settings, trusted).await.map(drop)
    }

    /// Notes which server this is, over a connection of the store.
    pub(super) async fn observe_anew(&self) -> Result<(), StoreError> {
        let observed = self.inner.shared.wire().await;
        let unavailable = || StoreError::not_applied(StoreErrorKind::Unavailable);
        observed.map(drop).map_err(|error| unavailable().because(error))
    }

    /// What its records survive, for people.
    pub fn durability(&self) -> String {
        let shared = &self.inner.shared;
        let kept = "every answer is committed before it leaves";
        if shared.identity.is_awaited() {
            return format!("{kept}, and waited for by a synchronous standby");
        }
        let after = match shared.settings.hold_for {
            Some(hold_for) => {
                format!("nothing new is executed for {} after one", show_duration(hold_for))
            }
            None => "what was lost runs again (failover=continue)".to_owned(),
        };
        format!(
            "{kept}; no synchronous standby waits, so a fail-over may lose the last ones; {after}"
        )
    }

    /// Until when nothing new is granted, as far as this process knows. It may be in the past.
    pub fn held_until(&self) -> Time {
        self.inner.shared.held_until.get()
    }
}

fn lock_ms(settings: &Settings) -> i32 {
    i32::try_from(settings.lock_within().as_millis()).unwrap_or(i32::MAX)
}

/// Waits as long as one operation may take.
async fn within<T>(
    settings: &Settings,
    asked: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    let deadline: Duration = settings.deadline;
    tokio::time::timeout(deadline, asked).await.unwrap_or_else(|_| Err(ConnectError::silence()))
}
