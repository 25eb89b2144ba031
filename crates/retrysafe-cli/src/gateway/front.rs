//! Which requests are refused at the door?
//!
//! The HTTP parser is lenient where we must not be. Whatever two servers could read differently is
//! refused here, before any rule is looked up, so that no spelling of a covered request passes as an
//! uncovered one.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::Authority;
use http::{Method, Version};
use retrysafe_core::problem::Refusal;
use retrysafe_core::wire;

use super::guard::GuardedHeaders;
use super::named_fields::NamedFields;

/// Checks what does not depend on a request's rule.
///
/// # Errors
///
/// The refusal.
pub(crate) fn check(
    parts: &Parts,
    named: NamedFields,
    guard: &GuardedHeaders,
) -> Result<(), Refusal> {
    method(&parts.method)?;
    target(parts)?;
    if named.transfer_encoding {
        framing(parts)?;
    }
    guard.check(&parts.headers, named)?;
    let expected = if named.expect { parts.headers.get(header::EXPECT) } else { None };
    match expected {
        Some(value) if !value.as_bytes().eq_ignore_ascii_case(b"100-continue") => {
            Err(Refusal::ExpectationFailed)
        }
        Some(_) | None => Ok(()),
    }
}

/// Checks the headers of a request that we judge by them. Servers read bytes outside ASCII in several
/// ways, so two callers could be one to us and two to the upstream. The key has rules of its own.
///
/// # Errors
///
/// The refusal.
pub(crate) fn check_ascii(headers: &HeaderMap, key_header: &HeaderName) -> Result<(), Refusal> {
    let is_ascii = |(name, value): (&HeaderName, &HeaderValue)| {
        name == key_header || value.as_bytes().is_ascii()
    };
    if headers.iter().all(is_ascii) {
        Ok(())
    } else {
        Err(Refusal::Malformed("a header has a byte outside ASCII"))
    }
}

/// The method that a request asks to be taken for, if it names one.
///
/// # Errors
///
/// If it names several, or none that is a method.
pub(crate) fn asked_method(headers: &HeaderMap) -> Result<Option<Method>, Refusal> {
    let mut asked = None;
    for named in wire::method_overrides(headers) {
        let method = Method::from_bytes(&named.to_ascii_uppercase())
            .map_err(|_| Refusal::Malformed("the method override names no method"))?;
        match &asked {
            Some(other) if *other != method => {
                return Err(Refusal::Malformed("method overrides name different methods"));
            }
            Some(_) | None => asked = Some(method),
        }
    }
    Ok(asked)
}

/// Methods are compared by case, and some servers do not: `post` would be another method to us and
/// the same one to them.
fn method(method: &Method) -> Result<(), Refusal> {
    if *method == Method::CONNECT || *method == Method::TRACE {
        return Err(Refusal::MethodRefused);
    }
    if method.as_str().bytes().any(|b| b.is_ascii_lowercase()) {
        return Err(Refusal::Malformed("the method is not in capitals"));
    }
    Ok(())
}

/// One authority, however often it is named.
fn target(parts: &Parts) -> Result<(), Refusal> {
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(Refusal::Malformed("there is more than one Host header"));
    }
    let host = match host {
        None => None,
        // Most requests name a host in plain letters, and name it once: there is nothing to compare it with.
        Some(value) if parts.uri.authority().is_none() && is_plain_host(value.as_bytes()) => {
            return Ok(());
        }
        Some(value) if value.is_empty() => {
            return Err(Refusal::Malformed("the Host header is empty"));
        }
        Some(value) => match Authority::try_from(value.as_bytes()) {
            Ok(authority) if !authority.as_str().contains('@') => Some(authority),
            Ok(_) | Err(_) => return Err(Refusal::Malformed("the Host header names no host")),
        },
    };
    match (parts.uri.authority(), &host) {
        (Some(named), Some(host)) if named != host => {
            Err(Refusal::Malformed("target and Host header name different hosts"))
        }
        (Some(named), _) if named.as_str().contains('@') => {
            Err(Refusal::Malformed("the target holds a password"))
        }
        (None, None) if parts.version == Version::HTTP_11 => {
            Err(Refusal::Malformed("the Host header is missing"))
        }
        (None, None) if parts.version == Version::HTTP_2 => {
            Err(Refusal::Malformed("the authority is missing"))
        }
        (Some(_) | None, _) => Ok(()),
    }
}

/// Whether it is a name or an address of letters, digits, dots and hyphens, and perhaps a port: nobody takes that for anything else.
fn is_plain_host(host: &[u8]) -> bool {
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    let name_end = host.iter().position(|byte| !is_of_name(byte));
    let (name, rest) = host.split_at_checked(name_end.unwrap_or(host.len())).unwrap_or_default();
    let is_port = |port: &[u8]| !port.is_empty() && port.iter().all(u8::is_ascii_digit);
    !name.is_empty() && (rest.is_empty() || rest.strip_prefix(b":").is_some_and(is_port))
}

