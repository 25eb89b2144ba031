//! Is a request spelt as one whose fingerprint is known?
//!
//! Most retries are the bytes of the first request once more. They mean the same, and to see that needs no canonical form.
//! A [`Spelling`] is all that a fingerprint is made of: [`Spelling::print`] has no other way to the
//! request. So two requests with equal spellings under the same rules have the same fingerprint.

use std::fmt;

use http::HeaderName;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use sha2::{Digest as _, Sha256};

use super::{
    Fingerprint, Kind, Lines, MediaType, Parts, REQUEST_DOMAIN, Request, Rules, RulesId, SCHEME,
    content_coding, form,
};

/// All that counts in a request under some rules, as it is spelt.
pub struct Spelling<'a> {
    rules: &'a Rules,
    method: &'a str,
    authority: &'a str,
    path_and_query: &'a str,
    media_types: Lines<'a>,
    codings: Lines<'a>,
    chosen: Chosen<'a>,
    body: &'a [u8],
}

/// The headers that the rules name.
#[derive(Clone, Copy)]
struct Chosen<'a> {
    names: &'a [HeaderName],
    headers: &'a HeaderMap,
}

/// The spelling of a request, kept with its fingerprint. Of the body only a digest is kept: nobody's data outlive their request.
///
/// ```
/// use http::HeaderMap;
/// use retrysafe_core::fingerprint::{KnownSpelling, Request, Rules};
///
/// let rules = Rules::default();
/// let headers = HeaderMap::new();
/// let request = Request {
///     method: "POST",
///     authority: "api.example",
///     path_and_query: "/payments",
///     headers: &headers,
///     body: b"10",
/// };
/// let known = KnownSpelling::new(&rules.spell(&request), rules.print(&request));
/// assert_eq!(known.print_of(&rules.spell(&request)), Some(rules.print(&request)));
/// assert_eq!(known.print_of(&rules.spell(&Request { body: b"11", ..request })), None);
/// ```
pub struct KnownSpelling {
    rules: RulesId,
    method: Box<str>,
    authority: Box<str>,
    path_and_query: Box<str>,
    media_types: KnownLines,
    codings: KnownLines,
    chosen: Box<[KnownLines]>,
    body: BodyDigest,
    print: Fingerprint,
}

/// Stands for a body; two bodies with one digest would have to be found first.
type BodyDigest = [u8; 32];

/// The values of one header field.
struct KnownLines(Box<[Box<[u8]>]>);

impl<'a> Spelling<'a> {
    pub(super) fn of(rules: &'a Rules, request: &Request<'a>) -> Self {
        Self {
            rules,
            method: request.method,
            authority: request.authority,
            path_and_query: request.path_and_query,
            media_types: request.headers.get_all(CONTENT_TYPE),
            codings: request.headers.get_all(CONTENT_ENCODING),
            chosen: Chosen { names: &rules.headers, headers: request.headers },
            body: request.body,
        }
    }

    /// The fingerprint.
    #[must_use]
    pub fn print(&self) -> Fingerprint {
        let media_type = MediaType::of(&self.media_types);
        let coding = content_coding(&self.codings);

        let mut parts = Parts::new(REQUEST_DOMAIN);
        parts.push(self.rules.id.as_bytes());
        parts.push(self.method.as_bytes());
        parts.push(self.rules.hosts.counted(self.authority).as_bytes());
        parts.push(self.path_and_query.as_bytes());
        parts.push(&media_type.essence);
        parts.push(&coding);
        parts.count(self.chosen.names.len());
        for (name, values) in self.chosen.lines() {
            parts.push(name.as_str().as_bytes());
            parts.count(values.iter().count());
            for value in values {
                parts.push(value.as_bytes());
            }
        }
        let is_readable = coding.is_empty() && !self.rules.raw_bodies;
        let digest = match media_type.kind {
            Kind::Json if is_readable => {
                let Rules { selection, bounds, .. } = self.rules;
                match crate::canonical::canonical(self.body, selection, *bounds) {
                    Some(form) => parts.digest_with(b"canonical", &form),
                    None => parts.digest_with(b"raw", self.body),
                }
            }
            Kind::Multipart => {
                let form = if is_readable { form(&self.media_types, self.body) } else { None };
                match form {
                    Some((form_type, form)) => parts.digest_form(&form_type, &form),
                    None => parts.digest_multipart(&self.media_types, self.body),
                }
            }
            Kind::Json | Kind::Other => parts.digest_with(b"raw", self.body),
        };
        Fingerprint { scheme: SCHEME, rules: self.rules.id, digest }
    }
}

impl<'a> Chosen<'a> {
    fn lines(self) -> impl Iterator<Item = (&'a HeaderName, Lines<'a>)> {
        self.names.iter().map(move |name| (name, self.headers.get_all(name)))
    }
}

impl KnownSpelling {
    /// Keeps a spelling with its fingerprint. Everything is copied: what a request is made of may be a piece of something
    /// larger.
    #[must_use]
    pub fn new(spelling: &Spelling<'_>, print: Fingerprint) -> Self {
        debug_assert_eq!(print, spelling.print(), "another request's fingerprint");
        Self {
            rules: spelling.rules.id,
            method: spelling.method.into(),
            authority: spelling.authority.into(),
            path_and_query: spelling.path_and_query.into(),
            media_types: KnownLines::of(&spelling.media_types),
            codings: KnownLines::of(&spelling.codings),
            chosen: spelling.chosen.lines().map(|(_, lines)| KnownLines::of(&lines)).collect(),
            body: Sha256::digest(spelling.body).into(),
            print,
        }
    }

