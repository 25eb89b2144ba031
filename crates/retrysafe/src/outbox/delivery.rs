//! What does whoever delivers an effect see, and how may it end?

use std::time::Duration;

use bytes::Bytes;

/// Whatever a delivery may fail with.
pub type DeliveryError = Box<dyn std::error::Error + Send + Sync>;

/// One delivery that is to be made now.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub(super) id: i64,
    pub(super) key: Box<str>,
    pub(super) destination: Option<Box<str>>,
    pub(super) content_type: Option<Box<str>>,
    pub(super) payload: Bytes,
    pub(super) failures: u32,
    pub(super) was_sent: bool,
    pub(super) deadline: Duration,
}

impl Delivery {
    /// The effect's number.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// The key to send along, as `Idempotency-Key` or whatever the receiver wants: the same on every delivery of this
    /// effect.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Where it goes, if that was staged.
    pub fn destination(&self) -> Option<&str> {
        self.destination.as_deref()
    }

    /// The media type of the payload, if that was staged.
    pub fn content_type(&self) -> Option<&str> {
        self.content_type.as_deref()
    }

    /// What is sent.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// How many deliveries have failed before this one.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether an earlier delivery may have reached the receiver.
    pub fn was_sent(&self) -> bool {
        self.was_sent
    }

    /// How long this delivery may take. It is cut off then.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }
}

/// How a delivery ended.
///
/// An `Err` of the handler is [`Unknown`](Self::Unknown): that nothing was sent must be said.
#[derive(Debug)]
pub enum DeliveryEnd {
    /// The receiver has confirmed it.
    Delivered(Delivered),
    /// The receiver has refused it for good: nothing was done, **by no delivery of this key**, and the same bytes would be
    /// refused again. The effect is dead. "It exists already" after an earlier delivery is no refusal but a confirmation.
    Rejected(DeliveryError),
    /// This delivery had no effect and cannot have one any more: not a byte has left, or the receiver has said that it did
    /// nothing **and has not kept the key**, as 429 usually means. It is tried again. Of a receiver that keeps the keys of what
    /// it turned away, say [`Unknown`](Self::Unknown): its memory counts from that moment on.
    NoEffect {
        /// Why.
        error: DeliveryError,
        /// How long the receiver wants to be left alone, if it says so.
        retry_after: Option<Duration>,
    },
    /// It was sent, and nobody knows how it ended: a timeout, a reset, most 5xx. It is tried again if the receiver
    /// remembers the key, and is unknown otherwise.
    Unknown {
        /// Why.
        error: DeliveryError,
        /// How long the receiver wants to be left alone, if it says so.
        retry_after: Option<Duration>,
    },
    /// It was not sent, because something on this side forbids or prevents it: not a byte has left. It is tried again, and given up
    /// after too many failures, without a sent mark: once the cause is gone it can be requeued. It says nothing about the receiver.
    Withheld(DeliveryError),
    /// It was not tried, because whoever delivers has too much to do: not a byte has left. That is no failure. The effect is given
    /// back, behind the others that are due; wait a moment before saying this.
    NotNow,
}

/// What is kept of an effect that was delivered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    pub(super) reference: Option<String>,
}

impl Delivered {
    /// The receiver calls it this: what a webhook or a ledger will name.
    pub fn known_as(reference: impl Into<String>) -> Self {
        Self { reference: Some(reference.into()) }
    }
}

impl DeliveryEnd {
    /// [`NoEffect`](Self::NoEffect), to be tried again at its usual time.
    pub fn no_effect(error: impl Into<DeliveryError>) -> Self {
        Self::NoEffect { error: error.into(), retry_after: None }
    }

    /// [`Unknown`](Self::Unknown), to be tried again at its usual time.
    pub fn unknown(error: impl Into<DeliveryError>) -> Self {
        Self::Unknown { error: error.into(), retry_after: None }
    }

    /// [`Rejected`](Self::Rejected).
    pub fn rejected(error: impl Into<DeliveryError>) -> Self {
        Self::Rejected(error.into())
    }
}
