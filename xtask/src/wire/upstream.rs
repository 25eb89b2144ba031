//! What does the upstream do? It reads requests strictly, and answers with the names that it found, mostly wrongly framed.
//!
//! A path that begins with `/probe` is answered rightly, for the callers who behave.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::chance::Chance;
use super::requests::TOKENS;
use super::{Error, Ring};

/// How large a request may be: the gateway's own bounds are smaller.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// How long a connection may be silent before it is closed; the gateway opens another one.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Starts to listen. The thread of a connection ends with the connection, at the latest with the gateway.
pub(crate) fn start(ring: &Arc<Ring>, seed: u64) -> Result<SocketAddr, Error> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let ring = Arc::clone(ring);
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let Ok(stream) = stream else { continue };
            let ring = Arc::clone(&ring);
            let chance = Chance::of(seed, (1 << 60) | number as u64);
            std::thread::spawn(move || serve(&ring, stream, chance));
        }
    });
    Ok(address)
}

/// Answers the requests of one connection.
fn serve(ring: &Ring, stream: TcpStream, mut chance: Chance) {
    let Ok(mut writer) = stream.try_clone() else { return };
    if stream.set_read_timeout(Some(SILENCE_MAX)).is_err() {
        return;
    }
    let mut reader = BufReader::new(stream);
    loop {
        let request = match read_request(ring, &mut reader) {
            Ok(Some(request)) => request,
            Ok(None) => return,
            Err(what) => {
                ring.found(format!("the gateway sent what is no request: {what}"));
                return;
            }
        };
        ring.requests.fetch_add(1, Ordering::Relaxed);
        let mut names = request.names;
        names.sort();
        names.dedup();
        if names.len() > 1 {
            ring.found(format!(
                "one request carries the names of several callers: {names:?}\n  {}",
                request.head
            ));
        }
        let is_head = request.head.starts_with("HEAD ");
        let is_probe = request.head.contains(" /probe");
        let name = names.first().map_or("nobody", String::as_str);
        let answer = if is_probe {
            framed(&mut chance, "200 OK", name, is_head, 0)
        } else {
            answer(&mut chance, name, is_head)
        };
        // In one write, so that whatever is too much arrives with the answer that it follows.
        if writer.write_all(&answer).is_err() || (!is_probe && chance.one_in(4)) {
            return;
        }
    }
}

/// A request as far as it matters here.
struct Received {
    head: String,
    names: Vec<String>,
}

/// Reads one request strictly: what the gateway sends has one reading only.
fn read_request(
    ring: &Ring,
    reader: &mut BufReader<TcpStream>,
) -> Result<Option<Received>, String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let before = head.len();
        // An error here is the end of a connection, like a connection that was given up in mid-request.
        if reader.take(REQUEST_BYTES_MAX as u64).read_until(b'\n', &mut head).unwrap_or(0) == 0 {
            return Ok(None);
        }
        if head.len() > REQUEST_BYTES_MAX || (!head.ends_with(b"\r\n") && head.len() > before) {
            return Err(head.escape_ascii().to_string());
        }
    }
    let shown = head.escape_ascii().to_string();
    let text = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let values = |name: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(name));
        lines.filter_map(|rest| rest.strip_prefix(": ")).map(str::to_owned).collect()
    };
    let mut body = Vec::new();
    match (values("content-length").as_slice(), values("transfer-encoding").as_slice()) {
        ([], []) => {}
        ([length], []) => {
            let length = length.parse::<usize>().map_err(|_| shown.clone())?;
            body = vec![0; length.min(REQUEST_BYTES_MAX)];
            if reader.read_exact(&mut body).is_err() {
                return Ok(None);
            }
        }
        ([], [coding]) if coding == "chunked" => match read_chunks(reader) {
            Ok(Some(chunks)) => body = chunks,
            Ok(None) => return Ok(None),
            Err(line) => return Err(format!("{shown} with the chunk {line}")),
        },
        _ => return Err(shown),
    }
    let mut names = ring.names_in(text.lines().next().unwrap_or_default().as_bytes());
    names.extend(values("authorization").iter().flat_map(|value| ring.names_in(value.as_bytes())));
    names.extend(ring.names_in(&body));
    Ok(Some(Received { head: shown, names }))
}

