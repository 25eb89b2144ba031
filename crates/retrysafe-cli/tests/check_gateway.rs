//! Does the checker give our own gateway full marks, in every dialect?
//!
//! The real program in front of an upstream that protects nothing: whatever is right here, the
//! gateway has made right.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

#[path = "check_report/schema.rs"]
mod schema;

/// What an upstream without any protection remembers.
#[derive(Default)]
struct Books {
    payments: Vec<usize>,
    failed_once: HashSet<String>,
}

fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let books: Arc<Mutex<Books>> = Arc::default();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let books = books.clone();
            std::thread::spawn(move || while exchange(&stream, &books).is_some() {});
        }
    });
    address
}

/// One request on a connection that stays open, as the gateway keeps it.
fn exchange(mut stream: &TcpStream, books: &Mutex<Books>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let is_listing = line.starts_with("GET ");
    let (mut key, mut slow, mut fails, mut length) = (String::new(), 20, false, 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        match (name.to_lowercase().as_str(), value.trim()) {
            ("idempotency-key" | "x-request-key", value) => key = value.to_owned(),
            ("x-slow", value) => slow = value.parse().unwrap(),
            ("x-fail-once", _) => fails = true,
            ("content-length", value) => length = value.parse().unwrap(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (status, answer) = if is_listing {
        (200, serde_json::json!({ "data": books.lock().unwrap().payments }))
    } else {
        std::thread::sleep(Duration::from_millis(slow));
        let mut books = books.lock().unwrap();
        if String::from_utf8_lossy(&body).contains("\"bad\"") {
            (400, serde_json::json!({ "error": "bad" }))
        } else if fails && books.failed_once.insert(key) {
            (500, serde_json::json!({ "error": "boom" }))
        } else {
            let number = books.payments.len();
            books.payments.push(number);
            (201, serde_json::json!({ "id": format!("pay-{number}"), "state": "done" }))
        }
    };
    let answer = answer.to_string();
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nlocation: /payments/1\r\ncontent-length: {}\r\n\r\n",
        answer.len()
    );
    stream.write_all(format!("{head}{answer}").as_bytes()).ok()
}

/// The gateway, which goes when this does.
struct Gateway {
    child: Child,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Gateway {
    /// Where the number of its process stands.
    fn pid_file(&self) -> PathBuf {
        self.folder.path().join("pid")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // The process that the checker has put into the place of ours.
        let now = std::fs::read_to_string(self.pid_file()).unwrap_or_default();
        if now.trim() != self.child.id().to_string() {
            let _ = Command::new("kill").args(["-9", now.trim()]).status();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An address that nobody else of this run gets: below the ports that the system gives out by itself, so that nobody takes it while
/// its gateway is being restarted.
fn free() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed) + std::process::id().wrapping_mul(97);
        let port = u16::try_from(12_000 + number % 18_000).unwrap();
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return listener.local_addr().unwrap();
        }
    }
}

fn gateway(settings: &str) -> Gateway {
    let folder = tempfile::tempdir().unwrap();
    let (address, admin) = (free(), free());
    let config = format!(
        "listen = \"{address}\"\nupstream = \"http://{}\"\nstore = \"disk:{}\"\n\
         [admin]\nlisten = \"{admin}\"\n[log]\nlevel = \"error\"\n[defaults]\n{settings}\n",
        upstream(),
        folder.path().join("store").display()
    );
    let file = folder.path().join("retrysafe.toml");
    std::fs::write(&file, config).unwrap();
    let program = env!("CARGO_BIN_EXE_retrysafe");
    let child = Command::new(program)
        .args(["serve", "--config"])
        .arg(&file)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let gateway = Gateway { child, address, folder };
    std::fs::write(gateway.pid_file(), gateway.child.id().to_string()).unwrap();
    let is_ready = || {
        let asked = Command::new(program)
            .args(["healthcheck", "--admin", &format!("http://{admin}")])
            .stderr(Stdio::null())
            .status();
        asked.unwrap().success()
    };
    // A gateway that never comes up is a failure, not a hang.
    let end = Instant::now() + Duration::from_secs(60);
    while !is_ready() {
        assert!(Instant::now() < end, "the gateway does not come up");
        std::thread::sleep(Duration::from_millis(20));
    }
    gateway
}

/// Kills the gateway and starts it again, as whoever looks after a server does: not before every thread of the former process has
/// ended, because until then that process has its port and its store.
fn restart_command(gateway: &Gateway) -> String {
    let folder = gateway.folder.path().display();
    let program = env!("CARGO_BIN_EXE_retrysafe");
    format!(
        "cd {folder} && pid=$(cat pid) && kill -9 $pid && \
         while grep -qs '^State:[[:space:]]*[^[:space:]ZX]' /proc/$pid/task/*/status; do :; done && \
         {{ {program} serve --config retrysafe.toml >log 2>&1 </dev/null & echo $! >pid; }}"
    )
}

fn passed(report: &Value, id: &str) -> bool {
    let findings = report["findings"].as_array().unwrap();
    findings.iter().any(|finding| finding["id"] == id && finding["verdict"] == "pass")
}

#[test]
fn a_gateway_that_is_killed_gets_full_marks() {
    let settings = "scope = [\"header:X-Account\"]\nlease = \"10s\"\nlease_max = \"10s\"\nupstream_timeout = \"10s\"";
    let gateway = gateway(settings);
    let report = full_marks(
        &gateway,
        &[
            "-H",
            "X-Account: 1",
            "--second-caller",
            "X-Account: 2",
            "--refreshed-credential",
            "Authorization: Bearer refreshed",
            "--restart-command",
            &restart_command(&gateway),
        ],
    );
    for id in ["refreshed_credential", "restart", "restart_in_flight"] {
        assert!(passed(&report, id), "{id}: {report:#}");
    }
}

#[test]
fn a_refused_request_is_told_with_the_words_of_the_api() {
    let gateway = gateway("");
    let output = Command::new(env!("CARGO_BIN_EXE_retrysafe"))
        .args(["check", &format!("http://{}/payments", gateway.address), "--yes"])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("(400)") && told.contains("Send Authorization"), "{told}");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_gateway_that_forgets_in_time_gets_full_marks() {
    // Longer than any other case takes between two requests.
    let report = full_marks(&gateway("ttl = \"12s\""), &["--ttl", "12s"]);
    assert!(passed(&report, "ttl"), "{report:#}");
}

fn gets_full_marks(settings: &str, dialect: &str) {
    gets_full_marks_with(settings, dialect, &[]);
}

fn gets_full_marks_with(settings: &str, dialect: &str, more: &[&str]) {
    let report = full_marks(&gateway(settings), more);
    assert_eq!(report["dialect"].as_str(), Some(dialect), "{report:#}");
}

fn full_marks(gateway: &Gateway, more: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_retrysafe"))
        .args(["check", &format!("http://{}/payments", gateway.address), "--yes", "--json"])
        .args(["--timeout", "10", "--rate", "200"])
        .args(["-H", "Authorization: Bearer a", "--second-caller", "Authorization: Bearer b"])
        .args(["--other-path", "/refunds", "--slow", "X-Slow: 2000"])
        .args(["--client-error", r#"{"bad":"{{uuid}}"}"#, "--server-error", "X-Fail-Once: 1"])
        .args(["--list", "/payments", "--list-pointer", "/data"])
        .args(more)
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    schema::check(&report);
    let counts = ["faults", "weak", "undecided"].map(|kind| report[kind].as_u64());
    assert_eq!(counts, [Some(0); 3], "{report:#}");
    assert_eq!(output.status.code(), Some(0));
    report
}

#[test]
fn the_default_dialect_gets_full_marks() {
    gets_full_marks("key = \"required\"", "ietf");
}

#[test]
fn the_stripe_dialect_gets_full_marks() {
    gets_full_marks("dialect = \"stripe\"", "stripe");
}

#[test]
fn the_conflict_dialect_gets_full_marks() {
    gets_full_marks("dialect = \"conflict\"", "conflict");
}

#[test]
fn duplicates_that_wait_get_full_marks() {
    gets_full_marks("wait_max = \"9s\"", "ietf, duplicates wait");
}

#[test]
fn a_key_in_another_header_gets_full_marks() {
    let settings = "key = \"required\"\nkey_header = \"X-Request-Key\"";
    gets_full_marks_with(settings, "ietf", &["--key-header", "X-Request-Key"]);
}
