//! How does a test get a pgbouncer in transaction mode?

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::cluster::{as_user, folder, free_port, janitor};

#[derive(Debug)]
pub(crate) struct Pooler {
    pub(crate) port: u16,
    pub(crate) pid: u32,
    dir: PathBuf,
    _janitor: Child,
}

impl Pooler {
    /// A pooler in front of the server on this port, with fewer connections to it than one store
    /// has: every transaction may meet another backend.
    pub(crate) fn start(server: u16) -> Self {
        let (dir, port) = (folder(), free_port());
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"].map(PathBuf::from);
        let program = program.into_iter().find(|path| path.is_file()).unwrap_or_else(|| {
            panic!(
                "pgbouncer is not installed: run `cargo xtask test`, or `apt-get install pgbouncer`"
            )
        });
        let file = configure(&dir, port, server);
        let janitor = janitor(&dir);
        let mut command: Command = as_user(&program);
        command.arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let pid = command.spawn().expect("pgbouncer starts").id();
        let started = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
            assert!(started.elapsed() < Duration::from_secs(60), "{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { port, pid, dir, _janitor: janitor }
    }

    /// Points it at another server, as an operator does after a fail-over. Its clients stay.
    pub(crate) fn point_at(&self, server: u16) {
        configure(&self.dir, self.port, server);
        let told = Command::new("kill").args(["-HUP", &self.pid.to_string()]).status();
        assert!(told.is_ok_and(|status| status.success()), "pgbouncer takes a signal");
    }
}

/// Writes the settings of a pooler on this port, in front of the server on that port.
fn configure(dir: &Path, port: u16, server: u16) -> PathBuf {
    let settings = format!(
        "[databases]\n* = host=127.0.0.1 port={server} user=postgres\n[pgbouncer]\n\
        listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
        pool_mode = transaction\ndefault_pool_size = 2\nmax_client_conn = 500\n\
        pidfile = {}\nlogfile = {}\n",
        dir.join("pid").display(),
        dir.join("log").display(),
    );
    let file = dir.join("pgbouncer.ini");
    std::fs::write(&file, settings).expect("the settings are written");
    file
}