    /// The fingerprint of a request, if it is spelt like the one that is known.
    #[must_use]
    pub fn print_of(&self, spelling: &Spelling<'_>) -> Option<Fingerprint> {
        // The names of the chosen headers are a part of the rules.
        let is_same = self.rules == spelling.rules.id
            && *self.method == *spelling.method
            && *self.authority == *spelling.authority
            && *self.path_and_query == *spelling.path_and_query
            && self.media_types.are(&spelling.media_types)
            && self.codings.are(&spelling.codings)
            && self.chosen.len() == spelling.chosen.names.len()
            && self
                .chosen
                .iter()
                .zip(spelling.chosen.lines())
                .all(|(one, (_, other))| one.are(&other))
            && self.body == BodyDigest::from(Sha256::digest(spelling.body));
        is_same.then_some(self.print)
    }

    /// How many bytes are kept, roughly, besides those of the same size for every request.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let lines = [&self.media_types, &self.codings].into_iter().chain(&self.chosen);
        let texts = [&self.method, &self.authority, &self.path_and_query];
        lines.map(KnownLines::bytes).sum::<usize>()
            + texts.map(|text| text.len()).iter().sum::<usize>()
    }
}

/// Bodies and headers are nobody's to read.
impl fmt::Debug for Spelling<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spelling").finish_non_exhaustive()
    }
}

impl fmt::Debug for KnownSpelling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KnownSpelling").field("print", &self.print).finish_non_exhaustive()
    }
}

impl KnownLines {
    fn of(lines: &Lines<'_>) -> Self {
        Self(lines.iter().map(|line| line.as_bytes().into()).collect())
    }

    fn are(&self, lines: &Lines<'_>) -> bool {
        self.0.iter().map(|line| &**line).eq(lines.iter().map(|line| line.as_bytes()))
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(|line| line.len() + size_of_val(line)).sum()
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn known(rules: &Rules, request: &Request<'_>) -> KnownSpelling {
        KnownSpelling::new(&rules.spell(request), rules.print(request))
    }

    const FIELDS: [(&str, &str); 3] =
        [("content-type", "application/json"), ("content-encoding", "identity"), ("x-tenant", "a")];

    // A part of the spelling that nobody compares would let a request be answered with the answer of another one.
    #[test]
    fn every_part_of_a_spelling_is_compared() {
        let rules = Rules::default().header(HeaderName::from_static("x-tenant"));
        let first = headers(&FIELDS);
        let base = Request {
            method: "POST",
            authority: "api.example",
            path_and_query: "/a?b=c",
            headers: &first,
            body: br#"{"amount":1}"#,
        };
        let known = known(&rules, &base);
        assert_eq!(known.print_of(&rules.spell(&base)), Some(rules.print(&base)));
        let with = |name, value| {
            let mut headers = first.clone();
            headers.insert(name, HeaderValue::from_static(value));
            headers
        };
        let and = |name, value| {
            let mut headers = first.clone();
            headers.append(name, HeaderValue::from_static(value));
            headers
        };
        let without = |name: &str| {
            let mut headers = first.clone();
            headers.remove(name);
            headers
        };
        for other in [
            Request { method: "PATCH", ..base },
            Request { authority: "api2.example", ..base },
            Request { path_and_query: "/a?b=d", ..base },
            Request { path_and_query: "/a", ..base },
            Request { body: br#"{"amount":2}"#, ..base },
            Request { body: b"", ..base },
            Request { headers: &with("content-type", "text/plain"), ..base },
            Request { headers: &and("content-type", "text/plain"), ..base },
            Request { headers: &without("content-type"), ..base },
            Request { headers: &with("content-encoding", "gzip"), ..base },
            Request { headers: &and("content-encoding", "gzip"), ..base },
            Request { headers: &with("x-tenant", "b"), ..base },
            Request { headers: &and("x-tenant", "a"), ..base },
            Request { headers: &without("x-tenant"), ..base },
        ] {
            assert_eq!(known.print_of(&rules.spell(&other)), None, "{other:?}");
            assert_ne!(rules.print(&other), rules.print(&base), "{other:?}");
        }
        // What does not count may differ.
        let more = and("x-request-id", "7");
        let again = Request { headers: &more, ..base };
        assert_eq!(known.print_of(&rules.spell(&again)), Some(rules.print(&base)));
    }

    #[test]
    fn other_rules_know_nothing() {
        let headers = headers(&FIELDS);
        let request = Request {
            method: "POST",
            authority: "api.example",
            path_and_query: "/",
            headers: &headers,
            body: b"{}",
        };
        let known = known(&Rules::default(), &request);
        for other in [Rules::default().raw_bodies(), Rules::default().without_host()] {
            assert_eq!(known.print_of(&other.spell(&request)), None);
        }
    }

    // The boundary is in the media type and decides what the parts of a form are.
    #[test]
    fn a_form_with_another_boundary_is_not_taken_for_the_known_one() {
        let rules = Rules::default();
        let body = b"--b\r\nA: 1\r\n\r\nx\r\n--b--\r\n";
        let one = headers(&[("content-type", "multipart/form-data; boundary=b")]);
        let other = headers(&[("content-type", "multipart/form-data; boundary=c")]);
        let request = |headers| Request {
            method: "POST",
            authority: "api.example",
            path_and_query: "/",
            headers,
            body,
        };
        let known = known(&rules, &request(&one));
        assert_eq!(known.print_of(&rules.spell(&request(&other))), None);
    }

    #[test]
    fn what_is_kept_is_counted() {
        let headers = headers(&FIELDS);
        let request = Request {
            method: "POST",
            authority: "host",
            path_and_query: "/",
            headers: &headers,
            body: b"12345",
        };
        let known = known(&Rules::default(), &request);
        let lines = "application/json".len() + "identity".len() + 2 * size_of::<Box<[u8]>>();
        assert_eq!(known.bytes(), "POST".len() + "host".len() + "/".len() + lines);
    }
}
