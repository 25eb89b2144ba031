//! How does a test get a PostgreSQL server of its own?
//!
//! From the Debian binaries, in a temporary folder, on a free port, as a user that is not root. A
//! janitor process holds the other end of a pipe and cleans up when this process is gone, however
//! it went. Only the standard library, because `xtask` uses this file too.

use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a server may take to start or stop on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that is this process's own.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) dir: PathBuf,
    pub(crate) port: u16,
    settings: Vec<(String, String)>,
    server: Mutex<Option<Child>>,
    /// Cleans up when the pipe to it closes.
    _janitor: Child,
}

impl Cluster {
    /// A fresh cluster with these settings beside the usual ones, started.
    pub(crate) fn start(settings: &[(&str, &str)]) -> Self {
        let dir = folder();
        let password_free =
            ["--auth=trust", "--username=postgres", "--no-sync", "--no-instructions"];
        run(as_user(&binary("initdb")).arg("-D").arg(dir.join("data")).args(password_free));
        let cluster = Self::over(dir, settings);
        cluster.up();
        cluster
    }

    /// A standby that follows `primary` under this name.
    pub(crate) fn standby_of(primary: &Self, name: &str) -> Self {
        let dir = folder();
        let from =
            format!("host=127.0.0.1 port={} user=postgres application_name={name}", primary.port);
        run(as_user(&binary("pg_basebackup"))
            .args(["-R", "-X", "stream", "-c", "fast", "-d", &from, "-D"])
            .arg(dir.join("data")));
        let cluster = Self::over(dir, &[]);
        cluster.up();
        cluster
    }

    fn over(dir: PathBuf, settings: &[(&str, &str)]) -> Self {
        let settings = settings.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let janitor = janitor(&dir);
        Self { port: free_port(), dir, settings, server: Mutex::new(None), _janitor: janitor }
    }

