//! What do random bytes do to the running gateway? `cargo xtask fuzz wire SECONDS [SEED]`.
//!
//! Callers send random bytes and mutated requests over HTTP/1.1 and HTTP/2, and the upstream's answers are mutated as
//! well. Each caller has a name, and the upstream's answer repeats the names that it found in the request. So a
//! name at the wrong place is an answer to the wrong caller. Everything stays on loopback and ends by itself.
//!
//! | judged | by |
//! | --- | --- |
//! | no answer to the wrong caller | names in what a caller receives, and in what the upstream receives |
//! | no crash | the process is alive, and its error output has no panic |
//! | no hang | well-behaved callers are answered throughout; a caller who has said everything is answered or let go |
//! | memory under its bound | resident memory of the process, every half second |
//! | nothing is left over | afterwards no connection is open and no byte is held |

mod callers;
mod chance;
mod frames;
mod probe;
mod requests;
mod upstream;

use std::collections::HashSet;
use std::fs::File;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chance::Chance;

use crate::local::{Folder, Running, free_address, get, program};
use crate::{Error, root};

/// What the gateway may hold of bodies and answers, as it is configured here.
const HELD_MIB_MAX: u64 = 64;
/// What the process may use besides: code, store, buffers of some hundred connections.
const REST_MIB_MAX: u64 = 192;
/// How many callers send at the same time.
const CALLERS: u64 = 8;
/// How many findings are printed; the first ones tell the most.
const FINDINGS_MAX: usize = 5;
/// How long the gateway may take to let everything go once nobody asks any more.
const LET_GO_MAX: Duration = Duration::from_secs(60);

/// Every name begins so; sixteen digits follow.
const NAME_PREFIX: &str = "caller-";

const RULES: &str = r#"
h2c = true
head_time_max = "3s"
held_bytes_max = "64MiB"
[log]
requests = false
[defaults]
ttl = "20s"
lease = "3s"
lease_max = "6s"
upstream_timeout = "1s"
request_time_max = "3s"
request_bytes_max = "64KiB"
response_bytes_max = "64KiB"
[upkeep]
sweep_every = "1s"
reap_every = "1s"
[[route]]
path = "/required/{*rest}"
key = "required"
[[route]]
path = "/wait/{*rest}"
wait_max = "1s"
"#;

/// What all threads share.
#[derive(Default)]
pub(crate) struct Ring {
    is_over: AtomicBool,
    connections: AtomicU64,
    requests: AtomicU64,
    probes: AtomicU64,
    received_bytes: AtomicU64,
    findings: Mutex<Vec<String>>,
    /// The names that were given out: a mutated name is nobody's.
    names: Mutex<HashSet<String>>,
}

impl Ring {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Gives out a name that nobody else has.
    fn new_name(&self, chance: &mut Chance) -> String {
        let name = format!("{NAME_PREFIX}{:016x}", chance.number());
        if let Ok(mut names) = self.names.lock() {
            names.insert(name.clone());
        }
        name
    }

    /// The names of callers that stand in some bytes.
    fn names_in(&self, bytes: &[u8]) -> Vec<String> {
        let Ok(names) = self.names.lock() else { return Vec::new() };
        bytes
            .windows(NAME_PREFIX.len() + 16)
            .filter(|window| window.starts_with(NAME_PREFIX.as_bytes()))
            .map(|window| String::from_utf8_lossy(window).into_owned())
            .filter(|name| names.contains(name))
            .collect()
    }

