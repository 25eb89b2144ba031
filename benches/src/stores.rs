//! How fast is the disk store, beside what one would else use?
//!
//! `bench stores [part] [records]`: `rate` (the default) is begin + settle against SQLite, redb and
//! fjall; `size` is memory and time to open; `growth` is the cost per operation as the store grows;
//! `reap` is the latency of begin while the reaper works. Values are a kilobyte.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;
use retrysafe::stores::disk::{DiskOptions, DiskStore, Durability};
use retrysafe_core::Store as _;
use retrysafe_core::fingerprint::{Fingerprint, RulesId};
use retrysafe_core::key::Key;
use retrysafe_core::record::{
    About, Answer, Becomes, First, Happened, Record, Standing, Write,
};
use retrysafe_core::response::StoredResponse;
use retrysafe_core::scope::{Id, Scope};
use retrysafe_core::store::{Inserted, Swapped};
use tokio::sync::{mpsc, oneshot};

const ROUNDS: usize = 5;
const WINDOW: Duration = Duration::from_millis(900);
const BODY_BYTES: usize = 1_024;
/// Tells the process that it is the one that opens a store, so that its memory is nothing else's.
const CHILD: &str = "RETRYSAFE_BENCH_OPEN";

pub fn run() {
    if let Ok(path) = std::env::var(CHILD) {
        return open_in_child(Path::new(&path));
    }
    let args: Vec<String> = std::env::args().skip(2).collect();
    let records = args.get(1).and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    match args.first().map(String::as_str) {
        None | Some("rate") => rate(),
        Some("size") => size(records),
        Some("growth") => growth(records),
        Some("reap") => reap(),
        Some(other) => eprintln!("no such part: {other} (rate, size, growth, reap)"),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("retrysafe-bench").tempdir_in(".").unwrap()
}

fn first(number: u64) -> First {
    let scope = Scope::of([("tenant", &b"acme"[..])]);
    let key = Key::new(&format!("4f0c2b54-9a53-4f6e-8f4b-{number:012x}")).unwrap().digest();
    First {
        id: Id::of(&scope, &key),
        scope,
        key,
        fingerprint: Fingerprint::from_parts(1, RulesId::from_bytes([7; 8]), [9; 32]),
        mark: None,
        about: About {
            method: "POST".into(),
            route: "/payments/{*rest}".into(),
            path: "/payments/charge".into(),
        },
        ttl: Duration::from_secs(86_400),
        lease: Duration::from_secs(60),
        owner: number,
        request_id: None,
        flow: None,
    }
}

fn settle() -> Write {
    let response = StoredResponse {
        status: StatusCode::CREATED,
        headers: vec![(http::header::CONTENT_TYPE, "application/json".parse().unwrap())],
        body: Bytes::from_static(&[b'x'; BODY_BYTES]),
    };
    Write {
        becomes: Becomes::Completed(Answer::Kept(response)),
        new_fence: false,
        what: Some(Happened::Settled(Standing::Completed, Some(201))),
        ttl: None,
    }
}

/// Something that can begin and settle.
trait Engine: Send + Sync + 'static {
    fn first(&self, number: u64) -> impl Future<Output = ()> + Send;
}

impl Engine for DiskStore {
    async fn first(&self, number: u64) {
        let Inserted::New(record) = self.insert(first(number)).await.unwrap().value else {
            panic!("a new key");
        };
        let swapped = self.swap(record, settle()).await.unwrap().value;
        assert!(matches!(swapped, Swapped::Done(_)));
    }
}

/// A write to a baseline: the record as bytes, under its id.
struct Put {
    id: Id,
    bytes: Vec<u8>,
    is_new: bool,
    done: oneshot::Sender<bool>,
}

/// A baseline behind one writer thread.
struct Baseline(mpsc::Sender<Put>);

impl Baseline {
    fn start(mut write: impl FnMut(&[Put]) + Send + 'static, max: usize) -> Self {
        let (send, mut receive) = mpsc::channel(4_096);
        std::thread::spawn(move || {
            let mut puts = Vec::new();
            while receive.blocking_recv_many(&mut puts, max) > 0 {
                write(&puts);
                puts.drain(..).for_each(|put: Put| { let _ = put.done.send(true); });
            }
        });
        Self(send)
    }

    async fn put(&self, record: &Record, is_new: bool) {
        let (done, answer) = oneshot::channel();
        let put = Put { id: record.id, bytes: record.encode(), is_new, done };
        self.0.send(put).await.ok().unwrap();
        assert!(answer.await.unwrap());
    }
}

impl Engine for Baseline {
    async fn first(&self, number: u64) {
        let now = retrysafe_core::time::Time::from_ms(1_700_000_000_000);
        let record = first(number).record(now, number + 1);
        self.put(&record, true).await;
        let settled = settle().onto(&record, now, number + 1);
        self.put(&settled, false).await;
    }
}

