//! Is this still the transaction that was guarded for its record?
//!
//! A guard goes with its transaction, however that ends. So whoever has lent a transaction to code of the application looks for
//! the guard before it calls anything undone: what was committed beside the guard is undone by nobody.

use retrysafe_core::scope::Id;
use sqlx::PgConnection;

/// What is left of a transaction that was lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransactionRemains {
    /// It is open. Or nobody can be asked any more: then the connection is gone, and the server undoes it.
    Open,
    /// The server has refused a statement, and commits nothing of it.
    Aborted,
    /// It was ended. What came after that is undone by nobody.
    Ended,
}

/// Whether this is the transaction that was guarded for this record.
const IS_GUARDED: &str = "SELECT EXISTS (SELECT FROM retrysafe.guard g
    WHERE g.txid = pg_current_xact_id_if_assigned() AND g.id = $1)";

/// Where nothing is guarded, only whether the transaction can still be committed is asked.
const IS_ALIVE: &str = "SELECT true";

/// The SQLSTATE of a statement in a transaction that can only be rolled back.
const IN_FAILED_TRANSACTION: &str = "25P02";

/// Looks for the guard of a transaction, if there is one.
///
/// A transaction that was ended, and in whose place another one was begun and aborted, looks like one that was aborted: the server
/// answers no question in it.
pub(crate) async fn remains_of(
    connection: &mut PgConnection,
    guarded: Option<Id>,
) -> TransactionRemains {
    let question = match guarded {
        Some(id) => sqlx::query_scalar(IS_GUARDED).bind(id.as_bytes().to_vec()),
        None => sqlx::query_scalar(IS_ALIVE),
    };
    // Asked without a name, as everything here: a pooler may stand in between.
    match question.persistent(false).fetch_one(connection).await {
        Ok(true) => TransactionRemains::Open,
        Ok(false) => TransactionRemains::Ended,
        Err(error) => {
            let refusal = error.as_database_error();
            let code = refusal.and_then(|refusal| refusal.code());
            // Whatever the server refuses, it aborts the transaction. With a guard the settle finds that out and says more.
            if code.as_deref() == Some(IN_FAILED_TRANSACTION)
                || guarded.is_none() && refusal.is_some()
            {
                TransactionRemains::Aborted
            } else {
                TransactionRemains::Open
            }
        }
    }
}