    /// Keeps a finding, and ends the run.
    fn found(&self, finding: String) {
        if let Ok(mut findings) = self.findings.lock() {
            findings.push(finding);
        }
        self.is_over.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn run(seconds: &str, seed: Option<&str>) -> Result<ExitCode, Error> {
    let seconds: u64 = seconds.parse().map_err(|_| "SECONDS is a whole number")?;
    let seed = match seed {
        Some(seed) => seed.parse().map_err(|_| "SEED is a whole number")?,
        None => chance::seed_of_now(),
    };
    println!("wire: {seconds} s; repeat the inputs with: cargo xtask fuzz wire {seconds} {seed}");
    let folder = Folder::new("wire")?;
    let ring = Arc::new(Ring::default());
    let gateway = Gateway::start(&folder, upstream::start(&ring, seed)?)?;
    let address = gateway.address;
    let mut threads = Vec::new();
    for number in 0..CALLERS {
        let ring = Arc::clone(&ring);
        threads.push(std::thread::spawn(move || {
            callers::call_until_over(&ring, address, seed, number);
        }));
    }
    let probed = Arc::clone(&ring);
    threads.push(std::thread::spawn(move || probe::ask_until_over(&probed, address, seed)));
    watch(&ring, &gateway, Duration::from_secs(seconds));
    ring.is_over.store(true, Ordering::Relaxed);
    for thread in threads {
        if thread.join().is_err() {
            ring.found("a thread of the fuzzer itself panicked".into());
        }
    }
    gateway.must_have_let_go(&ring);
    gateway.must_not_have_panicked(&ring);
    report(&ring, &folder)
}

/// The gateway under attack.
struct Gateway {
    process: Running,
    address: std::net::SocketAddr,
    admin: std::net::SocketAddr,
    errors: std::path::PathBuf,
}

impl Gateway {
    fn start(folder: &Folder, upstream: std::net::SocketAddr) -> Result<Self, Error> {
        let address = free_address()?;
        let admin = free_address()?;
        let config = folder.path().join("retrysafe.toml");
        std::fs::write(&config, RULES)?;
        let errors = folder.path().join("stderr");
        let mut command = Command::new(program()?);
        command
            .args(["serve", "--config"])
            .arg(&config)
            .args(["--listen", &address.to_string(), "--admin", &admin.to_string()])
            .args(["--upstream", &format!("http://{upstream}")])
            .arg("--store")
            .arg(format!("disk:{}", folder.path().join("data").display()))
            .env("RETRYSAFE_ADMIN_TOKEN", "wire-fuzz-token-of-32-characters")
            .stdout(File::create(folder.path().join("stdout"))?)
            .stderr(File::create(&errors)?);
        let process = Running::start(&mut command, admin)?;
        Ok(Self { process, address, admin, errors })
    }

    /// Resident memory in MiB, or none if the process is gone.
    fn resident_mib(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib >> 10)
    }

    /// A gauge without labels.
    fn gauge(&self, name: &str) -> Option<f64> {
        let (_, body) = get(self.admin, "/metrics").ok()?;
        let pairs = body.lines().filter_map(|line| line.split_once(' '));
        let (_, value) = pairs.into_iter().find(|(found, _)| *found == name)?;
        value.trim().parse().ok()
    }

    /// Once nobody asks, nothing may be open or held: what stays is leaked.
    fn must_have_let_go(&self, ring: &Ring) {
        let begun = Instant::now();
        loop {
            let left = ["retrysafe_connections", "retrysafe_held_bytes"]
                .map(|name| (name, self.gauge(name)));
            if left.iter().all(|(_, value)| *value == Some(0.0)) {
                return;
            }
            if begun.elapsed() > LET_GO_MAX {
                ring.found(format!("{LET_GO_MAX:?} after the last caller left: {left:?}"));
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn must_not_have_panicked(&self, ring: &Ring) {
        let said = std::fs::read(&self.errors).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        if let Some(line) = said.lines().find(|line| line.contains("panicked")) {
            ring.found(format!("the gateway panicked: {line}"));
        }
    }
}

/// Looks at the process until the time is over or something was found.
fn watch(ring: &Ring, gateway: &Gateway, length: Duration) {
    const TELL_EVERY: Duration = Duration::from_secs(10);
    let begun = Instant::now();
    let mut told = begun;
    let mut most_mib = 0;
    while !ring.is_over() && begun.elapsed() < length {
        match gateway.resident_mib() {
            None => ring.found("the gateway ended".into()),
            Some(mib) if mib > HELD_MIB_MAX + REST_MIB_MAX => {
                ring.found(format!("the gateway uses {mib} MiB"));
            }
            Some(mib) => most_mib = most_mib.max(mib),
        }
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            println!(
                "{:>5} s  {}  {most_mib} MiB at most",
                begun.elapsed().as_secs(),
                counts(ring)
            );
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    println!("      ..  {}  {most_mib} MiB at most", counts(ring));
}

fn counts(ring: &Ring) -> String {
    let [connections, requests, probes, received] =
        [&ring.connections, &ring.requests, &ring.probes, &ring.received_bytes]
            .map(|count| count.load(Ordering::Relaxed));
    format!(
        "{connections} connections, {requests} requests reached the upstream, {probes} probes answered, \
         {received} bytes received"
    )
}

fn report(ring: &Ring, folder: &Folder) -> Result<ExitCode, Error> {
    let findings = ring.findings.lock().map_err(|_| "the findings are lost")?;
    if findings.is_empty() {
        println!("wire: nothing found");
        return Ok(ExitCode::SUCCESS);
    }
    for finding in findings.iter().take(FINDINGS_MAX) {
        println!("FOUND: {finding}\n");
    }
    let kept = root().join("target/wire-findings");
    keep(folder.path(), &kept, &findings)?;
    println!("wire: {} finding(s); details in {}", findings.len(), kept.display());
    Ok(ExitCode::FAILURE)
}

/// Copies what the gateway said to where it outlives the run.
fn keep(from: &Path, to: &Path, findings: &[String]) -> Result<(), Error> {
    std::fs::create_dir_all(to)?;
    std::fs::write(to.join("findings.txt"), findings.join("\n\n"))?;
    for name in ["stdout", "stderr"] {
        std::fs::copy(from.join(name), to.join(name))?;
    }
    Ok(())
}
