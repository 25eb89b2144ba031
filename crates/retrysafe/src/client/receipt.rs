//! Is the call over, and may it be forgotten?

use std::io;
use std::sync::Arc;

use http::Response;
use retrysafe_core::Key;

use super::journal::Claim;

/// What a caller holds of a call: its key, and its place in the journal.
///
/// Every answer carries one in its extensions, every [`Ended`](super::Ended) as a field. While it
/// lives, no other process takes the journalled call. Dropping it without
/// [`acknowledge`](Self::acknowledge) leaves the call in the journal, to be resumed.
#[derive(Clone, Debug)]
pub struct Receipt {
    key: Option<Key>,
    attempts: u32,
    claim: Option<Arc<Claim>>,
}

impl Receipt {
    pub(super) fn new(key: Option<Key>, attempts: u32, claim: Option<Arc<Claim>>) -> Self {
        Self { key, attempts, claim }
    }

    /// The receipt of an answer.
    pub fn of<B>(answer: &Response<B>) -> Option<&Self> {
        answer.extensions().get()
    }

    /// The key that every attempt carried. Safe methods have none.
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// How many attempts were made by this process.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Removes the call from the journal: the caller has used the answer, or does not want it.
    /// Without a journal there is nothing to do.
    ///
    /// A crash before it leaves the call in the journal; resuming it gets the same answer again.
    ///
    /// # Errors
    ///
    /// The file could not be removed, or its folder not be flushed.
    pub async fn acknowledge(&self) -> io::Result<()> {
        match &self.claim {
            Some(claim) => claim.remove().await,
            None => Ok(()),
        }
    }
}
