//! Can an upstream's answer make the next caller read something else than its own answer?
//!
//! Random bytes go through the HTTP client that the gateway uses, through its judgement of framing,
//! and out of the HTTP server that it uses. A reader of its own, as strict as can be, then takes them
//! for what they are: one answer, and after it the next one.

#![no_main]

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use framing::Afterwards;
use http::{HeaderName, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_util::rt::TokioIo;
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[path = "../../crates/retrysafe-cli/src/gateway/framing.rs"]
#[allow(dead_code)]
mod framing;

/// What the next caller is to read.
const NEXT: &[u8] = b"the next answer";

/// What random bytes seldom spell: the first lines of answers, the lines that frame them, and the
/// pieces of their bodies.
const FIRST: &[&str] = &[
    "HTTP/1.1 200 OK",
    "HTTP/1.1 204 X",
    "HTTP/1.1 304 X",
    "HTTP/1.0 201 X",
    "HTTP/1.1 100 X\r\n\r\nHTTP/1.1 201 X",
];
const FIELDS: &[&str] = &[
    "Content-Length: 2",
    "Content-Length: 002",
    "Content-Length: 0",
    "Content-Length: 9",
    "Content-Length: 2, 2",
    "Content-Length: +2",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: gzip, chunked",
    "Connection: keep-alive",
    "Trailer: a",
    "X: y",
];
const PIECES: &[&str] = &[
    "2\r\n{}\r\n",
    "0\r\n\r\n",
    "0\r\na: b\r\n\r\n",
    "{}",
    "9",
    "\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nEMBEDDED",
];

fuzz_target!(|bytes: &[u8]| {
    let [first, rest @ ..] = bytes else { return };
    let method = [Method::GET, Method::HEAD, Method::POST][usize::from(first % 3)].clone();
    exchange(&method, rest);
    exchange(&method, spelt(first / 3, rest).as_bytes());
});

/// Takes bytes for an answer: its first line, how many fields there are and which, then the pieces of
/// its body.
fn spelt(first: u8, rest: &[u8]) -> String {
    let pick = |of: &[&'static str], byte: &u8| of[usize::from(*byte) % of.len()];
    let (count, rest) = rest.split_first().unwrap_or((&0, &[]));
    let (fields, pieces) = rest.split_at(usize::from(count % 4).min(rest.len()));
    let mut lines = vec![pick(FIRST, &first)];
    lines.extend(fields.iter().map(|byte| pick(FIELDS, byte)));
    let body: String = pieces.iter().map(|byte| pick(PIECES, byte)).collect();
    format!("{}\r\n\r\n{body}", lines.join("\r\n"))
}

fn exchange(method: &Method, answer: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let (status, record, seen) = match runtime.block_on(pass_on(method, answer.to_vec())) {
        Some(passed) => passed,
        None => return,
    };
    let record = record.lock().expect("no panic");
    let is_bare = *method == Method::HEAD || status == 204 || status == 304;
    let judged = judge(&seen, is_bare);
    let shown = || String::from_utf8_lossy(&seen).into_owned();
    match judged {
        Some((body, next)) => {
            assert!(!record.has_failed, "a broken answer passes for a whole one: {}", shown());
            assert!(is_bare || body == record.bytes, "another body: {}", shown());
            assert!(next.ends_with(NEXT), "the next caller reads another answer: {}", shown());
        }
        None => assert!(record.has_failed, "a whole answer is cut: {}", shown()),
    }
}

/// What was in a body, and whether it broke off.
#[derive(Default)]
struct Record {
    bytes: Vec<u8>,
    has_failed: bool,
}

/// A body that is passed on and recorded.
struct Recorded<B> {
    body: B,
    record: Arc<Mutex<Record>>,
}

impl<B: Body<Data = Bytes> + Unpin> Body for Recorded<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        let mut record = self.record.lock().expect("no panic");
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                record.bytes.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new()));
            }
            Poll::Ready(Some(Err(_))) => record.has_failed = true,
            Poll::Ready(None) | Poll::Pending => {}
        }
        drop(record);
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The status of an answer that the gateway would pass on, its body, and all that its caller reads,
/// who asks for another answer on the same connection.
async fn pass_on(
    method: &Method,
    answer: Vec<u8>,
) -> Option<(StatusCode, Arc<Mutex<Record>>, Vec<u8>)> {
    let mut response = read(method, answer).await?;
    let status = response.status();
    let afterwards = framing::take(method, &mut response).ok()?;
    if status == StatusCode::SWITCHING_PROTOCOLS {
        return None;
    }
    // What belongs to one hop ends at the gateway.
    let hop = [header::CONNECTION, header::UPGRADE, header::TE, header::TRAILER];
    for name in hop.into_iter().chain([HeaderName::from_static("keep-alive")]) {
        response.headers_mut().remove(name);
    }
    let record = Arc::new(Mutex::new(Record::default()));
    let response = response.map(|body| match afterwards {
        Afterwards::Reused => {
            let record = Arc::clone(&record);
            Recorded { body, record }.boxed_unsync()
        }
        Afterwards::Closed => Empty::new().map_err(|never| match never {}).boxed_unsync(),
    });
    Some((status, record, written(method, response).await))
}

