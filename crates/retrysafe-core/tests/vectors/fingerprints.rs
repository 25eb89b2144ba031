//! Which requests do the vectors show, under which rules, and what is their fingerprint?

use http::{HeaderMap, HeaderName, HeaderValue};
use retrysafe_core::canonical::{Pointer, canonicalise};
use retrysafe_core::fingerprint::{Request, Rules};
use serde_json::{Value, json};

use crate::hex;

/// What of a request differs from the plain one.
#[derive(Clone, Copy)]
struct Case<'a> {
    says: &'a str,
    method: &'a str,
    authority: &'a str,
    target: &'a str,
    headers: &'a [(&'a str, &'a str)],
    body: &'a [u8],
    rules: RuleChoice<'a>,
}

/// The rules, as a configuration would name them.
#[derive(Clone, Copy)]
struct RuleChoice<'a> {
    headers: &'a [&'a str],
    include: &'a [&'a str],
    exclude: &'a [&'a str],
    aliases: &'a [&'a str],
    without_host: bool,
    raw_bodies: bool,
}

const PLAIN_RULES: RuleChoice = RuleChoice {
    headers: &[],
    include: &[],
    exclude: &[],
    aliases: &[],
    without_host: false,
    raw_bodies: false,
};

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

const PLAIN: Case = Case {
    says: "a payment",
    method: "POST",
    authority: "api.example",
    target: "/payments",
    headers: JSON,
    body: br#"{"amount":499,"currency":"eur"}"#,
    rules: PLAIN_RULES,
};

pub(crate) fn all() -> Vec<Value> {
    [requests(), documents(), forms(), rules()].concat().iter().map(vector).collect()
}

/// Everything around the body.
fn requests() -> Vec<Case<'static>> {
    vec![
        PLAIN,
        Case { says: "another method", method: "PATCH", ..PLAIN },
        Case { says: "another path", target: "/refunds", ..PLAIN },
        Case { says: "a query", target: "/payments?b=2&a=1", ..PLAIN },
        Case { says: "a query in another order", target: "/payments?a=1&b=2", ..PLAIN },
        Case { says: "another spelling of the path", target: "/pay%6dents", ..PLAIN },
        Case { says: "the host in capitals, with a port", authority: "API.Example:443", ..PLAIN },
        Case { says: "a dot at the host's end", authority: "api.example.", ..PLAIN },
        Case { says: "another host", authority: "api.test", ..PLAIN },
        Case { says: "localhost", authority: "localhost:8080", ..PLAIN },
        Case { says: "the same machine by number", authority: "127.8.9.1", ..PLAIN },
        Case { says: "the same machine in IPv6", authority: "[::1]:8080", ..PLAIN },
        Case { says: "an address in IPv6", authority: "[FE80:0::1]:80", ..PLAIN },
        Case { says: "a site below localhost", authority: "shop.localhost", ..PLAIN },
        Case { says: "no media type", headers: &[], ..PLAIN },
        Case {
            says: "a media type with a parameter",
            headers: &[("content-type", "Application/JSON; charset=utf-8")],
            ..PLAIN
        },
        Case {
            says: "a media type that ends with +json",
            headers: &[("content-type", "application/merge-patch+json")],
            ..PLAIN
        },
        Case { says: "text", headers: &[("content-type", "text/plain")], ..PLAIN },
        Case {
            says: "two media types",
            headers: &[("content-type", "application/json"), ("content-type", "text/plain")],
            ..PLAIN
        },
        Case {
            says: "a content coding: the body counts byte by byte",
            headers: &[("content-type", "application/json"), ("content-encoding", "GZIP")],
            body: b"\x1f\x8b\x08\x00not really",
            ..PLAIN
        },
        Case {
            says: "the coding identity is none",
            headers: &[("content-type", "application/json"), ("content-encoding", "identity")],
            ..PLAIN
        },
    ]
}