    /// The URL of a database of this server.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Starts the server and waits until it takes connections, also after a crash.
    pub(crate) fn up(&self) {
        let mut command = as_user(&binary("postgres"));
        command.arg("-D").arg(self.dir.join("data")).args(["-p", &self.port.to_string()]);
        command.arg("-k").arg(&self.dir);
        // The log that is kept for a crash fills gigabytes of a small disk unless it is bounded.
        for setting in [
            "listen_addresses=127.0.0.1",
            "max_connections=120",
            "shared_buffers=64MB",
            "max_wal_size=128MB",
            "min_wal_size=32MB",
        ] {
            command.args(["-c", setting]);
        }
        for (name, value) in &self.settings {
            command.args(["-c", &format!("{name}={value}")]);
        }
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.dir.join("log"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.expect("a log file"));
        let started = Instant::now();
        let mut server = command.spawn().expect("postgres starts");
        while !self.is_ready() {
            if let Ok(Some(_)) = server.try_wait() {
                // A former server's children may still hold its shared memory for a moment.
                server = command.spawn().expect("postgres starts");
            }
            assert!(started.elapsed() < PATIENCE, "{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        *self.server.lock().expect("no panic while held") = Some(server);
    }

    fn is_ready(&self) -> bool {
        let port = self.port.to_string();
        let mut command = Command::new(binary("pg_isready"));
        command.args(["-q", "-h", "127.0.0.1", "-p", &port]).status().is_ok_and(|s| s.success())
    }

    /// Kills the server and all its children at once, as a power cut does to a process.
    pub(crate) fn kill(&self) {
        let Some(mut server) = self.server.lock().expect("no panic while held").take() else {
            return;
        };
        let mut pids = children_of(server.id());
        pids.push(server.id());
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        // One that has just ended makes `kill` complain; it is gone all the same.
        let _ = Command::new("kill").arg("-9").args(&pids).stderr(Stdio::null()).status();
        let _ = server.wait();
    }

    /// Says whether the server may only be read, like a standby, from its next start on.
    pub(crate) fn set_read_only(&self, is_read_only: bool) {
        let signal = self.dir.join("data/standby.signal");
        if is_read_only {
            std::fs::write(signal, "").expect("a file for the server");
        } else {
            std::fs::remove_file(signal).expect("no file for the server");
        }
    }

    /// Makes a standby a primary.
    pub(crate) fn promote(&self) {
        run(as_user(&binary("pg_ctl")).args(["promote", "-w", "-D"]).arg(self.dir.join("data")));
    }

    /// Runs SQL as the superuser and gives what it prints.
    pub(crate) fn sql(&self, database: &str, sql: &str) -> String {
        let port = self.port.to_string();
        let mut psql = Command::new(binary("psql"));
        psql.args([
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            "127.0.0.1",
            "-p",
            &port,
        ]);
        psql.args(["-U", "postgres", "-d", database, "-c", sql]);
        let output = psql.output().expect("psql runs");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{sql}: {complaint}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Where a binary of PostgreSQL is. Without one, the message says what to install.
pub(crate) fn binary(name: &str) -> PathBuf {
    let debian = Path::new("/usr/lib/postgresql");
    let mut versions: Vec<PathBuf> = std::fs::read_dir(debian)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    versions.sort_by_key(|path| version_of(path));
    let in_path = std::env::var_os("PATH").unwrap_or_default();
    versions
        .iter()
        .rev()
        .map(|version| version.join("bin"))
        .chain(std::env::split_paths(&in_path))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .unwrap_or_else(|| {
            panic!(
                "{name} is not installed: run `cargo xtask test`, or `apt-get install {INSTALL}`"
            )
        })
}

/// What a machine needs for these tests.
pub(crate) const INSTALL: &str = "postgresql-15 pgbouncer";

fn version_of(path: &Path) -> u32 {
    path.file_name().and_then(|name| name.to_str()?.parse().ok()).unwrap_or(0)
}

/// A command that does not run as root, because the server refuses to.
pub(crate) fn as_user(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let user = user();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &user, "--regid", &user_group(&user), "--clear-groups"]);
    command.arg(program).current_dir("/");
    command
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
}

fn user() -> String {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let known = users.lines().any(|line| line.starts_with("postgres:"));
    if known { "postgres".into() } else { "nobody".into() }
}

fn user_group(user: &str) -> String {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = users.lines().find(|line| line.starts_with(&format!("{user}:")));
    line.and_then(|line| line.split(':').nth(3)).unwrap_or("65534").into()
}

/// A new folder that the server's user may write to.
pub(crate) fn folder() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("retrysafe-pg-{}-{count}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a temporary folder");
    if is_root() {
        run(Command::new("chown").arg(format!("{}:", user())).arg(&dir));
    }
    dir
}

/// A port that nobody else of this run gets: below the ports that the system gives out by itself, one
/// after the other. Between the look and the server's start no outgoing connection can take it. Other
/// lists of this process begin thousands of ports away.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(6_000);
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
///
/// Each signal is given five seconds. QUIT is how a PostgreSQL ends at once; pgbouncer has no handler
/// for it, and a process that a shell has put in the background inherits it as ignored.
pub(crate) fn janitor(dir: &Path) -> Child {
    let script = r#"cat >/dev/null
for file in "$1/data/postmaster.pid" "$1/pid"; do
    [ -f "$file" ] || continue
    pid=$(head -n 1 "$file")
    for signal in QUIT TERM KILL; do
        kill -$signal "$pid" 2>/dev/null || break
        tries=0
        while kill -0 "$pid" 2>/dev/null && [ $tries -lt 50 ]; do
            sleep 0.1
            tries=$((tries + 1))
        done
    done
done
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

/// The children of a process, by the kernel's list.
fn children_of(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").expect("/proc is there");
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| parent_of(*pid).ok().flatten() == Some(parent)).collect()
}

fn parent_of(pid: u32) -> io::Result<Option<u32>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold anything; what follows the last one is state and parent.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    Ok(fields.split_whitespace().nth(1).and_then(|parent| parent.parse().ok()))
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {complaint}");
}
