//! Do the published vectors say what this code does, and does somebody else's code agree?
//!
//! The files of `docs/vectors/` are for people who write another implementation. They are made here, from this crate, and
//! compared with what is checked in. `UPDATE_VECTORS=1 cargo test -p retrysafe-core --test vectors` writes them anew:
//! fingerprints and names are stored in records, so a change of a file is a change of the format.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "this is how a test fails"
)]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the vectors are files, and the other implementation is a program"
)]

mod fingerprints;
mod names;

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

#[test]
fn the_vectors_of_keys_are_what_this_code_does() {
    compare("keys", &names::keys());
}

#[test]
fn the_vectors_of_scopes_are_what_this_code_does() {
    compare("scopes", &names::scopes());
}

#[test]
fn the_vectors_of_fingerprints_are_what_this_code_does() {
    compare("fingerprints", &fingerprints::all());
}

#[test]
fn the_vectors_of_downstream_keys_are_what_this_code_does() {
    compare("downstream_keys", &names::downstream_keys());
}

/// Another language, another reading of the page, the same digests.
#[test]
fn a_second_implementation_in_python_agrees_with_all_vectors() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/second_implementation.py");
    let output = Command::new("python3").arg(script).arg(folder()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let all = [names::keys(), names::scopes(), names::downstream_keys(), fingerprints::all()];
    let count = all.map(|vectors| vectors.len());
    assert_eq!(said.trim(), format!("{} vectors agree", count.iter().sum::<usize>()));
}

/// The vectors could be wrong without anybody noticing if the judge agreed with everything.
#[test]
fn the_second_implementation_notices_a_changed_vector() {
    let names = ["keys", "scopes", "downstream_keys", "fingerprints"];
    for changed in names {
        let wrong =
            std::env::temp_dir().join(format!("retrysafe-{changed}-{}", std::process::id()));
        std::fs::create_dir_all(&wrong).unwrap();
        for name in names {
            let text = std::fs::read_to_string(folder().join(format!("{name}.json"))).unwrap();
            // The first digit of the first digest.
            let member = if name == "downstream_keys" { "downstream_key" } else { "sha256" };
            let (before, after) = text.split_once(&format!("\"{member}\": \"")).unwrap();
            let digit = if after.starts_with('0') { "1" } else { "0" };
            let other = format!("{before}\"{member}\": \"{digit}{}", &after[1..]);
            let text = if name == changed { other } else { text };
            std::fs::write(wrong.join(format!("{name}.json")), text).unwrap();
        }
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/second_implementation.py");
        let output = Command::new("python3").arg(script).arg(&wrong).output().unwrap();
        std::fs::remove_dir_all(&wrong).unwrap();
        assert!(!output.status.success(), "a changed digest of {changed} was taken for right");
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/vectors")
}

/// Compares vectors with their file, or writes the file if that was asked for. What the documents mean is compared, not
/// how they are written: the order of members is a feature of the library that writes them.
fn compare(name: &str, vectors: &[Value]) {
    let path = folder().join(format!("{name}.json"));
    let made = json!(vectors);
    if std::env::var_os("UPDATE_VECTORS").is_some() {
        std::fs::write(&path, serde_json::to_string_pretty(&made).unwrap() + "\n").unwrap();
    }
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let rows = kept.as_array().unwrap();
    assert_eq!(rows.len(), vectors.len(), "{}", path.display());
    for (row, vector) in rows.iter().zip(vectors) {
        assert_eq!(row, vector, "{} is not what this code does now", path.display());
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
