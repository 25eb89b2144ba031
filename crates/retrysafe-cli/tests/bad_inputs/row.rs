//! How is a row of `rows.txt` read?
//!
//! Cells between ` | `: number and name; answers; how often the upstream may be reached and how
//! many records may be left, with `open` where the request is not to be protected, `frames` where
//! the bytes are HTTP/2, `admin` where they go to the operators' listener; the bytes; and, where
//! the upstream is the one that misbehaves, the bytes that it answers.

use super::frames;
use super::kit::key;

const ROWS: &str = include_str!("rows.txt");

/// Every number of the list of bad inputs.
pub(crate) const NUMBERS: &[u32] = &[
    1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 20, 21, 22, 24, 25, 26, 27, 28, 29, 30,
    31, 32, 33, 34, 35, 36, 37, 39, 40, 41, 42, 43, 44, 45, 47, 48, 49, 50, 51, 53, 54, 55, 56, 57,
    58, 59, 60, 61, 62, 63, 65, 67, 68, 69, 70, 71, 72, 73, 74, 75, 76, 77, 78, 80, 81, 82, 83, 84,
    86, 87, 88, 89, 90, 91, 92, 93, 95, 96, 97, 98, 100, 101, 102, 104, 105, 106, 107,
];

/// How a row's bytes travel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// To the callers' listener, as they are.
    Raw,
    /// To the operators' listener, as they are.
    Admin,
    /// To the callers' listener, after the preface of HTTP/2.
    Frames,
}

#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) number: u32,
    pub(crate) name: String,
    pub(crate) answers: String,
    pub(crate) runs: usize,
    pub(crate) records: u64,
    pub(crate) is_open: bool,
    pub(crate) way: Way,
    pub(crate) bytes: Vec<u8>,
    /// Whether the sending side is closed after them.
    pub(crate) closes: bool,
    pub(crate) upstream: Option<Vec<u8>>,
}

pub(crate) fn all() -> Vec<Row> {
    let rows = ROWS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    rows.map(Row::parse).collect()
}

impl Row {
    fn parse(line: &str) -> Self {
        let mut cells = line.splitn(5, " | ").map(str::trim);
        let mut next = || cells.next().unwrap_or_else(|| panic!("too few cells: {line}"));
        let (name, answers, left, text) = (next(), next(), next(), next());
        let upstream = cells.next().map(bytes);
        let number = name.split(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{line}"));
        let words: Vec<&str> = left.split(' ').collect();
        let [runs, records, marks @ ..] = words.as_slice() else { panic!("{line}") };
        let way = match () {
            () if marks.contains(&"frames") => Way::Frames,
            () if marks.contains(&"admin") => Way::Admin,
            () => Way::Raw,
        };
        let closes = text.ends_with("<fin>");
        let text = bytes(text.strip_suffix("<fin>").unwrap_or(text));
        Self {
            number,
            name: name.into(),
            answers: answers.into(),
            runs: runs.parse().unwrap(),
            records: records.parse().unwrap(),
            is_open: marks.contains(&"open"),
            way,
            bytes: match way {
                Way::Frames => frames::encode(std::str::from_utf8(&text).unwrap()),
                Way::Raw | Way::Admin => text,
            },
            closes,
            upstream,
        }
    }
}

/// Escapes and short forms as bytes: `\r`, `\n`, `\t`, `\\`, `\xHH`; `<h>` for Host and Connection:
/// close, `<k>` for a Host alone, `<p>` for the head of a POST over HTTP/2, `<key>` and `<key2>` for
/// two keys, `<text*n>` for n times the text, `#` in it being the how-manieth it is, from 0, and
/// `<length>` for the number of bytes after the blank line that follows.
pub(crate) fn bytes(text: &str) -> Vec<u8> {
    let (first, second) = (key(), key());
    let text = text
        .replace("<h>", "Host: api.test\\r\\nConnection: close\\r\\n")
        .replace("<k>", "Host: api.test\\r\\n")
        .replace("<p>", ":method POST, :scheme http, :authority api.test, :path /a")
        .replace("<key>", &first)
        .replace("<key2>", &second)
        .replace("<KEY>", &first.to_uppercase());
    let out = expanded(text.as_bytes());
    let Some(at) = find(&out, b"<length>") else { return out };
    let body = at + find(&out[at..], b"\r\n\r\n").unwrap() + 4;
    let length = (out.len() - body).to_string();
    [&out[..at], length.as_bytes(), &out[at + "<length>".len()..]].concat()
}

fn expanded(mut rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
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
                        rest = &rest[2..];
                        u8::from_str_radix(digits, 16).unwrap()
                    }
                    other => panic!("no such escape: {}", char::from(other)),
                });
            }
            b'<' => match repetition(rest) {
                Some((text, count, tail)) => {
                    for at in 0..count {
                        let text = text.replace('#', &at.to_string());
                        out.extend(expanded(text.as_bytes()));
                    }
                    rest = tail;
                }
                None => out.push(b),
            },
            other => out.push(other),
        }
    }
    out
}

/// Reads `text*n>`.
fn repetition(rest: &[u8]) -> Option<(&str, usize, &[u8])> {
    let end = rest.iter().position(|b| *b == b'>')?;
    let (text, count) = std::str::from_utf8(&rest[..end]).ok()?.rsplit_once('*')?;
    Some((text, count.parse().ok()?, &rest[end + 1..]))
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}
