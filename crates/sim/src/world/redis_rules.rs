//! What do the scripts of the Redis store decide?
//!
//! The same rules as in `crates/retrysafe/src/stores/redis/lua`, as functions: which version a write
//! gets, and whether this server may be trusted with a new grant. The simulator's store that fails over
//! runs them; `crates/retrysafe/tests/redis/rules.rs` compiles this file too, and compares it with the
//! scripts on a real server, decision by decision. Only the standard library, for that reason.

/// What a bucket of records knows of its server. It lies beside the records, and is lost with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// The server that last granted here.
    pub(crate) identity: u64,
    /// Until when nothing new is granted.
    pub(crate) held_until_ms: u64,
    /// The highest version that was given out.
    pub(crate) version: u64,
}

/// A server, as whoever asks it knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The server's clock.
    pub(crate) now_ms: u64,
    /// The same clock, as versions count it.
    pub(crate) now_ticks: u64,
    /// Which server it is.
    pub(crate) identity: u64,
    /// The highest version of this bucket that was acknowledged to whoever asks.
    pub(crate) seen: u64,
    /// How long a change of the server holds its grants.
    pub(crate) hold_ms: u64,
    /// The same length, as versions count it.
    pub(crate) hold_ticks: u64,
}

/// Whether a server may be trusted with a new grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grants {
    /// Yes. Versions go on above this one.
    Above(u64),
    /// Not before then. `is_new`: the change was found just now.
    HeldUntil { ms: u64, is_new: bool },
}

/// Asks a bucket whether this server may grant. Another server, or a version that is lower than one that
/// the asker has seen, holds its grants from now on.
pub(crate) fn may_grant(bucket: &mut Bucket, asked: &Asked) -> Grants {
    let is_new = bucket.identity != asked.identity || bucket.version < asked.seen;
    if is_new {
        // Lost versions were counted by another clock, which may have been ahead of this one.
        let version = bucket.version.max(asked.seen).max(asked.now_ticks + asked.hold_ticks);
        *bucket = Bucket {
            identity: asked.identity,
            held_until_ms: bucket.held_until_ms.max(asked.now_ms + asked.hold_ms),
            version,
        };
    }
    if asked.now_ms < bucket.held_until_ms {
        return Grants::HeldUntil { ms: bucket.held_until_ms, is_new };
    }
    Grants::Above(bucket.version)
}

/// The version of a write: by the clock, and above every version that the bucket has given out and the
/// record has had.
pub(crate) fn next_version(now_ticks: u64, highest: u64, of_record: Option<u64>) -> u64 {
    let floor = highest.max(of_record.unwrap_or(0)) + 1;
    floor.max(now_ticks)
}
