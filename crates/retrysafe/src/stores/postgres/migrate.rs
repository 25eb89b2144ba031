//! Is the schema there, and is it ours?
//!
//! Migrations are numbered files of plain SQL, applied in one transaction under an advisory lock:
//! any number of processes may start at once, one of them migrates, and a crash leaves the schema
//! as it was. A role that may not create anything can still serve: somebody with more rights runs
//! [`migrate`], or pastes what [`script`] prints.

use tokio_postgres::types::Type;

use super::connect::Wire;
use super::fault::ConnectError;
use super::settings::PostgresUrl;

/// One step of the schema.
struct Migration {
    number: i32,
    /// The oldest schema number whose programs still work after this step.
    oldest: i32,
    sql: &'static str,
}

const MIGRATIONS: &[Migration] = &[
    Migration { number: 1, oldest: 1, sql: include_str!("migrations/0001_records.sql") },
    Migration { number: 2, oldest: 1, sql: include_str!("migrations/0002_answer_tier.sql") },
    // The functions for applications in any language; docs/sql.md is their contract.
    Migration {
        number: 3,
        oldest: 1,
        sql: concat!(
            include_str!("migrations/0003_bytes.sql"),
            include_str!("migrations/0003_names.sql"),
            include_str!("migrations/0003_rules.sql"),
            include_str!("migrations/0003_verbs.sql"),
            include_str!("migrations/0003_doors.sql"),
            include_str!("migrations/0003_rights.sql"),
        ),
    },
    Migration {
        number: 4,
        oldest: 1,
        sql: concat!(
            include_str!("migrations/0004_outbox.sql"),
            include_str!("migrations/0004_operators.sql"),
            include_str!("migrations/0004_lookups.sql"),
            include_str!("migrations/0004_doors.sql"),
        ),
    },
    Migration { number: 5, oldest: 1, sql: include_str!("migrations/0005_inbox.sql") },
];

/// What comes before any step. The lock's number is "retrysaf" in ASCII.
const PRELUDE: &str = "SET LOCAL synchronous_commit = on;
SELECT pg_advisory_xact_lock(8243122727984259430);
CREATE SCHEMA IF NOT EXISTS retrysafe;
CREATE TABLE IF NOT EXISTS retrysafe.migration (
    number integer PRIMARY KEY,
    oldest integer NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
";

/// The version of the schema that this program makes.
pub const SCHEMA_VERSION: u32 = MIGRATIONS.len() as u32;

/// The newest schema that this program knows.
pub(super) fn newest() -> i32 {
    MIGRATIONS.last().map_or(0, |migration| migration.number)
}

/// All steps as one script, for whoever prefers their own tool. It refuses a database that has some of
/// them already.
pub fn script() -> String {
    script_of(0, MIGRATIONS)
}

/// The steps that come after version `from` of the schema, as a script. None if there is no such
/// version. The script refuses a schema that is at another one.
pub fn script_from(from: u32) -> Option<String> {
    let steps = MIGRATIONS.get(usize::try_from(from).ok()?..)?;
    Some(script_of(from, steps))
}

fn script_of(from: u32, steps: &[Migration]) -> String {
    let check = format!(
        "DO $$ BEGIN
    IF (SELECT coalesce(max(number), 0) FROM retrysafe.migration) <> {from} THEN
        RAISE EXCEPTION 'retrysafe: this script is for a schema at version {from}';
    END IF;
END $$;
"
    );
    let steps: String = steps.iter().map(Migration::step).collect();
    format!("BEGIN;\n{PRELUDE}\n{check}{steps}COMMIT;\n")
}

impl Migration {
    /// The step, and the line that says that it was taken.
    fn step(&self) -> String {
        let Self { number, oldest, sql } = self;
        format!(
            "{sql}\nINSERT INTO retrysafe.migration (number, oldest) VALUES ({number}, {oldest});\n"
        )
    }
}

/// Brings the schema up to date, and says how many steps that took.
///
/// # Errors
///
/// If the server cannot be reached, the role may not create the schema, or the schema is newer than
/// this program.
pub async fn migrate(url: &PostgresUrl) -> Result<usize, ConnectError> {
    let wire = Wire::open(&url.settings).await?;
    apply(&wire).await
}

pub(super) async fn apply(wire: &Wire) -> Result<usize, ConnectError> {
    let failed = |error| ConnectError::because("the schema cannot be migrated", error);
    wire.client.batch_execute(&format!("BEGIN;{PRELUDE}")).await.map_err(failed)?;
    let steps = match pending(wire).await {
        Ok(steps) => steps,
        Err(error) => {
            let _ = wire.client.batch_execute("ROLLBACK").await;
            return Err(error);
        }
    };
    for migration in steps {
        if let Err(error) = wire.client.batch_execute(&migration.step()).await {
            let _ = wire.client.batch_execute("ROLLBACK").await;
            return Err(failed(error));
        }
    }
    wire.client.batch_execute("COMMIT").await.map_err(failed)?;
    Ok(steps.len())
}

/// The steps that are not applied yet.
async fn pending(wire: &Wire) -> Result<&'static [Migration], ConnectError> {
    let (applied, oldest) = applied(wire).await?;
    compatible(applied, oldest)?;
    let done = MIGRATIONS.iter().take_while(|migration| migration.number <= applied).count();
    Ok(MIGRATIONS.get(done..).unwrap_or_default())
}

/// The newest step that is applied, and the oldest program that still works after it.
async fn applied(wire: &Wire) -> Result<(i32, i32), ConnectError> {
    let sql = "SELECT coalesce(max(number), 0), coalesce(max(oldest), 0) FROM retrysafe.migration";
    let failed = |error| ConnectError::because("the schema's version cannot be read", error);
    let row = wire.client.query_typed_one(sql, &[]).await.map_err(failed)?;
    Ok((row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?))
}

fn compatible(applied: i32, oldest: i32) -> Result<(), ConnectError> {
    if oldest > newest() {
        return Err(ConnectError::new(format!(
            "the schema is at {applied}, which programs older than {oldest} cannot read; this one is \
             at {}. Use a newer retrysafe",
            newest()
        )));
    }
    Ok(())
}

/// Makes sure that the schema is one this program can work with.
pub(super) async fn ensure(wire: &Wire, may_migrate: bool) -> Result<(), ConnectError> {
    let exists = wire
        .client
        .query_typed_one(
            "SELECT to_regclass($1) IS NOT NULL",
            &[(&"retrysafe.migration", Type::TEXT)],
        )
        .await
        .and_then(|row| row.try_get::<_, bool>(0))
        .map_err(|error| ConnectError::because("the schema's version cannot be read", error))?;
    let (current, oldest) = if exists { applied(wire).await? } else { (0, 0) };
    compatible(current, oldest)?;
    if current >= newest() {
        return Ok(());
    }
    if may_migrate {
        return apply(wire).await.map(|_| ());
    }
    Err(ConnectError::new(format!(
        "the schema is at {current} and this program needs {}: run `retrysafe store migrate`",
        newest()
    )))
}
