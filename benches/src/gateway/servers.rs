//! How are the servers started, and what do they use up?

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The folder of what is built. Stores of a run lie in it too: on the disk, not in memory.
pub fn target() -> PathBuf {
    let folder = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    folder.unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../target").into())
}

/// A server as a child of this process. It ends when this process does, however that ends.
pub struct Server {
    pub name: &'static str,
    pub address: SocketAddr,
    /// Where operators connect, if it is a gateway.
    pub admin: Option<SocketAddr>,
    command: Command,
    child: Child,
}

impl Server {
    pub fn bare(upstream: SocketAddr) -> Self {
        let address = free();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["gateway", "bare", &address.to_string(), &upstream.to_string()]);
        Self::start("bare hyper", address, command)
    }

    /// The program of this repository.
    pub fn gateway(upstream: SocketAddr, folder: &Path, more: &str) -> Self {
        Self::start_gateway("retrysafe", program(), upstream, folder, more)
    }

    /// An earlier build of the program, which BENCH_GATEWAY_BEFORE names; none if it names none.
    pub fn gateway_before(upstream: SocketAddr, folder: &Path) -> Option<Self> {
        let program = std::env::var_os("BENCH_GATEWAY_BEFORE")?;
        let folder = folder.join("before");
        std::fs::create_dir(&folder).unwrap();
        Some(Self::start_gateway("retrysafe before", program.into(), upstream, &folder, ""))
    }

    fn start_gateway(
        name: &'static str,
        program: PathBuf,
        upstream: SocketAddr,
        folder: &Path,
        more: &str,
    ) -> Self {
        let (address, admin) = (free(), free());
        let config = folder.join("retrysafe.toml");
        let store = folder.join("data");
        let text = format!(
            "listen = \"{address}\"\nupstream = \"http://{upstream}\"\nstore = \"disk:{}\"\n\
             [admin]\nlisten = \"{admin}\"\ntoken = \"token-of-the-benches\"\n{more}",
            store.display()
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(program);
        command.args(["serve", "--config"]).arg(&config);
        let mut server = Self::start(name, address, command);
        server.admin = Some(admin);
        server
    }

    /// nginx with kept-alive connections to the upstream and no log of its own; none if it is not installed.
    pub fn nginx(upstream: SocketAddr, folder: &Path) -> Option<Self> {
        let address = free();
        let text = format!(
            "daemon off;\nmaster_process on;\nworker_processes auto;\npid {0}/nginx.pid;\nerror_log /dev/null;\n\
             events {{ worker_connections 4096; }}\n\
             http {{\n access_log off;\n keepalive_requests 100000000;\n\
             client_body_temp_path {0}/body;\n proxy_temp_path {0}/proxy;\n fastcgi_temp_path {0}/f;\n\
             uwsgi_temp_path {0}/u;\n scgi_temp_path {0}/s;\n\
             upstream api {{ server {upstream}; keepalive 1024; keepalive_requests 100000000; }}\n\
             server {{ listen {address}; location / {{ proxy_pass http://api; proxy_http_version 1.1;\n\
             proxy_set_header Connection \"\"; }} }}\n}}\n",
            folder.canonicalize().unwrap().display()
        );
        let config = folder.join("nginx.conf");
        std::fs::write(&config, text).unwrap();
        let program = ["/usr/sbin/nginx", "/usr/local/sbin/nginx"].into_iter().find(|path| Path::new(path).exists())?;
        let mut command = Command::new(program);
        command.arg("-c").arg(config.canonicalize().unwrap());
        Some(Self::start("nginx", address, command))
    }

    /// Starts a program that listens at this address, and waits until it does.
    pub fn start(name: &'static str, address: SocketAddr, command: Command) -> Self {
        let mut command = ends_with_this_process(&command);
        let child = command.spawn().unwrap();
        let server = Self { name, address, admin: None, command, child };
        server.wait_until_it_listens();
        server
    }

    /// Kills it without warning, and its children with it: those of nginx would keep its address, and be taken for the server that
    /// is started next.
    pub fn kill(&mut self) {
        let group = format!("-{}", self.child.id());
        let signal = |name: &str| Command::new("kill").args([name, "--", &group]).stderr(Stdio::null()).status().unwrap();
        assert!(signal("-KILL").success(), "{} runs", self.name);
        self.child.wait().unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while signal("-0").success() {
            assert!(Instant::now() < end, "a child of {} does not end", self.name);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Starts it again after it was killed.
    pub fn restart(&mut self) {
        self.child = self.command.spawn().unwrap();
        self.wait_until_it_listens();
    }

    fn wait_until_it_listens(&self) {
        let end = Instant::now() + Duration::from_secs(120);
        while TcpStream::connect(self.address).is_err() {
            assert!(Instant::now() < end, "{} did not start", self.name);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// CPU time of the server and its children so far, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        // User and system time are the 14th and 15th field, in hundredths of a second; the name before them may
        // hold spaces, so fields are counted from its closing bracket.
        let of = |pid: u32| -> f64 {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let after = stat.rsplit(')').next().unwrap_or_default();
            after.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0
        };
        self.processes().into_iter().map(of).sum()
    }

    /// How often the kernel has put threads of the server and its children on and off a core so far.
    pub fn context_switches(&self) -> f64 {
        let of = |pid: u32| -> f64 {
            let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            let statuses = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("status")).ok());
            let lines = statuses.flat_map(|status| {
                let lines = status.lines().filter(|line| line.contains("_ctxt_switches:"));
                lines.filter_map(|line| line.rsplit('\t').next()?.parse::<f64>().ok()).collect::<Vec<_>>()
            });
            lines.sum()
        };
        self.processes().into_iter().map(of).sum()
    }

    fn processes(&self) -> Vec<u32> {
        let pid = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        children.split_whitespace().filter_map(|child| child.parse().ok()).chain([pid]).collect()
    }

    /// Memory that the server holds.
    pub fn resident_mb(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap_or_default() / 1e3
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGTERM, so that nginx takes its workers along.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

/// The program, built as it is shipped; or the one that BENCH_GATEWAY names.
fn program() -> PathBuf {
    if let Some(program) = std::env::var_os("BENCH_GATEWAY") {
        return program.into();
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--profile", "dist", "--package", "retrysafe-cli"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .status()
        .unwrap();
    assert!(built.success(), "the gateway could not be built");
    target().join("dist/retrysafe")
}

/// The command, run by `setpriv` in such a way that the kernel ends it with its parent: an interrupted measurement
/// leaves nothing behind. Its children are in one group with it.
fn ends_with_this_process(command: &Command) -> Command {
    let mut wrapped = Command::new("setpriv");
    wrapped.args(["--pdeathsig", "TERM", "--"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        wrapped.env(name, value.unwrap_or_default());
    }
    if let Some(folder) = command.get_current_dir() {
        wrapped.current_dir(folder);
    }
    wrapped.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    wrapped
}

/// An address that was free a moment ago.
pub fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
