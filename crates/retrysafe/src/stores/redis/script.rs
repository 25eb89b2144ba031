//! Which scripts does the server run, and what do they answer?

use redis::Value;

use super::error::nonsense;
use retrysafe_core::store::StoreError;
use retrysafe_core::time::Time;

/// A script. Its number is its place among the digests that a connection knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    Insert,
    Swap,
    Load,
    Read,
    Reap,
    Observe,
    Init,
    Probe,
}

impl Script {
    pub(super) const ALL: [Self; 8] = [
        Self::Insert,
        Self::Swap,
        Self::Load,
        Self::Read,
        Self::Reap,
        Self::Observe,
        Self::Init,
        Self::Probe,
    ];

    /// Its text.
    pub(super) const fn source(self) -> &'static str {
        macro_rules! with_shared {
            ($file:literal) => {
                concat!(include_str!("lua/shared.lua"), include_str!($file))
            };
        }
        match self {
            Self::Insert => with_shared!("lua/insert.lua"),
            Self::Swap => with_shared!("lua/swap.lua"),
            Self::Load => with_shared!("lua/load.lua"),
            Self::Read => with_shared!("lua/read.lua"),
            Self::Reap => with_shared!("lua/reap.lua"),
            Self::Observe => with_shared!("lua/observe.lua"),
            Self::Init => with_shared!("lua/init.lua"),
            Self::Probe => with_shared!("lua/probe.lua"),
        }
    }
}

/// What a script about one record or one bucket answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Written, with this version.
    Done(u64),
    /// This is there.
    Found(Vec<u8>),
    /// As the asker knows it.
    Known,
    /// There is no record.
    Gone,
    /// There is one, and it cannot be read.
    Damaged,
    /// Nothing new is granted before then. `is_new`: the server was found to be another just now.
    Held { until: Time, is_new: bool },
    /// Nobody has said that this store may be trusted.
    Absent,
}

/// Reads an answer and the clock's reading in it.
pub(super) fn read_answer(value: Value) -> Result<(Time, Answer), StoreError> {
    let Value::Array(parts) = value else { return Err(nonsense()) };
    let mut parts = parts.into_iter();
    let (Some(word), Some(now)) = (parts.next().and_then(text), parts.next()) else {
        return Err(nonsense());
    };
    let now = Time::from_ms(number(&now).ok_or_else(nonsense)?);
    let answer = match word.as_slice() {
        b"done" => parts.next().as_ref().and_then(number).map(Answer::Done),
        b"found" => parts.next().and_then(text).map(Answer::Found),
        b"known" => Some(Answer::Known),
        b"gone" => Some(Answer::Gone),
        b"damaged" => Some(Answer::Damaged),
        b"absent" => Some(Answer::Absent),
        b"held" => {
            let until = parts.next().as_ref().and_then(number).map(Time::from_ms);
            let is_new = parts.next().as_ref().and_then(number) == Some(1);
            until.map(|until| Answer::Held { until, is_new })
        }
        _ => None,
    };
    answer.map(|answer| (now, answer)).ok_or_else(nonsense)
}

/// A number in an answer.
pub(super) fn number(value: &Value) -> Option<u64> {
    if let Value::Int(number) = value { u64::try_from(*number).ok() } else { None }
}

/// Bytes in an answer.
pub(super) fn text(value: Value) -> Option<Vec<u8>> {
    if let Value::BulkString(bytes) = value { Some(bytes) } else { None }
}
