//! What does the layer cost, in process, over a memory store?
//!
//! One handler behind axum on a loopback socket: bare, behind our layer, and behind `axum-idempotent` (which is not durable
//! and reserves nothing). Each round measures all of them, one after the other, and keeps the ratios to the bare handler of
//! that round. Client and server share the machine, so both sides' work is in every figure.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::routing::post;
use axum::{Json, Router};
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use retrysafe::core::Policy;
use retrysafe::layer::IdempotencyLayer;
use retrysafe::stores::memory::MemoryStore;
use ruts::store::Ttl;
use ruts::store::moka::MokaStore;
use ruts::{CookieOptions, Session, SessionLayer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tower_cookies::CookieManagerLayer;

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(400);
const CONNECTIONS: usize = 64;
const DUPLICATES: usize = 1_000;

const BODY: &str = r#"{"amount":100,"currency":"EUR","to":"acct_1","note":"a payment like any other"}"#;

static NEXT: AtomicU64 = AtomicU64::new(0);

pub fn run() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        throughput().await;
        crowd().await;
    });
}

async fn pay(Json(order): Json<serde_json::Value>) -> String {
    format!("{{\"paid\":{}}}", order["amount"])
}

fn handler() -> Router {
    Router::new().route("/pay", post(pay))
}

async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn theirs() -> Router {
    let sessions = SessionLayer::new(Arc::new(MokaStore::builder().build()))
        .with_cookie_options(CookieOptions::build().name("session").max_age(3_600).path("/"));
    let options = IdempotentOptions::default().use_idempotency_key_header(Some("idempotency-key"), false);
    let session = post(async |session: Session<MokaStore>| {
        let hour = Ttl::new(3_600).expect("an hour");
        session.set("user", &"alice", hour, None).await.expect("a session");
    });
    handler()
        .layer(IdempotentLayer::<MokaStore>::new(options))
        .route("/session", session)
        .layer(sessions)
        .layer(CookieManagerLayer::new())
}

/// One connection of the client's, with the headers that it always sends.
struct Client {
    stream: TcpStream,
    headers: String,
    buffer: Vec<u8>,
    cookie: Option<String>,
}

impl Client {
    async fn connect(address: SocketAddr, headers: &str) -> Self {
        let stream = TcpStream::connect(address).await.expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        Self { stream, headers: headers.into(), buffer: Vec::new(), cookie: None }
    }

