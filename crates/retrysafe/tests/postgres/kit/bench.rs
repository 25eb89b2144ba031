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
TRUNCATE retrysafe.record, retrysafe.transition, retrysafe.expired;
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
const BYTES: [&str; 5] = ["request", "detail", "timeline", "headers", "body"];
const NUMBERS: [&str; 7] = ["created_at", "version", "fence", "since", "seal", "until", "state"];

impl Damage for Direct {
    async fn flip(&self, id: Id, at: usize) {
        let client = client(&self.database.url).await;
        let lengths = BYTES.map(|column| format!("coalesce(octet_length({column}), 0)")).join(", ");
        let lengths = format!("SELECT ARRAY[{lengths}] FROM retrysafe.record WHERE id = $1");
        let row = client.query_one(&lengths, &[&&id.as_bytes()[..]]).await;
        let lengths: Vec<i32> = row.expect("the record is there").get(0);
        let total = lengths.iter().sum::<i32>() + NUMBERS.len() as i32;
        let mut at = (at % total as usize) as i32;
        let mut damage = None;
        for (column, length) in BYTES.iter().zip(lengths) {
            if damage.is_none() && at < length {
                let byte = format!("set_byte({column}, {at}, get_byte({column}, {at}) # 1)");
                damage = Some(format!("{column} = {byte}"));
            }
            at -= length;
        }
        let damage = damage.unwrap_or_else(|| match NUMBERS[at as usize] {
            "until" => "lease_until = CASE state WHEN 0 THEN lease_until # 1 ELSE lease_until END,
                expires_at = expires_at # 1"
                .into(),
            "state" => "state = CASE state WHEN 1 THEN 2 WHEN 2 THEN 1 ELSE 3 END".into(),
            column => format!("{column} = {column} # 1"),
        });
        let update = format!("UPDATE retrysafe.record SET {damage} WHERE id = '\\x{id}'");
        client.batch_execute(&update).await.expect("the record is damaged");
    }

    async fn make_newer(&self, id: Id) {
        let update = format!(
            "UPDATE retrysafe.record SET request = set_byte(request, 0, 2) WHERE id = '\\x{id}'"
        );
        sql(&self.database.url, &update).await;
    }
}
