//! How does a call end without a final answer?

use std::error::Error as StdError;
use std::fmt;
use std::io;

use bytes::Bytes;
use http::{HeaderName, Response};
use retrysafe_core::key::KeyError;

use super::Receipt;

/// Any error of a transport or of a body.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Why there is no final answer.
///
/// The kinds are not degrees of one failure: after [`GaveUp`](Self::GaveUp) nothing says that the
/// call has taken effect, after [`OutcomeUnknown`](Self::OutcomeUnknown) it may have. Do not show the
/// second to people as a failure, and do not make a new call for it: call again with the same key.
///
/// ```
/// use retrysafe::client::Error;
///
/// fn tell(error: &Error) -> &'static str {
///     match error {
///         Error::OutcomeUnknown(_) => "It may have happened. Do not pay again; ask for its state.",
///         Error::GaveUp(_) => "It did not happen.",
///         Error::Refused(_) => "It was not sent.",
///     }
/// }
/// # let _ = tell;
/// ```
#[derive(Debug)]
pub enum Error {
    /// The request may have been executed, and nobody knows. A journalled call stays in the
    /// journal until its receipt is acknowledged.
    OutcomeUnknown(Ended),
    /// Nothing says that the request was executed. Unless it [was sent](Ended::was_sent) it surely
    /// was not; else every attempt was refused, and said so. A journalled call has left the journal,
    /// so that nobody executes it later.
    GaveUp(Ended),
    /// Nothing was sent.
    Refused(Refused),
}

/// How the last attempt ended, and what is left of the call.
#[derive(Debug)]
pub struct Ended {
    /// The call's key and its place in the journal.
    pub receipt: Receipt,
    /// The end of the last attempt.
    pub last: Last,
    /// Whether any attempt was sent, by this process or a former one. What was refused may still
    /// have been executed if a proxy sent it twice and passed on one answer; what was never sent
    /// cannot. To be sure, call again with the same key.
    pub was_sent: bool,
}

/// The end of the last attempt.
#[derive(Debug)]
#[non_exhaustive]
pub enum Last {
    /// An answer that is not final, with what was read of its body.
    Answer(Box<Response<Bytes>>),
    /// The transport's error.
    Error(BoxError),
    /// The attempt ran out of time.
    TimedOut,
    /// Nothing was sent this time: the first attempt was so long ago that the server may have
    /// forgotten the key and would execute the request again.
    KeyTooOld,
    /// Nothing was sent this time: the clock shows a time before the first attempt, so nobody knows
    /// how long ago that was, and whether the server still knows the key. Set the clock right and
    /// resume the call.
    AgeUnknown,
}

/// Why a request was not sent at all.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refused {
    /// The caller's own key cannot be used.
    Key(KeyError),
    /// The request body is longer than this many bytes.
    BodyTooLarge(usize),
    /// The request body broke off.
    Body(BoxError),
    /// The system has no randomness for a key.
    NoChance,
    /// The journal could not be written.
    Journal(io::Error),
    /// The journalled call had this header, which was not journalled and was not supplied again.
    HeaderMissing(HeaderName),
    /// The client's own request type could not be converted.
    Unsendable(BoxError),
}

impl Error {
    /// Whether an attempt of this client may have been executed, as far as the answers say. A
    /// refusal to resume says nothing about earlier ones.
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::OutcomeUnknown(_) => true,
            Self::GaveUp(_) | Self::Refused(_) => false,
        }
    }

    /// The end of a call that was sent, or tried to be.
    pub fn ended(&self) -> Option<&Ended> {
        match self {
            Self::OutcomeUnknown(ended) | Self::GaveUp(ended) => Some(ended),
            Self::Refused(_) => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutcomeUnknown(ended) => {
                write!(f, "the outcome is unknown, the request may have taken effect: {ended}")
            }
            Self::GaveUp(ended) if ended.was_sent => {
                write!(f, "gave up, every attempt was refused: {ended}")
            }
            Self::GaveUp(ended) => write!(f, "gave up, nothing was sent: {ended}"),
            Self::Refused(refused) => write!(f, "nothing was sent: {refused}"),
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.last {
            Last::Answer(answer) => write!(f, "the last answer was {}", answer.status())?,
            Last::Error(error) => write!(f, "{error}")?,
            Last::TimedOut => f.write_str("the last attempt ran out of time")?,
            Last::KeyTooOld => {
                return f.write_str("the first attempt is too long ago to be repeated safely");
            }
            Last::AgeUnknown => {
                return f.write_str(
                    "the clock shows a time before the first attempt, whose age is not known",
                );
            }
        }
        match self.receipt.attempts() {
            1 => f.write_str(" (1 attempt)"),
            attempts => write!(f, " ({attempts} attempts)"),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(error) => error.fmt(f),
            Self::BodyTooLarge(max) => {
                write!(f, "the request body is longer than {max} bytes")
            }
            Self::Body(error) => write!(f, "the request body broke off: {error}"),
            Self::NoChance => f.write_str("the system has no randomness for a key"),
            Self::Journal(error) => write!(f, "the journal could not be written: {error}"),
            Self::HeaderMissing(name) => {
                write!(f, "the header {name} is not in the journal and was not supplied again")
            }
            Self::Unsendable(error) => write!(f, "the request cannot be sent: {error}"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::OutcomeUnknown(ended) | Self::GaveUp(ended) => match &ended.last {
                Last::Error(error) => Some(error.as_ref()),
                Last::Answer(_) | Last::TimedOut | Last::KeyTooOld | Last::AgeUnknown => None,
            },
            Self::Refused(refused) => match refused {
                Refused::Body(error) | Refused::Unsendable(error) => Some(error.as_ref()),
                Refused::Journal(error) => Some(error),
                Refused::Key(_)
                | Refused::BodyTooLarge(_)
                | Refused::NoChance
                | Refused::HeaderMissing(_) => None,
            },
        }
    }
}
