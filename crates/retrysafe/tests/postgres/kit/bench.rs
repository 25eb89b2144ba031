//! What does the conformance suite get from PostgreSQL?
//!
//! A database with a clock that is turned by hand. Databases are used again, emptied: making one
//! costs more than most cases do.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use retrysafe::core::Id;
use retrysafe::core::conformance::{Bench, Damage, Owners, Reopen, Still};
use retrysafe::stores::postgres::PostgresStore;

use super::{client, database, sql};

static FREE: Mutex<Vec<String>> = Mutex::new(Vec::new());

const EMPTY: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid();
TRUNCATE retrysafe.record, retrysafe.answer, retrysafe.transition, retrysafe.expired;
UPDATE retrysafe_test.clock SET still = true, ms = 1700000000000";

/// A database of one case.
#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) url: String,
}

impl Database {
    pub(crate) async fn take() -> Self {
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let url = match free {
            Some(url) => url,
            None => database().await,
        };
        sql(&url, EMPTY).await;
        Self { url }
    }

    pub(crate) async fn advance(&self, by: Duration) {
        let by = by.as_millis();
        sql(&self.url, &format!("UPDATE retrysafe_test.clock SET ms = ms + {by}")).await;
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(std::mem::take(&mut self.url));
    }
}

/// A store directly on the server.
pub(crate) struct Direct {
    pub(crate) database: Database,
    store: Option<Arc<PostgresStore>>,
}

impl Direct {
    async fn open(database: &Database) -> Option<Arc<PostgresStore>> {
        // More patience than the default: the suite runs several cases at once on few cores.
        let store = PostgresStore::connect(&format!("{}?deadline=30s", database.url)).await;
        Some(Arc::new(store.expect("the store opens")))
    }
}

impl Bench for Direct {
    type Store = PostgresStore;

    async fn fresh() -> Self {
        let database = Database::take().await;
        Self { store: Self::open(&database).await, database }
    }

    fn store(&self) -> Arc<PostgresStore> {
        Arc::clone(self.store.as_ref().expect("it is open"))
    }

    async fn advance(&self, by: Duration) {
        self.database.advance(by).await;
    }
}

impl Still for Direct {}

impl Reopen for Direct {
    async fn reopen(&mut self) -> Owners {
        self.store = None;
        self.store = Self::open(&self.database).await;
        Owners::Remain
    }
}

/// What can be damaged of a record: texts of bytes by any of their bytes, numbers by their last bit.
const BYTES: [&str; 5] = ["scope", "key", "fingerprint", "timeline", "seal"];
const NUMBERS: [&str; 8] =
    ["checksum", "created_at", "ttl_ms", "version", "fence", "attempts", "since", "state"];

impl Damage for Direct {
    async fn flip(&self, id: Id, at: usize) {
        let client = client(&self.database.url).await;
        let lengths = BYTES.map(|column| format!("octet_length(r.{column})")).join(", ");
        let row = client
            .query_one(
                &format!(
                    "SELECT ARRAY[{lengths}], coalesce(octet_length(a.bytes), 0)
                    FROM retrysafe.record r LEFT JOIN retrysafe.answer a
                    ON a.day = r.answer_day AND a.version = r.answer_version
                    WHERE r.id = $1"
                ),
                &[&&id.as_bytes()[..]],
            )
            .await
            .expect("the record is there");
        let (lengths, answer): (Vec<i32>, i32) = (row.get(0), row.get(1));
        let total = lengths.iter().sum::<i32>() + answer + NUMBERS.len() as i32;
        let mut at = (at % total as usize) as i32;
        let set = |column: &str, at: i32| {
            format!("{column} = set_byte({column}, {at}, get_byte({column}, {at}) # 1)")
        };
        for (column, length) in BYTES.iter().zip(lengths) {
            if at < length {
                let set = set(column, at);
                let update = format!("UPDATE retrysafe.record SET {set} WHERE id = '\\x{id}'");
                return client.batch_execute(&update).await.expect("the record is damaged");
            }
            at -= length;
        }
        if at < answer {
            let set = set("bytes", at);
            let update = format!(
                "UPDATE retrysafe.answer SET {set} WHERE version =
                (SELECT answer_version FROM retrysafe.record WHERE id = '\\x{id}')"
            );
            return client.batch_execute(&update).await.expect("the answer is damaged");
        }
        let column = NUMBERS[(at - answer) as usize];
        let update = match column {
            // Another state needs other columns: completed and failed share theirs, unknown has none.
            "state" => format!(
                "UPDATE retrysafe.record SET state = CASE state WHEN 1 THEN 2 WHEN 2 THEN 1 ELSE 3 END,
                lease_until = NULL WHERE id = '\\x{id}'"
            ),
            column => {
                format!("UPDATE retrysafe.record SET {column} = {column} # 1 WHERE id = '\\x{id}'")
            }
        };
        client.batch_execute(&update).await.expect("the record is damaged");
    }

    async fn make_newer(&self, id: Id) {
        let update = format!("UPDATE retrysafe.record SET format = 2 WHERE id = '\\x{id}'");
        sql(&self.database.url, &update).await;
    }
}
