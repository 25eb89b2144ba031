//! A server that does what a script says, and a client that does not wait for its pauses.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client as Hyper;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use retrysafe::client::{Answer, Client, Next, Notice, Patience, Retries};

pub(crate) type Service = Hyper<HttpConnector, Full<Bytes>>;

/// A request as the server saw it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn key(&self) -> &str {
        self.header("idempotency-key").expect("a key")
    }
}

/// What happens on one connection.
#[derive(Clone)]
pub(crate) enum Step {
    /// The request is read and answered.
    Answer(String),
    /// The request has arrived, and the connection is reset.
    Reset,
    /// The request is read, and nothing more happens until the client leaves.
    Silence,
}

/// An answer with this status, these header lines and this body.
pub(crate) fn answer(status: u16, headers: &str, body: &str) -> Step {
    let len = body.len();
    Step::Answer(format!(
        "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {len}\r\n{headers}\r\n{body}"
    ))
}

/// A problem document.
pub(crate) fn problem(status: u16, code: &str, headers: &str) -> Step {
    let headers = format!("Content-Type: application/problem+json\r\n{headers}");
    answer(status, &headers, &format!("{{\"title\":\"no\",\"code\":\"{code}\"}}"))
}

pub(crate) fn created() -> Step {
    answer(201, "", "made")
}

/// An answer that promises more than it brings.
pub(crate) fn cut() -> Step {
    Step::Answer("HTTP/1.1 201 X\r\nContent-Length: 100\r\n\r\nmad".into())
}

pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    /// Follows a script, one connection per step, then stops listening.
    pub(crate) fn scripted(steps: impl IntoIterator<Item = Step>) -> Self {
        Self::scripted_at(TcpListener::bind("127.0.0.1:0").unwrap(), steps)
    }

    pub(crate) fn scripted_at(
        listener: TcpListener,
        steps: impl IntoIterator<Item = Step>,
    ) -> Self {
        let mut steps = steps.into_iter().collect::<Vec<_>>().into_iter();
        Self::start(listener, steps.len(), move |stream, seen| {
            play(stream, &steps.next().unwrap(), seen);
        })
    }

    /// Gives each of so many connections to `serve`.
    pub(crate) fn start(
        listener: TcpListener,
        connections: usize,
        mut serve: impl FnMut(TcpStream, &Mutex<Vec<Seen>>) + Send + 'static,
    ) -> Self {
        let addr = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let ours = Arc::clone(&seen);
        thread::spawn(move || {
            for _ in 0..connections {
                serve(listener.accept().unwrap().0, &ours);
            }
        });
        Self { addr, seen }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    pub(crate) fn post(&self) -> Request<Full<Bytes>> {
        Request::post(self.url("/payments")).body(Full::from("{\"amount\":5}")).unwrap()
    }
}

fn play(mut stream: TcpStream, step: &Step, seen: &Mutex<Vec<Seen>>) {
    match step {
        Step::Answer(bytes) => {
            let request = read_request(&mut stream);
            // Noted before it is answered, so that a client with an answer finds it here.
            seen.lock().unwrap().push(request);
            stream.write_all(bytes.as_bytes()).unwrap();
        }
        Step::Reset => {
            let (line, headers) = read_head(&mut stream);
            let mut body = vec![0; content_length(&headers)];
            // Peeking for nothing would wait for something.
            while !body.is_empty() && stream.peek(&mut body).unwrap() < body.len() {
                thread::yield_now();
            }
            seen.lock().unwrap().push(Seen { line, headers, body });
            // Closing a socket with unread bytes resets the connection.
        }
        Step::Silence => {
            let request = read_request(&mut stream);
            seen.lock().unwrap().push(request);
            let _ = stream.read(&mut [0]);
        }
    }
}

pub(crate) fn read_request(stream: &mut TcpStream) -> Seen {
    let (line, headers) = read_head(stream);
    let mut body = vec![0; content_length(&headers)];
    stream.read_exact(&mut body).unwrap();
    Seen { line, headers, body }
}

fn read_head(stream: &mut TcpStream) -> (String, Vec<(String, String)>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.trim_end().split("\r\n");
    let line = lines.next().unwrap().to_owned();
    let header = |line: &str| {
        let (name, value) = line.split_once(':').unwrap();
        (name.to_ascii_lowercase(), value.trim().to_owned())
    };
    (line, lines.map(header).collect())
}

fn content_length(headers: &[(String, String)]) -> usize {
    let length = headers.iter().find(|(name, _)| name == "content-length");
    length.map_or(0, |(_, value)| value.parse().unwrap())
}

pub(crate) fn hyper() -> Service {
    Hyper::builder(TokioExecutor::new()).build_http()
}

/// What an observer heard, and the pauses that were decided.
#[derive(Clone, Default)]
pub(crate) struct Heard {
    lines: Arc<Mutex<Vec<String>>>,
    pauses: Arc<Mutex<Vec<Duration>>>,
}

impl Heard {
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    pub(crate) fn pauses(&self) -> Vec<Duration> {
        self.pauses.lock().unwrap().clone()
    }
}

/// Small ceilings, so that an asked-for pause stands out.
pub(crate) fn patience() -> Patience {
    Patience { pause: Duration::from_millis(1), ..Patience::default() }
}

/// Notes what happens, and stops the clock while the client pauses: tokio then skips the pause. It
/// runs while an attempt is under way, since a stopped clock would also skip the attempt's time.
pub(crate) fn watched(retries: Retries) -> (Retries, Heard) {
    let heard = Heard::default();
    let log = heard.clone();
    let retries = retries.observe(move |notice| match notice {
        Notice::Sending { attempt, .. } => {
            if *attempt > 1 {
                tokio::time::resume();
            }
            log.lines.lock().unwrap().push(format!("sending {attempt}"));
        }
        Notice::Heard { attempt, heard, why, next } => {
            let line = format!("{attempt} {heard:?} {} {next:?}", why.is_some());
            log.lines.lock().unwrap().push(line);
            if let Next::Retry(pause) = next {
                log.pauses.lock().unwrap().push(*pause);
                tokio::time::pause();
            }
        }
        other => panic!("{other:?}"),
    });
    (retries, heard)
}

/// A client that skips its pauses.
pub(crate) fn client() -> (Client<Service>, Heard) {
    client_with(Retries::default().patience(patience()))
}

pub(crate) fn client_with(retries: Retries) -> (Client<Service>, Heard) {
    let (retries, heard) = watched(retries);
    (Client::new(hyper(), retries), heard)
}

/// Status and body of an answer.
pub(crate) async fn read<B>(answer: Response<Answer<B>>) -> (u16, String)
where
    B: http_body::Body,
    B::Error: std::fmt::Debug,
{
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}
