//! What does a failure mean?
//!
//! Of a connection: whether the server may be there later, or is wrong for good. Of a statement:
//! whether it was surely rolled back.

use std::io::{self, ErrorKind};

use retrysafe_core::store::{StoreError, StoreErrorKind};
use tokio_postgres::error::{Severity, SqlState};

/// Why a server is refused, or cannot be reached.
#[derive(Debug)]
pub struct ConnectError {
    pub(super) what: String,
    pub(super) source: Option<Box<dyn std::error::Error + Send + Sync>>,
    may_pass: bool,
}

impl ConnectError {
    /// Wrong for good.
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), source: None, may_pass: false }
    }

    pub(super) fn silence() -> Self {
        let what = "the server does not answer in time".to_owned();
        Self { what, source: None, may_pass: true }
    }

    /// A commit was made, and perhaps nowhere else.
    pub(super) fn unreplicated() -> Self {
        let what = "the wait for the synchronous standby was cancelled".to_owned();
        Self { what, source: None, may_pass: true }
    }

    pub(super) fn because(
        what: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        let source = source.into();
        let may_pass = source.downcast_ref().is_some_and(may_pass);
        Self { what: what.into(), source: Some(source), may_pass }
    }

    /// A store that was opened, and does not answer.
    #[cfg(feature = "redis")]
    pub(in crate::stores) fn of_store(error: retrysafe_core::store::StoreError) -> Self {
        let what = "the database does not answer".to_owned();
        Self { what, source: Some(error.into()), may_pass: true }
    }

    /// Whether the server may be there later, as it is: nobody answers, or it says that it is not
    /// ready yet. A password, a database or a setting that is wrong stays so.
    pub fn may_pass(&self) -> bool {
        self.may_pass
    }
}

/// Whether an error of the driver is one of the moment.
fn may_pass(error: &tokio_postgres::Error) -> bool {
    if let Some(code) = error.code() {
        // The server starts, stops or recovers, or has no place for another connection.
        let moments = [
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::TOO_MANY_CONNECTIONS,
        ];
        return moments.contains(code) || code.code().starts_with("08");
    }
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<io::Error>() {
            // A certificate that does not verify is bad data; a socket that we may not open stays shut.
            let for_good =
                [ErrorKind::InvalidData, ErrorKind::InvalidInput, ErrorKind::PermissionDenied];
            return !for_good.contains(&io.kind());
        }
        cause = inner.source();
    }
    error.is_closed()
}

impl std::fmt::Display for ConnectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)?;
        // A driver's error says little; what it rests on says more.
        let mut cause = self.source.as_deref().map(|source| source as &dyn std::error::Error);
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}

/// What an error of a statement says about its transaction.
#[derive(Debug)]
pub(super) enum Fault {
    /// The server refused the statement and went on: its transaction is rolled back.
    Refused(SqlState),
    /// The connection ended, or the server did: nobody can tell.
    Lost,
}

impl Fault {
    pub(super) fn of(error: &tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            // FATAL and PANIC end the connection. A backend that is told to end while it waits for
            // the standby says FATAL after it has committed.
            Some(refusal) if refusal.parsed_severity() == Some(Severity::Error) => {
                Self::Refused(refusal.code().clone())
            }
            Some(_) | None => Self::Lost,
        }
    }

    /// Whether the same statement may well succeed a moment later.
    pub(super) fn is_passing(code: &SqlState) -> bool {
        [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::LOCK_NOT_AVAILABLE,
            SqlState::QUERY_CANCELED,
            SqlState::IN_FAILED_SQL_TRANSACTION,
            SqlState::TOO_MANY_CONNECTIONS,
            // A standby, behind a pooler that still points at it.
            SqlState::READ_ONLY_SQL_TRANSACTION,
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            SqlState::OBJECT_IN_USE,
        ]
        .contains(code)
            || Self::is_of_statement(code)
    }

    /// Whether the connection does not know its prepared statements any more. Another one will.
    pub(super) fn is_of_statement(code: &SqlState) -> bool {
        [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::FEATURE_NOT_SUPPORTED].contains(code)
    }

    /// The failure as a store tells it, when nothing was written.
    pub(super) fn refusal(code: &SqlState) -> StoreError {
        let is_full = *code == SqlState::DISK_FULL;
        let kind = if is_full { StoreErrorKind::Full } else { StoreErrorKind::Unavailable };
        StoreError::not_applied(kind).because(format!("PostgreSQL refused it: {}", code.code()))
    }
}
