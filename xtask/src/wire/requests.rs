//! What does a caller over HTTP/1.1 send? Requests that are right, and what mutation makes of them.

use super::chance::Chance;

/// What is put into the middle of messages: what other servers were fooled by.
pub(crate) const TOKENS: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b"\xff",
    b"\r\n\r\n",
    b"0\r\n\r\n",
    b"Content-Length: 0\r\n",
    b"Content-Length: 7\r\n",
    b"Content-Length: 010\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Transfer_Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"Connection: idempotency-key\r\n",
    b"Connection: upgrade\r\nUpgrade: websocket\r\n",
    b"Expect: 100-continue\r\n",
    b"Idempotency-Key: k\r\n",
    b"Idempotency_Key: k\r\n",
    b"X-HTTP-Method-Override: POST\r\n",
    b"Host: other.example\r\n",
    b"Trailer: idempotency-key\r\n",
    b"Prefer: wait=1\r\n",
    b"GET /plain HTTP/1.1\r\nHost: x\r\n\r\n",
    b"/../",
    b"%2e%2e/",
    b"%3f",
    b"%23",
    b"%00",
    b"//",
];

/// The bytes of one connection: one to four requests, mostly mutated, or no HTTP at all.
pub(crate) fn connection_bytes(chance: &mut Chance, name: &str) -> Vec<u8> {
    if chance.one_in(10) {
        let length = chance.below(2000);
        return chance.bytes(length);
    }
    let mut all = Vec::new();
    for number in 0..=chance.below(4) {
        let mut bytes = request(chance, name, number);
        if !chance.one_in(3) {
            chance.mutate(&mut bytes, TOKENS);
        }
        all.extend_from_slice(&bytes);
    }
    all
}

/// A request that is right. The name stands in the path, the credential, the key and the body.
fn request(chance: &mut Chance, name: &str, number: usize) -> Vec<u8> {
    let path = chance.pick(&["plain", "required", "wait", "a/b/c"]).unwrap_or("plain");
    let key = format!("{name}-{}", chance.below(2));
    let common = format!("Host: 127.0.0.1\r\nAuthorization: Bearer {name}\r\n");
    let body = format!("{{\"caller\":\"{name}\",\"amount\":{}}}", chance.below(2));
    let length = body.len();
    let keyed = format!("{common}Idempotency-Key: {key}\r\nContent-Type: application/json\r\n");
    let text = match chance.below(10) {
        0 => format!("GET /{path}/{name}?n={number} HTTP/1.1\r\n{common}\r\n"),
        1 => {
            format!("GET /{path}/{name} HTTP/1.1\r\n{common}Content-Length: {length}\r\n\r\n{body}")
        }
        2 => format!(
            "POST /{path}/{name} HTTP/1.1\r\n{common}Transfer-Encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n"
        ),
        3 => format!(
            "POST /{path}/{name} HTTP/1.1\r\n{keyed}Transfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n\
             {length:x};a=b\r\n{body}\r\n0\r\nX-Sum: 1\r\n\r\n"
        ),
        4 => {
            format!("POST /{path}/{name} HTTP/1.0\r\n{keyed}Content-Length: {length}\r\n\r\n{body}")
        }
        5 => format!("HEAD /{path}/{name} HTTP/1.1\r\n{common}\r\n"),
        6 => {
            let form = format!(
                "--{key}\r\nContent-Disposition: form-data; name=\"caller\"\r\n\r\n{name}\r\n--{key}--\r\n"
            );
            let length = form.len();
            format!(
                "POST /{path}/{name} HTTP/1.1\r\n{common}Idempotency-Key: {key}\r\n\
                 Content-Type: multipart/form-data; boundary={key}\r\nContent-Length: {length}\r\n\r\n{form}"
            )
        }
        7 => format!(
            "POST http://127.0.0.1/{path}/{name} HTTP/1.1\r\n{keyed}Expect: 100-continue\r\nContent-Length: {length}\r\n\r\n{body}"
        ),
        _ => {
            format!("POST /{path}/{name} HTTP/1.1\r\n{keyed}Content-Length: {length}\r\n\r\n{body}")
        }
    };
    text.into_bytes()
}
