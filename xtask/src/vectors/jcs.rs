//! Is our canonical JSON the one of RFC 8785?
//!
//! The documents are compared in rounding mode, since RFC 8785 rounds; the mode that fingerprints use must give the
//! same bytes or refuse. Every number is printed from its bits, and its printed form, read as a document, must be
//! lossless and print as itself.

use std::path::Path;

use retrysafe_core::canonical;

use super::{Counts, files, shown};
use crate::Error;

pub(super) fn run(folder: &Path) -> Result<Vec<(String, Counts)>, Error> {
    let mut all = Vec::new();
    for input in files(&folder.join("input"), "json")? {
        let name = input.file_name().unwrap_or_default();
        let output = std::fs::read(folder.join("output").join(name))?;
        let hex = std::fs::read_to_string(folder.join("outhex").join(name).with_extension("txt"))?;
        all.push((shown(&input), document(&std::fs::read(&input)?, &output, &hex)?));
    }
    for path in files(folder, "txt")? {
        all.push((shown(&path), numbers(&std::fs::read_to_string(&path)?)?));
    }
    Ok(all)
}

fn document(input: &[u8], output: &[u8], hex: &str) -> Result<Counts, Error> {
    let mut counts = Counts::default();
    let hex = hex
        .split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16))
        .collect::<Result<Vec<_>, _>>()?;
    counts.judge(hex == output, || "output and outhex differ".to_owned());

    let rounded = canonical::canonicalise_rounding(input);
    counts.judge(rounded.as_deref() == Some(output), || {
        format!("rounding gave {}", show(rounded.as_deref()))
    });

    // A refusal is right where rounding lost something: a lossless document equals its own form.
    let exact = canonical::canonicalise(input);
    counts.refused_by_policy += u64::from(exact.is_none());
    let agrees = exact.as_deref().is_none_or(|form| form == output);
    counts.judge(agrees, || format!("exact gave {}", show(exact.as_deref())));

    let again = canonical::canonicalise(output);
    counts.judge(again.as_deref() == Some(output), || {
        format!("the form again gave {}", show(again.as_deref()))
    });
    Ok(counts)
}

fn show(form: Option<&[u8]>) -> String {
    form.map_or_else(|| "nothing".to_owned(), |form| String::from_utf8_lossy(form).into_owned())
}

fn numbers(lines: &str) -> Result<Counts, Error> {
    let mut counts = Counts::default();
    for line in lines.lines() {
        let (bits, expected) = line.split_once(',').ok_or("a line without a comma")?;
        let expected = Some(expected).filter(|text| !text.is_empty());
        let printed = canonical::number(f64::from_bits(u64::from_str_radix(bits, 16)?));
        let read = expected.and_then(|text| canonical::canonicalise(text.as_bytes()));
        let held = printed.as_deref() == expected && read.as_deref() == expected.map(str::as_bytes);
        counts.judge(held, || {
            format!("{line}: printed {printed:?}, read back {}", show(read.as_deref()))
        });
    }
    Ok(counts)
}
