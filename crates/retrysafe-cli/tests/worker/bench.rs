//! What do the tests share? A database, a provider that writes everything down, and the worker as a child.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::cluster::Cluster;
use super::kit::{PATIENCE, Upstream, free, program, request, send};

/// Settings that make a kind fast enough for a test: it is tried again at once.
pub(crate) const SOON: &str = "backoff = \"1ms\"\nbackoff_max = \"1ms\"\n";

/// What a provider on this machine needs.
pub(crate) const NEAR: &str = "allow_networks = [\"127.0.0.0/8\"]\n";

pub(crate) const KEYED: &str = "remembers_keys_for = \"24h\"\n";
pub(crate) const UNKEYED: &str = "takes_no_key = true\n";

/// The server of this test run.
pub(crate) fn server() -> &'static Cluster {
    static SERVER: OnceLock<Cluster> = OnceLock::new();
    SERVER.get_or_init(|| {
        let server = Cluster::start(&[]);
        server.sql("postgres", "CREATE DATABASE migrated");
        let folder = tempfile::tempdir().unwrap();
        let store = server.url("migrated");
        let (code, _, err) = program(&["store", "migrate", "--store", &store], folder.path());
        assert_eq!(code, 0, "{err}");
        server
    })
}

/// A worker with a database and a provider of its own.
pub(crate) struct Bench {
    pub(crate) provider: Upstream,
    pub(crate) folder: PathBuf,
    pub(crate) admin: SocketAddr,
    pub(crate) store: String,
    database: String,
    child: Option<Child>,
    _guard: tempfile::TempDir,
}

impl Bench {
    /// A worker that delivers effects of the kind `mail` to `/mail` of the provider, with these settings beside.
    pub(crate) fn start(settings: &str) -> Self {
        let mut bench = Self::asleep();
        bench.configure(&bench.mail(settings));
        bench.run();
        bench
    }

    /// The same, and its process does not run yet.
    pub(crate) fn asleep() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let database = format!("worker_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        server().sql("postgres", &format!("CREATE DATABASE {database} TEMPLATE migrated"));
        let guard = tempfile::tempdir().unwrap();
        Self {
            provider: Upstream::start(),
            folder: guard.path().to_path_buf(),
            admin: free(),
            store: server().url(&database),
            database,
            child: None,
            _guard: guard,
        }
    }

    /// The table of the kind `mail`.
    pub(crate) fn mail(&self, settings: &str) -> String {
        format!(
            "[effects.mail]\nurl = \"http://{}/mail\"\n{NEAR}{SOON}{settings}",
            self.provider.address
        )
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.folder.join("retrysafe.toml")
    }

    /// Writes the configuration file; tables follow what is at its top.
    pub(crate) fn configure(&self, tables: &str) {
        let top = format!("store = \"{}\"\ndrain_max = \"10s\"\n", self.store);
        let admin = format!("[admin]\nlisten = \"{}\"\n", self.admin);
        std::fs::write(self.config(), format!("{top}{admin}{tables}\n")).unwrap();
    }

    /// Starts the process, and waits until it is ready.
    pub(crate) fn run(&mut self) {
        self.run_with(&[]);
    }

    /// The same, with these variables of the environment.
    pub(crate) fn run_with(&mut self, variables: &[(&str, &str)]) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join("log"))
            .unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_retrysafe"))
            .args(["worker", "--config"])
            .arg(self.config())
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
        let end = Instant::now() + PATIENCE;
        while !self.is_ready() {
            if let Some(status) = self.child().try_wait().unwrap() {
                panic!("the worker ended with {status}: {}", self.log());
            }
            assert!(Instant::now() < end, "not ready: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn is_ready(&self) -> bool {
        std::net::TcpStream::connect(self.admin).is_ok() && self.ask("/readyz").0 == 200
    }

    pub(crate) fn ask(&self, path: &str) -> (u16, String) {
        let answer = send(self.admin, &request("GET", path, &[], b""));
        (answer.status(), answer.text())
    }

    fn child(&mut self) -> &mut Child {
        self.child.as_mut().unwrap()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Waits until the log says something.
    pub(crate) fn wait_for_log(&self, text: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.log().contains(text) {
            assert!(Instant::now() < end, "the log does not say {text:?}: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the metrics show a line that begins like this.
    pub(crate) fn wait_for_metric(&self, line: &str) {
        let end = Instant::now() + PATIENCE;
        loop {
            let (_, shown) = self.ask("/metrics");
            if shown.lines().any(|other| other.starts_with(line)) {
                return;
            }
            assert!(Instant::now() < end, "no {line} in {shown}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.as_ref().unwrap().id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap();
        assert!(sent.success());
    }

    /// Stops it hard, as a crash would.
    pub(crate) fn kill(&mut self) {
        self.child().kill().unwrap();
        self.child().wait().unwrap();
    }

    /// Waits for its end and gives its exit code.
    pub(crate) fn wait_for_end(&mut self) -> Option<i32> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child().try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < end, "did not stop: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn sql(&self, sql: &str) -> String {
        server().sql(&self.database, sql)
    }

    /// Stages an effect of a kind, and gives its number.
    pub(crate) fn stage_as(&self, kind: &str, destination: Option<&str>, body: &str) -> i64 {
        let destination = destination.map_or_else(|| "NULL".to_owned(), |url| format!("'{url}'"));
        let stage = format!(
            "SELECT id FROM retrysafe.stage_v1('{kind}', {destination}, 'application/json', \
             convert_to('{body}', 'UTF8'), NULL, NULL, NULL, NULL); NOTIFY \"retrysafe staged\""
        );
        self.sql(&stage).parse().unwrap()
    }

    /// Stages a mail, and gives its number.
    pub(crate) fn stage(&self) -> i64 {
        self.stage_as("mail", None, "{\"ride\":7}")
    }

    /// In which state an effect is, and what was said last.
    pub(crate) fn state(&self, id: i64) -> (String, String) {
        let of = format!(
            "SELECT state || '|' || coalesce(last_error, '') FROM retrysafe.effect WHERE id = {id} \
             UNION ALL SELECT state || '|' || coalesce(reference, '') FROM retrysafe.effect_done WHERE id = {id}"
        );
        let found = self.sql(&of);
        let (state, text) = found.split_once('|').unwrap();
        let names = ["waiting", "ready", "leased", "unknown", "dead", "delivered", "cancelled"];
        (names[state.parse::<usize>().unwrap()].to_owned(), text.to_owned())
    }

    /// Waits until an effect is in a state, and gives what was said last.
    pub(crate) fn wait_for(&self, id: i64, wanted: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let (state, text) = self.state(id);
            if state == wanted {
                return text;
            }
            let log = self.log();
            assert!(Instant::now() < end, "{id} is {state} ({text}), not {wanted}: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The key of an effect.
    pub(crate) fn key(&self, id: i64) -> String {
        self.sql(&format!(
            "SELECT downstream_key FROM retrysafe.effect WHERE id = {id} \
             UNION ALL SELECT downstream_key FROM retrysafe.effect_done WHERE id = {id}"
        ))
    }

    /// Ends every lease, as time would.
    pub(crate) fn end_leases(&self) {
        self.sql("UPDATE retrysafe.effect SET at = 0 WHERE state = 2");
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
