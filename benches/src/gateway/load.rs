//! How many requests does a server answer?
//!
//! Connections that each wait for an answer before they ask again, on two threads. Requests are bytes made before the
//! window begins; of an answer only status and length are read.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::servers::Server;

/// Threads of the load generator.
const THREADS: usize = 2;

/// How many keys a replay chooses from.
const HOT_KEYS: u64 = 1_000;

/// How many keys of its own a replay chooses from, where the connection's session is the caller.
const SESSION_KEYS: u64 = 16;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// A request that is not covered.
    Get,
    /// A request with a key of its own.
    First,
    /// A request that was answered before.
    Replay,
}

/// What came of it.
pub struct Measured {
    pub rate: f64,
    pub cpu_us: f64,
    pub answered: u64,
    pub failed: u64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// What the observer's readings rose by during the window.
    pub risen: Vec<f64>,
}

/// Who is asked, and what is read at both ends of the window. The first reading is processor time in seconds.
pub struct Target<'a> {
    pub address: SocketAddr,
    /// Whether a caller opens a session at `/session` and is told apart by its cookie.
    pub has_sessions: bool,
    /// How many requests a second all callers together make; as many as are answered, unless it is said.
    pub per_second: Option<u32>,
    pub observe: &'a dyn Fn() -> Vec<f64>,
}

struct Count {
    stop: AtomicBool,
    answered: AtomicU64,
    failed: AtomicU64,
}

/// Asks a server for a while.
pub fn run(server: &Server, asked: Asked, connections: usize, window: Duration) -> Measured {
    run_at(server, asked, connections, window, None)
}

/// Asks a server so many times a second, if that is said.
pub fn run_at(
    server: &Server,
    asked: Asked,
    connections: usize,
    window: Duration,
    per_second: Option<u32>,
) -> Measured {
    let observe = || vec![server.cpu_seconds()];
    let target = Target { address: server.address, has_sessions: false, per_second, observe: &observe };
    drive(&target, asked, connections, window)
}

/// Asks a target for a while.
pub fn drive(target: &Target, asked: Asked, connections: usize, window: Duration) -> Measured {
    let (address, has_sessions) = (target.address, target.has_sessions);
    let pause = target.per_second.map(|rate| Duration::from_secs(1) * connections as u32 / rate);
    let count = Arc::new(Count { stop: AtomicBool::new(false), answered: 0.into(), failed: 0.into() });
    // A single connection needs a single thread.
    let threads = THREADS.min(connections);
    let begun = Arc::new(std::sync::Barrier::new(threads + 1));
    let threads: Vec<_> = (0..threads)
        .map(|thread| {
            let (count, begun) = (Arc::clone(&count), Arc::clone(&begun));
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async move {
                    let mut callers = Vec::new();
                    for _ in 0..connections / threads {
                        callers.push(Caller::connect(address, has_sessions, asked).await);
                    }
                    begun.wait();
                    let now = tokio::time::Instant::now();
                    let tasks: Vec<_> = (thread..)
                        .step_by(threads)
                        .zip(callers)
                        .map(|(number, caller)| {
                            // Spread over the pause, so that they do not all ask at once.
                            let pace = pause.map(|pause| {
                                let first = now + pause * number as u32 / connections as u32;
                                tokio::time::interval_at(first, pause)
                            });
                            tokio::spawn(caller.ask(asked, pace, Arc::clone(&count)))
                        })
                        .collect();
                    let mut took = Vec::new();
                    for task in tasks {
                        took.extend(task.await.unwrap());
                    }
                    took
                })
            })
        })
        .collect();
    begun.wait();
    let (started, before) = (Instant::now(), (target.observe)());
    std::thread::sleep(window);
    let answered = count.answered.load(Ordering::Acquire);
    let (took, after) = (started.elapsed(), (target.observe)());
    count.stop.store(true, Ordering::Release);
    let mut latencies: Vec<u32> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    latencies.sort_unstable();
    let percentile =
        |percent: usize| latencies.get(latencies.len() * percent / 100).map_or(f64::NAN, |us| f64::from(*us) / 1e3);
    let risen: Vec<f64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
    Measured {
        rate: answered as f64 / took.as_secs_f64(),
        cpu_us: risen[0] * 1e6 / answered.max(1) as f64,
        answered,
        failed: count.failed.load(Ordering::Acquire),
        p50_ms: percentile(50),
        p99_ms: percentile(99),
        risen,
    }
}

/// One connection, which waits for an answer before it asks again.
struct Caller {
    stream: TcpStream,
    /// The cookie's line, if sessions tell callers apart.
    cookie: Option<String>,
}