fn read_chunks(reader: &mut BufReader<TcpStream>) -> Result<Option<Vec<u8>>, String> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return Ok(None);
        }
        let size = usize::from_str_radix(line.trim_end(), 16).map_err(|_| line.clone())?;
        let mut chunk = vec![0; size.min(REQUEST_BYTES_MAX) + 2];
        if reader.read_exact(&mut chunk).is_err() {
            return Ok(None);
        }
        if !chunk.ends_with(b"\r\n") {
            return Err(line);
        }
        chunk.truncate(size);
        body.extend_from_slice(&chunk);
        if size == 0 {
            return Ok(Some(body));
        }
    }
}

/// An answer: often right, often framed wrongly, often mutated.
fn answer(chance: &mut Chance, name: &str, is_head: bool) -> Vec<u8> {
    let status = chance
        .pick(&[
            "200 OK",
            "201 Created",
            "204 No Content",
            "304 Not Modified",
            "400 Bad",
            "500 Bad",
            "101 Switching",
            "302 Found",
        ])
        .unwrap_or("200 OK");
    let kind = chance.below(16);
    let mut bytes = framed(chance, status, name, is_head, kind);
    if chance.one_in(3) {
        chance.mutate(&mut bytes, TOKENS);
    }
    bytes
}

/// An answer with one of several framings, of which the first is right.
fn framed(chance: &mut Chance, status: &str, name: &str, is_head: bool, kind: usize) -> Vec<u8> {
    let body = format!("{{\"caller\":\"{name}\"}}").repeat(1 + chance.below(4));
    let length = body.len();
    let chunked = format!("{length:x}\r\n{body}\r\n0\r\n\r\n");
    let coding = "Transfer-Encoding: chunked\r\n";
    let (lines, body) = match kind {
        1 => (coding.to_owned(), chunked),
        2 => (format!("Content-Length: 2\r\n{coding}"), chunked),
        3 => (format!("{coding}Content-Length: 9999\r\n"), chunked),
        4 => ("Transfer-Encoding: identity\r\n".to_owned() + "Content-Length: 2\r\n", body),
        5 => ("Transfer-Encoding: gzip, chunked\r\n".to_owned(), chunked),
        6 => (format!("Content-Length: {length}\r\nContent-Length: {length}\r\n"), body),
        7 => (format!("Content-Length: {length}\r\nContent-Length: 2\r\n"), body),
        8 => ("Content-Length: 2\r\n".to_owned(), body),
        9 => (format!("Content-Length: {}\r\n", length + 5), body),
        10 => (format!("Content-Length: {length}\r\n{}", "X-Many: 1\r\n".repeat(150)), body),
        11 => (String::new(), body),
        12 => (
            format!("{coding}Trailer: x\r\n"),
            format!("{length:x}\r\n{body}\r\n0\r\nX: {name}\r\n\r\n"),
        ),
        13 => (
            format!(
                "Content-Length: {length}\r\nRetrysafe-Outcome: unknown\r\nIdempotent-Replayed: true\r\n"
            ),
            body,
        ),
        _ => (format!("Content-Length: {length}\r\n"), body),
    };
    let interim = if kind == 14 { "HTTP/1.1 103 Early\r\nX: y\r\n\r\n" } else { "" };
    let is_bare = is_head || status.starts_with("204") || status.starts_with("304");
    let body = if is_bare && kind < 8 { "" } else { &body };
    format!("{interim}HTTP/1.1 {status}\r\n{lines}\r\n{body}").into_bytes()
}
