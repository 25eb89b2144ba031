//! Does the checker give our own gateway full marks, in every dialect?
//!
//! The real program in front of an upstream that protects nothing: whatever is right here, the
//! gateway has made right.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

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
    _folder: tempfile::TempDir,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn gateway(settings: &str) -> Gateway {
    let folder = tempfile::tempdir().unwrap();
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
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
    let gateway = Gateway { child, address, _folder: folder };
    let is_ready = || {
        let asked = Command::new(program)
            .args(["healthcheck", "--admin", &format!("http://{admin}")])
            .stderr(Stdio::null())
            .status();
        asked.unwrap().success()
    };
    // A gateway that never comes up is a failure, not a hang.
    assert!((0..1000).any(|_| is_ready()), "the gateway does not come up");
    gateway
}

fn gets_full_marks(settings: &str, dialect: &str) {
    gets_full_marks_with(settings, dialect, &[]);
}

fn gets_full_marks_with(settings: &str, dialect: &str, more: &[&str]) {
    let gateway = gateway(settings);
    let output = Command::new(env!("CARGO_BIN_EXE_retrysafe"))
        .args(["check", &format!("http://{}/payments", gateway.address), "--yes", "--json"])
        .args(["--timeout", "10", "--rate", "200"])
        .args(["-H", "Authorization: Bearer a", "--second-caller", "Authorization: Bearer b"])
        .args(["--other-path", "/refunds", "--slow", "X-Slow: 1000"])
        .args(["--client-error", r#"{"bad":"{{uuid}}"}"#, "--server-error", "X-Fail-Once: 1"])
        .args(["--list", "/payments", "--list-pointer", "/data"])
        .args(more)
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let counts = ["faults", "weak", "untold"].map(|kind| report[kind].as_u64());
    assert_eq!(counts, [Some(0); 3], "{report:#}");
    assert_eq!(report["dialect"].as_str(), Some(dialect), "{report:#}");
    assert_eq!(output.status.code(), Some(0));
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
    gets_full_marks("wait_max = \"5s\"", "ietf, duplicates wait");
}

#[test]
fn a_key_in_another_header_gets_full_marks() {
    let settings = "key = \"required\"\nkey_header = \"X-Request-Key\"";
    gets_full_marks_with(settings, "ietf", &["--key-header", "X-Request-Key"]);
}
