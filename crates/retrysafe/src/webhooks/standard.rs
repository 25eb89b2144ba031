//! How does a message of Standard Webhooks look?
//!
//! Three headers. The worker of the outbox signs with them, and whoever receives webhooks verifies them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::Mac as _;
use http::HeaderName;

use super::secret::WebhookSecret;

/// The header that holds the message's id: the same on every delivery.
pub const ID: HeaderName = HeaderName::from_static("webhook-id");

/// The header that holds the time of the delivery, in seconds since 1970.
pub const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");

/// The header that holds the signatures, separated by spaces.
pub const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// How a signature begins that is an HMAC-SHA256 in base64.
pub(super) const VERSION: &str = "v1,";

/// The signature of a message, as it stands in the header.
///
/// ```
/// use retrysafe::webhooks::{WebhookSecret, standard};
///
/// let secret = WebhookSecret::standard("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a secret");
/// let signed = standard::sign(&secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
/// assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
/// ```
pub fn sign(secret: &WebhookSecret, id: &str, timestamp: u64, body: &[u8]) -> String {
    let head = format!("{id}.{timestamp}.");
    let digest = secret.mac(&[head.as_bytes(), body]).map(|mac| mac.finalize().into_bytes());
    format!("{VERSION}{}", STANDARD.encode(digest.unwrap_or_default()))
}
