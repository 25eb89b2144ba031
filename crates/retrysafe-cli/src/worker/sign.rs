//! How does a receiver know that a delivery is ours?
//!
//! By Standard Webhooks: three headers, with the effect's key as the message's id, the same on every delivery. The files of the secrets
//! are read for each delivery, so that a new secret counts as soon as its file is written, and an old one ends with its file's
//! setting. With two files both secrets sign.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue};
use retrysafe::webhooks::WebhookSecret;
use retrysafe::webhooks::standard::{self, ID, SIGNATURE, TIMESTAMP};

use crate::config::read_secret;

/// Reads a secret's file.
///
/// # Errors
///
/// Why it holds no secret. What it holds is not shown.
pub(super) fn read_signing_secret(path: &str) -> Result<WebhookSecret, String> {
    WebhookSecret::standard(&read_secret(path)?).map_err(|what| format!("{path} {what}"))
}

/// Signs a delivery.
///
/// # Errors
///
/// If a secret cannot be read.
pub(super) fn sign(
    headers: &mut HeaderMap,
    secret_files: &[String],
    id: &str,
    body: &[u8],
    now: SystemTime,
) -> Result<(), String> {
    if secret_files.is_empty() {
        return Ok(());
    }
    let timestamp = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let mut signatures = Vec::new();
    for path in secret_files {
        let secret = read_signing_secret(path)?;
        signatures.push(standard::sign(&secret, id, timestamp, body));
    }
    let value = |text: &str| HeaderValue::from_str(text).map_err(|error| error.to_string());
    headers.insert(ID, value(id)?);
    headers.insert(TIMESTAMP, timestamp.into());
    headers.insert(SIGNATURE, value(&signatures.join(" "))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    #[test]
    fn two_secrets_sign_side_by_side() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["old", "new"].map(|name| folder.path().join(name).display().to_string());
        for (path, byte) in files.iter().zip([1, 2]) {
            std::fs::write(path, format!("whsec_{}\n", STANDARD.encode([byte; 32]))).unwrap();
        }
        let mut headers = HeaderMap::new();
        sign(&mut headers, &files, "key-1", b"{}", SystemTime::now()).unwrap();
        assert_eq!(headers[ID], "key-1");
        let signatures: Vec<&str> = headers[SIGNATURE].to_str().unwrap().split(' ').collect();
        assert_eq!(signatures.len(), 2);
        assert!(signatures.iter().all(|text| text.starts_with("v1,")));
        assert_ne!(signatures[0], signatures[1]);
        let mut unsigned = HeaderMap::new();
        sign(&mut unsigned, &[], "key-1", b"{}", SystemTime::now()).unwrap();
        assert!(unsigned.is_empty());
    }
}
