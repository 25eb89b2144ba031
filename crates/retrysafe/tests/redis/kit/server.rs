//! How does a test get Redis servers of its own?
//!
//! From Debian's binary, in a temporary folder, on a free port. The service that the package brings is
//! not used. A janitor process holds the other end of a pipe and cleans up when this process is gone,
//! however it went. Only the standard library, because `xtask` and the benchmarks use this file too.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a server may take to start, or a cluster to agree, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that is this process's own.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) dir: PathBuf,
    pub(crate) port: u16,
    settings: Vec<(String, String)>,
    is_sentinel: bool,
    child: Mutex<Option<Child>>,
    /// Cleans up when the pipe to it closes.
    _janitor: Child,
}

impl Server {
    /// A fresh server with these settings beside the usual ones.
    pub(crate) fn start(settings: &[(&str, &str)]) -> Self {
        Self::over(settings, false)
    }

    /// A sentinel that watches this master.
    pub(crate) fn sentinel(master: &Self, name: &str, quorum: usize) -> Self {
        let monitor = format!("{name} 127.0.0.1 {} {quorum}", master.port);
        let (down, failover) = (format!("{name} 500"), format!("{name} 4000"));
        let settings = [
            ("sentinel monitor", monitor.as_str()),
            ("sentinel down-after-milliseconds", &down),
            ("sentinel failover-timeout", &failover),
        ];
        Self::over(&settings, true)
    }

    fn over(settings: &[(&str, &str)], is_sentinel: bool) -> Self {
        let dir = folder();
        let settings = settings.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let janitor = janitor(&dir);
        let child = Mutex::new(None);
        let server =
            Self { port: free_port(), dir, settings, is_sentinel, child, _janitor: janitor };
        server.up();
        server
    }