impl Caller {
    async fn connect(address: SocketAddr, has_sessions: bool, asked: Asked) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut caller = Self { stream, cookie: None };
        if has_sessions {
            let mut answer = vec![0; 16 << 10];
            let open = b"GET /session HTTP/1.1\r\nHost: api.test\r\n\r\n";
            exchange(&mut caller.stream, open, &mut answer, |_| true).await.expect("a session");
            let head = String::from_utf8_lossy(&answer).into_owned();
            let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a cookie");
            caller.cookie = cookie.split(';').next().map(|cookie| format!("Cookie: {cookie}\r\n"));
            // A session is new, so its answers have to be made before they can be replayed.
            for number in (0..SESSION_KEYS).filter(|_| asked == Asked::Replay) {
                let request = caller.request(asked, number);
                exchange(&mut caller.stream, &request, &mut answer, |_| true).await.expect("an answer");
            }
        }
        caller
    }

    fn request(&self, asked: Asked, number: u64) -> Vec<u8> {
        let cookie = self.cookie.as_deref().unwrap_or_default();
        let hot = if self.cookie.is_some() { SESSION_KEYS } else { HOT_KEYS };
        let run = std::process::id();
        match asked {
            Asked::Get => b"GET /things/1 HTTP/1.1\r\nHost: api.test\r\n\r\n".to_vec(),
            Asked::First => post(&format!("first-{run}-{number}"), cookie),
            Asked::Replay => post(&format!("hot-{run}-{}", number % hot), cookie),
        }
    }

    /// Asks until it is told to stop, and gives how long each answer took, in microseconds.
    async fn ask(mut self, asked: Asked, mut pace: Option<tokio::time::Interval>, count: Arc<Count>) -> Vec<u32> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut answer = vec![0; 16 << 10];
        let mut took = Vec::new();
        while !count.stop.load(Ordering::Relaxed) {
            if let Some(pace) = &mut pace {
                pace.tick().await;
            }
            let request = self.request(asked, NEXT.fetch_add(1, Ordering::Relaxed));
            // A replay that meets the first request is told to wait: that is no failure of the server's.
            let is_fine = |status: &[u8]| status.starts_with(b"2") || (asked == Asked::Replay && status == b"409");
            let asked_at = Instant::now();
            let answered = exchange(&mut self.stream, &request, &mut answer, is_fine).await;
            took.push(u32::try_from(asked_at.elapsed().as_micros()).unwrap_or(u32::MAX));
            match answered {
                Some(true) => count.answered.fetch_add(1, Ordering::Relaxed),
                Some(false) => count.failed.fetch_add(1, Ordering::Relaxed),
                None => {
                    count.failed.fetch_add(1, Ordering::Relaxed);
                    break;
                }
            };
        }
        took
    }
}

/// Has every hot key answered once, so that a replay finds its answer.
pub fn fill(address: SocketAddr) {
    const CALLERS: u64 = 16;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async move {
        let mut callers = tokio::task::JoinSet::new();
        for first in 0..CALLERS {
            callers.spawn(async move {
                let mut caller = Caller::connect(address, false, Asked::Replay).await;
                let mut answer = vec![0; 16 << 10];
                for number in (first..HOT_KEYS).step_by(CALLERS as usize) {
                    let request = caller.request(Asked::Replay, number);
                    exchange(&mut caller.stream, &request, &mut answer, |_| true).await.expect("an answer");
                }
            });
        }
        callers.join_all().await;
    });
}

/// Sends a request and reads its answer whole; none if the connection broke.
async fn exchange(
    stream: &mut TcpStream,
    request: &[u8],
    answer: &mut [u8],
    is_fine: impl Fn(&[u8]) -> bool,
) -> Option<bool> {
    stream.write_all(request).await.ok()?;
    let mut held = 0;
    let (head, length) = loop {
        let n = stream.read(&mut answer[held..]).await.ok().filter(|n| *n > 0)?;
        held += n;
        if let Some(end) = answer[..held].windows(4).position(|four| four == b"\r\n\r\n") {
            break (end + 4, length(&answer[..end])?);
        }
    };
    while held < head + length {
        held += stream.read(&mut answer[held..]).await.ok().filter(|n| *n > 0)?;
    }
    Some(is_fine(answer.get(9..12)?))
}

fn length(head: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(head).ok()?;
    let line = text.lines().find(|line| line.len() > 15 && line[..15].eq_ignore_ascii_case("content-length:"))?;
    line[15..].trim().parse().ok()
}

/// A payment of about a kilobyte.
fn post(key: &str, cookie: &str) -> Vec<u8> {
    let filler = "x".repeat(900);
    let body = format!("{{\"amount\":499,\"currency\":\"eur\",\"note\":\"{filler}\",\"customer\":{{\"id\":7,\"vip\":false}}}}");
    format!(
        "POST /payments HTTP/1.1\r\nHost: api.test\r\nContent-Type: application/json\r\n\
         Authorization: Bearer bench\r\nIdempotency-Key: {key}\r\n{cookie}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
