//! Whose key is it?
//!
//! Two callers may choose the same key, and a replay skips the checks of the service behind us. So
//! every key lives in a scope: named parts that say who is asking. Parts are encoded with their
//! lengths, hence `("a", "bc")` and `("ab", "c")` are different scopes. Scope and key together name
//! a record; its [`Id`] is their SHA-256.
//!
//! Some callers say who they are without proof: a token that nobody has verified names its subject.
//! Such a caller's scope is the name that it claims, and beside it stands a [`CredentialMark`] of
//! the credential that it showed. The mark is kept in the record, and another mark is refused.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::hex::hex;
use crate::key::KeyDigest;

/// Who is asking: a list of named parts, in an encoding that no two lists share.
///
/// ```
/// use retrysafe_core::Scope;
///
/// let scope = Scope::of([("tenant", &b"acme"[..]), ("token", Scope::digest_of(b"secret").as_bytes())]);
/// assert!(scope.to_string().starts_with("tenant=acme token="));
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope(Arc<[u8]>);

/// Which credential a caller showed: a digest of it. Needed where the scope is a name that the
/// credential only claims.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CredentialMark([u8; CredentialMark::LENGTH]);

/// Who is asking, and which credential it showed where that counts.
///
/// ```
/// use retrysafe_core::scope::{Caller, CredentialMark, Scope};
///
/// // Nobody has verified the token, so its own digest stands beside the name that it claims.
/// let scope = Scope::of([("subject", &b"alice"[..])]);
/// let caller = Caller { scope, mark: Some(CredentialMark::of(b"the token")) };
/// # let _ = caller;
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// Whose keys it uses.
    pub scope: Scope,
    /// The credential, where the scope alone proves nothing.
    pub mark: Option<CredentialMark>,
}

/// The name of a record: a digest of scope and key.
///
/// ```
/// use retrysafe_core::{Id, Key, Scope};
///
/// let id = Id::of(&Scope::anonymous(), &Key::new("order-17")?.digest());
/// assert_eq!(Id::parse(&id.to_string()), Some(id));
/// # Ok::<(), retrysafe_core::key::KeyError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id([u8; 32]);

impl Scope {
    /// The scope of these named parts, in this order.
    ///
    /// A part's value may be any bytes. A credential must not stand here as it is, because scopes
    /// are shown to operators: use [`Scope::digest_of`] for it.
    pub fn of<'a>(parts: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        let mut bytes = Vec::new();
        for (name, value) in parts {
            for field in [name.as_bytes(), value] {
                bytes.extend_from_slice(field.len().to_string().as_bytes());
                bytes.push(b':');
                bytes.extend_from_slice(field);
                bytes.push(b',');
            }
        }
        Self(bytes.into())
    }

    /// The scope of callers who show no credential at all. They share one name space.
    pub fn anonymous() -> Self {
        Self::of([("anonymous", &b""[..])])
    }

    /// A short digest of a credential, fit to be a part of a scope: 32 hexadecimal digits.
    pub fn digest_of(secret: &[u8]) -> String {
        let digest = sha256(b"retrysafe credential v1\0", secret);
        hex(digest.first_chunk::<16>().unwrap_or(&[0; 16]))
    }

    /// The encoding, which is what stores keep.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The scope whose encoding a store has kept.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// The named parts again, as far as the encoding is well formed.
    pub fn parts(&self) -> Vec<(String, String)> {
        let mut fields = Vec::new();
        let mut rest = &*self.0;
        while let Some((field, tail)) = split_field(rest) {
            fields.push(String::from_utf8_lossy(field).into_owned());
            rest = tail;
        }
        let mut fields = fields.into_iter();
        std::iter::from_fn(|| Some((fields.next()?, fields.next()?))).collect()
    }
}

/// `name=value` for each part, for people. Not injective: machines compare the encoding.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, value)) in self.parts().iter().enumerate() {
            let separator = if at == 0 { "" } else { " " };
            if value.is_empty() {
                write!(f, "{separator}{name}")?;
            } else {
                write!(f, "{separator}{name}={value}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({self})")
    }
}

