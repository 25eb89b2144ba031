//! Is every structured-field Item that is a String read as a key, and nothing else?
//!
//! Only Items concern us. With [`KeySyntax::Quoted`] a String must come out as published, every other type and every
//! malformed text must be refused. What we refuse although the standard allows it is counted as policy.

use std::path::Path;

use retrysafe_core::key::{Key, KeySyntax};
use serde_json::Value;

use super::{Counts, files, shown};
use crate::Error;

pub(super) use retrysafe_core::key::KEY_CHARS_MAX;

pub(super) fn run(folder: &Path) -> Result<Vec<(String, Counts)>, Error> {
    let mut all = Vec::new();
    let serialisation = files(&folder.join("serialisation-tests"), "json")?;
    for path in files(folder, "json")?.into_iter().chain(serialisation) {
        let records: Vec<Value> = serde_json::from_slice(&std::fs::read(&path)?)?;
        let mut counts = Counts::default();
        for record in &records {
            judge(record, &mut counts)?;
        }
        all.push((shown(&path), counts));
    }
    Ok(all)
}

fn judge(record: &Value, counts: &mut Counts) -> Result<(), Error> {
    let flag = |name: &str| record.get(name).and_then(Value::as_bool).unwrap_or(false);
    if record.get("header_type").and_then(Value::as_str) != Some("item") {
        counts.beside += 1;
        return Ok(());
    }
    // Records of `serialisation-tests/` hold no field lines, but what must be written can be read back.
    let Some(lines) =
        record.get("raw").or_else(|| record.get("canonical")).and_then(Value::as_array)
    else {
        counts.beside += 1;
        return Ok(());
    };
    let lines = lines
        .iter()
        .map(|line| line.as_str().map(str::as_bytes))
        .collect::<Option<Vec<_>>>()
        .ok_or("a field line that is not a string")?;
    let key = Key::parse_lines(lines.iter().copied(), KeySyntax::Quoted);

    // The value comes first, its parameters second.
    let value = record.pointer("/expected/0");
    let text = value.and_then(Value::as_str);
    let fits = text.is_some_and(|text| !text.is_empty() && text.chars().count() <= KEY_CHARS_MAX);
    let held = if flag("must_fail") || text.is_none() {
        key.is_err()
    } else if lines.len() > 1 || !fits {
        counts.refused_by_policy += u64::from(key.is_err());
        key.is_err()
    } else if flag("can_fail") && key.is_err() {
        true
    } else {
        key.as_ref().ok().map(Key::as_str) == text
    };
    counts.judge(held, || {
        let name = record.get("name").and_then(Value::as_str).unwrap_or("?");
        format!("{name}: {} came out as {:?}", record, key.as_ref().map(Key::as_str))
    });
    Ok(())
}