/// One transfer coding, or none: the only framing that every server reads alike. Lengths that differ
/// do not get here: neither HTTP/1.1's parser nor HTTP/2's lets them pass.
fn framing(parts: &Parts) -> Result<(), Refusal> {
    let mut codings = parts.headers.get_all(header::TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else { return Ok(()) };
    if codings.next().is_some() {
        return Err(Refusal::Malformed("there is more than one Transfer-Encoding header"));
    }
    let text = coding.to_str().unwrap_or_default();
    let mut names = text.split(',').map(str::trim);
    let only = names.next().is_some_and(|name| name.eq_ignore_ascii_case("chunked"));
    match (only, names.next()) {
        (true, None) => Ok(()),
        (true, Some(_)) => Err(Refusal::Malformed("the body is chunked more than once")),
        (false, _) => Err(Refusal::CodingUnsupported),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;
    use retrysafe_core::key::IDEMPOTENCY_KEY;

    fn checked(request: http::request::Builder) -> Result<(), Refusal> {
        let parts = request.body(()).unwrap().into_parts().0;
        check(&parts, NamedFields::of(&parts.headers), &GuardedHeaders::built_in())
    }

    fn post() -> http::request::Builder {
        Request::builder().method("POST").uri("/x").header("host", "api.test")
    }

    #[test]
    fn an_ordinary_request_passes() {
        assert_eq!(checked(post()), Ok(()));
        assert_eq!(checked(post().header("expect", "100-Continue")), Ok(()));
        assert_eq!(checked(post().header("transfer-encoding", "CHUNKED")), Ok(()));
        assert_eq!(checked(post().header("x_of_their_own", "1")), Ok(()));
        let absolute = Request::builder().method("POST").uri("http://api.test/x");
        assert_eq!(checked(absolute.header("host", "api.test")), Ok(()));
    }

    #[test]
    fn what_servers_read_differently_is_refused() {
        for (request, status) in [
            (Request::builder().method("post").uri("/x").header("host", "a"), 400),
            (Request::builder().method("TRACE").uri("/x").header("host", "a"), 405),
            (Request::builder().method("CONNECT").uri("a:443").header("host", "a:443"), 405),
            (Request::builder().method("POST").uri("/x"), 400),
            (post().header("host", "other"), 400),
            (Request::builder().uri("http://b/x").header("host", "a"), 400),
            (Request::builder().uri("/x").header("host", "u:p@a"), 400),
            (post().header("transfer-encoding", "gzip, chunked"), 501),
            (post().header("transfer-encoding", "chunked, chunked"), 400),
            (
                post()
                    .header("transfer-encoding", "chunked")
                    .header("transfer-encoding", "chunked"),
                400,
            ),
            (post().header("expect", "a-miracle"), 417),
            (post().header("x_http-method_override", "PUT"), 400),
            (post().header("x_original_url", "/pay"), 400),
            (post().header("idempotency_key", "k"), 400),
            (post().header("x-api_key", "k"), 400),
            (post().header("retrysafe_fence", "9"), 400),
        ] {
            let refusal = checked(request).unwrap_err();
            let problem = refusal.problem(&Default::default());
            assert_eq!(problem.status.as_u16(), status, "{refusal:?}");
        }
    }

    #[test]
    fn a_plain_host_is_one_that_the_parser_would_take() {
        for host in ["a", "api.test", "api-1.test:8080", "10.0.0.7:1", "-", ".", "A"] {
            assert!(is_plain_host(host.as_bytes()), "{host}");
            assert!(Authority::try_from(host).is_ok_and(|it| it == host), "{host}");
        }
        for host in ["", ":", "a:", ":80", "a:b", "a:80:80", "u@a", "a/b", "[::1]", "a%20", "a b"] {
            assert!(!is_plain_host(host.as_bytes()), "{host}");
        }
    }

    #[test]
    fn bytes_outside_ascii_are_left_to_the_rules_of_the_key() {
        let headers = |name: &'static str, value: &[u8]| {
            HeaderMap::from_iter([(
                HeaderName::from_static(name),
                HeaderValue::from_bytes(value).unwrap(),
            )])
        };
        assert!(check_ascii(&headers("x-name", b"caf\xc3\xa9"), &IDEMPOTENCY_KEY).is_err());
        assert_eq!(check_ascii(&headers("x-name", b"cafe"), &IDEMPOTENCY_KEY), Ok(()));
        assert_eq!(
            check_ascii(&headers("idempotency-key", b"caf\xc3\xa9"), &IDEMPOTENCY_KEY),
            Ok(())
        );
        assert_eq!(
            checked(post().header("x-name", HeaderValue::from_bytes(b"\xff").unwrap())),
            Ok(())
        );
    }

    #[test]
    fn overrides_are_read_from_every_header() {
        let asked = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, value.parse().unwrap());
            }
            asked_method(&headers)
        };
        assert_eq!(asked(&[]), Ok(None));
        assert_eq!(asked(&[("x-http-method", "post")]), Ok(Some(Method::POST)));
        assert_eq!(asked(&[("x-method-override", "PUT")]), Ok(Some(Method::PUT)));
        assert!(asked(&[("x-http-method", "GET"), ("x-method-override", "POST")]).is_err());
        assert!(asked(&[("x-http-method", "a b")]).is_err());
    }
}