impl From<Scope> for Caller {
    /// A caller whose scope tells everything.
    fn from(scope: Scope) -> Self {
        Self { scope, mark: None }
    }
}

impl CredentialMark {
    /// How many bytes a mark has. Half a SHA-256: nobody finds another credential with the same.
    pub const LENGTH: usize = 16;

    /// The mark of a credential.
    pub fn of(credential: &[u8]) -> Self {
        let digest = sha256(b"retrysafe credential mark v1\0", credential);
        Self(*digest.first_chunk().unwrap_or(&[0; Self::LENGTH]))
    }

    /// The mark whose bytes a store has kept.
    pub const fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        Self(bytes)
    }

    /// All its bytes.
    pub const fn as_bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }
}

impl fmt::Debug for CredentialMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Id {
    /// The name of the record that `key` has in `scope`.
    pub fn of(scope: &Scope, key: &KeyDigest) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"retrysafe id v1\0");
        hash.update((scope.0.len() as u64).to_le_bytes());
        hash.update(&scope.0);
        hash.update(key.as_bytes());
        Self(hash.finalize().into())
    }

    /// The id whose bytes a store has kept.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// All 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Reads the 64 hexadecimal digits that [`Id`] displays as.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(at * 2..at * 2 + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn sha256(purpose: &[u8], bytes: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(purpose);
    hash.update(bytes);
    hash.finalize().into()
}

fn split_field(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = bytes.iter().position(|&b| b == b':')?;
    let (length, rest) = bytes.split_at_checked(colon)?;
    let length: usize = std::str::from_utf8(length).ok()?.parse().ok()?;
    let (field, rest) = rest.get(1..)?.split_at_checked(length)?;
    Some((field, rest.get(1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    fn id(scope: &Scope, key: &str) -> Id {
        Id::of(scope, &Key::new(key).unwrap().digest())
    }

    #[test]
    fn parts_never_run_into_each_other() {
        let scopes = [
            Scope::of([("a", &b"bc"[..])]),
            Scope::of([("ab", &b"c"[..])]),
            Scope::of([("a", &b"b"[..]), ("c", &b""[..])]),
            Scope::of([("a", &b"b,1:c"[..])]),
            Scope::of([]),
            Scope::anonymous(),
        ];
        for (at, one) in scopes.iter().enumerate() {
            for other in &scopes[at + 1..] {
                assert_ne!(one, other);
                assert_ne!(id(one, "k"), id(other, "k"));
            }
        }
        let (a, ab) = (Scope::of([("t", &b"a"[..])]), Scope::of([("t", &b"ab"[..])]));
        assert_ne!(id(&a, "bc"), id(&ab, "c"));
    }

    #[test]
    fn parts_can_be_read_back() {
        let scope = Scope::of([("tenant", &b"a=b, c"[..]), ("route", &b"/pay"[..])]);
        assert_eq!(
            scope.parts(),
            [("tenant".into(), "a=b, c".into()), ("route".into(), "/pay".into())]
        );
        assert_eq!(scope.to_string(), "tenant=a=b, c route=/pay");
        assert_eq!(Scope::from_bytes(b"99:short,").parts(), []);
    }

    #[test]
    fn a_mark_tells_credentials_apart_and_is_no_part_of_a_scope() {
        assert_eq!(CredentialMark::of(b"a"), CredentialMark::of(b"a"));
        assert_ne!(CredentialMark::of(b"a"), CredentialMark::of(b"b"));
        let shown = Scope::digest_of(b"a");
        assert_ne!(hex(CredentialMark::of(b"a").as_bytes()), shown, "scopes are shown to people");
        let mark = CredentialMark::of(b"a");
        assert_eq!(CredentialMark::from_bytes(*mark.as_bytes()), mark);
    }

    #[test]
    fn ids_are_written_and_read_as_hexadecimal() {
        let id = id(&Scope::anonymous(), "k");
        assert_eq!(Id::parse(&id.to_string()), Some(id));
        for bad in ["", "zz", &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(Id::parse(bad), None);
        }
    }
}