    /// Its URL without parameters.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Starts the server, over what it has kept, and waits until it answers.
    pub(crate) fn up(&self) {
        let config = self.dir.join("redis.conf");
        // A server rewrites its file, and a sentinel keeps its state there.
        if !config.exists() {
            let mut text = format!(
                "port {}\nbind 127.0.0.1\ndir {}\nsave \"\"\npidfile {}\n",
                self.port,
                self.dir.display(),
                self.dir.join("pid").display()
            );
            if self.is_sentinel {
                text = format!("port {}\nbind 127.0.0.1\ndir {}\n", self.port, self.dir.display());
            }
            for (name, value) in &self.settings {
                text.push_str(&format!("{name} {value}\n"));
            }
            std::fs::write(&config, text).expect("a file for the server");
        }
        let program = if self.is_sentinel { "redis-sentinel" } else { "redis-server" };
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.dir.join("log"));
        let log = log.expect("a log file");
        let mut command = Command::new(binary(program));
        command.arg(&config).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a log file")).stderr(log);
        let mut child = command.spawn().expect("redis starts");
        std::fs::write(self.dir.join("child"), child.id().to_string()).expect("a file");
        let started = Instant::now();
        while !self.is_ready() {
            let ended = child.try_wait().expect("it is our child");
            assert!(ended.is_none(), "redis ended: {}", self.log());
            assert!(started.elapsed() < PATIENCE, "{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        *self.child.lock().expect("no panic while held") = Some(child);
    }

    fn is_ready(&self) -> bool {
        self.try_cli(&["PING"]).as_deref() == Some("PONG")
    }

    /// Kills the server at once.
    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.child.lock().expect("no panic while held").take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops the server's process where it stands, or lets it go on.
    pub(crate) fn freeze(&self, is_frozen: bool) {
        let child = self.child.lock().expect("no panic while held");
        let pid = child.as_ref().expect("it runs").id().to_string();
        let signal = if is_frozen { "-STOP" } else { "-CONT" };
        assert!(Command::new("kill").args([signal, &pid]).status().is_ok_and(|s| s.success()));
    }

    /// Runs a command, and gives what `redis-cli` prints.
    pub(crate) fn cli(&self, command: &[&str]) -> String {
        self.try_cli(command).unwrap_or_else(|| panic!("{command:?} failed: {}", self.log()))
    }

    fn try_cli(&self, command: &[&str]) -> Option<String> {
        let port = self.port.to_string();
        let mut cli = Command::new(binary("redis-cli"));
        cli.args(["-h", "127.0.0.1", "-p", &port]);
        // A test may have given its server a password.
        if let Some((_, password)) = self.settings.iter().find(|(name, _)| name == "requirepass") {
            cli.args(["--no-auth-warning", "-a", password]);
        }
        let output = cli.args(command).stderr(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(text)
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Waits until this server has as much of its master's stream as the master.
    pub(crate) fn wait_for_sync(&self, master: &Self) {
        let offset = |server: &Self, name: &str| field(&server.cli(&["INFO", "replication"]), name);
        wait_until("the replica is in sync", || {
            let up = offset(self, "master_link_status") == "up";
            up && offset(self, "slave_repl_offset") == offset(master, "master_repl_offset")
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A cluster of three masters with a replica each.
#[derive(Debug)]
pub(crate) struct Servers(pub(crate) Vec<Server>);

impl Servers {
    pub(crate) fn cluster(settings: &[(&str, &str)]) -> Self {
        let servers: Vec<Server> = (0..6)
            .map(|_| {
                let bus = free_port().to_string();
                let mut all = vec![
                    ("cluster-enabled", "yes"),
                    ("cluster-node-timeout", "2000"),
                    ("cluster-port", bus.as_str()),
                ];
                all.extend_from_slice(settings);
                Server::start(&all)
            })
            .collect();
        let addresses: Vec<String> =
            servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        let mut create = vec!["--cluster", "create"];
        create.extend(addresses.iter().map(String::as_str));
        create.extend(["--cluster-replicas", "1", "--cluster-yes"]);
        servers[0].cli(&create);
        let cluster = Self(servers);
        cluster.wait_until_whole();
        cluster.miss_nodes_after("60000");
        cluster
    }

    /// Says after how many milliseconds of silence a node counts as gone. Nodes that are to find each
    /// other are asked more often under a short time; later, under a long one, a machine that stalls
    /// costs no fail-over.
    pub(crate) fn miss_nodes_after(&self, ms: &str) {
        for server in &self.0 {
            server.cli(&["CONFIG", "SET", "cluster-node-timeout", ms]);
        }
    }

    /// Waits until every server knows that the cluster is whole, and three have a replica each.
    fn wait_until_whole(&self) {
        wait_until("the cluster is whole", || {
            self.0.iter().all(|server| {
                let is_ok = server.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
                let replicas = server.cli(&["CLUSTER", "NODES"]).matches("slave").count();
                is_ok && replicas == 3
            })
        });
        wait_until("the replicas follow", || {
            self.0.iter().all(|server| {
                let told = server.cli(&["INFO", "replication"]);
                field(&told, "role") == "master" || field(&told, "master_link_status") == "up"
            })
        });
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> =
            self.0.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        format!("redis-cluster://{}", hosts.join(","))
    }

    /// The server that has this slot.
    pub(crate) fn master_of(&self, slot: u16) -> &Server {
        let nodes = self.0.iter().find_map(|server| server.try_cli(&["CLUSTER", "NODES"]));
        let nodes = nodes.expect("somebody answers");
        let has_slot = |line: &&str| {
            line.split_whitespace().skip(8).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let (first, last) = (first.parse::<u16>(), last.parse::<u16>());
                first.is_ok_and(|first| first <= slot) && last.is_ok_and(|last| slot <= last)
            })
        };
        let line = nodes.lines().find(has_slot).expect("a node has the slot");
        let address = line.split_whitespace().nth(1).expect("it has an address");
        let is_it = |server: &&Server| address.starts_with(&format!("127.0.0.1:{}@", server.port));
        self.0.iter().find(is_it).expect("the node is ours")
    }
}

/// A field of what INFO says.
pub(crate) fn field(info: &str, name: &str) -> String {
    let line = info.lines().find_map(|line| line.trim().strip_prefix(&format!("{name}:")));
    line.unwrap_or_default().to_owned()
}

/// Looks until something is so, for a bounded time.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "it did not come about that {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Where a program of Redis is. Without one, the message says what to install.
fn binary(name: &str) -> PathBuf {
    let in_path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&in_path).chain([PathBuf::from("/usr/bin")]);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file()).unwrap_or_else(|| {
        panic!("{name} is not installed: run `cargo xtask test`, or `apt-get install redis-server redis-sentinel`")
    })
}

fn folder() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("retrysafe-redis-{}-{count}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a temporary folder");
    dir
}

/// A port that nobody else of this run gets: below the ports that the system gives out by itself, one
/// after the other. Between the look and the server's start no outgoing connection can take it. Other
/// lists of this process begin thousands of ports away.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(12_000);
    loop {
        let number =
            NEXT.fetch_add(1, Ordering::Relaxed) + std::process::id().wrapping_mul(97) % 18_000;
        let port = u16::try_from(12_000 + number % 18_000).expect("less than 30,000");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Waits for the end of its input, then ends what runs in the folder and removes it.
fn janitor(dir: &Path) -> Child {
    let script = r#"cat >/dev/null
[ -f "$1/child" ] && kill -9 "$(cat "$1/child")" 2>/dev/null
rm -rf "$1""#;
    Command::new("sh")
        .args(["-c", script, "janitor"])
        .arg(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("sh starts")
}
