//! What do malformed, odd and hostile requests get?
//!
//! One row of `bad_inputs.txt` per line: its number in the list of bad inputs, what must come back,
//! how often the upstream may have been reached, how many records may be left, and the raw bytes.
//! Whatever reaches the upstream must carry a fence, unless the row says `open`: that it is a
//! request which is not to be protected.

use super::kit::{Gateway, Upstream, key, raw};

const ROWS: &str = include_str!("bad_inputs.txt");

const CONFIG: &str = r#"
[defaults]
request_time_max = "500ms"

[[route]]
path = "/required/{*rest}"
methods = ["POST"]
key = "required"

[[route]]
path = "/quoted"
methods = ["POST"]
key_syntax = "quoted"

[[route]]
path = "/small"
methods = ["POST"]
request_bytes_max = "16B"

[[route]]
path = "/tenant"
methods = ["POST"]
scope = ["header:x-tenant"]
"#;

struct Row<'a> {
    name: &'a str,
    answers: &'a str,
    runs: usize,
    records: u64,
    is_open: bool,
    bytes: Vec<u8>,
    closes: bool,
}

impl<'a> Row<'a> {
    fn parse(line: &'a str) -> Self {
        let mut cells = line.splitn(4, " | ").map(str::trim);
        let mut next = || cells.next().unwrap_or_else(|| panic!("too few cells: {line}"));
        let (name, answers, left, text) = (next(), next(), next(), next());
        let mut words = left.split(' ');
        let mut number = |what: &str| -> u64 {
            let word = words.next().unwrap_or_else(|| panic!("{what} is missing: {line}"));
            word.parse().unwrap_or_else(|_| panic!("{what}: {line}"))
        };
        let (runs, records) = (number("runs") as usize, number("records"));
        let is_open = words.next() == Some("open");
        let closes = text.ends_with("<fin>");
        let bytes = bytes(text.strip_suffix("<fin>").unwrap_or(text));
        Self { name, answers, runs, records, is_open, bytes, closes }
    }
}

/// Escapes and short forms as bytes: `\r`, `\n`, `\t`, `\\`, `\xHH`; `<h>` for Host and Connection:
/// close, `<k>` for a Host alone, `<key>` and `<key2>` for two keys, `<c*n>` for n times c.
fn bytes(text: &str) -> Vec<u8> {
    let (first, second) = (key(), key());
    let text = text
        .replace("<h>", "Host: api.test\\r\\nConnection: close\\r\\n")
        .replace("<k>", "Host: api.test\\r\\n")
        .replace("<key>", &first)
        .replace("<key2>", &second)
        .replace("<KEY>", &first.to_uppercase());
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&b, tail)) = rest.split_first() {
        rest = tail;
        match b {
            b'\\' => {
                let (&escape, tail) = rest.split_first().unwrap();
                rest = tail;
                out.push(match escape {
                    b'r' => b'\r',
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'\\' => b'\\',
                    b'x' => {
                        let digits = std::str::from_utf8(&rest[..2]).unwrap();
                        let byte = u8::from_str_radix(digits, 16).unwrap();
                        rest = &rest[2..];
                        byte
                    }
                    other => panic!("no such escape: {}", char::from(other)),
                });
            }
            b'<' if rest.get(1) == Some(&b'*') => {
                let end = rest.iter().position(|b| *b == b'>').unwrap();
                let count: usize = std::str::from_utf8(&rest[2..end]).unwrap().parse().unwrap();
                out.extend(std::iter::repeat_n(rest[0], count));
                rest = &rest[end + 1..];
            }
            other => out.push(other),
        }
    }
    out
}

/// Whether the answers are what a row says: statuses with optional codes, `r` for a replay,
/// `closed` for none at all; `/` between alternatives that depend on timing.
fn are(answers: &[String], wanted: &str) -> bool {
    wanted.split(" / ").any(|wanted| {
        let wanted: Vec<&str> = match wanted {
            "closed" => vec![],
            list => list.split(", ").collect(),
        };
        wanted.len() == answers.len()
            && wanted
                .iter()
                .zip(answers)
                .all(|(wanted, got)| got == wanted || got.split(' ').next() == Some(wanted))
    })
}

#[test]
fn every_bad_input_is_answered_as_its_row_says() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, CONFIG);
    let mut wrong = Vec::new();
    let rows = ROWS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut count = 0;
    for row in rows.map(Row::parse) {
        count += 1;
        let (seen_before, records_before) = (upstream.seen().len(), gateway.records());
        let answers: Vec<String> = raw(gateway.address, &row.bytes, row.closes)
            .iter()
            .map(|answer| {
                let replay = if answer.is_replay() { " r" } else { "" };
                format!("{}{replay} {}", answer.status(), answer.code()).trim().to_owned()
            })
            .collect();
        let seen: Vec<_> = upstream.seen().split_off(seen_before);
        let left = gateway.records() - records_before;
        let unprotected = seen.iter().filter(|seen| !seen.is_protected()).count();
        let fits = are(&answers, row.answers)
            && seen.len() == row.runs
            && left == row.records
            && (row.is_open || unprotected == 0);
        if !fits {
            wrong.push(format!(
                "{}: got {answers:?}, {} runs ({unprotected} unprotected), {left} records; \
                 wanted {:?}, {} runs, {} records",
                row.name,
                seen.len(),
                row.answers,
                row.runs,
                row.records
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {count} rows:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count > 120, "the list was cut short: {count}");
}

#[test]
fn a_row_that_is_answered_otherwise_would_be_noticed() {
    let got = ["400 idempotency_key_missing".to_owned(), "201 r".to_owned()];
    assert!(are(&got, "400, 201 r") && are(&got, "closed / 400 idempotency_key_missing, 201"));
    assert!(!are(&got, "400") && !are(&got, "401, 201") && !are(&got, "closed"));
    assert!(!are(&got[..1], "400 idempotency_key_invalid"));
    assert_eq!(bytes(r"<x*3>\x41\\\r"), b"xxxA\\\r");
}