    /// Sends one request and reads its answer; says its status.
    async fn ask(&mut self, path: &str, key: &str, body: &str) -> u16 {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: shop.example\r\n{}idempotency-key: {key}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.headers,
            body.len(),
        );
        self.stream.write_all(request.as_bytes()).await.expect("a write");
        self.buffer.clear();
        loop {
            self.stream.read_buf(&mut self.buffer).await.expect("a read");
            let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let head = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
            let field = |name: &str| {
                head.lines().filter_map(|line| line.split_once(": ")).find(|(n, _)| *n == name).map(|(_, v)| v)
            };
            if let Some(cookie) = field("set-cookie") {
                self.cookie = cookie.split(';').next().map(str::to_owned);
            }
            let length: usize = field("content-length").map_or(0, |length| length.parse().expect("a length"));
            if self.buffer.len() >= end + 4 + length {
                return head[9..12].parse().expect("a status");
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Keys {
    New,
    Same,
}

/// What one round measured: answers per second, and seconds of processor time per answer.
#[derive(Clone, Copy)]
struct Rate {
    answers: f64,
    cpu: f64,
}

/// Processor time that this process has used, client and server together. On a busy machine this is the steadier figure:
/// it does not count the time that others took. Ticks are hundredths of a second on every Linux.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("a Linux machine");
    let fields = stat.rsplit(") ").next().unwrap_or_default();
    let ticks = fields.split(' ').skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

/// Asks on all connections for one round.
async fn rate(clients: &mut Vec<Client>, keys: Keys) -> Rate {
    let (begun, cpu) = (Instant::now(), cpu_seconds());
    let mut tasks = JoinSet::new();
    for (at, mut client) in clients.drain(..).enumerate() {
        tasks.spawn(async move {
            let mut count = 0u64;
            while begun.elapsed() < ROUND {
                let key = match keys {
                    Keys::New => format!("n{}", NEXT.fetch_add(1, Ordering::Relaxed)),
                    Keys::Same => format!("same{at}"),
                };
                assert_eq!(client.ask("/pay", &key, BODY).await, 200);
                count += 1;
            }
            (at, client, count)
        });
    }
    let mut done = tasks.join_all().await;
    let (took, cpu) = (begun.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    // A client keeps its place: its credential belongs to its keys.
    done.sort_by_key(|(at, _, _)| *at);
    let total: u64 = done.iter().map(|(_, _, count)| count).sum();
    clients.extend(done.into_iter().map(|(_, client, _)| client));
    Rate { answers: total as f64 / took, cpu: cpu / total as f64 }
}

async fn throughput() {
    let bare = serve(handler()).await;
    let ours = serve(handler().layer(IdempotencyLayer::new(MemoryStore::default()))).await;
    let theirs = serve(theirs()).await;
    let mut clients: [Vec<Client>; 3] = Default::default();
    for (address, clients) in [bare, ours, theirs].into_iter().zip(&mut clients) {
        for at in 0..CONNECTIONS {
            let mut client = Client::connect(address, &format!("authorization: Bearer {at}\r\n")).await;
            if address == theirs {
                assert_eq!(client.ask("/session", "", "").await, 200);
                let cookie = client.cookie.take().expect("a session");
                client.headers.push_str(&format!("cookie: {cookie}\r\n"));
            }
            clients.push(client);
        }
    }
    let names = ["bare handler", "ours, first", "ours, replay", "axum-idempotent, first", "axum-idempotent, replay"];
    let runs = [(0, Keys::New), (1, Keys::New), (1, Keys::Same), (2, Keys::New), (2, Keys::Same)];
    let mut rates = vec![Vec::new(); runs.len()];
    for round in 0..=ROUNDS {
        for turn in 0..runs.len() {
            // Each round begins elsewhere, so that none always comes after the same one.
            let at = (turn + round) % runs.len();
            let (server, keys) = runs[at];
            let rate = rate(&mut clients[server], keys).await;
            // The first round warms up.
            if round > 0 {
                rates[at].push(rate);
            }
        }
    }
    println!(
        "| {:<24} | {:>10} | {:>7} | {:>13} | {:>10} | {:>14} |",
        "", "answers/s", "to bare", "range", "CPU us/ans", "CPU, bare/this"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for (name, all) in names.iter().zip(&rates) {
        let ratios = sorted(all.iter().zip(&rates[0]).map(|(rate, bare)| rate.answers / bare.answers));
        let cpu = sorted(all.iter().zip(&rates[0]).map(|(rate, bare)| bare.cpu / rate.cpu));
        println!(
            "| {name:<24} | {:>10.0} | {:>7.2} | {:>5.2} – {:<5.2} | {:>10.1} | {:>14.2} |",
            median(&sorted(all.iter().map(|rate| rate.answers))),
            median(&ratios),
            ratios[0],
            ratios[ratios.len() - 1],
            median(&sorted(all.iter().map(|rate| rate.cpu * 1e6))),
            median(&cpu),
        );
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}

/// How long the slowest hundredth of other keys' requests takes, in microseconds.
async fn p99(clients: &mut Vec<Client>) -> f64 {
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for mut client in clients.drain(..) {
        tasks.spawn(async move {
            let mut took = Vec::new();
            while begun.elapsed() < ROUND {
                let key = format!("n{}", NEXT.fetch_add(1, Ordering::Relaxed));
                let asked = Instant::now();
                assert_eq!(client.ask("/pay", &key, BODY).await, 200);
                took.push(asked.elapsed().as_secs_f64() * 1e6);
            }
            (client, took)
        });
    }
    let mut all = Vec::new();
    for (client, took) in tasks.join_all().await {
        clients.push(client);
        all.extend(took);
    }
    all.sort_by(f64::total_cmp);
    all[all.len() * 99 / 100]
}

/// What a thousand duplicates of one key that wait for it do to the others.
async fn crowd() {
    let policy = Policy { wait_max: Duration::from_secs(600), ..Policy::default() };
    let layer =
        IdempotencyLayer::new(MemoryStore::default()).policy(policy).waiters_max(DUPLICATES, DUPLICATES);
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let slow = post(async move || {
        held.acquire().await.expect("a gate").forget();
        "done"
    });
    let address = serve(handler().route("/slow", slow).layer(layer)).await;
    let mut others = Vec::new();
    for _ in 0..8 {
        others.push(Client::connect(address, "").await);
    }
    p99(&mut others).await;
    let mut rows = Vec::new();
    for round in 0..5 {
        let quiet = p99(&mut others).await;
        let key = format!("crowd{round}");
        let mut crowd = JoinSet::new();
        for _ in 0..DUPLICATES {
            let key = key.clone();
            crowd.spawn(async move { Client::connect(address, "").await.ask("/slow", &key, "").await });
        }
        let arriving = p99(&mut others).await;
        let waiting = p99(&mut others).await;
        gate.add_permits(1);
        let leaving = p99(&mut others).await;
        while let Some(status) = crowd.join_next().await {
            assert_eq!(status.expect("an answer"), 200);
        }
        rows.push([quiet, arriving, waiting, leaving]);
    }
    println!("\np99 of other keys' first requests, in microseconds (median of {} rounds):", rows.len());
    for (at, name) in ["alone", "while 1,000 duplicates arrive", "while they wait", "while they are answered"]
        .iter()
        .enumerate()
    {
        let mut all: Vec<f64> = rows.iter().map(|row| row[at]).collect();
        all.sort_by(f64::total_cmp);
        println!("| {name:<30} | {:>8.0} | {:>8.0} – {:<8.0} |", all[all.len() / 2], all[0], all[all.len() - 1]);
    }
}
