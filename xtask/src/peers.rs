//! What does the checker say about other people's middlewares, and about ours?
//!
//! Each peer is installed from its package into a temporary folder and put in front of the same
//! operation (`clients/peers/`), as its own documentation says; the checker asks all of them the
//! same. The table that this prints stands in `docs/peers.md`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use serde_json::Value;

use crate::Error;
use crate::local::{Folder, Running, free_address, get, program, run};
use crate::root;

/// How a peer tells its callers apart.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Callers {
    /// By a header that any API has.
    Token,
    /// By a session, which is opened at `/session`.
    Session,
}

/// What the table says about one peer.
struct Verdict {
    peer: &'static str,
    version: String,
    report: Value,
}

pub(crate) fn all() -> Result<ExitCode, Error> {
    let folder = Folder::new("peers")?;
    let program = program()?;
    let mut verdicts = Vec::new();

    let node = folder.copy_of("clients/peers/node")?;
    run(Command::new("npm")
        .args(["ci", "--no-audit", "--no-fund", "--silent"])
        .current_dir(&node))?;
    for (peer, package, script) in [
        ("@node-idempotency/core on express", "@node-idempotency/core", "node-idempotency-core.js"),
        ("express-idempotency", "express-idempotency", "express-idempotency.js"),
    ] {
        let mut app = Command::new("node");
        app.arg(script).current_dir(&node);
        let manifest = node.join("node_modules").join(package).join("package.json");
        let manifest: Value = serde_json::from_str(&std::fs::read_to_string(manifest)?)?;
        let version = text(&manifest, "version").to_owned();
        verdicts.push(Verdict { peer, version, report: judge(&program, app, Callers::Token)? });
    }

    let python = folder.copy_of("clients/peers/python")?;
    run(Command::new("python3").args(["-m", "venv", "venv"]).current_dir(&python))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"];
    let interpreter = python.join("venv/bin/python");
    run(Command::new(&interpreter).args(pip).arg("requirements.txt").current_dir(&python))?;
    let mut app = Command::new(&interpreter);
    app.arg("app.py").current_dir(&python);
    let report = judge(&program, app, Callers::Token)?;
    let version = pinned(&python.join("requirements.txt"), "asgi-idempotency-header==")?;
    verdicts.push(Verdict { peer: "asgi-idempotency-header on starlette", version, report });

    let axum = folder.copy_of("clients/peers/axum")?;
    std::fs::create_dir_all(axum.join("src"))?;
    std::fs::copy(root().join("clients/peers/axum/src/main.rs"), axum.join("src/main.rs"))?;
    let target = root().join("target/peers");
    run(Command::new("cargo")
        .args(["build", "--quiet"])
        .env("CARGO_TARGET_DIR", &target)
        .current_dir(&axum))?;
    let app = Command::new(target.join("debug/axum-idempotent-peer"));
    let report = judge(&program, app, Callers::Session)?;
    let version = pinned(&axum.join("Cargo.toml"), "axum-idempotent = \"=")?;
    verdicts.push(Verdict { peer: "axum-idempotent", version, report });

    print(&verdicts);
    Ok(ExitCode::SUCCESS)
}

/// Starts an app and has it checked.
fn judge(program: &Path, mut app: Command, callers: Callers) -> Result<Value, Error> {
    let address = free_address()?;
    // What the peers log about refusals is not of interest here.
    app.env("PORT", address.port().to_string()).stdout(Stdio::null()).stderr(Stdio::null());
    let _app = Running::start(&mut app, address)?;
    let (first, second) = match callers {
        Callers::Token => {
            ("Authorization: Bearer a".to_owned(), "Authorization: Bearer b".to_owned())
        }
        Callers::Session => (session(address)?, session(address)?),
    };
    let refreshed: &[&str] = match callers {
        Callers::Token => &["--refreshed-credential", "Authorization: Bearer a2"],
        // A new session is a new caller.
        Callers::Session => &[],
    };
    let output = Command::new(program)
        .args(["check", &format!("http://{address}/payments"), "--yes", "--json"])
        .args(["--timeout", "10", "--rate", "100", "-H", &first, "--second-caller", &second])
        .args(["--other-path", "/refunds", "--slow", "X-Slow: 1000"])
        .args(["--client-error", r#"{"bad":"{{uuid}}"}"#, "--server-error", "X-Fail-Once: 1"])
        .args(["--list", "/payments", "--list-pointer", "/data"])
        .args(refreshed)
        .stderr(Stdio::inherit())
        .output()?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// A new session's cookie.
fn session(address: SocketAddr) -> Result<String, Error> {
    let (head, _) = get(address, "/session")?;
    let cookie = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let value = value.split(';').next()?.trim();
        name.eq_ignore_ascii_case("set-cookie").then(|| format!("Cookie: {value}"))
    });
    cookie.ok_or_else(|| "no session was opened".into())
}

/// The version that a manifest pins.
fn pinned(manifest: &Path, before: &str) -> Result<String, Error> {
    let text = std::fs::read_to_string(manifest)?;
    let line = text.lines().find_map(|line| line.strip_prefix(before));
    Ok(line.ok_or("the manifest pins no version")?.trim_end_matches('"').to_owned())
}

fn print(verdicts: &[Verdict]) {
    println!("| peer | version | faults | weak | passed |\n| --- | --- | --- | --- | --- |");
    for Verdict { peer, version, report } in verdicts {
        let [faults, weak, passed] = ["faults", "weak", "passed"].map(|kind| count(report, kind));
        println!("| {peer} | {version} | {faults} | {weak} | {passed} |");
    }
    for Verdict { peer, version, report } in verdicts {
        println!("\n## {peer} {version}\n");
        println!("Dialect: {}.\n", text(report, "dialect"));
        println!("| verdict | what should hold | seen |\n| --- | --- | --- |");
        let findings = report.get("findings").and_then(Value::as_array);
        for finding in findings.into_iter().flatten() {
            let [verdict, title, seen] =
                ["verdict", "title", "seen"].map(|name| text(finding, name));
            if matches!(verdict, "fault" | "weak" | "undecided") {
                println!("| {verdict} | {title} | {} |", seen.replace('|', "\\|"));
            }
        }
    }
}

/// A member of a document that is a text.
fn text<'a>(document: &'a Value, name: &str) -> &'a str {
    document.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// A member of a report that is a count.
fn count(report: &Value, name: &str) -> u64 {
    report.get(name).and_then(Value::as_u64).unwrap_or_default()
}