/// Reads the head of an upstream's answer.
async fn read(method: &Method, answer: Vec<u8>) -> Option<Response<Incoming>> {
    let (ours, mut theirs) = tokio::io::duplex(4096);
    let handshake = hyper::client::conn::http1::Builder::new().handshake(TokioIo::new(ours));
    let (mut sender, connection) = handshake.await.ok()?;
    tokio::spawn(connection);
    // The upstream reads the request, then says what it has to say and hangs up.
    tokio::spawn(async move {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match theirs.read_buf(&mut head).await {
                Ok(count) if count > 0 => {}
                Ok(_) | Err(_) => return,
            }
        }
        // A client that has seen enough hangs up first.
        let _ = theirs.write_all(&answer).await;
    });
    let request = Request::builder().method(method).uri("/").header("host", "a");
    let request = request.body(Empty::<Bytes>::new()).expect("a request");
    sender.send_request(request).await.ok()
}

type Passed = http_body_util::combinators::UnsyncBoxBody<Bytes, hyper::Error>;

async fn written(method: &Method, response: Response<Passed>) -> Vec<u8> {
    let (ours, mut theirs) = tokio::io::duplex(4096);
    let response = Mutex::new(Some(response));
    let service = hyper::service::service_fn(move |_| {
        let first = response.lock().expect("no panic").take();
        let next = Full::new(Bytes::from_static(NEXT)).map_err(|never| match never {});
        let answer = first.unwrap_or_else(|| Response::new(next.boxed_unsync()));
        async { Ok::<_, Infallible>(answer) }
    });
    let asked = format!(
        "{method} /1 HTTP/1.1\r\nHost: a\r\n\r\n\
         GET /2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    );
    theirs.write_all(asked.as_bytes()).await.expect("room for two requests");
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(ours), service);
    let mut seen = Vec::new();
    let (_, read) = tokio::join!(connection, theirs.read_to_end(&mut seen));
    read.expect("the end of the connection");
    seen
}

/// The strictest reader: one framing, no more and no less. A body and what follows, or none where the
/// body is not whole.
fn judge(seen: &[u8], is_bare: bool) -> Option<(Vec<u8>, &[u8])> {
    let shown = || String::from_utf8_lossy(seen).into_owned();
    // A body that breaks off at once takes its head with it.
    let (head, rest) = split(seen, b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(head);
    let values = |name: &str| {
        let lines = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
        let named = lines.filter(|(other, _)| other.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.trim().to_owned()).collect::<Vec<_>>()
    };
    let (lengths, codings) = (values("content-length"), values("transfer-encoding"));
    match (lengths.as_slice(), codings.as_slice()) {
        ([] | [_], []) if is_bare => Some((Vec::new(), rest)),
        ([length], []) => {
            let length = length.parse().unwrap_or_else(|_| panic!("no length: {}", shown()));
            let (body, next) = rest.split_at_checked(length)?;
            Some((body.to_vec(), next))
        }
        ([], [coding]) if coding == "chunked" => chunks(rest),
        _ => panic!("not framed in one way: {}", shown()),
    }
}

fn chunks(mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut body = Vec::new();
    loop {
        let (size, after) = split(rest, b"\r\n")?;
        let size = std::str::from_utf8(size).expect("digits");
        let size = usize::from_str_radix(size, 16).expect("digits");
        let (chunk, after) = after.split_at_checked(size)?;
        body.extend_from_slice(chunk);
        rest = after.strip_prefix(b"\r\n")?;
        if size == 0 {
            return Some((body, rest));
        }
    }
}

fn split<'a>(bytes: &'a [u8], mark: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = bytes.windows(mark.len()).position(|window| window == mark)?;
    Some((&bytes[..at], &bytes[at + mark.len()..]))
}
