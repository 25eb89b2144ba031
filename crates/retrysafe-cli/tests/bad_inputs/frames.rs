//! What does a caller send who writes HTTP/2 by hand, and what comes back?
//!
//! Frames between ` / `: `open FIELDS` (the head of a request on a new stream), `ask FIELDS` (the
//! same, and nothing follows), `data TEXT`, `last TEXT` (data that ends the request), `reset`.
//! Fields are `name value` between commas. Nothing is compressed, so anything can be said.

use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpStream};

use super::kit::PATIENCE;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// Frames as bytes, a ping after them: its answer says that they were read.
pub(crate) fn encode(text: &str) -> Vec<u8> {
    let mut out = PREFACE.to_vec();
    // No table of former headers, so that each answer can be read by itself.
    put(&mut out, SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0]);
    let mut stream = 0;
    for frame in text.split(" / ").filter(|frame| !frame.is_empty()) {
        let (kind, rest) = frame.split_once(' ').unwrap_or((frame, ""));
        match kind {
            "open" | "ask" => {
                stream = if stream == 0 { 1 } else { stream + 2 };
                let end = if kind == "ask" { END_STREAM } else { 0 };
                put(&mut out, HEADERS, END_HEADERS | end, stream, &block(rest));
            }
            "data" => put(&mut out, DATA, 0, stream, rest.as_bytes()),
            "last" => put(&mut out, DATA, END_STREAM, stream, rest.as_bytes()),
            // Cancelled.
            "reset" => put(&mut out, RST_STREAM, 0, stream, &[0, 0, 0, 8]),
            other => panic!("no such frame: {other}"),
        }
    }
    put(&mut out, PING, 0, 0, &[7; 8]);
    out
}

fn put(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Fields as literals that are not to be remembered.
fn block(fields: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for field in fields.split(", ") {
        let (name, value) = field.split_once(' ').unwrap_or((field, ""));
        out.push(0);
        for text in [name, value] {
            out.push(u8::try_from(text.len()).ok().filter(|length| *length < 127).unwrap());
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}

/// What has come back on one stream.
#[derive(Default)]
struct Answer {
    status: Option<u16>,
    body: Vec<u8>,
    is_over: bool,
}

/// Sends frames and says what became of each request, in words: a status and a code, `reset`, or
/// once for all `goaway` or `closed`.
pub(crate) fn exchange(address: SocketAddr, bytes: &[u8]) -> Vec<String> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A gateway that has seen enough may close before everything is written.
    let _ = stream.write_all(bytes);
    let mut answers = expected(bytes);
    let (mut told, mut is_pinged) = (Vec::new(), false);
    while !is_pinged || answers.iter().any(|(_, answer)| !answer.is_over) {
        let Some((kind, flags, number, payload)) = frame(&mut stream) else {
            told.push("closed".to_owned());
            break;
        };
        let answer = answers.iter_mut().find(|(other, _)| *other == number).map(|(_, a)| a);
        match (kind, answer) {
            (GOAWAY, _) => {
                told.push("goaway".to_owned());
                break;
            }
            (PING, _) => is_pinged |= flags & ACK != 0,
            (RST_STREAM, Some(answer)) => {
                // What was answered before stays answered.
                if !answer.is_over {
                    told.push("reset".to_owned());
                }
                answer.is_over = true;
            }
            (HEADERS | DATA, Some(answer)) => {
                match kind {
                    HEADERS => answer.status = answer.status.or(Some(status(&payload))),
                    _ => answer.body.extend_from_slice(&payload),
                }
                if flags & END_STREAM != 0 {
                    answer.is_over = true;
                    told.push(words(answer));
                }
            }
            _ => {}
        }
    }
    told
}

/// The streams that somebody should hear of: those that were opened and not taken back.
fn expected(bytes: &[u8]) -> Vec<(u32, Answer)> {
    let mut streams = Vec::new();
    let mut rest = &bytes[PREFACE.len()..];
    while let Some((kind, _, number, _)) = frame(&mut rest) {
        match kind {
            HEADERS => streams.push((number, Answer::default())),
            RST_STREAM => streams.retain(|(other, _)| *other != number),
            _ => {}
        }
    }
    streams
}

fn frame(from: &mut impl Read) -> Option<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    from.read_exact(&mut head).ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let number = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    let mut payload = vec![0; length as usize];
    from.read_exact(&mut payload).ok()?;
    Some((head[3], head[4], number, payload))
}

fn words(answer: &Answer) -> String {
    let document: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let code = document["code"].as_str().unwrap_or_default();
    format!("{} {code}", answer.status.unwrap_or_default())
}

/// The status of a block of headers: it is the first of them.
fn status(block: &[u8]) -> u16 {
    // Changes of the table's size may come before it.
    let at = block.iter().position(|b| b & 0xe0 != 0x20).unwrap();
    match block[at] {
        0x88 => 200,
        0x89 => 204,
        0x8b => 304,
        0x8c => 400,
        0x8d => 404,
        0x8e => 500,
        _ => digits(block[at + 1], &block[at + 2..]),
    }
}

/// Three digits as they stand, or in the code of RFC 7541, appendix B: 0 to 2 have five bits, the
/// others six.
fn digits(length: u8, text: &[u8]) -> u16 {
    if length & 0x80 == 0 {
        return std::str::from_utf8(&text[..3]).unwrap().parse().unwrap();
    }
    let bits = text.iter().take(3).fold(0_u32, |bits, b| bits << 8 | u32::from(*b));
    let (mut left, mut number) = (24, 0);
    for _ in 0..3 {
        let five = bits >> (left - 5) & 0x1f;
        let digit = if five <= 2 {
            left -= 5;
            five
        } else {
            left -= 6;
            (bits >> left & 0x3f) - 0x16
        };
        number = number * 10 + u16::try_from(digit).unwrap();
    }
    number
}
