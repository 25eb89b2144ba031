//! Which keys, scopes and calls do the vectors show, and what names a record?

use retrysafe_core::flow::downstream_key;
use retrysafe_core::key::{Key, KeySyntax};
use retrysafe_core::record::Fence;
use retrysafe_core::{Id, Scope};
use serde_json::{Value, json};

use crate::hex;

/// Header lines, and the key that they name under each syntax.
pub(crate) fn keys() -> Vec<Value> {
    let long = "k".repeat(255);
    let too_long = "k".repeat(256);
    let headers: [&[&str]; 20] = [
        &["order-17"],
        &["\"order-17\""],
        &["  order-17  "],
        &["\"order-17\";v=1"],
        &["\"with \\\"quotes\\\" and \\\\\""],
        &["\"with space\""],
        &["with space"],
        &["a,b"],
        &["a;b"],
        &["8e03978e-40d5-43dd-bc93-6894a57f9324"],
        &["\"8E03978E-40D5-43DD-BC93-6894A57F9324\""],
        &["8e03978e40d543ddbc936894a57f9324"],
        &[&long],
        &[&too_long],
        &[""],
        &["\"\""],
        &["\"open"],
        &["schlüssel"],
        &["one", "two"],
        &[],
    ];
    let of = |lines: &[&str], syntax| {
        let bytes = lines.iter().map(|line| line.as_bytes());
        match Key::parse_lines(bytes, syntax) {
            Ok(key) => json!({ "key": key.as_str(), "sha256": hex(key.digest().as_bytes()) }),
            Err(error) => json!({ "refused": format!("{error:?}") }),
        }
    };
    let row = |lines: &&[&str]| {
        json!({
            "lines": lines,
            "lenient": of(lines, KeySyntax::Lenient),
            "quoted": of(lines, KeySyntax::Quoted),
            "uuid": of(lines, KeySyntax::Uuid),
        })
    };
    headers.iter().map(row).collect()
}

/// Named parts, their encoding, and the name of the record that a key has there.
pub(crate) fn scopes() -> Vec<Value> {
    let token = Scope::digest_of(b"Bearer secret");
    let scopes: [&[(&str, &str)]; 7] = [
        &[("anonymous", "")],
        &[("tenant", "acme")],
        &[("tenant", "acme"), ("user", "7")],
        &[("user", "7"), ("tenant", "acme")],
        &[("a", "bc")],
        &[("ab", "c")],
        &[("token", &token), ("name", "Zoë 1:x,")],
    ];
    let key = Key::new("order-17").unwrap();
    let row = |parts: &&[(&str, &str)]| {
        let scope = Scope::of(parts.iter().map(|(name, value)| (*name, value.as_bytes())));
        let id = Id::of(&scope, &key.digest());
        json!({
            "parts": parts,
            "encoded": String::from_utf8(scope.as_bytes().to_vec()).unwrap(),
            "key": key.as_str(),
            "sha256": hex(id.as_bytes()),
        })
    };
    scopes.iter().map(row).collect()
}

/// Calls of flows, and the keys that their providers are sent.
pub(crate) fn downstream_keys() -> Vec<Value> {
    let scope = |tenant: &str| Scope::of([("tenant", tenant.as_bytes())]);
    let record = |tenant, key: &str| Id::of(&scope(tenant), &Key::new(key).unwrap().digest());
    let calls = [
        ("a call", record("acme", "order-17"), 1, "charge"),
        ("another phase of the same record", record("acme", "order-17"), 1, "refund"),
        ("the key used again after its record was gone", record("acme", "order-17"), 2, "charge"),
        ("another tenant", record("globex", "order-17"), 1, "charge"),
        ("another key", record("acme", "order-18"), 1, "charge"),
        ("a large birth", record("acme", "order-17"), (1 << 32) + 7, "charge"),
        ("a name beyond ASCII", record("acme", "order-17"), 1, "gebühr"),
        ("the longest birth", record("acme", "order-17"), u64::MAX, "charge"),
    ];
    let row = |(says, id, birth, phase): (&str, Id, u64, &str)| {
        json!({
            "says": says,
            "record": hex(id.as_bytes()),
            "birth": birth.to_string(),
            "phase": phase,
            "downstream_key": downstream_key(id, Fence(birth), phase),
        })
    };
    calls.map(row).to_vec()
}
