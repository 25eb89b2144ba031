//! What does a caller over HTTP/2 send? Frames written by hand, so that anything can be said.

use super::chance::Chance;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Fields that no request may have, or that mean something to somebody.
const ODD_FIELDS: &[&str] = &[
    "connection: close",
    "transfer-encoding: chunked",
    "content-length: 7",
    "content-length: 010",
    "Upper: case",
    ":path: /other",
    ":unknown: x",
    "te: gzip",
    "host: other.example",
    "cookie: a=1",
    "cookie: b=2",
    "idempotency_key: k",
    "idempotency-key: second",
    "x-http-method-override: DELETE",
    "expect: 100-continue",
    "trailer: idempotency-key",
];

/// The bytes of one connection: a preface, settings, and one to eight requests.
pub(crate) fn connection_bytes(chance: &mut Chance, name: &str) -> Vec<u8> {
    let mut out = PREFACE.to_vec();
    // With a window of nothing, answers stay with the gateway until the caller asks for them.
    let window = if chance.one_in(8) { 0_u32 } else { 65_535 };
    let [a, b, c, d] = window.to_be_bytes();
    put(&mut out, SETTINGS, 0, 0, &[0, 4, a, b, c, d]);
    let mut stream = 1;
    for _ in 0..=chance.below(8) {
        request(chance, &mut out, stream, name);
        stream += 2;
    }
    put(&mut out, PING, 0, 0, &[7; 8]);
    if chance.one_in(2) {
        let body = PREFACE.len();
        let mut frames = out.split_off(body);
        chance.mutate(&mut frames, &[b"\0\0\0\x04\x01\0\0\0\0", b"\0\0\x04\x08\0\0\0\0\0\0\0\0\0"]);
        out.extend_from_slice(&frames);
    }
    out
}

fn request(chance: &mut Chance, out: &mut Vec<u8>, stream: u32, name: &str) {
    let method = chance.pick(&["POST", "POST", "POST", "PATCH", "GET", "FOO"]).unwrap_or("POST");
    let path = chance.pick(&["plain", "required", "wait"]).unwrap_or("plain");
    let mut fields = vec![
        format!(":method: {method}"),
        ":scheme: http".to_owned(),
        ":authority: 127.0.0.1".to_owned(),
        format!(":path: /{path}/{name}"),
        format!("authorization: Bearer {name}"),
        format!("idempotency-key: {name}-{}", chance.below(2)),
        "content-type: application/json".to_owned(),
    ];
    if chance.one_in(3) {
        let odd = chance.pick(ODD_FIELDS).unwrap_or_default().to_owned();
        let at = chance.below(fields.len() + 1);
        fields.insert(at, odd);
    }
    let block = block(&fields);
    let is_whole = chance.one_in(6);
    let end = if is_whole { END_STREAM } else { 0 };
    if chance.one_in(6) {
        let (first, rest) = block.split_at(block.len() / 2);
        put(out, HEADERS, end, stream, first);
        put(out, CONTINUATION, END_HEADERS, stream, rest);
    } else {
        put(out, HEADERS, END_HEADERS | end, stream, &block);
    }
    if is_whole {
        return;
    }
    let body = format!("{{\"caller\":\"{name}\",\"amount\":{}}}", chance.below(2));
    match chance.below(8) {
        0 => put(out, RST_STREAM, 0, stream, &[0, 0, 0, 8]),
        // The rest of the body never comes.
        1 => put(out, DATA, 0, stream, body.as_bytes()),
        2 => put(out, WINDOW_UPDATE, 0, stream, &[0x7f, 0xff, 0xff, 0xff]),
        3 => {
            put(out, DATA, 0, stream, body.as_bytes());
            let trailers =
                super::frames::block(&["x-sum: 1".to_owned(), "idempotency-key: t".to_owned()]);
            put(out, HEADERS, END_HEADERS | END_STREAM, stream, &trailers);
        }
        _ => put(out, DATA, END_STREAM, stream, body.as_bytes()),
    }
}

fn put(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap_or(0);
    out.extend(length.to_be_bytes().iter().skip(1));
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Fields (`name: value`) as literals without compression.
fn block(fields: &[String]) -> Vec<u8> {
    let mut out = Vec::new();
    for field in fields {
        let colon =
            field.get(1..).and_then(|rest| rest.find(": ")).map_or(field.len(), |at| at + 1);
        let name = field.get(..colon).unwrap_or_default();
        let value = field.get(colon + 2..).unwrap_or_default();
        out.push(0);
        for text in [name, value] {
            // Names and values here are shorter than what needs a second length byte.
            out.push(u8::try_from(text.len().min(126)).unwrap_or(0));
            out.extend(text.bytes().take(126));
        }
    }
    out
}
