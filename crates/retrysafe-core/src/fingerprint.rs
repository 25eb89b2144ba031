//! Is it the same request?
//!
//! A [`Fingerprint`] is a digest of what a request means. A key that comes back with another fingerprint is a mistake of the
//! caller, and it must never be answered with what another request got. So two requests that differ in anything
//! that counts have different fingerprints; and a retry that only spells its JSON differently (another order of members,
//! other spacing, other escapes) has the same one.
//!
//! What counts: method, host name, path and query, media type, content coding, the headers that the [`Rules`] name, and
//! the body. A JSON body is put into its [canonical form](crate::canonical) first, unless that would lose meaning. A form with
//! files counts [without its boundary](multipart), because every client draws a new one for a retry. Every other body counts
//! byte by byte.
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

mod host;
pub mod multipart;
mod spelling;

use std::borrow::Cow;
use std::fmt;

use http::header::{GetAll, HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest, Sha256};

pub use crate::canonical::{Bounds, Pointer, PointerError, Selection};

pub use spelling::{KnownSpelling, Spelling};

use host::Hosts;
use multipart::{Form, FormType};

/// The way fingerprints are made now. It rises whenever the same request would get another digest.
pub const SCHEME: u8 = 2;

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
    /// Host and port, of which the host's name counts. Where a request names its host twice, that of its target counts and
    /// not the `Host` header.
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
///
/// ```
/// use retrysafe_core::canonical::Pointer;
/// use retrysafe_core::fingerprint::Rules;
///
/// let rules = Rules::default().exclude(Pointer::parse("/sent_at")?);
/// assert_ne!(rules, Rules::default());
/// # Ok::<(), retrysafe_core::canonical::PointerError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Sorted, each once.
    headers: Vec<HeaderName>,
    selection: Selection,
    bounds: Bounds,
    raw_bodies: bool,
    hosts: Hosts,
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
            hosts: Hosts::default(),
            id: RulesId([0; 8]),
        };
        rules.identified()
    }
}

impl Rules {
    /// Makes a header count: whether it is there, and every value in its order.
    #[must_use]
    pub fn header(mut self, name: HeaderName) -> Self {
        if let Err(place) = self.headers.binary_search_by(|known| known.as_str().cmp(name.as_str()))
        {
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

    /// Makes the host's name not count, for an API that is asked under names nobody can list.
    #[must_use]
    pub fn without_host(mut self) -> Self {
        self.hosts = Hosts::Ignored;
        self.identified()
    }

    /// Makes these host names one, because they are names of one API. The names of the machine itself (`localhost`,
    /// `127.0.0.1`, `[::1]`) are one anyway.
    #[must_use]
    pub fn host_aliases<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.hosts.join(names);
        self.identified()
    }

    /// Makes every body count byte by byte, JSON and forms too. Pointers then have no effect.
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

    /// The headers that count, beside media type and content coding.
    #[must_use]
    pub fn headers(&self) -> &[HeaderName] {
        &self.headers
    }

    /// The id of these rules.
    #[must_use]
    pub const fn id(&self) -> RulesId {
        self.id
    }

    /// The fingerprint of a request under these rules.
    #[must_use]
    pub fn print(&self, request: &Request<'_>) -> Fingerprint {
        self.spell(request).print()
    }

    /// All that counts in a request under these rules, as it is spelt.
    #[must_use]
    pub fn spell<'a>(&'a self, request: &Request<'a>) -> Spelling<'a> {
        Spelling::of(self, request)
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
        match &self.hosts {
            Hosts::Ignored => parts.push(b"without host"),
            Hosts::Counted(groups) => {
                parts.push(b"host");
                parts.count(groups.len());
                for group in groups {
                    parts.count(group.len());
                    group.iter().for_each(|name| parts.push(name.as_bytes()));
                }
            }
        }
        let digest = parts.digest_with(if self.raw_bodies { b"raw" } else { b"canonical" }, &[]);
        self.id = RulesId(digest.first_chunk().copied().unwrap_or_default());
        self
    }
}

/// All values of one header field.
type Lines<'a> = GetAll<'a, HeaderValue>;

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

