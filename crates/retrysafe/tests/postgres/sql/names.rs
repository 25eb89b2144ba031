//! Do the SQL functions call things by the same names as the program?

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use retrysafe::core::conformance::Chance;
use retrysafe::core::fingerprint::{Request, Rules};
use retrysafe::core::flow::downstream_key;
use retrysafe::core::record::Fence;
use retrysafe::core::response::StoredResponse;
use retrysafe::core::scope::CredentialMark;
use retrysafe::core::{Id, Key, Scope};

use super::caller::{Asked, Caller, Told};
use crate::kit::{database, sql};

/// Texts that run into each other, and some that are no ASCII.
const TEXTS: [&str; 8] = ["", "a", "a:b", "1:a,", "acme", "ünïcode", "a, b", "/rides?x=%20"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scopes_keys_and_credentials_have_the_same_bytes() {
    let caller = Caller::connect(&database().await).await;
    let mut chance = Chance::new(7);
    for number in 0..60 {
        let parts: Vec<String> =
            (0..2 * chance.below(4)).map(|_| (*chance.pick(&TEXTS)).to_owned()).collect();
        let scope = Scope::of(parts.chunks(2).map(|pair| (&*pair[0], pair[1].as_bytes())));
        let key = format!("key {number} \"~");
        let sql = "SELECT retrysafe.scope(VARIADIC $1), retrysafe.record_id(retrysafe.scope(VARIADIC $1), $2)";
        let row = caller.ask(sql, &[&parts, &key]).await.unwrap();
        assert_eq!(row.get::<_, Vec<u8>>(0), scope.as_bytes(), "{parts:?}");
        let id = Id::of(&scope, &Key::new(&key).unwrap().digest());
        assert_eq!(row.get::<_, Vec<u8>>(1), id.as_bytes(), "{parts:?} {key}");
    }
    let secret = b"\0secret\xff";
    let sql = "SELECT retrysafe.credential_digest($1), retrysafe.credential_mark($1)";
    let row = caller.ask(sql, &[&&secret[..]]).await.unwrap();
    assert_eq!(row.get::<_, String>(0), Scope::digest_of(secret));
    assert_eq!(row.get::<_, Vec<u8>>(1), CredentialMark::of(secret).as_bytes());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fingerprint_is_the_programs_over_raw_bytes() {
    let caller = Caller::connect(&database().await).await;
    let rules = Rules::default().without_host().raw_bodies();
    let types = [
        None,
        Some("application/json"),
        Some(" Application/JSON ; charset=UTF-8"),
        Some("text/plain"),
        Some("multipart/form-data; boundary=B"),
    ];
    let codings = [None, Some("gzip"), Some(" GZIP , identity,br"), Some("identity")];
    let bodies: [&[u8]; 4] = [b"", b"{}", b"{ }", b"--B\r\n\0\xff"];
    let mut count = 0;
    for (method, path) in [("POST", "/rides"), ("PATCH", "/r%C3%BC?a=b"), ("post", "/rides")] {
        for content_type in types {
            for coding in codings {
                for body in bodies {
                    let mut headers = HeaderMap::new();
                    let fields = [("content-type", content_type), ("content-encoding", coding)];
                    for (name, value) in fields {
                        headers.extend(value.map(|value| {
                            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
                        }));
                    }
                    let request = Request {
                        method,
                        authority: "api.example",
                        path_and_query: path,
                        headers: &headers,
                        body,
                    };
                    let print = rules.print(&request);
                    let expected =
                        [&[print.scheme()][..], print.rules().as_bytes(), print.digest()].concat();
                    let sql = "SELECT retrysafe.fingerprint($1, $2, $3, $4, $5)";
                    let row = caller
                        .ask(sql, &[&method, &path, &body, &content_type, &coding])
                        .await
                        .unwrap();
                    assert_eq!(row.get::<_, Vec<u8>>(0), expected, "{request:?}");
                    count += 1;
                }
            }
        }
    }
    assert_eq!(count, 240);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_an_answers_headers_the_same_ones_are_kept() {
    let caller = Caller::connect(&database().await).await;
    let fields: [(&str, &[u8]); 20] = [
        ("Content-Type", b"application/json"),
        ("x-many", b"1"),
        ("x-many", b"2"),
        ("x-empty", b""),
        ("x-high", b"\x80\xe4\xff"),
        ("x-colon", b"a: b"),
        ("Location", b"/rides/7"),
        ("date", b"today"),
        ("Connection", b"X-Hop, close"),
        ("x-hop", b"1"),
        ("set-cookie", b"s=1"),
        ("RateLimit-Limit", b"1"),
        ("x-ratelimit-remaining", b"1"),
        ("traceparent", b"00"),
        ("x-request-id", b"r"),
        ("content-length", b"2"),
        ("retrysafe-outcome", b"completed"),
        ("x-b3-traceid", b"1"),
        ("etag", b"\"v1\""),
        ("idempotency-expires", b"x"),
    ];
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(
            HeaderName::from_bytes(name.as_bytes()).unwrap(),
            HeaderValue::from_bytes(value).unwrap(),
        );
    }
    let kept = StoredResponse::keep(StatusCode::OK, &headers, bytes::Bytes::new(), false);
    let mut kept: Vec<(String, Vec<u8>)> = kept
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
        .collect();
    // Latin-1, as HTTP libraries have it.
    let latin = |bytes: &[u8]| bytes.iter().map(|byte| char::from(*byte)).collect::<String>();
    let names: Vec<String> = fields.iter().map(|(name, _)| (*name).to_owned()).collect();
    let values: Vec<String> = fields.iter().map(|(_, value)| latin(value)).collect();
    let sql = "SELECT retrysafe.read_headers(retrysafe.header_lines((
        SELECT array_agg(ARRAY[n, v] ORDER BY place)
        FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS h (n, v, place))))::text[]";
    let flat = format!(
        "SELECT array_agg(f ORDER BY place) FROM unnest(({sql})) WITH ORDINALITY AS u (f, place)"
    );
    let flat: Vec<String> = caller.ask(&flat, &[&names, &values]).await.unwrap().get(0);
    let found: Vec<(String, Vec<u8>)> = flat
        .chunks(2)
        .map(|pair| (pair[0].clone(), pair[1].chars().map(|char| char as u8).collect()))
        .collect();
    // The program groups the lines of a name; their order is the same.
    kept.sort_by_key(|(name, _)| found.iter().position(|(other, _)| other == name));
    assert_eq!(found, kept);
    assert!(found.len() > 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_makes_no_sense_is_refused_with_a_word_about_it() {
    let caller = Caller::connect(&database().await).await;
    let plain = Asked::plain("k");
    for asked in [
        Asked { key: String::new(), ..plain.clone() },
        Asked { key: "ü".into(), ..plain.clone() },
        Asked { key: "k".repeat(256), ..plain.clone() },
        Asked { fingerprint: vec![1; 40], ..plain.clone() },
        Asked { mark: Some(vec![1; 15]), ..plain.clone() },
        Asked { lease_ms: 0, ..plain.clone() },
        Asked { ttl_ms: 0, ..plain.clone() },
    ] {
        assert_eq!(caller.begin(&asked).await, Err("RS007".into()), "{asked:?}");
    }
    for sql in [
        "SELECT retrysafe.scope('tenant')",
        "SELECT retrysafe.scope('tenant', NULL)",
        "SELECT retrysafe.fingerprint('POST', '/', NULL)",
        "SELECT retrysafe.settle_in('', 1, 'done')",
        "SELECT retrysafe.settle_in('', 1, NULL)",
        "SELECT retrysafe.settle_in('', 1, 'completed')",
        "SELECT retrysafe.settle_in('', 1, 'completed', 99)",
        "SELECT retrysafe.settle_in('', 1, 'completed', 200, ARRAY['a', 'b'])",
        "SELECT retrysafe.settle_in('', 1, 'completed', 200, ARRAY[['a b', 'b']])",
        "SELECT retrysafe.settle_in('', 1, 'completed', 200, ARRAY[['a', E'b\\nset-cookie: c']])",
        "SELECT retrysafe.settle_in('', 1, 'completed', 200, ARRAY[['a', '\u{20ac}']])",
        "SELECT retrysafe.settle_in('', 1, 'completed', 200, ARRAY[['a', NULL]])",
        "SELECT retrysafe.settle_in('', 1, 'completed', 200, NULL, NULL, 'after 1')",
        "SELECT retrysafe.advance_in('', 1, 'before 01', '')",
        "SELECT retrysafe.advance_in('', 1, 'before 1', NULL)",
        "CALL retrysafe.start('', 1, 'ride', '')",
        "CALL retrysafe.start('', 1, 'ride/1', NULL)",
        "CALL retrysafe.about_to_call('', 1, 'before 0', 'charge', '', 1000, 0)",
        "CALL retrysafe.about_to_call('', 1, 'before 0', NULL, '', 1000)",
        "CALL retrysafe.about_to_call('', 1, 'before 0', '', '', 1000)",
        "CALL retrysafe.about_to_call('', 1, NULL, 'charge', '', 1000)",
        "SELECT retrysafe.downstream_key('', NULL)",
        // A point of nowhere is not the start of a flow.
        "CALL retrysafe.advance('', 1, NULL, '')",
        "SELECT retrysafe.advance_in('', 1, NULL, '')",
        "SELECT retrysafe.call_not_sent('', 1, NULL)",
        // What is committed with it would be done again.
        "SELECT retrysafe.settle_in('', 1, 'retryable')",
        // A rollback would lose it.
        "SELECT retrysafe.advance_in('', 1, 'calling 0', '')",
        // Fences begin with 1.
        "SELECT retrysafe.guard('', 0)",
        "SELECT retrysafe.advance_in('', -1, 'before 0', '')",
        "SELECT retrysafe.settle_in('', 0, 'unknown')",
        "SELECT retrysafe.call_not_sent('', -1, 'calling 0')",
        "SELECT retrysafe.renew('', 0)",
        "CALL retrysafe.start('', 0, 'ride/1', '')",
        "CALL retrysafe.advance('', -1, 'calling 0', '')",
        "CALL retrysafe.about_to_call('', 0, 'before 0', 'charge', '', 1000)",
        "CALL retrysafe.settle('', -9, 'retryable')",
        "SELECT retrysafe.number_bytes(-1)",
    ] {
        assert_eq!(caller.run(sql).await, Err("RS007".into()), "{sql}");
    }
    // Nothing is nobody's: no fence at all is another one.
    let begun = caller.begin(&plain).await.unwrap();
    let told =
        caller.ask("SELECT retrysafe.settle_in($1, NULL, 'unknown')", &[&begun.id]).await.map(drop);
    assert_eq!(told, Err("RS001".into()));
    let told = caller
        .ask("CALL retrysafe.advance($1, NULL, 'before 0', '')", &[&begun.id])
        .await
        .map(drop);
    assert_eq!(told, Err("RS001".into()));
}

/// A key that is used again after its record has expired is another operation, and its calls have other keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_has_the_key_that_the_program_would_send() {
    let url = database().await;
    let caller = Caller::connect(&url).await;
    let asked = Asked { ttl_ms: 1_000, ..Asked::flow("k") };
    let mut keys = vec![];
    for _ in 0..2 {
        let begun = caller.begin(&asked).await.unwrap();
        let (id, birth) = begun.owner();
        for phase in ["charge", "réfund"] {
            let sql = "SELECT retrysafe.downstream_key($1, $2)";
            let key: String = caller.ask(sql, &[&id, &phase]).await.unwrap().get(0);
            let record = Id::from_bytes(id.try_into().unwrap());
            assert_eq!(key, *downstream_key(record, Fence(birth.cast_unsigned()), phase));
            keys.push(key);
        }
        // The same after a takeover.
        caller.start((id, birth), "ride/1", b"{}").await.unwrap();
        sql(&url, "UPDATE retrysafe_test.clock SET ms = ms + 60000").await;
        let taken = caller.begin(&asked).await.unwrap();
        assert!(taken.fence > begun.fence, "{taken:?}");
        let call = caller.about_to_call(taken.owner(), "before 0", b"x", None, 1).await.unwrap();
        assert_eq!(call.call_key.as_ref(), keys.iter().rev().nth(1));
        let done = caller.settle(taken.owner(), &Told::completed("done"), Some("calling 0")).await;
        assert_eq!(done.unwrap(), "completed");
        sql(&url, "UPDATE retrysafe_test.clock SET ms = ms + 1000").await;
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 4, "{keys:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_record_is_an_error_and_never_absent() {
    let caller = Caller::connect(&database().await).await;
    let begun = caller.begin(&Asked::plain("k")).await.unwrap();
    for damage in [
        "detail = set_byte(detail, 3, 9)",
        "since = since + 1",
        "request = set_byte(request, 0, 2)",
        "timeline = set_byte(timeline, 4, 1)",
        "lease_until = 1",
    ] {
        caller.run("BEGIN").await.unwrap();
        caller.run(&format!("UPDATE retrysafe.record SET {damage}")).await.unwrap();
        let told = caller.ask("SELECT retrysafe.look($1)", &[&begun.id]).await.map(drop);
        assert_eq!(told, Err("RS009".into()), "{damage}");
        caller.run("ROLLBACK").await.unwrap();
    }
    caller.run("UPDATE retrysafe.record SET version = version + 1").await.unwrap();
    assert_eq!(caller.begin(&Asked::plain("k")).await, Err("RS009".into()));
    assert_eq!(caller.renew(begun.owner(), 1, 1).await, Err("RS009".into()));
}
