//! How much faster is our canonical fingerprint than the usual crates?
//!
//! The baseline parses with `serde_json`, prints with `serde_json_canonicalizer` and digests with `sha2`: the same digest,
//! but without the exactness checks and without method, path and headers, which ours digests too.

use std::hint::black_box;

use http::{HeaderMap, HeaderValue, header};
use retrysafe_core::fingerprint::{Request, Rules};
use sha2::{Digest, Sha256};

use crate::rounds::{self, ROUNDS};

pub fn run() {
    let small = order(5, 1);
    let large = format!("[{}]", (0..53).map(|n| order(7, n)).collect::<Vec<_>>().join(","));
    let documents = [
        ("1 KB, as a client writes it", small.clone()),
        ("1 KB, with spaces (Python's style)", spaced(&small)),
        ("1 KB, sorted and pretty-printed", pretty(&small)),
        ("1 KB, canonical already", canonical(&small)),
        ("64 KB, as a client writes it", large.clone()),
        ("64 KB, sorted and pretty-printed", pretty(&large)),
        ("64 KB, canonical already", canonical(&large)),
    ];

    println!("fingerprint of JSON, µs per document; ratio = baseline / ours, {ROUNDS} paired rounds\n");
    println!("| document                           |  baseline |      ours |  ratio |     range     |");
    println!("| ---------------------------------- | --------: | --------: | -----: | ------------- |");
    let headers = HeaderMap::from_iter([
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json; charset=utf-8")),
        (header::USER_AGENT, HeaderValue::from_static("bench/1")),
        (header::ACCEPT, HeaderValue::from_static("application/json")),
    ]);
    let rules = Rules::default();
    for (name, text) in documents {
        let request = Request {
            method: "POST",
            authority: "api.example",
            path_and_query: "/v1/orders",
            headers: &headers,
            body: text.as_bytes(),
        };
        let compared = rounds::compare(
            || {
                black_box(baseline(black_box(text.as_bytes())));
            },
            || {
                black_box(rules.print(black_box(&request)));
            },
        );
        println!("{} {} bytes", compared.row(name), text.len());
    }
}

fn baseline(text: &[u8]) -> [u8; 32] {
    let value: serde_json::Value = serde_json::from_slice(text).expect("the documents are JSON");
    let form = serde_json_canonicalizer::to_vec(&value).expect("the documents have a canonical form");
    Sha256::digest(form).into()
}

/// An order as a shop would send it: members as its programmer wrote them down, not sorted.
fn order(items: usize, seed: usize) -> String {
    let items: Vec<_> = (0..items)
        .map(|n| {
            format!(
                r#"{{"sku":"SKU-{:05}-{n}","name":"Wool socks, grün, size {}","quantity":{},"unit_price":{}.{:02},"currency":"EUR","gift":{}}}"#,
                seed * 37 + n, 36 + n, n + 1, 9 + seed + n, (seed * 7 + n * 13) % 100, n % 2 == 0,
            )
        })
        .collect();
    format!(
        r#"{{"order_id":"ord_{seed:08x}a6b1","customer":{{"id":{},"email":"someone{seed}@example.com","name":"Jo \"J\" Doe","address":{{"street":"1 Long Lane","city":"København","zip":"1050","country":"DK"}}}},"amount":{}.{:02},"currency":"EUR","capture":true,"created":17000000{:02},"discount":null,"items":[{}],"metadata":{{"source":"web","campaign":"spring-sale","session":"f3b0c442-98fc-1c14-9afb-f4c8996fb924"}},"note":"Please leave at the door.\nThank you!"}}"#,
        1000 + seed, 120 + seed, (seed * 31) % 100, seed % 100, items.join(","),
    )
}

fn value(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect("the documents are JSON")
}

fn pretty(text: &str) -> String {
    serde_json::to_string_pretty(&value(text)).expect("a value prints")
}

fn canonical(text: &str) -> String {
    serde_json_canonicalizer::to_string(&value(text)).expect("a value prints")
}

/// With a space after every colon and comma outside strings.
fn spaced(text: &str) -> String {
    let (mut spaced, mut inside, mut escaped) = (String::new(), false, false);
    for character in text.chars() {
        spaced.push(character);
        if inside {
            inside = escaped || character != '"';
            escaped = !escaped && character == '\\';
        } else if character == '"' {
            inside = true;
        } else if matches!(character, ':' | ',') {
            spaced.push(' ');
        }
    }
    spaced
}
