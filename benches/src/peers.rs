//! What would one pick instead, and what does that cost?
//!
//! Three applications do the same small operation: on Express, on FastAPI and on axum. Each runs alone, with what its
//! ecosystem offers, and with retrysafe. Every round asks all setups of an ecosystem in turn, and a figure is the median of
//! the rounds' ratios to the application alone. Beside the figures stand two facts by test: how often twenty simultaneous
//! duplicates ran, and whether the answer is still there after every server was killed.
//!
//! `bench peers [node|python|rust] [short]`: one ecosystem only; few and short rounds, to see whether it works.

mod facts;
mod installed;
mod rust_app;
mod setups;

use std::time::Duration;

use crate::gateway::load::{self, Asked, Measured, Target};
use crate::gateway::servers;
use facts::Facts;
use setups::{Ecosystem, Setup};

/// As many callers as the other measurements have.
const CONNECTIONS: usize = 64;

/// How much is measured.
#[derive(Clone, Copy)]
struct Effort {
    /// Odd, so that the median is a measured round.
    rounds: usize,
    window: Duration,
}

const WHOLE: Effort = Effort { rounds: 7, window: Duration::from_millis(1_000) };
const SHORT: Effort = Effort { rounds: 1, window: Duration::from_millis(250) };

pub fn run() {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["axum", variant, address, place @ ..] = arguments.as_slice() {
        return rust_app::serve(variant, address.parse().unwrap(), place.first().copied().unwrap_or_default());
    }
    let folder = tempfile::tempdir_in(servers::target()).unwrap();
    end_at_a_signal(folder.path().to_owned());
    let effort = if arguments.contains(&"short") { SHORT } else { WHOLE };
    let chosen = |ecosystem: &Ecosystem| {
        let is_named = |ecosystem: &Ecosystem| arguments.contains(&ecosystem.word());
        is_named(ecosystem) || !Ecosystem::ALL.iter().any(is_named)
    };
    println!("{} rounds of {} ms per setup, interleaved; {CONNECTIONS} connections", effort.rounds, effort.window.as_millis());
    for ecosystem in Ecosystem::ALL.into_iter().filter(chosen) {
        let place = folder.path().join(ecosystem.word());
        std::fs::create_dir(&place).unwrap();
        let mut setups = ecosystem.setups(&place);
        let facts: Vec<Facts> = setups.iter_mut().map(facts::find).collect();
        let firsts = rounds(&setups, Asked::First, effort);
        let replays = rounds(&setups, Asked::Replay, effort);
        print(ecosystem, &setups, &facts, &firsts, &replays);
    }
}

/// The servers end with this process; its folder is removed here.
fn end_at_a_signal(folder: std::path::PathBuf) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        });
        let _ = std::fs::remove_dir_all(folder);
        std::process::exit(130);
    });
}

/// What every setup did in every round, by setup.
fn rounds(setups: &[Setup], asked: Asked, effort: Effort) -> Vec<Vec<Measured>> {
    for setup in setups {
        if asked == Asked::Replay && !setup.has_sessions {
            load::fill(setup.address());
        }
        measure(setup, asked, effort.window / 4);
    }
    let mut all: Vec<Vec<Measured>> = setups.iter().map(|_| Vec::new()).collect();
    for round in 0..effort.rounds {
        for turn in 0..setups.len() {
            // Each round begins elsewhere, so that none always comes after the same one.
            let at = (round + turn) % setups.len();
            all[at].push(measure(&setups[at], asked, effort.window));
        }
    }
    all
}

fn measure(setup: &Setup, asked: Asked, window: Duration) -> Measured {
    let observe = || {
        let hop = setup.hop();
        vec![
            setup.servers.iter().map(servers::Server::cpu_seconds).sum(),
            hop.map_or(0.0, servers::Server::cpu_seconds),
            hop.map_or(0.0, servers::Server::context_switches),
        ]
    };
    let target = Target { address: setup.address(), has_sessions: setup.has_sessions, per_second: None, observe: &observe };
    load::drive(&target, asked, CONNECTIONS, window)
}

