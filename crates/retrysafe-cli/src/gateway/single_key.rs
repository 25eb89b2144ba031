//! Which key do the settings name by itself, and does it fit its algorithms?
//!
//! A public key taken for a shared secret would let anybody sign, so every algorithm must be of the
//! key's kind.

use jsonwebtoken::{Algorithm, DecodingKey};

use crate::config::unreadable;

/// How many bytes a shared secret needs: as many as the digest has (RFC 7518 §3.2). None for the
/// algorithms of public keys.
pub(super) fn secret_bytes_min(algorithm: Algorithm) -> Option<usize> {
    match algorithm {
        Algorithm::HS256 => Some(32),
        Algorithm::HS384 => Some(48),
        Algorithm::HS512 => Some(64),
        Algorithm::ES256
        | Algorithm::ES384
        | Algorithm::EdDSA
        | Algorithm::RS256
        | Algorithm::RS384
        | Algorithm::RS512
        | Algorithm::PS256
        | Algorithm::PS384
        | Algorithm::PS512 => None,
        // The library may learn more of them; none of its later ones has a shared secret.
        _ => None,
    }
}

/// The key of a shared secret.
///
/// # Errors
///
/// Why it does not fit.
pub(super) fn secret_key(secret: &str, algorithms: &[Algorithm]) -> Result<DecodingKey, String> {
    for algorithm in algorithms {
        match secret_bytes_min(*algorithm) {
            None => return Err(format!("{algorithm:?} needs `public_key_file`, not a secret")),
            Some(least) if secret.len() < least => {
                return Err(format!(
                    "is shorter than the {least} bytes that {algorithm:?} needs; make one with `openssl rand -hex {}`",
                    least / 2
                ));
            }
            Some(_) => {}
        }
    }
    Ok(DecodingKey::from_secret(secret.as_bytes()))
}

/// The public key of a PEM file.
///
/// # Errors
///
/// Why it cannot be read, or does not fit.
pub(super) fn public_key(path: &str, algorithms: &[Algorithm]) -> Result<DecodingKey, String> {
    let pem = std::fs::read(path).map_err(|error| unreadable(path, &error))?;
    for algorithm in algorithms {
        if secret_bytes_min(*algorithm).is_some() {
            return Err(format!("{algorithm:?} needs `secret` or `secret_file`, not a public key"));
        }
    }
    let first = algorithms.first().ok_or("no algorithm says which kind of key it is")?;
    match first {
        Algorithm::ES256 | Algorithm::ES384 => DecodingKey::from_ec_pem(&pem),
        Algorithm::EdDSA => DecodingKey::from_ed_pem(&pem),
        Algorithm::RS256
        | Algorithm::RS384
        | Algorithm::RS512
        | Algorithm::PS256
        | Algorithm::PS384
        | Algorithm::PS512 => DecodingKey::from_rsa_pem(&pem),
        // The library may learn more of them than this program knows keys for.
        Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 | _ => {
            return Err(format!("{path} cannot be read as a key for {first:?}"));
        }
    }
    .map_err(|error| format!("{path} holds no public key for {first:?} in PEM form: {error}"))
}
