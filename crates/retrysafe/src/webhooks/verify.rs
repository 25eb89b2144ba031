//! Is an event from its provider, and is it fresh?
//!
//! Nothing here reads a clock or a file: the time and the secrets are arguments. The signature is judged first, so that an event is
//! called stale only if its provider has sent it.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use http::{HeaderMap, HeaderName};

use super::scheme::{HmacScheme, STRIPE_SIGNATURE, SignatureEncoding, SignedPiece, WebhookScheme};
use super::secret::WebhookSecret;
use super::standard;

/// How many signatures of one event are tried: a provider that exchanges its secret sends two.
const SIGNATURES_MAX: usize = 8;

/// The most digits of a time in seconds.
const TIMESTAMP_DIGITS_MAX: usize = 12;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What is known of an event whose signature is right.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct VerifiedWebhook {
    /// When it was signed, by the provider's clock. None where the scheme signs no time.
    pub signed_at: Option<SystemTime>,
    /// Its id, where the scheme signs one in a header.
    pub id: Option<String>,
}

/// Why an event is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookFault {
    /// A header is missing.
    HeaderMissing(HeaderName),
    /// A header is there more than once.
    HeaderRepeated(HeaderName),
    /// A header cannot be read.
    HeaderMalformed(HeaderName),
    /// No signature in it is one of these secrets'.
    SignatureWrong,
    /// It was signed too long ago: perhaps somebody sends it again who has overheard it.
    TooOld,
    /// It was signed in the future.
    TooEarly,
}

impl WebhookFault {
    /// Its name in metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::HeaderMissing(_) => "header_missing",
            Self::HeaderRepeated(_) => "header_repeated",
            Self::HeaderMalformed(_) => "header_malformed",
            Self::SignatureWrong => "signature_wrong",
            Self::TooOld => "too_old",
            Self::TooEarly => "too_early",
        }
    }
}

impl fmt::Display for WebhookFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HeaderMissing(name) => write!(f, "the header {name} is missing"),
            Self::HeaderRepeated(name) => write!(f, "the header {name} is there more than once"),
            Self::HeaderMalformed(name) => write!(f, "the header {name} cannot be read"),
            Self::SignatureWrong => f.write_str("no signature of the event verifies"),
            Self::TooOld => f.write_str("the event was signed too long ago"),
            Self::TooEarly => f.write_str("the event was signed in the future"),
        }
    }
}

impl std::error::Error for WebhookFault {}

/// Verifies the events of one provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookVerifier {
    /// How the provider signs.
    pub scheme: WebhookScheme,
    /// How far the time of an event may be from ours, in both directions.
    pub tolerance: Duration,
}

/// The parts of an event that its signature covers.
struct Signed<'a> {
    timestamp: Option<&'a str>,
    signatures: Vec<Vec<u8>>,
    id: Option<&'a str>,
    head: String,
}

impl WebhookVerifier {
    /// Verifies an event with any of these secrets: two while a secret is exchanged for another.
    ///
    /// # Errors
    ///
    /// Why it is refused.
    pub fn verify(
        &self,
        secrets: &[WebhookSecret],
        headers: &HeaderMap,
        body: &[u8],
        now: SystemTime,
    ) -> Result<VerifiedWebhook, WebhookFault> {
        let signed = match &self.scheme {
            WebhookScheme::Stripe => stripe(headers)?,
            WebhookScheme::Standard => of_standard(headers)?,
            WebhookScheme::Hmac(scheme) => of_hmac(scheme, headers)?,
        };
        let parts = [signed.head.as_bytes(), body];
        // Every secret is tried, so that the time it takes does not say which one it was.
        let verified =
            secrets.iter().filter(|secret| secret.verifies(&parts, &signed.signatures)).count();
        if verified == 0 {
            return Err(WebhookFault::SignatureWrong);
        }
        let signed_at = signed.timestamp.and_then(seconds);
        if let Some(signed_at) = signed_at {
            if signed_at.checked_add(self.tolerance).is_none_or(|end| end < now) {
                return Err(WebhookFault::TooOld);
            }
            if now.checked_add(self.tolerance).is_none_or(|end| end < signed_at) {
                return Err(WebhookFault::TooEarly);
            }
        }
        Ok(VerifiedWebhook { signed_at, id: signed.id.map(str::to_owned) })
    }
}

