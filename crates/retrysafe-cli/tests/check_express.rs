//! Does an Express application without any protection get no marks at all?
//!
//! The application of the tutorials' kind, with a listing, slow requests and failures, run by Node.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "this is how a test fails"
)]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

#[path = "gateway/install.rs"]
mod install;
#[path = "check_report/schema.rs"]
mod schema;

const APPLICATION: &str = r#"
const express = require("express");
const app = express();
app.use(express.json());
app.use(express.urlencoded({ extended: false }));
const payments = [];
const failed = new Set();
const pay = async (request, response) => {
  await new Promise((done) => setTimeout(done, Number(request.get("X-Slow") || 5)));
  if (request.body && request.body.bad) return response.status(400).json({ error: "bad" });
  const key = request.get("Idempotency-Key");
  if (request.get("X-Fail-Once") && !failed.has(key)) {
    failed.add(key);
    return response.status(500).json({ error: "boom" });
  }
  const payment = { id: payments.length + 1, state: "done" };
  payments.push(payment);
  response.status(201).json(CONSTANT ? { state: "done" } : payment);
};
const CONSTANT = process.argv[2] === "constant";
app.post("/payments", pay);
app.post("/refunds", pay);
app.get("/payments", (request, response) => response.json({ data: payments }));
const server = app.listen(0, "127.0.0.1", () => console.log(server.address().port));
"#;

/// The application, which goes when this does.
struct Application {
    child: Child,
    port: u16,
}

impl Drop for Application {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(folder: &Path, word: &str) -> Application {
    let mut child = Command::new("node")
        .args(["app.js", word])
        .current_dir(folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    Application { child, port: line.trim().parse().unwrap() }
}

fn checked(application: &Application, more: &[&str]) -> Value {
    let url = format!("http://127.0.0.1:{}/payments", application.port);
    let output = Command::new(env!("CARGO_BIN_EXE_retrysafe"))
        .args(["check", &url, "--yes", "--json", "--timeout", "5", "--rate", "200"])
        .args(["-H", "Authorization: Bearer a", "--second-caller", "Authorization: Bearer b"])
        .args(["--refreshed-credential", "Authorization: Bearer a2", "--ttl", "1s"])
        .args(["--second-url", &url, "--restart-command", "true"])
        .args(["--other-path", "/refunds", "--slow", "X-Slow: 1000"])
        .args(["--client-error", r#"{"bad":"{{uuid}}"}"#, "--server-error", "X-Fail-Once: 1"])
        .args(more)
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    schema::check(&report);
    assert_eq!(output.status.code(), Some(1), "{report:#}");
    report
}

#[test]
fn a_bare_express_application_gets_no_marks() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("app.js"), APPLICATION).unwrap();
    install::run(
        Command::new("npm")
            .args(["install", "--no-audit", "--no-fund", "--silent", "express@5"])
            .current_dir(folder.path()),
    );
    let listing: &[&str] = &["--list", "/payments", "--list-pointer", "/data"];
    std::thread::scope(|all| {
        for (word, more) in [("", listing), ("", &[]), ("constant", listing), ("constant", &[])] {
            let folder = folder.path();
            all.spawn(move || {
                let report = checked(&start(folder, word), more);
                assert_eq!(report["passed"], 0, "{word:?} {more:?}: {report:#}");
                assert!(report["faults"].as_u64() > Some(0), "{report:#}");
                assert_eq!(report["dialect"], "none");
            });
        }
    });
}
