//! How is a worker's process started, killed, stopped and told to end?

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::timeout;

/// Longer than anything here takes on a busy machine: what has not happened by then will not happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(150);

/// The pause between two looks at a fact.
pub(crate) const PACE: Duration = Duration::from_millis(50);

/// A process that works; killed when it is dropped.
pub(crate) struct WorkerProcess {
    child: Child,
}

impl WorkerProcess {
    /// Starts a worker on this database.
    pub(crate) fn start(url: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_receipt-worker"));
        command.env("DATABASE_URL", url).stdin(Stdio::null()).stdout(Stdio::null());
        if std::env::var_os("SHOW_PROGRAMS").is_none() {
            command.stderr(Stdio::null());
        }
        Self { child: command.spawn().unwrap() }
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

    /// Tells it to end, and waits until it has ended with nothing left under way.
    pub(crate) async fn end(&mut self) {
        self.signal(Signal::TERM);
        let ended = async {
            loop {
                if let Some(status) = self.child.try_wait().unwrap() {
                    return status;
                }
                tokio::time::sleep(PACE).await;
            }
        };
        let status = timeout(PATIENCE, ended).await.expect("the worker ends");
        // One that was told before it listens to signals has not begun either.
        let has_not_begun = status.signal() == Some(Signal::TERM.as_raw());
        assert!(status.success() || has_not_begun, "{status}");
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
