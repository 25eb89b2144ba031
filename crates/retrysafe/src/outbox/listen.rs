//! How does a worker hear that something was staged?
//!
//! By a notification, which is a hint and no more: what is not heard is found at the worker's next look. Behind a pooler of
//! transactions notifications go nowhere, and nobody is told. So a listener that has just begun to listen sends itself one, over
//! another connection; if that does not come, the worker says once that it only looks now and then.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgListener;
use tokio::sync::Notify;

use super::stage::CHANNEL;

/// How long a notification of the worker's own may be on its way.
const SELF_TEST_MAX: Duration = Duration::from_secs(5);

/// How long a worker that hears nothing goes on before it tries again.
const SELF_TEST_PAUSE: Duration = Duration::from_secs(60);

/// How the worker's own notifications begin. They wake nobody.
const SELF_TEST: &str = "self-test ";

/// Wakes a worker when somebody says that something was staged, until the connection is lost.
pub(super) async fn listen(pool: &PgPool, wake: &Notify) -> sqlx::Result<()> {
    let mut is_told = false;
    let mut listener = loop {
        let mut listener = PgListener::connect_with(pool).await?;
        listener.listen(CHANNEL).await?;
        if hears_itself(pool, &mut listener).await? {
            break listener;
        }
        drop(listener);
        if !is_told {
            is_told = true;
            tracing::warn!(
                target: "retrysafe",
                "outbox_polls: the database's notifications do not arrive, as behind a pooler of transactions; effects are \
                 found a few seconds later, at the worker's next look"
            );
        }
        tokio::time::sleep(SELF_TEST_PAUSE).await;
    };
    tracing::info!(target: "retrysafe", "outbox_listens");
    // What was staged before anybody listened.
    wake.notify_waiters();
    while let Some(heard) = listener.try_recv().await? {
        if !heard.payload().starts_with(SELF_TEST) {
            wake.notify_waiters();
        }
    }
    Ok(())
}

/// Whether a notification that is sent over another connection comes back. Over the same connection it would come back from
/// behind a pooler too: both statements may meet the same backend.
async fn hears_itself(pool: &PgPool, listener: &mut PgListener) -> sqlx::Result<bool> {
    let word = format!("{SELF_TEST}{:016x}", RandomState::new().hash_one(0));
    // By the simple protocol: a pooler of transactions may know no prepared statements. Both texts are our own.
    let notify = format!("SELECT pg_notify('{CHANNEL}', '{word}')");
    sqlx::raw_sql(sqlx::AssertSqlSafe(notify)).execute(pool).await?;
    let heard = async {
        while let Some(heard) = listener.try_recv().await? {
            if heard.payload() == word {
                return Ok(true);
            }
        }
        Err(sqlx::Error::Io(std::io::ErrorKind::ConnectionAborted.into()))
    };
    tokio::time::timeout(SELF_TEST_MAX, heard).await.unwrap_or(Ok(false))
}