fn stripe(headers: &HeaderMap) -> Result<Signed<'_>, WebhookFault> {
    let malformed = || WebhookFault::HeaderMalformed(STRIPE_SIGNATURE);
    let line = only(headers, &STRIPE_SIGNATURE)?;
    let mut timestamp = None;
    let mut signatures = Vec::new();
    for item in line.split(',') {
        match item.trim().split_once('=') {
            Some(("t", _)) if timestamp.is_some() => return Err(malformed()),
            Some(("t", digits)) => timestamp = Some(digits),
            Some(("v1", digits)) if signatures.len() < SIGNATURES_MAX => {
                signatures.extend(from_hex(digits));
            }
            // Other schemes, and whatever a provider adds one day.
            Some(_) | None => {}
        }
    }
    let timestamp = timestamp.filter(|text| seconds(text).is_some()).ok_or_else(malformed)?;
    Ok(Signed { timestamp: Some(timestamp), signatures, id: None, head: format!("{timestamp}.") })
}

fn of_standard(headers: &HeaderMap) -> Result<Signed<'_>, WebhookFault> {
    let id = only(headers, &standard::ID)?;
    let timestamp = timestamp(headers, &standard::TIMESTAMP)?;
    let line = only(headers, &standard::SIGNATURE)?;
    let signatures = line.split(' ').filter_map(|item| item.strip_prefix(standard::VERSION));
    let signatures =
        signatures.filter_map(|text| BASE64.decode(text).ok()).take(SIGNATURES_MAX).collect();
    let head = format!("{id}.{timestamp}.");
    Ok(Signed { timestamp: Some(timestamp), signatures, id: Some(id), head })
}

fn of_hmac<'a>(scheme: &HmacScheme, headers: &'a HeaderMap) -> Result<Signed<'a>, WebhookFault> {
    let line = only(headers, &scheme.signature)?.trim();
    let malformed = || WebhookFault::HeaderMalformed(scheme.signature.clone());
    let text = line.strip_prefix(&*scheme.prefix).ok_or_else(malformed)?;
    let signature = match scheme.encoding {
        SignatureEncoding::Hex => from_hex(text),
        SignatureEncoding::Base64 => BASE64.decode(text).ok(),
    };
    let signature = signature.ok_or_else(malformed)?;
    let timestamp = scheme.timestamp.as_ref().map(|name| timestamp(headers, name)).transpose()?;
    let id = scheme.id.as_ref().map(|name| only(headers, name)).transpose()?;
    let mut head = String::new();
    for piece in &scheme.signed.pieces {
        match piece {
            SignedPiece::Text(text) => head.push_str(text),
            SignedPiece::Timestamp => head.push_str(timestamp.unwrap_or_default()),
            SignedPiece::Id => head.push_str(id.unwrap_or_default()),
        }
    }
    Ok(Signed { timestamp, signatures: vec![signature], id, head })
}

/// The value of a header that is there once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<&'a str, WebhookFault> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next().ok_or_else(|| WebhookFault::HeaderMissing(name.clone()))?;
    if lines.next().is_some() {
        return Err(WebhookFault::HeaderRepeated(name.clone()));
    }
    line.to_str().map_err(|_| WebhookFault::HeaderMalformed(name.clone()))
}

fn timestamp<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<&'a str, WebhookFault> {
    let text = only(headers, name)?;
    let is_time = seconds(text).is_some();
    is_time.then_some(text).ok_or_else(|| WebhookFault::HeaderMalformed(name.clone()))
}

/// A time in seconds since 1970.
fn seconds(text: &str) -> Option<SystemTime> {
    let is_plain = (1..=TIMESTAMP_DIGITS_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = text.parse().ok().filter(|_| is_plain)?;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

pub(super) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit =
        |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let digits: Vec<u8> = text.as_bytes().iter().map(digit).collect::<Option<_>>()?;
    let pairs = digits.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    Some(pairs.filter_map(|pair| Some(pair.first()? << 4 | pair.last()?)).collect())
}

#[cfg(test)]
mod tests;
