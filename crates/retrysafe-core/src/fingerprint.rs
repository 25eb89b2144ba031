//! Is it the same request?
//!
//! A [`Fingerprint`] is a digest of what a request means. A key that comes back with another fingerprint is a mistake of the
//! caller, and it must never be answered with what another request got. So two requests that differ in anything
//! that counts have different fingerprints; and a retry that only spells its JSON differently (another order of members,
//! other spacing, other escapes) has the same one.
//!
//! What counts: method, authority, path and query, media type, content coding, the headers that the [`Rules`] name, and
//! the body. A JSON body is put into its [canonical form](crate::canonical) first, unless that would lose meaning; every
//! other body counts byte by byte.
//!
//! ```
//! use http::{HeaderMap, HeaderValue, header};
//! use retrysafe_core::fingerprint::{Request, Rules};
//!
//! let headers = HeaderMap::from_iter([(
//!     header::CONTENT_TYPE,
//!     HeaderValue::from_static("application/json"),
//! )]);
//! let print = |body: &str| {
//!     Rules::default().print(&Request {
//!         method: "POST",
//!         authority: "api.example",
//!         path_and_query: "/payments",
//!         headers: &headers,
//!         body: body.as_bytes(),
//!     })
//! };
//! assert_eq!(print(r#"{"amount":10,"to":"x"}"#), print(r#"{ "to": "x", "amount": 10.0 }"#));
//! assert_ne!(print(r#"{"amount":10,"to":"x"}"#), print(r#"{"amount":11,"to":"x"}"#));
//! ```
//!
//! Fingerprints are stored, so the bytes that go into one are fixed for good: a change needs a new [`SCHEME`]. A record also
//! keeps the [`RulesId`], so that a changed rule set is told apart from a changed request.

use std::borrow::Cow;
use std::fmt;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName};
use sha2::{Digest, Sha256};

pub use crate::canonical::{Bounds, Pointer, PointerError, Selection};

/// The way fingerprints are made now. It rises whenever the same request would get another digest.
pub const SCHEME: u8 = 1;

/// Ahead of the digested parts, so that no fingerprint equals a digest made for another purpose.
const REQUEST_DOMAIN: &[u8] = b"retrysafe fingerprint";
const RULES_DOMAIN: &[u8] = b"retrysafe fingerprint rules";

/// A digest of what a request means, with the scheme and the rules that made it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    scheme: u8,
    rules: RulesId,
    digest: [u8; 32],
}

impl Fingerprint {
    /// Puts a stored fingerprint together again.
    #[must_use]
    pub const fn from_parts(scheme: u8, rules: RulesId, digest: [u8; 32]) -> Self {
        Self { scheme, rules, digest }
    }

    /// The [`SCHEME`] at the time it was made.
    #[must_use]
    pub const fn scheme(&self) -> u8 {
        self.scheme
    }

    /// The rules it was made with.
    #[must_use]
    pub const fn rules(&self) -> RulesId {
        self.rules
    }

    /// The SHA-256 digest.
    #[must_use]
    pub const fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({}:{}:", self.scheme, Hex(self.rules.as_bytes()))?;
        // Eight bytes tell two requests apart in a log and are too few to test guesses of a body against.
        let (shown, _) = self.digest.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        write!(f, "{}…)", Hex(shown))
    }
}

/// Names a rule set by its content: equal rules have equal ids, in every process and for good.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RulesId([u8; 8]);

impl RulesId {
    /// Puts a stored id together again.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }

    /// The id as it is stored.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

impl fmt::Debug for RulesId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RulesId({})", Hex(&self.0))
    }
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The request as it arrived, whole.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The method it asks for.
    pub method: &'a str,
    /// Host and port; case does not count.
    pub authority: &'a str,
    /// Path and query as received; nothing is decoded or normalised.
    pub path_and_query: &'a str,
    /// All header fields.
    pub headers: &'a HeaderMap,
    /// The body as received, still in its content coding.
    pub body: &'a [u8],
}

/// What counts in a request. By default: no headers but the media type and the content coding, and the whole body, JSON
/// in its canonical form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Sorted, each once.
    headers: Vec<HeaderName>,
    selection: Selection,
    bounds: Bounds,
    raw_bodies: bool,
    /// Made from the fields above whenever one of them changes.
    id: RulesId,
}

impl Default for Rules {
    fn default() -> Self {
        let rules = Self {
            headers: Vec::new(),
            selection: Selection::default(),
            bounds: Bounds::default(),
            raw_bodies: false,
            id: RulesId([0; 8]),
        };
        rules.identified()
    }
}

impl Rules {
    /// Makes a header count: whether it is there, and every value in its order.
    #[must_use]
    pub fn header(mut self, name: HeaderName) -> Self {
        if let Err(place) = self.headers.binary_search_by(|known| known.as_str().cmp(name.as_str())) {
            self.headers.insert(place, name);
        }
        self.identified()
    }

    /// Makes only this part of a JSON body count, and whatever else is included.
    #[must_use]
    pub fn include(mut self, pointer: Pointer) -> Self {
        self.selection = self.selection.include(pointer);
        self.identified()
    }

    /// Makes this part of a JSON body not count, such as the time at which it was sent.
    #[must_use]
    pub fn exclude(mut self, pointer: Pointer) -> Self {
        self.selection = self.selection.exclude(pointer);
        self.identified()
    }

    /// Makes every body count byte by byte, JSON too. Pointers then have no effect.
    #[must_use]
    pub fn raw_bodies(mut self) -> Self {
        self.raw_bodies = true;
        self.identified()
    }

