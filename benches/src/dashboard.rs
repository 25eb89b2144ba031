//! What does a page of the dashboard cost, and whom?
//!
//! A gateway over a disk store that holds many records answers 5,000 first requests a second. Windows without readers alternate with two
//! kinds of windows with ten of them. In the one, ten pages are open: each was loaded once, and gets its live numbers. In the other the
//! ten readers search as well: each loads another page every second. Said is how long pages take under that load, and what the
//! requests' rate and latency are beside both kinds of readers. The windows without readers show how far a difference can be trusted.
//!
//! `cargo xtask bench dashboard [RECORDS]`; a million records unless it is told otherwise.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;
use retrysafe::stores::disk::{DiskOptions, Durability};
use retrysafe_core::fingerprint::{Fingerprint, RulesId};
use retrysafe_core::key::Key;
use retrysafe_core::record::{About, Answer, Becomes, First, Happened, Standing, Write};
use retrysafe_core::response::StoredResponse;
use retrysafe_core::scope::{Id, Scope};
use retrysafe_core::store::{Inserted, Store as _};

use crate::gateway::bare;
use crate::gateway::load::{self, Asked, Measured};
use crate::gateway::servers::{self, Server};

const RECORDS: u64 = 1_000_000;

/// Odd, so that the median is a measured round.
const ROUNDS: usize = 5;

/// How long each window is.
const WINDOW: Duration = Duration::from_secs(4);

/// How many requests come in a second.
const PER_SECOND: u32 = 5_000;

/// How many readers have a page open.
const READERS: usize = 10;

/// How long a reader who searches looks at a page.
const LOOKED_AT: Duration = Duration::from_secs(1);

const CONNECTIONS: usize = 64;

pub fn run() {
    let asked = std::env::args().nth(2);
    let records = asked.and_then(|count| count.replace(['_', ','], "").parse().ok()).unwrap_or(RECORDS);
    let folder = tempfile::tempdir_in(servers::target()).unwrap();
    let began = Instant::now();
    fill(&folder.path().join("data"), records);
    println!("{records} records were written in {:.0} s", began.elapsed().as_secs_f64());
    let began = Instant::now();
    let server = Server::gateway(bare::upstream(), folder.path(), "[log]\nrequests = false\n");
    println!("the gateway was ready after {:.1} s", began.elapsed().as_secs_f64());
    let dashboard = server.admin.expect("a gateway has an admin listener");
    let cookie = log_in(dashboard);
    let pages = pages();
    ask_for(&server, WINDOW / 4);

    let mut took: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut beside = |habit| {
        let readers = Readers::open(dashboard, &cookie, &pages, habit);
        let measured = ask_for(&server, WINDOW);
        for (page, seconds) in readers.close() {
            took.entry(page).or_default().push(seconds);
        }
        measured
    };
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let before = ask_for(&server, WINDOW);
        let open = beside(Habit::LeavesOpen);
        let between = ask_for(&server, WINDOW);
        let searching = beside(Habit::Searches);
        let after = ask_for(&server, WINDOW);
        rounds.push(Round { quiet: [before, between, after], open, searching });
    }
    for Round { quiet: [before, between, after], open, searching } in &rounds {
        for measured in [before, between, after, open, searching] {
            assert_eq!(measured.failed, 0, "answers that were not 2xx");
        }
    }
    tell_pages(&took);
    tell_requests(&rounds);
    println!("\nmemory of the gateway: {:.0} MB", server.resident_mb());
}

fn ask_for(server: &Server, window: Duration) -> Measured {
    load::run_at(server, Asked::First, CONNECTIONS, window, Some(PER_SECOND))
}

fn tell_pages(took: &BTreeMap<&str, Vec<f64>>) {
    println!("\npages that {READERS} readers load beside the load, one of them every second\n");
    println!("| page | loaded | median ms | slowest ms |\n| --- | ---: | ---: | ---: |");
    for (page, seconds) in took {
        let mut sorted = seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let slowest = sorted.last().copied().unwrap_or(f64::NAN);
        println!("| `{page}` | {} | {:.1} | {:.1} |", sorted.len(), sorted[sorted.len() / 2] * 1e3, slowest * 1e3);
    }
}

/// Five windows, one after the other: without readers in between.
struct Round {
    quiet: [Measured; 3],
    open: Measured,
    searching: Measured,
}

fn tell_requests(rounds: &[Round]) {
    println!("\n{PER_SECOND} first requests a second, durable, {CONNECTIONS} connections; {ROUNDS} rounds of windows of {} s\n", WINDOW.as_secs());
    println!("| | without readers | ten pages open | ratio (range) | ten readers search | ratio (range) | two windows without: ratio |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    let row = |name: &str, of: &dyn Fn(&Measured) -> f64| {
        let quiet = sorted(rounds.iter().flat_map(|round| round.quiet.each_ref().map(of)));
        let open = sorted(rounds.iter().map(|round| of(&round.open)));
        let searching = sorted(rounds.iter().map(|round| of(&round.searching)));
        // Each window is compared with the two around it.
        let opened = sorted(rounds.iter().map(|Round { quiet: [before, between, _], open, .. }| {
            of(open) / ((of(before) + of(between)) / 2.0)
        }));
        let searched = sorted(rounds.iter().map(|Round { quiet: [_, between, after], searching, .. }| {
            of(searching) / ((of(between) + of(after)) / 2.0)
        }));
        let noise = sorted(rounds.iter().flat_map(|Round { quiet: [before, between, after], .. }| {
            [of(between) / of(before), of(after) / of(between)]
        }));
        let range = |values: &[f64]| format!("{:.2} – {:.2}", values[0], values[values.len() - 1]);
        println!(
            "| {name} | {:.2} | {:.2} | {:.2} ({}) | {:.2} | {:.2} ({}) | {} |",
            median(&quiet),
            median(&open),
            median(&opened),
            range(&opened),
            median(&searching),
            median(&searched),
            range(&searched),
            range(&noise),
        );
    };
    row("requests/s", &|measured| measured.rate);
    row("p50 ms", &|measured| measured.p50_ms);
    row("p99 ms", &|measured| measured.p99_ms);
    row("CPU µs/request", &|measured| measured.cpu_us);
}

fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Every page that a store's size could make slow, and some that it could not: what it is called, and its path.
fn pages() -> Vec<(&'static str, String)> {
    let id = first(1).id;
    vec![
        ("/", "/".to_owned()),
        ("/unknown", "/unknown".to_owned()),
        ("/keys", "/keys".to_owned()),
        ("/keys by state", "/keys?state=completed".to_owned()),
        ("/keys by route", "/keys?route=/payments".to_owned()),
        ("/keys by a caller whom nobody knows", "/keys?scope=tenant%3Dnobody".to_owned()),
        ("/keys by the digits of an id", format!("/keys?text={}", &id.to_string()[..12])),
        ("/keys by a request id that nobody has", "/keys?text=no-such-request".to_owned()),
        ("/keys/ID", format!("/keys/{id}")),
        ("/store", "/store".to_owned()),
        ("/settings", "/settings".to_owned()),
    ]
}

/// What a reader does with a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Habit {
    /// Loads it once, and has it open.
    LeavesOpen,
    /// Loads another one every second.
    Searches,
}

/// People who have a page open.
struct Readers {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<Vec<(&'static str, f64)>>>,
}

impl Readers {
    fn open(dashboard: SocketAddr, cookie: &str, pages: &[(&'static str, String)], habit: Habit) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..READERS)
            .map(|number| {
                let (stop, cookie, pages) = (Arc::clone(&stop), cookie.to_owned(), pages.to_vec());
                std::thread::spawn(move || read(dashboard, &cookie, &pages, number, habit, &stop))
            })
            .collect();
        Self { stop, threads }
    }

    /// How long each page took that was loaded, in seconds.
    fn close(self) -> Vec<(&'static str, f64)> {
        self.stop.store(true, Ordering::Release);
        self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    }
}

fn read(
    dashboard: SocketAddr,
    cookie: &str,
    pages: &[(&'static str, String)],
    first: usize,
    habit: Habit,
    stop: &AtomicBool,
) -> Vec<(&'static str, f64)> {
    // The live numbers: read when there are some, and left unread in between, as a browser does.
    let mut live = ask(dashboard, "GET", "/events", cookie, "");
    live.set_nonblocking(true).unwrap();
    let mut took = Vec::new();
    for (turn, (name, path)) in pages.iter().cycle().skip(first * pages.len() / READERS).enumerate() {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let asked_at = Instant::now();
        if turn == 0 || habit == Habit::Searches {
            let answer = whole(ask(dashboard, "GET", path, cookie, ""));
            took.push((*name, asked_at.elapsed().as_secs_f64()));
            assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {}", answer.lines().next().unwrap_or_default());
        }
        let mut numbers = [0; 16 << 10];
        while live.read(&mut numbers).is_ok_and(|n| n > 0) {}
        std::thread::sleep(LOOKED_AT.saturating_sub(asked_at.elapsed()));
    }
    took
}

fn log_in(dashboard: SocketAddr) -> String {
    let answer = whole(ask(dashboard, "POST", "/login", "", "token=token-of-the-benches"));
    let cookie = answer.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a session");
    cookie.split(';').next().unwrap_or_default().to_owned()
}

/// Sends a request on a connection of its own.
fn ask(dashboard: SocketAddr, method: &str, path: &str, cookie: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(dashboard).unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {dashboard}\r\nConnection: close\r\nCookie: {cookie}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

fn whole(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn first(number: u64) -> First {
    let scope = Scope::of([("tenant", format!("customer-{}", number % 1_000).as_bytes())]);
    let key = Key::new(&format!("4f0c2b54-9a53-4f6e-8f4b-{number:012x}")).unwrap().digest();
    First {
        id: Id::of(&scope, &key),
        scope,
        key,
        fingerprint: Fingerprint::from_parts(1, RulesId::from_bytes([7; 8]), [9; 32]),
        mark: None,
        about: About { method: "POST".into(), route: "/payments".into(), path: "/payments".into() },
        ttl: Duration::from_secs(86_400),
        lease: Duration::from_secs(60),
        owner: number,
        request_id: None,
        flow: None,
    }
}

fn settled() -> Write {
    let body = Bytes::from_static(&[b'x'; 128]);
    let response = StoredResponse { status: StatusCode::CREATED, headers: Vec::new(), body };
    Write {
        becomes: Becomes::Completed(Answer::Kept(response)),
        new_fence: false,
        what: Some(Happened::Settled(Standing::Completed, Some(201))),
        ttl: None,
    }
}

/// Fills a store quickly: without flushing each batch.
fn fill(path: &Path, records: u64) {
    const TASKS: u64 = 256;
    let store = DiskOptions::new().durability(Durability::Process).open(path).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..TASKS {
            let store = store.clone();
            tasks.spawn(async move {
                for number in (task..records).step_by(TASKS as usize) {
                    let Inserted::New(record) = store.insert(first(number)).await.unwrap().value else {
                        panic!("a new key");
                    };
                    store.swap(record, settled()).await.unwrap();
                }
            });
        }
        tasks.join_all().await;
    });
    store.close();
}
