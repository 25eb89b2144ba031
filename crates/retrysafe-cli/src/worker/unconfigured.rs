//! Are there effects that nobody here delivers?
//!
//! A kind may be delivered by another worker, or by the application itself. But a name that was misspelt waits for ever, so each kind
//! that this worker does not know is named once, and counted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use retrysafe_core::event;
use sqlx::{PgPool, Row as _};

/// How often the worker looks.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Looks for as long as the process works.
pub(super) async fn watch(pool: PgPool, configured: Vec<String>) {
    let mut shown = BTreeSet::new();
    loop {
        match count(&pool, &configured).await {
            Ok(counts) => report(&counts, &mut shown),
            Err(error) => tracing::debug!(%error, "effects of other kinds were not counted"),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// How many effects there are of each kind that is not configured here.
async fn count(pool: &PgPool, configured: &[String]) -> sqlx::Result<BTreeMap<String, i64>> {
    let count = "SELECT kind, sum(effects)::bigint AS effects FROM retrysafe.count_effects_v1() \
                 WHERE NOT kind = ANY ($1) GROUP BY kind";
    let rows = sqlx::query(count).bind(configured).fetch_all(pool).await?;
    rows.iter().map(|row| Ok((row.try_get("kind")?, row.try_get("effects")?))).collect()
}

fn report(counts: &BTreeMap<String, i64>, shown: &mut BTreeSet<String>) {
    for (kind, effects) in counts {
        if shown.insert(kind.clone()) {
            tracing::warn!(
                kind,
                effects,
                "effects of a kind that is not configured here: another worker must deliver them, or a table [effects.KIND] \
                 is missing"
            );
        }
    }
    for kind in shown.iter() {
        let effects = counts.get(kind).copied().unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
        metrics::gauge!(event::EFFECTS_NOT_CONFIGURED.name, "kind" => kind.clone())
            .set(effects as f64);
    }
}
