//! Does every server find its reading of a path among ours?

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/retrysafe-cli/src/paths/readings.rs"]
#[allow(dead_code)]
mod path;

/// What servers read differently. Random bytes hardly ever make a path of it.
const ALPHABET: &[u8] = b"/.%;\\?#2fFeE53bBcC0aZ-1 ";

/// A step that a server takes before it looks for the handler of a path.
#[derive(Clone, Copy)]
enum Step {
    Decode,
    Resolve,
    DropParameters,
    CutAtMark,
    TakeBackslashes,
}

use Step::{CutAtMark, Decode, DropParameters, Resolve, TakeBackslashes};

/// Servers, by the steps that they take in this order.
const SERVERS: &[&[Step]] = &[
    &[],
    &[Decode],
    &[Resolve],
    &[Decode, Resolve],
    &[Resolve, Decode],
    &[Resolve, Decode, Resolve],
    &[Decode, Decode],
    &[Decode, Resolve, Decode],
    &[Decode, Decode, Resolve],
    &[Decode, CutAtMark],
    &[Decode, CutAtMark, Resolve],
    &[Decode, Resolve, CutAtMark],
    &[Decode, Decode, CutAtMark],
    &[DropParameters],
    &[DropParameters, Decode, Resolve],
    &[Decode, DropParameters, Resolve],
    &[Decode, Resolve, DropParameters],
    &[Decode, TakeBackslashes, Resolve],
    &[Decode, TakeBackslashes, DropParameters, Resolve, CutAtMark],
];

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        check(text);
    }
    let spelt: String = bytes
        .iter()
        .map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]))
        .collect();
    check(&format!("/{spelt}"));
});

fn check(path: &str) {
    let Ok(readings) = path::read(path) else { return };
    for reading in readings.all() {
        assert!(reading.starts_with('/'), "{path:?} reads {reading:?}");
        assert!(!reading.contains("//"), "{path:?} reads {reading:?}");
        assert!(!reading.bytes().any(|b| b.is_ascii_uppercase()), "{path:?} reads {reading:?}");
    }
    for steps in SERVERS {
        let Some(seen) = serve(path.as_bytes(), steps) else { continue };
        let seen = merged(&seen);
        let is_known = readings.all().any(|reading| reading == seen);
        assert!(is_known, "{path:?} is {seen:?} to a server, to us {readings:?}");
    }
}

/// What a server looks for, or none where it refuses the path.
fn serve(path: &[u8], steps: &[Step]) -> Option<Vec<u8>> {
    let mut path = path.to_vec();
    for step in steps {
        path = match step {
            Decode => decoded(&path)?,
            Resolve => resolved(&path),
            DropParameters => kept(&path, |segment| before(segment, b";")),
            CutAtMark => before(&path, b"?#").to_vec(),
            TakeBackslashes => path.iter().map(|b| if *b == b'\\' { b'/' } else { *b }).collect(),
        };
    }
    // Bytes beyond ASCII lead to no handler of ours, and their case is a matter of its own.
    path.is_ascii().then_some(path)
}

fn decoded(path: &[u8]) -> Option<Vec<u8>> {
    let (mut out, mut rest) = (Vec::new(), path);
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            out.push(*first);
            continue;
        }
        let [high, low, after @ ..] = rest else { return None };
        let digits = [char::from(*high).to_digit(16)?, char::from(*low).to_digit(16)?];
        let octet = (digits[0] * 16 + digits[1]) as u8;
        if octet < 0x20 || octet >= 0x7f {
            return None;
        }
        out.push(octet);
        rest = after;
    }
    Some(out)
}

/// RFC 3986, section 5.2.4.
fn resolved(path: &[u8]) -> Vec<u8> {
    let mut out: Vec<&[u8]> = Vec::new();
    let segments: Vec<&[u8]> = path.split(|b| *b == b'/').skip(1).collect();
    for (at, segment) in segments.iter().enumerate() {
        let is_last = at + 1 == segments.len();
        match *segment {
            b"." | b".." => {
                if *segment == b".." {
                    out.pop();
                }
                if is_last {
                    out.push(b"");
                }
            }
            other => out.push(other),
        }
    }
    [b"/", out.join(&b'/').as_slice()].concat()
}

fn before<'a>(text: &'a [u8], marks: &[u8]) -> &'a [u8] {
    text.split(|b| marks.contains(b)).next().unwrap_or_default()
}

fn kept(path: &[u8], keep: impl Fn(&[u8]) -> &[u8]) -> Vec<u8> {
    path.split(|b| *b == b'/').map(keep).collect::<Vec<_>>().join(&b'/')
}

/// Slashes merged, in lower case: how rules are looked up.
fn merged(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path).to_ascii_lowercase();
    let segments: Vec<&str> = text.split('/').filter(|segment| !segment.is_empty()).collect();
    let end = if text.ends_with('/') && !segments.is_empty() { "/" } else { "" };
    format!("/{}{end}", segments.join("/"))
}