fn sqlite(path: &Path) -> Baseline {
    let db = rusqlite::Connection::open(path.join("db")).unwrap();
    db.pragma_update(None, "journal_mode", "WAL").unwrap();
    db.pragma_update(None, "synchronous", "FULL").unwrap();
    db.execute("CREATE TABLE r (id BLOB PRIMARY KEY, v BLOB) WITHOUT ROWID", ()).unwrap();
    let write = move |puts: &[Put]| {
        for put in puts {
            let sql = match put.is_new {
                true => "INSERT INTO r VALUES (?1, ?2) ON CONFLICT DO NOTHING",
                false => "UPDATE r SET v = ?2 WHERE id = ?1",
            };
            let mut statement = db.prepare_cached(sql).unwrap();
            assert_eq!(statement.execute((put.id.as_bytes(), &put.bytes)).unwrap(), 1);
        }
    };
    Baseline::start(write, 1)
}

fn redb(path: &Path) -> Baseline {
    const TABLE: redb::TableDefinition<&[u8], &[u8]> = redb::TableDefinition::new("r");
    let db = redb::Database::create(path.join("db")).unwrap();
    let write = move |puts: &[Put]| {
        let batch = db.begin_write().unwrap();
        {
            let mut table = batch.open_table(TABLE).unwrap();
            for put in puts {
                let id = put.id.as_bytes().as_slice();
                assert_ne!(put.is_new, redb::ReadableTable::get(&table, id).unwrap().is_some());
                table.insert(id, put.bytes.as_slice()).unwrap();
            }
        }
        batch.commit().unwrap();
    };
    Baseline::start(write, 4_096)
}

fn fjall(path: &Path) -> Baseline {
    let db = fjall::Database::builder(path.join("db")).open().unwrap();
    let keys = db.keyspace("r", fjall::KeyspaceCreateOptions::default).unwrap();
    let write = move |puts: &[Put]| {
        let mut batch = db.batch().durability(Some(fjall::PersistMode::SyncData));
        for put in puts {
            let id = put.id.as_bytes().as_slice();
            assert_ne!(put.is_new, keys.get(id).unwrap().is_some());
            batch.insert(&keys, id, put.bytes.as_slice());
        }
        batch.commit().unwrap();
    };
    Baseline::start(write, 4_096)
}

/// Runs tasks for a while. Says how many firsts there were per second, and how long each took.
fn load<E: Engine>(engine: Arc<E>, tasks: u64, base: u64, time: Duration) -> (f64, Vec<Duration>) {
    runtime().block_on(async {
        let start = Instant::now();
        let run = |task: u64| {
            let engine = Arc::clone(&engine);
            tokio::spawn(async move {
                let mut took = Vec::new();
                let mut number = base + (task << 24);
                while start.elapsed() < time {
                    let before = Instant::now();
                    engine.first(number).await;
                    took.push(before.elapsed());
                    number += 1;
                }
                took
            })
        };
        let handles: Vec<_> = (0..tasks).map(run).collect();
        let mut all = Vec::new();
        for handle in handles {
            all.extend(handle.await.unwrap());
        }
        let rate = all.len() as f64 / start.elapsed().as_secs_f64();
        (rate, all)
    })
}

/// Bytes written to the device that holds the working folder, by the kernel's sector counts.
fn device_bytes() -> Option<u64> {
    let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
    let here = std::env::current_dir().ok()?;
    let device = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let (device, point) = (fields.next()?, fields.next()?);
            here.starts_with(point).then_some((point.len(), device.to_owned()))
        })
        .max()?
        .1;
    let name = device.rsplit('/').next()?.to_owned();
    let stats = std::fs::read_to_string("/proc/diskstats").ok()?;
    let line = stats.lines().find(|line| line.split_whitespace().nth(2) == Some(&name))?;
    Some(line.split_whitespace().nth(9)?.parse::<u64>().ok()? * 512)
}

#[derive(Clone, Copy)]
struct Row {
    rate: f64,
    device: f64,
}

fn measure<E: Engine>(tasks: u64, open: impl Fn(&Path) -> E) -> Row {
    let folder = folder();
    let engine = Arc::new(open(folder.path()));
    let before = device_bytes();
    let (rate, took) = load(Arc::clone(&engine), tasks, 0, WINDOW);
    let bytes = device_bytes().zip(before).map_or(f64::NAN, |(after, before)| (after - before) as f64);
    Row { rate, device: bytes / took.len() as f64 }
}

