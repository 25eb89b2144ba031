//! What is to be done outside the database?

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// How many bytes of a digest make a downstream key: 128 bits, in 32 characters. There are receivers that take no
/// more than 36.
const KEY_BYTES: usize = 16;

/// Something to be done outside the database, as it is staged.
///
/// ```
/// use retrysafe::outbox::Effect;
///
/// let receipt = Effect::new("receipt")
///     .to("https://mail.example/send")
///     .json(&serde_json::json!({ "ride": 7 }))?
///     .lane("account 12")
///     .name("receipt of ride 7");
/// # let _ = receipt;
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Effect {
    pub(super) kind: Box<str>,
    pub(super) destination: Option<String>,
    pub(super) content_type: Option<String>,
    pub(super) payload: Bytes,
    pub(super) key: Option<String>,
    pub(super) lane: Option<String>,
    pub(super) name: Option<String>,
    pub(super) not_before_ms: Option<i64>,
}

impl Effect {
    /// An effect of this kind. The kind chooses who delivers it, and by which rules.
    pub fn new(kind: &str) -> Self {
        Self {
            kind: kind.into(),
            destination: None,
            content_type: None,
            payload: Bytes::new(),
            key: None,
            lane: None,
            name: None,
            not_before_ms: None,
        }
    }

    /// Where it goes, for whoever delivers it.
    #[must_use]
    pub fn to(mut self, destination: impl Into<String>) -> Self {
        self.destination = Some(destination.into());
        self
    }

    /// What is sent, as JSON.
    ///
    /// # Errors
    ///
    /// If it cannot be written as JSON.
    pub fn json<T: Serialize + ?Sized>(self, body: &T) -> Result<Self, serde_json::Error> {
        Ok(self.body("application/json", serde_json::to_vec(body)?))
    }

    /// What is sent, as bytes of this media type. At most a mebibyte.
    #[must_use]
    pub fn body(mut self, content_type: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        self.content_type = Some(content_type.into());
        self.payload = payload.into();
        self
    }

    /// Derives the key that its receiver is sent from these words and the kind. Without this the key is a random one,
    /// drawn when the effect is staged. Either way it is the same on every delivery.
    ///
    /// Two effects with the same words have the same key, and a receiver that remembers keys does the second one
    /// not at all.
    #[must_use]
    pub fn key_by(mut self, words: &str) -> Self {
        let digest = Sha256::new()
            .chain_update(b"retrysafe effect\0")
            .chain_update(self.kind.as_bytes())
            .chain_update(b"\0")
            .chain_update(words.as_bytes())
            .finalize();
        let hex = digest.iter().take(KEY_BYTES).map(|byte| format!("{byte:02x}"));
        self.key = Some(hex.collect());
        self
    }

    /// Delivers it after those that were staged into the same lane before it, and before those that are staged later.
    #[must_use]
    pub fn lane(mut self, lane: impl Into<String>) -> Self {
        self.lane = Some(lane.into());
        self
    }

    /// Stages it once: whoever stages the same kind and name again stages nothing. Names are remembered for as long as
    /// delivered effects are.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Not before this time, by the database's clock.
    #[must_use]
    pub fn not_before(mut self, time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        self.not_before_ms = Some(i64::try_from(since.as_millis()).unwrap_or(i64::MAX));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_of_its_kind_and_its_words() {
        let key = |kind: &str, words: &str| Effect::new(kind).key_by(words).key.unwrap();
        assert_eq!(key("receipt", "7"), key("receipt", "7"));
        assert_ne!(key("receipt", "7"), key("receipt", "8"));
        assert_ne!(key("receipt", "7"), key("refund", "7"));
        assert_eq!(key("receipt", "7").len(), 32);
    }
}