/// JSON bodies: what has a canonical form, and what counts byte by byte.
fn documents() -> Vec<Case<'static>> {
    let bodies: [(&str, &[u8]); 24] = [
        ("other spacing and order", b"{ \"currency\": \"eur\",\n\t\"amount\": 499 }"),
        ("another spelling of a number", br#"{"amount":4.990e2,"currency":"eur"}"#),
        ("another spelling of a text", br#"{"amount":499,"currency":"\u0065ur"}"#),
        ("another amount", br#"{"amount":500,"currency":"eur"}"#),
        ("an empty body", b""),
        ("an empty object", b" {} "),
        ("a bare number", b"1e21"),
        ("numbers, large and small", b"[1e20,1e21,0.000001,1e-7,123456789012345680,-1.5,0]"),
        ("a number between two doubles counts byte by byte", b"[9007199254740993]"),
        ("a number with more digits than a double", b"[0.1000000000000000055511151231257827]"),
        ("minus nothing", b"[-0]"),
        ("a number too large", b"[1e400]"),
        ("escapes", br#"["\"\\\/\b\f\n\r\t\u0007\u001f\u007f\u20ac"]"#),
        ("texts beyond the basic plane", "[\"😀\",\"\\ud83d\\ude00\"]".as_bytes()),
        ("members sorted by UTF-16", "{\"\u{fb33}\":1,\"😀\":2,\"ö\":3,\"a\":4,\"\":5}".as_bytes()),
        ("a lone surrogate counts byte by byte", br#"["\ud800"]"#),
        ("a repeated member counts byte by byte", br#"{"a":1,"a":1}"#),
        ("a member repeated by an escape", br#"{"a":1,"\u0061":1}"#),
        ("not JSON: a comma too many", b"[1,]"),
        ("not JSON: a leading zero", b"[01]"),
        ("not JSON: NaN", b"[NaN]"),
        ("not UTF-8", b"\"\xff\""),
        ("literals", b"[true,false,null]"),
        ("a number that begins with a plus is not JSON", b"[+1]"),
    ];
    bodies.into_iter().map(|(says, body)| Case { says, body, ..PLAIN }).collect()
}

/// Bodies in parts.
fn forms() -> Vec<Case<'static>> {
    const ONE: &[(&str, &str)] = &[("content-type", "multipart/form-data; boundary=one")];
    const OTHER: &[(&str, &str)] = &[("content-type", "multipart/form-data; boundary=\"other\"")];
    let form = Case {
        says: "a form",
        headers: ONE,
        body: b"--one\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--one--\r\n",
        ..PLAIN
    };
    vec![
        form,
        Case {
            says: "the same form under another boundary",
            headers: OTHER,
            body:
                b"--other\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--other--\r\n",
            ..form
        },
        Case {
            says: "without the line end at its end",
            body: b"--one\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--one--",
            ..form
        },
        Case {
            says: "something ahead of the first part: byte by byte",
            body:
                b"x\r\n--one\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--one--\r\n",
            ..form
        },
        Case {
            says: "a bare line feed: byte by byte",
            body: b"--one\r\nContent-Disposition: form-data; name=\"a\"\n\r\n\r\n1\r\n--one--\r\n",
            ..form
        },
        Case {
            says: "another kind of parts: byte by byte",
            headers: &[("content-type", "multipart/mixed; boundary=one")],
            ..form
        },
    ]
}

/// Rules that an operator chooses.
fn rules() -> Vec<Case<'static>> {
    let with = |says, rules| Case { says, rules, ..PLAIN };
    const ORDER: &[u8] =
        br#"{"order":{"id":7,"sent_at":12},"items":[{"n":1},{"n":2}],"trace":"x"}"#;
    const VERSION: &[(&str, &str)] = &[("content-type", "application/json"), ("x-version", "2")];
    let plain = PLAIN_RULES;
    vec![
        with("a header counts, and is absent", RuleChoice { headers: &["x-version"], ..plain }),
        Case {
            headers: VERSION,
            ..with("a header counts", RuleChoice { headers: &["x-version"], ..plain })
        },
        Case {
            body: ORDER,
            ..with(
                "members are excluded",
                RuleChoice { exclude: &["/order/sent_at", "/trace"], ..plain },
            )
        },
        Case {
            body: ORDER,
            ..with(
                "members are included",
                RuleChoice { include: &["/order/id", "/items/1"], ..plain },
            )
        },
        Case {
            body: ORDER,
            ..with(
                "both",
                RuleChoice { include: &["/order"], exclude: &["/order/sent_at"], ..plain },
            )
        },
        Case {
            authority: "api.eu.example",
            ..with(
                "two names of one API",
                RuleChoice { aliases: &["api.example", "api.eu.example"], ..plain },
            )
        },
        with("the host does not count", RuleChoice { without_host: true, ..plain }),
        with("every body counts byte by byte", RuleChoice { raw_bodies: true, ..plain }),
    ]
}

fn vector(case: &Case<'_>) -> Value {
    let mut headers = HeaderMap::new();
    for (name, value) in case.headers {
        let name = HeaderName::try_from(*name).unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    let rules = chosen(case.rules);
    let print = rules.print(&Request {
        method: case.method,
        authority: case.authority,
        path_and_query: case.target,
        headers: &headers,
        body: case.body,
    });
    let body = match std::str::from_utf8(case.body) {
        Ok(text) => json!({ "text": text }),
        Err(_) => json!({ "hex": hex(case.body) }),
    };
    let canonical = canonicalise(case.body).map(|form| String::from_utf8(form).unwrap());
    json!({
        "says": case.says,
        "method": case.method,
        "authority": case.authority,
        "target": case.target,
        "headers": case.headers,
        "body": body,
        "canonical_json": canonical,
        "rules": {
            "headers": case.rules.headers,
            "include": case.rules.include,
            "exclude": case.rules.exclude,
            "host_aliases": case.rules.aliases,
            "without_host": case.rules.without_host,
            "raw_bodies": case.rules.raw_bodies,
            "id": hex(rules.id().as_bytes()),
        },
        "scheme": print.scheme(),
        "sha256": hex(print.digest()),
    })
}

fn chosen(choice: RuleChoice<'_>) -> Rules {
    let mut rules = Rules::default();
    for name in choice.headers {
        rules = rules.header(HeaderName::try_from(*name).unwrap());
    }
    for pointer in choice.include {
        rules = rules.include(Pointer::parse(pointer).unwrap());
    }
    for pointer in choice.exclude {
        rules = rules.exclude(Pointer::parse(pointer).unwrap());
    }
    if !choice.aliases.is_empty() {
        rules = rules.host_aliases(choice.aliases.iter().copied());
    }
    if choice.without_host {
        rules = rules.without_host();
    }
    if choice.raw_bodies {
        rules = rules.raw_bodies();
    }
    rules
}
