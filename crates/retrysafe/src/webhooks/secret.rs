//! What do a sender of webhooks and its receiver share?

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// How a secret of Standard Webhooks begins.
const PREFIX: &str = "whsec_";

/// How long a secret of Standard Webhooks is, in bytes: what the specification permits.
const STANDARD_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// The fewest characters of any other secret: fewer can be guessed.
const PLAIN_CHARS_MIN: usize = 16;

/// A secret that signs webhooks, or verifies them. It is never shown.
#[derive(Clone)]
pub struct WebhookSecret(Box<[u8]>);

impl std::fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WebhookSecret(…)")
    }
}

impl WebhookSecret {
    /// A secret of Standard Webhooks: `whsec_` and base64.
    ///
    /// # Errors
    ///
    /// Why the text is no such secret. The text is not shown.
    pub fn standard(text: &str) -> Result<Self, &'static str> {
        let encoded = text.trim().strip_prefix(PREFIX).ok_or("does not begin with whsec_")?;
        let bytes = STANDARD.decode(encoded).map_err(|_| "is not base64 after whsec_")?;
        if !STANDARD_BYTES.contains(&bytes.len()) {
            return Err(
                "holds a secret that is not 24 to 64 bytes long: make one with `openssl rand -base64 32`, and \
                        write whsec_ before it",
            );
        }
        Ok(Self(bytes.into()))
    }

    /// A secret whose characters sign as they are: Stripe's, with its `whsec_`, and those of most others.
    ///
    /// # Errors
    ///
    /// If it is too short. The text is not shown.
    pub fn plain(text: &str) -> Result<Self, &'static str> {
        let text = text.trim();
        if text.chars().count() < PLAIN_CHARS_MIN {
            return Err(
                "holds a secret of fewer than 16 characters: make one with `openssl rand -hex 32`",
            );
        }
        Ok(Self(text.as_bytes().into()))
    }

    /// The HMAC-SHA256 of these parts, one after the other.
    pub(super) fn mac(&self, parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
        // A key may have any length, so there always is one.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        for part in parts {
            mac.update(part);
        }
        Some(mac)
    }

    /// Whether one of these signatures is of these parts. How long that takes says nothing about how much of a signature is right.
    pub(super) fn verifies(&self, parts: &[&[u8]], signatures: &[Vec<u8>]) -> bool {
        let Some(mac) = self.mac(parts) else { return false };
        signatures.iter().any(|signature| mac.clone().verify_slice(signature).is_ok())
    }
}
