//! Which headers may a caller spell in one way only?
//!
//! Servers in the tradition of CGI take whatever is neither a letter nor a digit in a header's name for a hyphen: `X_Tenant`
//! reaches their application as `X-Tenant` does. What we judge a request by, or say to the upstream ourselves, must not reach
//! it in a spelling that we do not see. So a request with such a spelling is refused, covered or not; an answer loses such a
//! header. For the same reason `Connection` may not name one of them, because what it names ends here.

use std::borrow::Cow;
use std::collections::BTreeSet;

use http::header::{self, HeaderMap, HeaderName};
use retrysafe_core::credential::API_KEYS;
use retrysafe_core::problem::Refusal;
use retrysafe_core::response::named_by_connection;

use super::named_fields::NamedFields;
use crate::config::{Config, ScopePart};

/// What counts on every route: where a request ends, what its body is, who is asking, when it was first sent, what it asks to
/// be taken for, and our own marks.
const COUNTING: [&str; 17] = [
    "idempotency-key",
    "authorization",
    "cookie",
    "content-length",
    "transfer-encoding",
    "content-type",
    "content-encoding",
    "proxy-authorization",
    "repeatability-first-sent",
    "x-method-override",
    "x-original-url",
    "x-original-uri",
    "x-rewrite-url",
    "x-override-url",
    "idempotent-replayed",
    "idempotency-expires",
    "x-request-id",
];

/// The same, by how their names begin.
const COUNTING_FAMILIES: [&str; 4] = ["retrysafe-", "x-forwarded-", "x-real-", "x-http-method"];

/// What `Connection` may name all the same. Where a request ends is no matter of one hop, so it is not taken off.
const FRAMING: [HeaderName; 2] = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING];

/// The headers of one configuration that may be spelt in one way only.
#[derive(Debug)]
pub(crate) struct GuardedHeaders {
    names: BTreeSet<Box<str>>,
    /// Those that mark replays: only we set them.
    markers: Vec<HeaderName>,
}

impl GuardedHeaders {
    pub(crate) fn new(config: &Config) -> Self {
        let routes = || config.routes.iter().chain([&config.defaults]);
        let keys = routes().map(|route| &route.policy.key_header);
        let mut markers = Vec::new();
        for route in routes() {
            if !markers.contains(&route.policy.replay_marker) {
                markers.push(route.policy.replay_marker.clone());
            }
        }
        let scope_headers = routes().flat_map(|route| &route.scope).filter_map(|part| match part {
            ScopePart::Header(name) => Some(name),
            ScopePart::Credential
            | ScopePart::Cookie(_)
            | ScopePart::Claim(_)
            | ScopePart::Route
            | ScopePart::Const(_) => None,
        });
        let configured = scope_headers
            .chain(config.fingerprint.headers())
            .chain(keys)
            .chain(&markers)
            .chain(&API_KEYS);
        let names = configured.map(HeaderName::as_str).chain(COUNTING).map(Into::into).collect();
        Self { names, markers }
    }

    /// What is guarded where nothing is configured.
    #[cfg(test)]
    pub(crate) fn built_in() -> Self {
        let file = crate::config::File { upstream: Some("http://x".into()), ..Default::default() };
        Self::new(&crate::config::resolve(&file).unwrap())
    }

    /// Refuses a request in which a header that counts is spelt differently, or would end here.
    ///
    /// # Errors
    ///
    /// The refusal.
    pub(crate) fn check(&self, headers: &HeaderMap, named: NamedFields) -> Result<(), Refusal> {
        for name in headers.keys() {
            if let Cow::Owned(read) = as_read(name)
                && self.counts(&read)
            {
                return Err(Refusal::Malformed(
                    "a header that counts is spelt with another character in the place of a hyphen",
                ));
            }
        }
        let ends_here = |name: &HeaderName| self.counts(name.as_str()) && !FRAMING.contains(name);
        if named.connection && named_by_connection(headers).iter().any(ends_here) {
            return Err(Refusal::Malformed("Connection names a header that counts"));
        }
        Ok(())
    }

    /// Whether a header marks replays on any route.
    pub(crate) fn is_marker(&self, name: &HeaderName) -> bool {
        self.markers.contains(name)
    }

    fn counts(&self, name: &str) -> bool {
        COUNTING_FAMILIES.iter().any(|family| name.starts_with(family)) || self.names.contains(name)
    }
}

/// A header's name as such a server reads it. Borrowed if that is how it is spelt.
pub(crate) fn as_read(name: &HeaderName) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let name = name.as_str();
    if name.bytes().all(is_plain) {
        return Cow::Borrowed(name);
    }
    let read = name.bytes().map(|byte| if is_plain(byte) { char::from(byte) } else { '-' });
    Cow::Owned(read.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file::{File, FingerprintFile, RouteSettings};

    fn guard() -> GuardedHeaders {
        let route = RouteSettings {
            path: Some("/named".into()),
            key_header: Some("X-Named-Key".into()),
            replay_marker: Some("X-Again".into()),
            ..RouteSettings::default()
        };
        let defaults = RouteSettings {
            scope: Some(vec!["header:X-Tenant".into()]),
            ..RouteSettings::default()
        };
        let fingerprint = FingerprintFile {
            headers: Some(vec!["Api-Version".into()]),
            ..FingerprintFile::default()
        };
        let upstream = Some("http://x".into());
        let file = File { upstream, defaults, fingerprint, route: vec![route], ..File::default() };
        GuardedHeaders::new(&crate::config::resolve(&file).unwrap())
    }

    fn checked(name: &'static str, value: &'static str) -> Result<(), Refusal> {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        guard().check(&headers, NamedFields::of(&headers))
    }

    #[test]
    fn a_header_that_counts_is_spelt_in_one_way() {
        for name in [
            "x-tenant",
            "idempotency-key",
            "x-named-key",
            "x-again",
            "api-version",
            "x-forwarded-for",
            "retrysafe-fence",
            "x_of_their_own",
            "x_tenant_of_theirs",
        ] {
            assert_eq!(checked(name, "1"), Ok(()), "{name}");
        }
        for name in [
            "x_tenant",
            "x.tenant",
            "x~tenant",
            "idempotency_key",
            "x-named_key",
            "x_again",
            "api_version",
            "x_forwarded_for",
            "x-forwarded_host",
            "x_real_ip",
            "idempotent_replayed",
            "idempotency_expires",
            "retrysafe_fence",
            "retrysafe.anything",
            "content_length",
            "transfer_encoding",
            "content_type",
            "x_request_id",
            "x_http_method_override",
            "x_original_url",
            "x-api_key",
            "repeatability_first_sent",
        ] {
            assert!(checked(name, "1").is_err(), "{name}");
        }
    }

    #[test]
    fn a_header_that_counts_does_not_end_here() {
        for line in ["close", "keep-alive, x-other", "te, content-length"] {
            assert_eq!(checked("connection", line), Ok(()), "{line}");
        }
        for line in ["close, X-Tenant", "x-named-key", "X-Forwarded-For", "retrysafe-id"] {
            assert!(checked("connection", line).is_err(), "{line}");
        }
    }
}
