//! How is a ledger read from a PostgreSQL database, by a query?
//!
//! The query is a part of ours: the database gives its columns as text, so that a `numeric` stays exact, and in the byte
//! order of the keys, whatever its locale is. It runs in one transaction that can only read, and its rows come as they
//! are wanted: neither side holds them all.

use std::future::poll_fn;
use std::pin::pin;

use futures_core::Stream as _;
use retrysafe::stores::postgres::PostgresUrl;
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Row as _};
use tokio::sync::mpsc;

use super::columns::Columns;
use super::entry::{Entry, Place};
use super::quote::quoted;
use super::window::Window;

/// How many rows are handed over at once.
const BATCH: usize = 500;

/// How many batches wait to be compared.
const BATCHES_WAITING: usize = 4;

/// What a query may have in place of the ends of the window.
const SINCE: &str = ":since";
const UNTIL: &str = ":until";

/// A query and its database.
#[derive(Debug)]
pub(crate) struct SqlQuery {
    options: PgConnectOptions,
    query: String,
}

impl SqlQuery {
    pub(super) fn new(url: &str, query: String) -> Result<Self, String> {
        let url: PostgresUrl = url.parse().map_err(|error| format!("--ours: {error}"))?;
        let options = url.sqlx_options().map_err(|error| format!("--ours: {error}"))?;
        let query = query.trim().trim_end_matches(';').to_owned();
        if query.is_empty() {
            return Err("--query is empty".into());
        }
        Ok(Self { options, query })
    }

    /// Whether the query asks for each end that the window has.
    pub(super) fn names_window(&self, window: &Window) -> bool {
        (window.since.is_none() || self.query.contains(SINCE))
            && (window.until.is_none() || self.query.contains(UNTIL))
    }

    /// The whole statement.
    fn statement(&self, columns: &Columns, window: &Window) -> Result<String, String> {
        let mut query = self.query.clone();
        for (name, end, flag) in
            [(SINCE, window.since, "--since"), (UNTIL, window.until, "--until")]
        {
            match end {
                Some(end) => query = query.replace(name, &format!("'{end}'::timestamptz")),
                None if query.contains(name) => {
                    return Err(format!(
                        "the query has {name} in it: {flag} must say when that is"
                    ));
                }
                None => {}
            }
        }
        let text = |column: &str| format!("ledger.\"{}\"::text", column.replace('"', "\"\""));
        let wanted: Vec<String> = columns.wanted().into_iter().map(text).collect();
        let key = text(&columns.key);
        // The line break ends a comment on the last line of the query.
        Ok(format!(
            "SELECT {} FROM ({query}\n) AS ledger ORDER BY ({key}) COLLATE \"C\"",
            wanted.join(", ")
        ))
    }
}

/// Rows on their way.
#[derive(Debug)]
pub(super) struct SqlLedger {
    rows: mpsc::Receiver<Result<Vec<Entry>, String>>,
}

impl SqlLedger {
    pub(super) async fn open(
        query: SqlQuery,
        columns: Columns,
        window: Window,
    ) -> Result<Self, String> {
        let statement = query.statement(&columns, &window)?;
        let mut connection = query.options.connect().await.map_err(|error| error.to_string())?;
        // A query that writes is refused by the server.
        sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            .execute(&mut connection)
            .await
            .map_err(|error| error.to_string())?;
        let (sender, rows) = mpsc::channel(BATCHES_WAITING);
        tokio::spawn(async move {
            let asked = sqlx::query(AssertSqlSafe(statement)).persistent(false);
            let mut answer = pin!(asked.fetch(&mut connection));
            let mut batch = Vec::with_capacity(BATCH);
            let mut number = 0;
            loop {
                let row = poll_fn(|context| answer.as_mut().poll_next(context)).await;
                number += 1;
                let entry = match row {
                    None => break,
                    Some(Ok(row)) => entry(&row, &columns, number),
                    Some(Err(error)) => Err(error.to_string()),
                };
                match entry {
                    Ok(entry) => batch.extend(entry),
                    Err(why) => {
                        // Whoever does not wait any more needs no reason.
                        let _ = sender.send(Err(why)).await;
                        return;
                    }
                }
                if batch.len() == BATCH {
                    let full = std::mem::replace(&mut batch, Vec::with_capacity(BATCH));
                    if sender.send(Ok(full)).await.is_err() {
                        return;
                    }
                }
            }
            let _ = sender.send(Ok(batch)).await;
        });
        Ok(Self { rows })
    }

    pub(super) async fn next_rows(&mut self) -> Result<Option<Vec<Entry>>, String> {
        self.rows.recv().await.transpose()
    }
}

fn entry(row: &PgRow, columns: &Columns, number: u64) -> Result<Option<Entry>, String> {
    let count = columns.wanted().len();
    let told = |why: String| format!("row {number}: {why}");
    let text = |at: usize| {
        row.try_get::<Option<String>, _>(at).map_err(|error| told(quoted(&error.to_string())))
    };
    let values = (0..count).map(text).collect::<Result<Vec<_>, _>>()?;
    columns.entry(values.as_slice(), &Window::default(), Place::Row(number)).map_err(told)
}

#[cfg(test)]
mod tests {
    use super::super::columns::tests::columns;
    use super::*;

    fn query(text: &str) -> SqlQuery {
        SqlQuery::new("postgres://me@127.0.0.1/shop", text.into()).unwrap()
    }

    #[test]
    fn the_query_is_a_part_of_one_in_byte_order() {
        let mut columns = columns();
        columns.key = "a \"b\"".into();
        columns.fields.clear();
        columns.currency = None;
        let window = Window::parse(Some("2026-11-16"), None).unwrap();
        let statement =
            query(" SELECT * FROM paid WHERE at >= :since -- new\n;").statement(&columns, &window);
        assert_eq!(
            statement.unwrap(),
            "SELECT ledger.\"a \"\"b\"\"\"::text, ledger.\"amount\"::text FROM (SELECT * FROM paid WHERE at >= \
             '2026-11-16T00:00:00Z'::timestamptz -- new\n\n) AS ledger ORDER BY (ledger.\"a \"\"b\"\"\"::text) COLLATE \"C\""
        );
    }

    #[test]
    fn an_end_of_the_window_that_only_one_of_them_knows_is_refused() {
        let endless = Window::default();
        let told = query("SELECT 1 WHERE now() < :until").statement(&columns(), &endless);
        assert!(told.unwrap_err().contains("--until"));
        let window = Window::parse(Some("2026-11-16"), None).unwrap();
        assert!(!query("SELECT 1").names_window(&window));
        assert!(query("SELECT :since").names_window(&window));
        assert!(SqlQuery::new("postgres://me@127.0.0.1/shop", " ;".into()).is_err());
    }
}
