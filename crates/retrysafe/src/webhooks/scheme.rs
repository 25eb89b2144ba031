//! How does a provider sign its webhooks?

use std::time::Duration;

use http::HeaderName;

use super::secret::WebhookSecret;

/// How far the time in a webhook may be from ours, unless it is set: what the providers' own libraries allow.
pub const TOLERANCE: Duration = Duration::from_secs(5 * 60);

/// The header of Stripe's signatures.
pub(super) const STRIPE_SIGNATURE: HeaderName = HeaderName::from_static("stripe-signature");

/// How a provider signs its webhooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookScheme {
    /// Stripe's: `Stripe-Signature: t=…,v1=…`. The event's id stands at `/id`.
    Stripe,
    /// [Standard Webhooks](https://www.standardwebhooks.com): `webhook-id`, `webhook-timestamp` and `webhook-signature`.
    Standard,
    /// An HMAC-SHA256 in a header.
    Hmac(HmacScheme),
}

/// An HMAC-SHA256 in a header, as most providers have one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HmacScheme {
    /// The header that holds the signature.
    pub signature: HeaderName,
    /// What stands before the signature in its header, such as `sha256=`.
    pub prefix: Box<str>,
    /// How the signature is written.
    pub encoding: SignatureEncoding,
    /// The header that holds the time of the delivery, in seconds since 1970. None where the provider sends none: then an event
    /// never grows stale, and a copy of it is told from the event by its id alone.
    pub timestamp: Option<HeaderName>,
    /// The header that holds the event's id, where the signature covers it.
    pub id: Option<HeaderName>,
    /// What is signed.
    pub signed: SignedContent,
}

/// How a signature is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SignatureEncoding {
    /// In hexadecimal digits.
    #[default]
    Hex,
    /// In base64, with or without `=` at its end.
    Base64,
}

/// What is signed: texts, the time, the id, and at the end the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedContent {
    pub(super) pieces: Vec<SignedPiece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SignedPiece {
    Text(Box<str>),
    Timestamp,
    Id,
}

impl SignedContent {
    /// Reads a text such as `v0:{timestamp}:{body}`, with `{timestamp}`, `{id}` and `{body}`.
    ///
    /// # Errors
    ///
    /// If the text does not end with the body.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let before = text.strip_suffix("{body}").ok_or("does not end with {body}")?;
        let mut pieces = Vec::new();
        let mut rest = before;
        while let Some(at) = rest.find('{') {
            let (text, place) = rest.split_at(at);
            if !text.is_empty() {
                pieces.push(SignedPiece::Text(text.into()));
            }
            let (piece, after) =
                match (place.strip_prefix("{timestamp}"), place.strip_prefix("{id}")) {
                    (Some(after), _) => (SignedPiece::Timestamp, after),
                    (None, Some(after)) => (SignedPiece::Id, after),
                    (None, None) => {
                        return Err(
                            "has a place that is not {timestamp}, {id} or {body} at its end",
                        );
                    }
                };
            pieces.push(piece);
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(SignedPiece::Text(rest.into()));
        }
        Ok(Self { pieces })
    }

    /// The body alone.
    pub fn body() -> Self {
        Self { pieces: Vec::new() }
    }

    /// Whether the time is signed.
    pub fn has_timestamp(&self) -> bool {
        self.pieces.contains(&SignedPiece::Timestamp)
    }

    /// Whether the id is signed.
    pub fn has_id(&self) -> bool {
        self.pieces.contains(&SignedPiece::Id)
    }
}

impl HmacScheme {
    /// Whether everything that is believed is signed: a header that anybody can change says nothing.
    ///
    /// # Errors
    ///
    /// What is not signed, or is signed and not sent.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.timestamp.is_some() != self.signed.has_timestamp() {
            return Err(
                "the time must be a part of what is signed, and what is signed must be sent: set `timestamp_header` and put \
                 {timestamp} into `signed`, or do neither",
            );
        }
        if self.id.is_some() != self.signed.has_id() {
            return Err(
                "an id in a header must be a part of what is signed: put {id} into `signed`, or take the id from the body with a \
                 JSON pointer",
            );
        }
        Ok(())
    }
}

impl WebhookScheme {
    /// Its name in settings.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Stripe => "stripe",
            Self::Standard => "standard",
            Self::Hmac(_) => "hmac",
        }
    }

    /// Reads a secret as this scheme uses it.
    ///
    /// # Errors
    ///
    /// Why the text is no such secret. The text is not shown.
    pub fn secret(&self, text: &str) -> Result<WebhookSecret, &'static str> {
        match self {
            Self::Standard => WebhookSecret::standard(text),
            Self::Stripe | Self::Hmac(_) => WebhookSecret::plain(text),
        }
    }
}
