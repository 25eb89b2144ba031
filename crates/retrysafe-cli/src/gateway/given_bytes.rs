//! Which bytes was the parser given for the request that comes out of it next?
//!
//! They are put here only while the parser holds nothing else, and are one whole request. So the next request of the connection has these
//! bytes.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// The bytes of a connection's request, if they are worth remembering.
#[derive(Default)]
pub(super) struct GivenBytes(Mutex<Option<Bytes>>);

impl GivenBytes {
    pub(super) fn put(&self, bytes: Bytes) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes);
    }

    pub(super) fn take(&self) -> Option<Bytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Requests are nobody's to read.
impl fmt::Debug for GivenBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GivenBytes").finish_non_exhaustive()
    }
}
