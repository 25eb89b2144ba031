//! Do the tables of the outbox stay small?
//!
//! Effects come and go, so rows die all the time, and autovacuum makes room. An old transaction anywhere in the database
//! keeps it from that: the table grows, and claims become slow.

use retrysafe::outbox::OutboxHealth;
use retrysafe_core::units::show_duration;
use serde_json::{Value, json};
use std::time::Duration;

/// How many dead rows are too many: autovacuum comes at a thousand and a hundredth of the table.
const DEAD_ROWS_MAX: u64 = 20_000;

/// How long a transaction may be open.
const SNAPSHOT_MAX: Duration = Duration::from_secs(10 * 60);

/// What an operator should look at.
pub(super) fn warnings(health: &OutboxHealth) -> Vec<String> {
    let mut warnings = Vec::new();
    for table in &health.tables {
        if table.dead_rows > DEAD_ROWS_MAX && table.dead_rows > table.rows / 2 {
            warnings.push(format!(
                "{} has {} dead rows for {} live ones: claims become slow. Is autovacuum on, and is a transaction open \
                 for long? `VACUUM {}` makes room",
                table.name, table.dead_rows, table.rows, table.name
            ));
        }
    }
    if let Some(oldest) = &health.oldest_snapshot
        && Duration::from_secs(oldest.seconds) >= SNAPSHOT_MAX
    {
        warnings.push(format!(
            "a transaction of process {} ({:?}) has been open for {}: nothing that was deleted since can be vacuumed. \
             `SELECT pg_terminate_backend({})` ends it",
            oldest.pid,
            oldest.application,
            show_duration(Duration::from_secs(oldest.seconds)),
            oldest.pid
        ));
    }
    for slot in &health.slots {
        warnings.push(format!(
            "nobody uses the replication slot {slot:?}, and it keeps dead rows: drop it with \
             `SELECT pg_drop_replication_slot('{slot}')` if its standby does not come back"
        ));
    }
    warnings
}

/// The tables, for scripts.
pub(super) fn tables(health: &OutboxHealth) -> Value {
    let table = |table: &retrysafe::outbox::TableHealth| {
        json!({
            "name": table.name, "bytes": table.bytes, "rows": table.rows, "dead_rows": table.dead_rows,
        })
    };
    let oldest = health.oldest_snapshot.as_ref().map(|oldest| oldest.seconds);
    json!({
        "tables": health.tables.iter().map(table).collect::<Vec<_>>(),
        "oldest_snapshot_seconds": oldest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warned(rows: u64, dead_rows: u64, open_seconds: u64) -> Vec<String> {
        let health = json!({
            "tables": [{"name": "retrysafe.effect", "bytes": 1, "rows": rows, "dead_rows": dead_rows}],
            "oldest_snapshot": {"pid": 7, "application": "report", "seconds": open_seconds},
            "slots": [],
        });
        warnings(&serde_json::from_value(health).unwrap())
    }

    #[test]
    fn what_keeps_dead_rows_is_named_with_its_cure() {
        assert!(warned(10, 20_000, 599).is_empty());
        assert!(warned(100_000, 50_000, 0).is_empty(), "autovacuum comes by itself");
        let bloated = warned(10, 20_001, 0).concat();
        assert!(bloated.contains("VACUUM retrysafe.effect"), "{bloated}");
        let old = warned(10, 0, 3_600).concat();
        assert!(old.contains("pg_terminate_backend(7)") && old.contains("1h"), "{old}");
    }
}