    /// The tag says what kind of body it is: canonical bytes and raw bytes never count as equal.
    fn digest_with(mut self, tag: &[u8], body: &[u8]) -> [u8; 32] {
        self.push(tag);
        self.count(body.len());
        Sha256::new().chain_update(&self.0).chain_update(body).finalize().into()
    }

    /// A form counts with everything but its boundary. The contents are digested where they are: they may be large.
    fn digest_form(mut self, form_type: &FormType<'_>, form: &Form<'_>) -> [u8; 32] {
        self.push(b"form");
        self.count(form_type.others().len());
        for (name, value) in form_type.others() {
            self.push(name);
            self.push(value);
        }
        self.push(if form.ends_with_line { b"\r\n" } else { b"" });
        self.count(form.parts.len());
        let mut digest = Sha256::new_with_prefix(&self.0);
        for part in &form.parts {
            for bytes in [part.head, part.content] {
                digest.update((bytes.len() as u64).to_be_bytes());
                digest.update(bytes);
            }
        }
        digest.finalize().into()
    }

    /// A body in parts that was not read as a form counts byte by byte, and so does its media type: the boundary that it
    /// names decides which parts there are.
    fn digest_multipart(mut self, media_types: &Lines<'_>, body: &[u8]) -> [u8; 32] {
        self.push(b"raw multipart");
        self.count(media_types.iter().count());
        media_types.iter().for_each(|value| self.push(value.as_bytes()));
        self.digest_with(b"raw", body)
    }
}

/// The request's body as a form, if its one media type names a boundary and the body is a form with it.
fn form<'a>(media_types: &Lines<'a>, body: &'a [u8]) -> Option<(FormType<'a>, Form<'a>)> {
    let mut values = media_types.iter();
    let form_type = FormType::read(values.next()?.as_bytes())?;
    let form = Form::read(form_type.boundary(), body)?;
    values.next().is_none().then_some((form_type, form))
}

/// The media type without its parameters, in lower case.
///
/// Parameters are left out on purpose: `charset=utf-8` says nothing new about JSON. A body in parts is read by its `boundary`,
/// so there they count beside the body.
struct MediaType<'a> {
    essence: Cow<'a, [u8]>,
    kind: Kind,
}

/// How a body of a media type may be read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Json,
    Multipart,
    Other,
}

impl<'a> MediaType<'a> {
    fn of(lines: &Lines<'a>) -> Self {
        let mut values = lines.iter();
        let Some(value) = values.next() else {
            return Self { essence: Cow::Borrowed(b""), kind: Kind::Other };
        };
        let mut essence = essence(value.as_bytes());
        let mut kind = Kind::of(&essence);
        for value in values {
            // Two media types are a mistake that servers resolve differently: all count and none is believed.
            let next = self::essence(value.as_bytes());
            let is_multipart = kind == Kind::Multipart || Kind::of(&next) == Kind::Multipart;
            kind = if is_multipart { Kind::Multipart } else { Kind::Other };
            let all = essence.to_mut();
            all.push(b',');
            all.extend_from_slice(&next);
        }
        Self { essence, kind }
    }
}

