//! Are statements carried out on the connection on which they were prepared?
//!
//! sqlx prepares statements by name. A pooler of transactions that knows nothing of that lets one connection find the statements of another
//! under the same name: with luck it fails, without luck another statement is carried out. So a worker tries at its start
//! whether two connections stay apart, and does not work where they do not.

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, PgConnection};

use crate::Failure;

/// How often both connections try it: a pooler may keep them apart by chance.
const ROUNDS: i32 = 5;

/// Looks whether two connections stay apart.
///
/// # Errors
///
/// If they do not; or whatever else went wrong.
pub(super) async fn refuse_mixed_statements(options: &PgConnectOptions) -> Result<(), Failure> {
    let mut one = options.connect().await?;
    let mut other = options.connect().await?;
    for number in 0..ROUNDS {
        if let Err(error) = ask_both(&mut one, &mut other, number).await {
            if error.as_database_error().is_none() {
                return Err(error.into());
            }
            let what = format!(
                "`store`: a pooler of transactions stands before the database, and mixes up prepared statements ({error}). \
                 Connect the worker to the database itself, to a pooler in session mode, or to PgBouncer 1.21 or newer \
                 with max_prepared_statements"
            );
            return Err(what.into());
        }
    }
    Ok(())
}

/// Both connections give their statements the same name.
async fn ask_both(
    one: &mut PgConnection,
    other: &mut PgConnection,
    number: i32,
) -> sqlx::Result<()> {
    let of_one: i32 = sqlx::query_scalar("SELECT $1::int").bind(number).fetch_one(one).await?;
    let text = number.to_string();
    let of_other: String =
        sqlx::query_scalar("SELECT $1::text").bind(&text).fetch_one(other).await?;
    if of_one == number && of_other == text {
        return Ok(());
    }
    Err(sqlx::Error::Protocol("another statement's answer came".into()))
}
