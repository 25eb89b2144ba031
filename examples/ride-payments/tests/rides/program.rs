//! How is a program started, asked, killed and stopped?

use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpStream;

use crate::cluster::free_port;
use crate::languages::Language;

/// How long a program may take to listen, and a lease to end, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The pause between two looks at a fact.
pub(crate) const PACE: Duration = Duration::from_millis(20);

/// A program that listens; killed when it is dropped.
pub(crate) struct Program {
    child: Child,
    pub(crate) caller: Caller,
}

/// Whoever books rides with a program.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    address: SocketAddr,
    client: reqwest::Client,
}

/// What a caller was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) status: u16,
    pub(crate) is_replay: bool,
    pub(crate) body: String,
}

impl Told {
    /// The code of a problem document.
    pub(crate) fn has_code(&self, code: &str) -> bool {
        self.status >= 400 && self.body.contains(&format!("\"{code}\""))
    }

    /// Whether the caller is to ask again.
    pub(crate) fn is_for_later(&self) -> bool {
        self.has_code("request_in_progress") || self.status >= 500
    }
}

impl Caller {
    /// Books a ride under its own name as the key. None if the connection broke.
    pub(crate) async fn book(&self, ride: &str) -> Option<Told> {
        self.book_with(ride, ride).await
    }

    /// Books a ride under this key.
    pub(crate) async fn book_with(&self, ride: &str, key: &str) -> Option<Told> {
        let url = format!("http://{}/rides", self.address);
        let asked = self.client.post(url).header("idempotency-key", key);
        let asked = asked.header("authorization", "Bearer alice");
        let booking = serde_json::json!({"booking": ride, "place": "Kotti", "cents": 1_200});
        let told = asked.json(&booking).send().await.ok()?;
        let status = told.status().as_u16();
        let is_replay = told.headers().contains_key("idempotent-replayed");
        Some(Told { status, is_replay, body: told.text().await.ok()? })
    }

    /// The status of a request without a key and without a body.
    pub(crate) async fn ask_without_key(&self, method: &str) -> u16 {
        let url = format!("http://{}/rides", self.address);
        let asked = self.client.request(method.parse().unwrap(), url);
        asked.header("authorization", "Bearer alice").send().await.unwrap().status().as_u16()
    }

    /// Books a ride, again and again while it is in progress or the program is in trouble.
    pub(crate) async fn book_until_decided(&self, ride: &str) -> Told {
        let begun = Instant::now();
        loop {
            match self.book(ride).await {
                Some(told) if !told.is_for_later() => return told,
                told => assert!(begun.elapsed() < PATIENCE, "{ride}: {told:?}"),
            }
            tokio::time::sleep(PACE).await;
        }
    }
}

impl Program {
    /// Starts it with this environment, and waits until it listens.
    pub(crate) async fn start(language: Language, environment: &[(&str, String)]) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut command = language.command(address);
        command.env("LISTEN", address.to_string()).stdin(Stdio::null()).stdout(Stdio::null());
        if std::env::var_os("SHOW_PROGRAMS").is_none() {
            command.stderr(Stdio::null());
        }
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        let client = reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap();
        let caller = Caller { address, client };
        let mut program = Self { child: command.spawn().unwrap(), caller };
        let begun = Instant::now();
        while TcpStream::connect(address).await.is_err() {
            let ended = program.child.try_wait().unwrap();
            assert!(ended.is_none(), "{language:?} ended: {ended:?}");
            assert!(begun.elapsed() < PATIENCE, "{language:?} does not listen");
            tokio::time::sleep(PACE).await;
        }
        program
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops it where it is, and comes back once it is stopped.
    pub(crate) async fn stop(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.child.id());
        loop {
            let stat = std::fs::read_to_string(&stat).unwrap();
            if stat.rsplit(')').next().unwrap().trim_start().starts_with('T') {
                return;
            }
            tokio::time::sleep(PACE).await;
        }
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    pub(crate) fn ask_to_end(&self) {
        self.signal(Signal::TERM);
    }

    /// Waits until it has ended, and says whether it had nothing to complain of.
    pub(crate) async fn ended(&mut self) -> bool {
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.success();
            }
            tokio::time::sleep(PACE).await;
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
