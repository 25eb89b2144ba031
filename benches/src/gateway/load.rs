//! How many requests does a server answer?
//!
//! Connections that each wait for an answer before they ask again, on two threads. Requests are bytes made before the
//! window begins; of an answer only status and length are read.

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
}

struct Count {
    stop: AtomicBool,
    answered: AtomicU64,
    failed: AtomicU64,
}

/// Asks a server for a while.
pub fn run(server: &Server, asked: Asked, connections: usize, window: Duration) -> Measured {
    let address = server.address;
    let count = Arc::new(Count { stop: AtomicBool::new(false), answered: 0.into(), failed: 0.into() });
    let begun = Arc::new(std::sync::Barrier::new(THREADS + 1));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (count, begun) = (Arc::clone(&count), Arc::clone(&begun));
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async move {
                    let mut streams = Vec::new();
                    for _ in 0..connections / THREADS {
                        let stream = TcpStream::connect(address).await.unwrap();
                        stream.set_nodelay(true).unwrap();
                        streams.push(stream);
                    }
                    begun.wait();
                    let tasks: Vec<_> = streams
                        .into_iter()
                        .map(|stream| tokio::spawn(ask(stream, asked, Arc::clone(&count))))
                        .collect();
                    for task in tasks {
                        task.await.unwrap();
                    }
                });
            })
        })
        .collect();
    begun.wait();
    let (started, cpu) = (Instant::now(), server.cpu_seconds());
    std::thread::sleep(window);
    let answered = count.answered.load(Ordering::Acquire);
    let (took, cpu) = (started.elapsed(), server.cpu_seconds() - cpu);
    count.stop.store(true, Ordering::Release);
    for thread in threads {
        thread.join().unwrap();
    }
    Measured {
        rate: answered as f64 / took.as_secs_f64(),
        cpu_us: cpu * 1e6 / answered.max(1) as f64,
        answered,
        failed: count.failed.load(Ordering::Acquire),
    }
}

async fn ask(mut stream: TcpStream, asked: Asked, count: Arc<Count>) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut answer = vec![0; 16 << 10];
    while !count.stop.load(Ordering::Relaxed) {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let request = match asked {
            Asked::Get => b"GET /things/1 HTTP/1.1\r\nHost: api.test\r\n\r\n".to_vec(),
            Asked::First => post(&format!("first-{}-{number}", std::process::id())),
            Asked::Replay => post(&format!("hot-{}-{}", std::process::id(), number % HOT_KEYS)),
        };
        // A replay that meets the first request is told to wait: that is no failure of the server's.
        let is_fine = |status: &[u8]| status.starts_with(b"2") || (asked == Asked::Replay && status == b"409");
        match exchange(&mut stream, &request, &mut answer, is_fine).await {
            Some(true) => count.answered.fetch_add(1, Ordering::Relaxed),
            Some(false) => count.failed.fetch_add(1, Ordering::Relaxed),
            None => {
                count.failed.fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
    }
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
fn post(key: &str) -> Vec<u8> {
    let filler = "x".repeat(900);
    let body = format!("{{\"amount\":499,\"currency\":\"eur\",\"note\":\"{filler}\",\"customer\":{{\"id\":7,\"vip\":false}}}}");
    format!(
        "POST /payments HTTP/1.1\r\nHost: api.test\r\nContent-Type: application/json\r\n\
         Authorization: Bearer bench\r\nIdempotency-Key: {key}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