    /// Sets how large a JSON body may be to be put into its canonical form.
    #[must_use]
    pub fn bounds(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self.identified()
    }

    /// The id of these rules.
    #[must_use]
    pub const fn id(&self) -> RulesId {
        self.id
    }

    /// The fingerprint of a request under these rules.
    #[must_use]
    pub fn print(&self, request: &Request<'_>) -> Fingerprint {
        let media_type = MediaType::of(request.headers);
        let coding = content_coding(request.headers);
        let may_be_json = media_type.is_json && coding.is_empty() && !self.raw_bodies;
        let canonical = if may_be_json {
            crate::canonical::canonical(request.body, &self.selection, self.bounds)
        } else {
            None
        };

        let mut parts = Parts::new(REQUEST_DOMAIN);
        parts.push(self.id.as_bytes());
        parts.push(request.method.as_bytes());
        parts.push_lower_case(request.authority.as_bytes());
        parts.push(request.path_and_query.as_bytes());
        parts.push(&media_type.essence);
        parts.push(&coding);
        parts.count(self.headers.len());
        for name in &self.headers {
            parts.push(name.as_str().as_bytes());
            let values = request.headers.get_all(name);
            parts.count(values.iter().count());
            for value in values {
                parts.push(value.as_bytes());
            }
        }
        let digest = match &canonical {
            Some(form) => parts.digest_with(b"canonical", form),
            None => parts.digest_with(b"raw", request.body),
        };
        Fingerprint { scheme: SCHEME, rules: self.id, digest }
    }

    fn identified(mut self) -> Self {
        let mut parts = Parts::new(RULES_DOMAIN);
        parts.count(self.headers.len());
        for name in &self.headers {
            parts.push(name.as_str().as_bytes());
        }
        parts.count(self.selection.included().len());
        for pointer in self.selection.included() {
            parts.push(pointer.to_string().as_bytes());
        }
        parts.count(self.selection.excluded().len());
        for pointer in self.selection.excluded() {
            parts.push(pointer.to_string().as_bytes());
        }
        parts.push(&self.bounds.members_max.to_be_bytes());
        parts.push(&self.bounds.bytes_max.to_be_bytes());
        let digest = parts.digest_with(if self.raw_bodies { b"raw" } else { b"canonical" }, &[]);
        self.id = RulesId(digest.first_chunk().copied().unwrap_or_default());
        self
    }
}

/// The parts of a digest, each behind its length, so that no two lists of parts give the same bytes.
///
/// They are gathered before they are digested: many short updates cost more than one.
struct Parts(Vec<u8>);

impl Parts {
    fn new(domain: &[u8]) -> Self {
        // Enough for a request without long paths and without chosen headers.
        let mut parts = Self(Vec::with_capacity(512));
        parts.push(domain);
        parts.push(&[SCHEME]);
        parts
    }

    fn count(&mut self, count: usize) {
        self.0.extend_from_slice(&(count as u64).to_be_bytes());
    }

    fn push(&mut self, part: &[u8]) {
        self.count(part.len());
        self.0.extend_from_slice(part);
    }

    fn push_lower_case(&mut self, part: &[u8]) {
        self.count(part.len());
        self.0.extend(part.iter().map(u8::to_ascii_lowercase));
    }

    /// The tag says what kind of body it is: canonical bytes and raw bytes never count as equal.
    fn digest_with(mut self, tag: &[u8], body: &[u8]) -> [u8; 32] {
        self.push(tag);
        self.count(body.len());
        Sha256::new().chain_update(&self.0).chain_update(body).finalize().into()
    }
}

/// The media type without its parameters, in lower case.
///
/// Parameters are left out on purpose. `charset=utf-8` says nothing new about JSON, and a `boundary` is seen in the body.
struct MediaType<'a> {
    essence: Cow<'a, [u8]>,
    is_json: bool,
}

impl<'a> MediaType<'a> {
    fn of(headers: &'a HeaderMap) -> Self {
        let mut values = headers.get_all(CONTENT_TYPE).iter();
        let Some(value) = values.next() else {
            return Self { essence: Cow::Borrowed(b""), is_json: false };
        };
        let mut essence = essence(value.as_bytes());
        let mut is_json = essence.as_ref() == b"application/json"
            || (essence.contains(&b'/') && essence.ends_with(b"+json"));
        for value in values {
            // Two media types are a mistake that servers resolve differently: all count and none is believed.
            is_json = false;
            let all = essence.to_mut();
            all.push(b',');
            all.extend_from_slice(&self::essence(value.as_bytes()));
        }
        Self { essence, is_json }
    }
}

fn essence(value: &[u8]) -> Cow<'_, [u8]> {
    let essence = value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    lower_case(essence)
}

fn lower_case(text: &[u8]) -> Cow<'_, [u8]> {
    if text.iter().any(u8::is_ascii_uppercase) {
        Cow::Owned(text.to_ascii_lowercase())
    } else {
        Cow::Borrowed(text)
    }
}

/// The content codings in the order they were applied, in lower case, with a comma between them. Empty if there is
/// none, which `identity` also says.
fn content_coding(headers: &HeaderMap) -> Vec<u8> {
    let mut codings = Vec::new();
    for value in headers.get_all(CONTENT_ENCODING) {
        for coding in value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if coding.is_empty() || coding.eq_ignore_ascii_case(b"identity") {
                continue;
            }
            if !codings.is_empty() {
                codings.push(b',');
            }
            codings.extend(coding.iter().map(u8::to_ascii_lowercase));
        }
    }
    codings
}