impl Kind {
    fn of(essence: &[u8]) -> Self {
        if essence == b"application/json"
            || (essence.contains(&b'/') && essence.ends_with(b"+json"))
        {
            Self::Json
        } else if essence.starts_with(b"multipart/") {
            Self::Multipart
        } else {
            Self::Other
        }
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
fn content_coding(lines: &Lines<'_>) -> Vec<u8> {
    let mut codings = Vec::new();
    for value in lines {
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

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(
                HeaderName::try_from(*name).unwrap(),
                HeaderValue::from_str(value).unwrap(),
            );
        }
        headers
    }

    fn print(rules: &Rules, fields: &[(&str, &str)], body: &str) -> Fingerprint {
        rules.print(&Request {
            method: "POST",
            authority: "api.example:443",
            path_and_query: "/a?b=c",
            headers: &headers(fields),
            body: body.as_bytes(),
        })
    }

    fn pointer(text: &str) -> Pointer {
        Pointer::parse(text).unwrap()
    }

    /// Stored records hold these digests. If this test fails, retries of requests sent before an upgrade would be
    /// refused: raise `SCHEME` and keep the old way alive, do not change the numbers.
    #[test]
    fn digests_of_this_scheme_never_change() {
        let hex = |bytes: &[u8]| Hex(bytes).to_string();
        let plain = Rules::default();
        let chosen = Rules::default()
            .header(HeaderName::from_static("x-tenant"))
            .include(pointer("/a"))
            .exclude(pointer("/a/0"))
            .host_aliases(["api.example", "api.test"]);
        let fields = [JSON, &[("x-tenant", "t")]].concat();
        let form = &[("content-type", "multipart/form-data; boundary=b")];
        let found = [
            hex(plain.id().as_bytes()),
            hex(print(&plain, JSON, r#"{"b":1,"a":[2.50]}"#).digest()),
            hex(print(&plain, JSON, "not json").digest()),
            hex(print(&plain, form, "--b\r\nA: 1\r\n\r\nx\r\n--b--\r\n").digest()),
            hex(print(&plain, form, "not a form").digest()),
            hex(chosen.id().as_bytes()),
            hex(print(&chosen, &fields, r#"{"b":1,"a":[2.50]}"#).digest()),
        ];
        let wanted = [
            "28a1e3798e76b854",
            "1ac7fe7437dad4a89d8ac10c0563417952813228525dd059392c8f2042e7cfa4",
            "c0afee9e26c37efaf3ce1c8f8f471a1004bde221df0aa7a9362d56a712b7dcf7",
            "3562b4c039b6cc9c5b14bf3ae2ef72650b000f546dd2292d10af992457b94c06",
            "2bf44518c0ea2688da2f878f29b70bbb98e0008c9b2eb795e6b6d44defe54bf8",
            "8805ba432ff952e0",
            "1bc866397387e1c75c414bf3e4bb92b8723b15a08c5366fc86029663b8845e56",
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn every_part_of_the_request_line_counts() {
        let headers = headers(JSON);
        let base = Request {
            method: "POST",
            authority: "api.example",
            path_and_query: "/a?b=c",
            headers: &headers,
            body: b"{}",
        };
        let rules = Rules::default();
        let first = rules.print(&base);
        for other in [
            Request { method: "PATCH", ..base },
            Request { method: "post", ..base },
            Request { authority: "api2.example", ..base },
            Request { authority: "", ..base },
            Request { path_and_query: "/a?b=d", ..base },
            Request { path_and_query: "/a?b=%63", ..base },
            Request { path_and_query: "/a", ..base },
            Request { method: "POST/", path_and_query: "a?b=c", ..base },
            Request { body: b"", ..base },
            Request { body: b"{}{}", ..base },
        ] {
            assert_ne!(rules.print(&other), first, "{other:?}");
        }
        assert_eq!(rules.print(&Request { authority: "API.Example:8080", ..base }), first);
        assert_eq!(rules.print(&Request { body: b" { } ", ..base }), first);
    }

    #[test]
    fn media_type_counts_without_its_parameters() {
        let rules = Rules::default();
        let of = |kind: &str| print(&rules, &[("content-type", kind)], "{ }");
        let json = of("application/json");
        assert_eq!(of("Application/JSON; charset=UTF-8"), json);
        assert_eq!(of("application/json ;q=1"), json);
        assert_ne!(of("text/plain"), json);
        assert_ne!(of(""), print(&rules, &[], "{}"));
        assert_eq!(of(""), print(&rules, &[], "{ }"));
        let canonical = |kind: &str| {
            print(&rules, &[("content-type", kind)], "{ }")
                == print(&rules, &[("content-type", kind)], "{}")
        };
        assert!(canonical("application/json"));
        assert!(canonical("application/vnd.api+json"));
        assert!(canonical("APPLICATION/PROBLEM+JSON"));
        for raw in [
            "text/plain",
            "application/jsonp",
            "application/json-seq",
            "+json",
            "json",
            "application/xml",
        ] {
            assert!(!canonical(raw), "{raw}");
        }
        let two = [("content-type", "application/json"), ("content-type", "text/plain")];
        assert_ne!(
            print(&rules, &two, "{}"),
            print(&rules, &two, "{ }"),
            "two media types are none"
        );
    }

    #[test]
    fn coded_bodies_count_byte_by_byte() {
        let rules = Rules::default();
        let of = |coding: &str, body: &str| {
            print(&rules, &[JSON, &[("content-encoding", coding)]].concat(), body)
        };
        assert_eq!(of("identity", "{ }"), print(&rules, JSON, "{}"));
        assert_eq!(of("", "{ }"), print(&rules, JSON, "{}"));
        assert_ne!(of("gzip", "{ }"), of("gzip", "{}"));
        assert_eq!(of("GZIP , identity", "x"), of("gzip", "x"));
        assert_ne!(of("gzip, br", "x"), of("br, gzip", "x"));
    }

    #[test]
    fn chosen_headers_count_with_every_value_in_order() {
        let rules = Rules::default().header(HeaderName::from_static("x-a"));
        let of = |fields: &[(&str, &str)]| print(&rules, fields, "");
        assert_eq!(of(&[]), of(&[("x-b", "1")]));
        assert_ne!(of(&[]), of(&[("x-a", "")]));
        assert_ne!(of(&[("x-a", "1")]), of(&[("x-a", "2")]));
        assert_ne!(of(&[("x-a", "1"), ("x-a", "2")]), of(&[("x-a", "2"), ("x-a", "1")]));
        assert_ne!(of(&[("x-a", "1"), ("x-a", "2")]), of(&[("x-a", "1, 2")]));
    }

    #[test]
    fn canonical_bytes_never_count_as_raw_ones() {
        let raw = Rules::default().raw_bodies();
        let canonical = Rules::default();
        assert_ne!(print(&raw, JSON, "{}").digest(), print(&canonical, JSON, "{}").digest());
        assert_ne!(print(&raw, JSON, "{}"), print(&raw, JSON, "{ }"));
        // Raw because it is too large, with the bytes of another document's form.
        let tiny = Rules::default().bounds(Bounds { members_max: 0, bytes_max: 100 });
        assert_ne!(print(&tiny, JSON, r#"{"a":1}"#), print(&tiny, JSON, r#"{"a": 1}"#));
    }

    #[test]
    fn rules_are_named_by_their_content() {
        let a = HeaderName::from_static("x-a");
        let b = HeaderName::from_static("x-b");
        let one = Rules::default().header(a.clone()).header(b.clone()).header(a.clone());
        let other = Rules::default().header(b.clone()).header(a.clone());
        assert_eq!((one.id(), &one), (other.id(), &other));

        let all = [
            Rules::default(),
            Rules::default().raw_bodies(),
            Rules::default().header(a.clone()),
            Rules::default().header(b),
            Rules::default().include(pointer("/x-a")),
            Rules::default().exclude(pointer("/x-a")),
            Rules::default().exclude(pointer("")),
            Rules::default().exclude(pointer("/")),
            Rules::default().exclude(pointer("/a/b")),
            Rules::default().exclude(pointer("/a~1b")),
            Rules::default().exclude(pointer("/a")).exclude(pointer("/b")),
            Rules::default().bounds(Bounds { members_max: 1, ..Bounds::default() }),
            Rules::default().bounds(Bounds { bytes_max: 1, ..Bounds::default() }),
            Rules::default().without_host(),
            Rules::default().host_aliases(["a.test", "b.test"]),
            Rules::default().host_aliases(["a.test", "b.test", "c.test"]),
            Rules::default().host_aliases(["a.test", "b.test"]).host_aliases(["c.test", "d.test"]),
        ];
        for (at, left) in all.iter().enumerate() {
            for right in &all[..at] {
                assert_ne!(left.id(), right.id(), "{left:?} {right:?}");
                assert_ne!(print(left, JSON, "1"), print(right, JSON, "1"));
            }
        }
    }

    #[test]
    fn host_names_are_one_where_the_rules_say_so() {
        let of = |rules: &Rules, authority| {
            let headers = HeaderMap::new();
            let request = Request {
                method: "POST",
                authority,
                path_and_query: "/",
                headers: &headers,
                body: b"",
            };
            rules.print(&request)
        };
        let plain = Rules::default();
        assert_eq!(of(&plain, "localhost:3000"), of(&plain, "127.0.0.1:8080"));
        assert_ne!(of(&plain, "a.test"), of(&plain, "a.eu.test"));
        let aliases = Rules::default().host_aliases(["a.test", "a.eu.test"]);
        assert_eq!(of(&aliases, "a.test"), of(&aliases, "A.eu.test:443"));
        assert_ne!(of(&aliases, "a.test"), of(&aliases, "b.test"));
        let without = Rules::default().without_host();
        assert_eq!(of(&without, "a.test"), of(&without, "b.test"));
    }

    /// The body holds two boundaries, and the media type says which one counts.
    #[test]
    fn a_boundary_counts_unless_it_was_taken_out() {
        let two = "--a\r\n\r\n--b\r\n\r\nx\r\n--b--\r\n--a--\r\n";
        let of =
            |rules: &Rules, kind: &str, body: &str| print(rules, &[("content-type", kind)], body);
        let plain = Rules::default();
        assert_ne!(
            of(&plain, "multipart/form-data; boundary=a", two),
            of(&plain, "multipart/form-data; boundary=b", two)
        );
        let one = |boundary: &str| format!("--{boundary}\r\n\r\nx\r\n--{boundary}--\r\n");
        let form = |boundary: &str| format!("multipart/form-data; boundary={boundary}");
        assert_eq!(of(&plain, &form("a"), &one("a")), of(&plain, &form("b"), &one("b")));
        let mixed = |boundary: &str| format!("multipart/mixed; boundary={boundary}");
        assert_ne!(of(&plain, &mixed("a"), &one("a")), of(&plain, &mixed("b"), &one("b")));
        assert_ne!(of(&plain, &mixed("a"), "x"), of(&plain, &mixed("b"), "x"));
        let raw = Rules::default().raw_bodies();
        assert_ne!(of(&raw, &form("a"), &one("a")), of(&raw, &form("b"), &one("b")));
        let fields = |kind: &str| {
            let fields = [("content-type", kind), ("content-encoding", "gzip")];
            print(&plain, &fields, &one("a"))
        };
        assert_ne!(fields(&form("a")), fields(&form("b")), "a coded body is not looked into");
        let twice = |second: &str| {
            let fields =
                [("content-type", "multipart/form-data; boundary=a"), ("content-type", second)];
            print(&plain, &fields, &one("a"))
        };
        assert_ne!(twice(&form("a")), twice(&form("b")), "two media types are none");
    }

    #[test]
    fn excluded_parts_do_not_count() {
        let rules = Rules::default().exclude(pointer("/sent_at"));
        let of = |body: &str| print(&rules, JSON, body);
        assert_eq!(
            of(r#"{"a":1,"sent_at":1700000000000000001}"#),
            of(r#"{"sent_at":1700000000000000002,"a":1}"#)
        );
        assert_eq!(of(r#"{"a":1,"sent_at":0}"#), of(r#"{"a":1}"#));
        assert_ne!(of(r#"{"a":1,"sent_at":0}"#), of(r#"{"a":2,"sent_at":0}"#));
    }

    #[test]
    fn stored_parts_make_the_same_fingerprint() {
        let made = print(&Rules::default(), JSON, "{}");
        let rules = RulesId::from_bytes(*made.rules().as_bytes());
        assert_eq!(Fingerprint::from_parts(made.scheme(), rules, *made.digest()), made);
        assert_eq!(made.scheme(), SCHEME);
        let shown = format!("{made:?}");
        assert!(shown.starts_with("Fingerprint(2:") && shown.len() < 60, "{shown}");
    }
}