fn median(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

fn rate() {
    const NAMES: [&str; 4] = ["SQLite WAL FULL, per operation", "redb, grouped", "fjall, grouped", "disk store"];
    for tasks in [64, 256] {
        let mut rows: [Vec<Row>; 4] = Default::default();
        for _ in 0..ROUNDS {
            rows[0].push(measure(tasks, sqlite));
            rows[1].push(measure(tasks, redb));
            rows[2].push(measure(tasks, fjall));
            rows[3].push(measure(tasks, |path| DiskStore::open(path).unwrap()));
        }
        println!("\nbegin + settle, {tasks} tasks, {ROUNDS} interleaved rounds of {WINDOW:?}");
        println!("{:<32}{:>12}{:>28}{:>14}", "", "firsts/s", "x SQLite [range]", "device B");
        for (name, row) in NAMES.iter().zip(&rows) {
            let (rate, ..) = median(row.iter().map(|row| row.rate).collect());
            let ratios = row.iter().zip(&rows[0]).map(|(row, base)| row.rate / base.rate).collect();
            let (ratio, low, high) = median(ratios);
            let (device, ..) = median(row.iter().map(|row| row.device).collect());
            let ratios = format!("{ratio:.1} [{low:.1}-{high:.1}]");
            println!("{name:<32}{rate:>12.0}{ratios:>28}{device:>14.0}");
        }
    }
    println!("device B: all bytes written to the device per first, after a store was created");
}

/// Fills a store quickly: without flushing each batch.
fn fill(path: &Path, from: u64, to: u64) -> DiskStore {
    let store = DiskOptions::new().durability(Durability::Process).open(path).unwrap();
    let tasks = 256;
    runtime().block_on(async {
        let run = |task: u64| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut number = from + task;
                while number < to {
                    store.first(number).await;
                    number += tasks;
                }
            })
        };
        for handle in (0..tasks).map(run).collect::<Vec<_>>() {
            handle.await.unwrap();
        }
    });
    store
}

fn rss_anon_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("RssAnon"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

fn open_in_child(path: &Path) {
    let before = rss_anon_kb();
    let start = Instant::now();
    let store = DiskStore::open(path).unwrap();
    let took = start.elapsed();
    let records = store.records();
    let after = rss_anon_kb();
    println!(
        "  {records} records: opened in {took:.2?}, {:.1} MB anonymous memory, {:.1} MB per million",
        (after - before) as f64 / 1e3,
        (after - before) as f64 * 1e3 / records as f64
    );
    // No farewell: the next opening shall find what this one found.
    std::process::exit(0);
}

fn size(records: u64) {
    let folder = folder();
    let start = Instant::now();
    fill(folder.path(), 0, records).close();
    println!("filled and closed in {:.1?}", start.elapsed());
    let open = |how: &str| {
        println!("{how}:");
        let me = std::env::current_exe().unwrap();
        let mut child = std::process::Command::new(me);
        let status = child.args(["stores"]).env(CHILD, folder.path()).status().unwrap();
        assert!(status.success());
    };
    for _ in 0..3 {
        open("with a snapshot");
    }
    std::fs::remove_file(folder.path().join("snapshot")).unwrap();
    for _ in 0..3 {
        open("reading the whole log");
    }
}

fn growth(most: u64) {
    let folder = folder();
    println!("begin + settle at 64 tasks, full durability, as the store grows ({ROUNDS} windows)");
    let (mut held, mut number) = (0, 10_000);
    let mut base = None;
    while number <= most {
        fill(folder.path(), held, number).close();
        held = number;
        let store = Arc::new(DiskStore::open(folder.path()).unwrap());
        let rates = (0..ROUNDS as u64).map(|round| {
            load(Arc::clone(&store), 64, (1 << 40) * (round + 1) + number, WINDOW).0
        });
        let (rate, low, high) = median(rates.collect());
        let cost = 1e6 / rate;
        let base = *base.get_or_insert(cost);
        println!("{number:>12} records: {cost:.2} us per first [{:.2}-{:.2}], {:.2} x the first row", 1e6 / high, 1e6 / low, cost / base);
        store.close();
        number *= 10;
    }
}

fn percentile(mut took: Vec<Duration>, part: f64) -> Duration {
    took.sort();
    took[((took.len() - 1) as f64 * part) as usize]
}

fn reap() {
    let (clock, hand) =
        retrysafe::stores::clock::Clock::manual(retrysafe_core::time::Time::from_ms(1_700_000_000_000));
    let folder = folder();
    fill(folder.path(), 0, 400_000).close();
    let store = DiskOptions::new().clock(clock).open(folder.path()).unwrap();
    hand.advance(Duration::from_secs(400 * 365 * 86_400));
    let store = Arc::new(store);
    println!("begin + settle at 64 tasks (each is two flushes)");
    let mut base = 0_u64;
    for (name, is_reaping) in [("alone", false), ("while reaping", true), ("alone", false), ("while reaping", true)] {
        let reaper = is_reaping.then(|| {
            let store = Arc::clone(&store);
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                (0..200).map(|_| runtime.block_on(store.reap(1_000)).unwrap().value).sum::<usize>()
            })
        });
        base += 1 << 41;
        let (rate, took) = load(Arc::clone(&store), 64, base, WINDOW * 2);
        let reaped = reaper.map_or(0, |reaper| reaper.join().unwrap());
        println!(
            "{name:<14} {rate:>8.0} firsts/s, p50 {:?}, p99 {:?}, {reaped} reaped",
            percentile(took.clone(), 0.5),
            percentile(took, 0.99)
        );
    }
}
