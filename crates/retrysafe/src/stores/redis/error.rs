//! Why is a server refused, or an operation failed?
//!
//! What matters about a failed write is whether it may have been applied. A server that answers with
//! an error code of the list below has refused before it wrote anything: our scripts look before they
//! write, and Redis judges a script's first write. Everything else may have been applied.

use std::fmt;

use redis::{RedisError, ServerError};
use retrysafe_core::store::{StoreError, StoreErrorKind};

/// Why a server is refused, or cannot be reached.
#[derive(Debug)]
pub struct ConnectError {
    what: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    may_pass: bool,
}

impl ConnectError {
    /// Wrong for good.
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), source: None, may_pass: false }
    }

    /// Of the moment.
    pub(super) fn passing(what: impl Into<String>) -> Self {
        Self { what: what.into(), source: None, may_pass: true }
    }

    pub(super) fn because(
        self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { source: Some(source.into()), ..self }
    }

    /// Whether the server may be there later, as it is: nobody answers, or it says that it is not
    /// ready yet. A password or a setting that is wrong stays so.
    pub fn may_pass(&self) -> bool {
        self.may_pass
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
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

/// What an error of a server asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The server has forgotten the script.
    ScriptUnknown,
    /// The slot is another node's.
    Moved,
    /// The slot is on its way to another node, and this key is there.
    Asked,
    /// The slot is on its way to another node, and its keys are on both sides right now.
    Divided,
    /// The server is not ready, or no master any more.
    NotNow,
    /// No room.
    Full,
    /// The value is none of ours.
    Damaged,
    /// Refused for good, before anything was written.
    Denied,
    /// Nobody knows what it has done.
    Unclear,
}

impl Refused {
    pub(super) fn of(error: &ServerError) -> Self {
        match error.code() {
            "NOSCRIPT" => Self::ScriptUnknown,
            "MOVED" => Self::Moved,
            "ASK" => Self::Asked,
            "TRYAGAIN" => Self::Divided,
            "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "READONLY" | "BUSY" => Self::NotNow,
            "OOM" => Self::Full,
            "WRONGTYPE" => Self::Damaged,
            "NOREPLICAS" | "MISCONF" | "NOPERM" | "NOAUTH" | "CROSSSLOT" => Self::Denied,
            _ => Self::Unclear,
        }
    }
}

/// What a server refused before it had written anything.
pub(super) fn refusal(refused: Refused, error: &ServerError) -> StoreError {
    let cause = format!("{} {}", error.code(), error.details().unwrap_or_default());
    let kind = match refused {
        Refused::Full => StoreErrorKind::Full,
        Refused::Damaged => StoreErrorKind::Damaged,
        Refused::Unclear => {
            return StoreError::maybe_applied(StoreErrorKind::Broken).because(cause);
        }
        Refused::ScriptUnknown
        | Refused::Moved
        | Refused::Asked
        | Refused::Divided
        | Refused::NotNow
        | Refused::Denied => StoreErrorKind::Unavailable,
    };
    StoreError::not_applied(kind).because(cause)
}

/// A connection that broke while an answer was waited for.
pub(super) fn broken_off(is_write: bool, error: RedisError) -> StoreError {
    unavailable(is_write).because(error)
}

/// Nobody answers. A read is never applied.
pub(super) fn unavailable(is_write: bool) -> StoreError {
    if is_write {
        StoreError::maybe_applied(StoreErrorKind::Unavailable)
    } else {
        StoreError::not_applied(StoreErrorKind::Unavailable)
    }
}

/// An answer that our scripts do not give.
pub(super) fn nonsense() -> StoreError {
    StoreError::maybe_applied(StoreErrorKind::Broken).because("an answer that makes no sense")
}