fn print(ecosystem: Ecosystem, setups: &[Setup], facts: &[Facts], firsts: &[Vec<Measured>], replays: &[Vec<Measured>]) {
    println!("\n{}\n", ecosystem.title());
    println!(
        "| | first: of the application alone | CPU µs | hop's CPU µs, switches | p50 / p99 ms | replay: of the application \
         alone | CPU µs | p50 / p99 ms | 20 duplicates ran | after SIGKILL |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |");
    for (at, setup) in setups.iter().enumerate() {
        let hop = setup.hop().map_or(String::new(), |_| {
            let [cpu, switches] = hop_of(&firsts[at]);
            format!("{cpu:.0}, {switches:.1}")
        });
        println!(
            "| {} | {} | {} | {hop} | {} | {} | {} | {} | {} | {} |",
            setup.name,
            Ratios::of(&firsts[at], &firsts[0]),
            cpu(&firsts[at]),
            latency(&firsts[at]),
            Ratios::of(&replays[at], &replays[0]),
            cpu(&replays[at]),
            latency(&replays[at]),
            facts[at].executions,
            facts[at].after_kill,
        );
    }
    println!();
    for (kind, measured) in [("firsts", firsts), ("replays", replays)] {
        for (setup, rounds) in setups.iter().zip(measured) {
            let failed: u64 = rounds.iter().map(|round| round.failed).sum();
            let all: u64 = failed + rounds.iter().map(|round| round.answered).sum::<u64>();
            if failed > 0 {
                println!("{}, {kind}: {failed} of {all} answers were not 2xx", setup.name);
            }
        }
    }
    compare(setups, firsts);
}

/// The gateway next to the setups that it is judged by, if they are there.
fn compare(setups: &[Setup], firsts: &[Vec<Measured>]) {
    let place = |name: &str| setups.iter().position(|setup| setup.name.contains(name));
    let Some(gateway) = place("gateway") else { return };
    if let Some(nginx) = place("nginx") {
        let ratio = hop_of(&firsts[gateway])[0] / hop_of(&firsts[nginx])[0];
        println!("the gateway's CPU per first request is {ratio:.2} times that of nginx in the same place");
    }
    for (at, setup) in setups.iter().enumerate().filter(|(_, setup)| setup.name.contains("Redis")) {
        println!("firsts behind the gateway, of {}: {}", setup.name, Ratios::of(&firsts[gateway], &firsts[at]));
    }
}

/// Processor time and context switches of the hop in front of the application, per request.
fn hop_of(rounds: &[Measured]) -> [f64; 2] {
    let per_request = |at: usize| median(rounds.iter().map(|round| round.risen[at] / round.answered.max(1) as f64));
    [per_request(1) * 1e6, per_request(2)]
}

fn cpu(rounds: &[Measured]) -> String {
    format!("{:.0}", median(rounds.iter().map(|round| round.cpu_us)))
}

fn latency(rounds: &[Measured]) -> String {
    let [p50, p99] = [
        median(rounds.iter().map(|round| round.p50_ms)),
        median(rounds.iter().map(|round| round.p99_ms)),
    ];
    format!("{p50:.1} / {p99:.1}")
}

/// Throughput of one setup to that of another, round by round.
struct Ratios(Vec<f64>);

impl Ratios {
    fn of(ours: &[Measured], theirs: &[Measured]) -> Self {
        let mut ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours.rate / theirs.rate).collect();
        ratios.sort_by(f64::total_cmp);
        Self(ratios)
    }
}

impl std::fmt::Display for Ratios {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [low, middle, high] = [0, self.0.len() / 2, self.0.len() - 1].map(|at| self.0[at]);
        write!(f, "{middle:.2} ({low:.2} – {high:.2})")
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
