//! What does protection cost, next to a proxy that protects nothing?
//!
//! Three servers stand in front of the same upstream: a bare hyper proxy with one runtime per core, nginx, and
//! `retrysafe serve` on its disk store. Every round asks each of them in turn, so that all of them meet the same
//! machine; the figure is the median of the rounds' ratios. Load generator, upstream and server share the machine's
//! cores: only ratios mean something, and CPU time per request says what they rest on.

pub mod bare;
pub mod load;
pub mod servers;

use std::path::Path;
use std::time::Duration;

use load::{Asked, Measured};
use servers::Server;

/// Odd, so that the median is a measured round.
const ROUNDS: usize = 7;

/// How long each server is asked per round.
const WINDOW: Duration = Duration::from_millis(1_000);

/// Requests of the run that shows whether memory stays flat.
const MANY: u64 = 1_000_000;

/// What is measured: name, requests, connections, and the ratio to the bare proxy that is wanted.
const ROWS: [(&str, Asked, usize, f64); 4] = [
    ("uncovered GET, 64 connections", Asked::Get, 64, 0.95),
    ("first POST, durable, 64 connections", Asked::First, 64, 0.55),
    ("first POST, durable, 256 connections", Asked::First, 256, 0.70),
    ("replay, 64 connections", Asked::Replay, 64, 1.6),
];

pub fn run() {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["bare", listen, upstream] => bare::serve(listen.parse().unwrap(), upstream.parse().unwrap()),
        ["memory"] => memory(),
        ["latency"] => latency(ROUNDS, WINDOW),
        ["latency", "short"] => latency(1, WINDOW / 4),
        _ => table(),
    }
}

fn table() {
    let folder = tempfile::tempdir_in(servers::target()).unwrap();
    let upstream = bare::upstream();
    let mut servers = vec![Server::bare(upstream), Server::gateway(upstream, folder.path(), "")];
    servers.extend(Server::gateway_before(upstream, folder.path()));
    match Server::nginx(upstream, folder.path()) {
        Some(nginx) => servers.push(nginx),
        None => println!("nginx is not installed; its columns are missing"),
    }
    println!("{ROUNDS} rounds of {} ms per server, interleaved; 1 KiB bodies both ways\n", WINDOW.as_millis());
    println!("| path | server | requests/s | CPU µs/request | ratio to bare | range | wanted |");
    println!("| --- | --- | ---: | ---: | ---: | ---: | ---: |");
    for (name, asked, connections, wanted) in ROWS {
        let mut rounds: Vec<Vec<Measured>> = servers.iter().map(|_| Vec::new()).collect();
        for server in &servers {
            load::run(server, asked, connections, WINDOW / 4);
        }
        for round in 0..ROUNDS {
            for turn in 0..servers.len() {
                let at = (round + turn) % servers.len();
                rounds[at].push(load::run(&servers[at], asked, connections, WINDOW));
            }
        }
        for (at, server) in servers.iter().enumerate() {
            let mut ratios: Vec<f64> =
                rounds[at].iter().zip(&rounds[0]).map(|(ours, bare)| ours.rate / bare.rate).collect();
            ratios.sort_by(f64::total_cmp);
            let wanted = if server.name == "retrysafe" { format!("≥ {wanted:.2}") } else { String::new() };
            println!(
                "| {name} | {} | {:.0} | {:.1} | {:.2} | {:.2} – {:.2} | {wanted} |",
                server.name,
                median(rounds[at].iter().map(|measured| measured.rate)),
                median(rounds[at].iter().map(|measured| measured.cpu_us)),
                ratios[ROUNDS / 2],
                ratios[0],
                ratios[ROUNDS - 1],
            );
        }
        let failed: u64 = rounds.iter().flatten().map(|measured| measured.failed).sum();
        assert_eq!(failed, 0, "{name}: answers that were not 2xx");
    }
}

/// How long a durable first POST takes, next to the bare proxy's, by the number of callers.
fn latency(rounds: usize, window: Duration) {
    let folder = tempfile::tempdir_in(servers::target()).unwrap();
    let upstream = bare::upstream();
    let servers = [Server::bare(upstream), Server::gateway(upstream, folder.path(), "")];
    println!("{rounds} rounds of {} ms per server, interleaved; medians of the rounds, and their ranges\n", window.as_millis());
    println!("| connections | server | p50 ms | p99 ms | requests/s |");
    println!("| ---: | --- | ---: | ---: | ---: |");
    for connections in [1, 16, 64, 256] {
        let mut all = [Vec::new(), Vec::new()];
        for round in 0..=rounds {
            for turn in 0..servers.len() {
                let at = (round + turn) % servers.len();
                let measured = load::run(&servers[at], Asked::First, connections, window);
                assert_eq!(measured.failed, 0, "answers that were not 2xx");
                // The first round warms up.
                if round > 0 {
                    all[at].push(measured);
                }
            }
        }
        for (server, measured) in servers.iter().zip(&all) {
            println!(
                "| {connections} | {} | {} | {} | {:.0} |",
                server.name,
                spread(measured.iter().map(|measured| measured.p50_ms)),
                spread(measured.iter().map(|measured| measured.p99_ms)),
                median(measured.iter().map(|measured| measured.rate)),
            );
        }
    }
}

/// The median of some values, and their range.
fn spread(values: impl Iterator<Item = f64>) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let [low, middle, high] = [0, values.len() / 2, values.len() - 1].map(|at| values[at]);
    format!("{middle:.2} ({low:.2} – {high:.2})")
}

/// Drives many distinct keys through a gateway that keeps them for a few seconds.
fn memory() {
    let folder = tempfile::tempdir_in(servers::target()).unwrap();
    let upstream = bare::upstream();
    let settings = "[defaults]\nttl = \"5s\"\n[upkeep]\nreap_every = \"1s\"\n";
    let server = Server::gateway(upstream, folder.path(), settings);
    println!("{MANY} requests with distinct keys, kept for 5 s each\n");
    println!("| requests | resident MB | store on disk MB |");
    println!("| ---: | ---: | ---: |");
    let (mut done, mut shown) = (0, 0);
    while done < MANY {
        let measured = load::run(&server, Asked::First, 256, Duration::from_secs(2));
        assert_eq!(measured.failed, 0, "answers that were not 2xx");
        done += measured.answered;
        if done / (MANY / 10) > shown {
            shown = done / (MANY / 10);
            println!("| {done} | {:.0} | {:.0} |", server.resident_mb(), size_mb(&folder.path().join("data")));
        }
    }
}

fn size_mb(folder: &Path) -> f64 {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum::<u64>() as f64 / 1e6
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
