//! How does a client retry? (what its owner decides)

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use retrysafe_core::Key;
use retrysafe_core::retry::{Heard, Next, Patience};

use super::Journal;
use super::loss::{Loss, loss};

pub use retrysafe_core::key::IDEMPOTENCY_KEY;

/// The header by which a server says that an answer is the one it has kept under the key, unless
/// another one is set.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The longest request body that is held for its retries, unless set otherwise. It is what most
/// gateways accept, and a call holds one copy for as long as it lasts.
const BODY_BYTES_MAX: usize = 2 * 1024 * 1024;

/// How much of an answer is read before it is handed over, unless set otherwise. Answers to calls
/// that change something are small; what is longer is streamed.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// How long one attempt may take, unless set otherwise: longer than a slow handler, and short
/// enough that several attempts fit into the default deadline.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);

/// How long after its first attempt a call is sent again, unless set otherwise. Most servers forget
/// a key after 24 hours, and what they have forgotten they would execute again.
const RESEND_WITHIN: Duration = Duration::from_secs(23 * 60 * 60);

/// What an observer hears of a call.
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice<'a> {
    /// An attempt begins. With a journal, the call is on disk.
    Sending {
        /// The number of the attempt, from one.
        attempt: u32,
        /// The call's key, if it has one.
        key: Option<&'a Key>,
    },
    /// An attempt has ended.
    Heard {
        /// The number of the attempt, from one.
        attempt: u32,
        /// What it came to.
        heard: Heard<'a>,
        /// Why there is no answer, if there is none.
        why: Option<&'a (dyn Error + 'static)>,
        /// What happens next, and after which pause.
        next: Next,
    },
}

type Observer = dyn Fn(&Notice<'_>) + Send + Sync;
type Jitter = dyn Fn() -> f64 + Send + Sync;
type Classify = dyn Fn(&(dyn Error + 'static)) -> Loss + Send + Sync;

/// How a client retries. Cheap to clone.
///
/// ```
/// use std::time::Duration;
/// use retrysafe::client::{Patience, Retries};
///
/// let retries = Retries::default()
///     .patience(Patience { attempts_max: 5, ..Patience::default() })
///     .attempt_timeout(Duration::from_secs(10));
/// # let _ = retries;
/// ```
#[derive(Clone)]
pub struct Retries {
    pub(super) patience: Patience,
    pub(super) attempt_timeout: Duration,
    pub(super) body_bytes_max: usize,
    pub(super) answer_bytes_max: usize,
    pub(super) resend_within: Duration,
    pub(super) key_header: HeaderName,
    pub(super) replay_marker: HeaderName,
    pub(super) quotes_key: bool,
    pub(super) journal: Option<Journal>,
    observer: Option<Arc<Observer>>,
    classify: Arc<Classify>,
    jitter: Arc<Jitter>,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            patience: Patience::default(),
            attempt_timeout: ATTEMPT_TIMEOUT,
            body_bytes_max: BODY_BYTES_MAX,
            answer_bytes_max: ANSWER_BYTES_MAX,
            resend_within: RESEND_WITHIN,
            key_header: IDEMPOTENCY_KEY,
            replay_marker: IDEMPOTENT_REPLAYED,
            quotes_key: false,
            journal: None,
            observer: None,
            classify: Arc::new(loss),
            jitter: Arc::new(chance),
        }
    }
}

impl Retries {
    /// Sets the number of attempts, the pauses and the deadline of the whole call.
    #[must_use]
    pub fn patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// Sets how long one attempt may take: connecting, sending, and reading the answer. Whatever
    /// happens in it, an attempt that ran out of time counts as sent.
    #[must_use]
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.attempt_timeout = timeout;
        self
    }

    /// Sets the longest request body. It is held in memory for the retries; a longer one is
    /// refused before anything is sent.
    #[must_use]
    pub fn body_bytes_max(mut self, bytes: usize) -> Self {
        self.body_bytes_max = bytes;
        self
    }

    /// Sets how much of an answer is read before it is handed over. An answer that breaks off
    /// within it is lost, and tried again; a longer one is handed over with its rest unread, and
    /// breaks off in the caller's hands. Zero hands over every answer as soon as it begins.
    #[must_use]
    pub fn answer_bytes_max(mut self, bytes: usize) -> Self {
        self.answer_bytes_max = bytes;
        self
    }

    /// Sets how long after its first attempt a call may be sent again, by this process or, with a
    /// journal, by a later one. It must be shorter than the server remembers keys.
    #[must_use]
    pub fn resend_within(mut self, window: Duration) -> Self {
        self.resend_within = window;
        self
    }

    /// Sets another name for the header that names a call, such as `paypal-request-id`.
    #[must_use]
    pub fn key_header(mut self, name: HeaderName) -> Self {
        self.key_header = name;
        self
    }

    /// Sets the header by which the server marks an answer that it has kept under the key, with the
    /// value `true`. An answer with it is final; and after a lost attempt no refusal is final
    /// without it.
    #[must_use]
    pub fn replay_marker(mut self, name: HeaderName) -> Self {
        self.replay_marker = name;
        self
    }

    /// Sends the keys it makes as quoted strings, as the draft demands. Without it they are bare,
    /// which every known server takes, and which some that came before the draft insist on.
    #[must_use]
    pub fn quote_keys(mut self) -> Self {
        self.quotes_key = true;
        self
    }

    /// Writes every call that has a key to this journal before its first attempt.
    #[must_use]
    pub fn journal(mut self, journal: Journal) -> Self {
        self.journal = Some(journal);
        self
    }

    /// Tells this observer of every attempt. It is called in the middle of the call: keep it short.
    #[must_use]
    pub fn observe(mut self, observer: impl Fn(&Notice<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Sets how a transport's errors are judged. The default, [`loss`], knows those of hyper-util
    /// and reqwest; what it does not know counts as sent.
    #[must_use]
    pub fn classify(
        mut self,
        classify: impl Fn(&(dyn Error + 'static)) -> Loss + Send + Sync + 'static,
    ) -> Self {
        self.classify = Arc::new(classify);
        self
    }

    /// Sets where the jitter of pauses comes from: a number from 0 to 1 for each pause. The default
    /// is the system's randomness; a test that must repeat itself brings its own.
    #[must_use]
    pub fn jitter(mut self, chance: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        self.jitter = Arc::new(chance);
        self
    }

    pub(super) fn chance(&self) -> f64 {
        (self.jitter)()
    }

    pub(super) fn notify(&self, notice: &Notice<'_>) {
        if let Some(observer) = &self.observer {
            observer(notice);
        }
    }

    pub(super) fn loss(&self, error: &(dyn Error + 'static)) -> Loss {
        (self.classify)(error)
    }
}

/// A number from 0 to 1 for the jitter. Without randomness, the longest pause.
fn chance() -> f64 {
    let mut bytes = [0_u8; 8];
    match getrandom::fill(&mut bytes) {
        Ok(()) => (u64::from_le_bytes(bytes) >> 11) as f64 / (1_u64 << 53) as f64,
        Err(_) => 1.0,
    }
}

impl fmt::Debug for Retries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retries")
            .field("patience", &self.patience)
            .field("attempt_timeout", &self.attempt_timeout)
            .field("key_header", &self.key_header)
            .field("replay_marker", &self.replay_marker)
            .field("journal", &self.journal)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_a_fraction() {
        let retries = Retries::default();
        assert!((0..1_000).map(|_| retries.chance()).all(|chance| (0.0..1.0).contains(&chance)));
        assert_eq!(retries.jitter(|| 0.25).chance(), 0.25);
    }
}
