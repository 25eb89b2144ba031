//! Does a receiver that knows Standard Webhooks believe what the worker signs?
//!
//! It is asked itself: the official library for Python verifies what came over the wire.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::json;

use super::bench::{Bench, KEYED};
use super::install::run;
use super::kit::{Seen, Step, reply};

const REQUIREMENTS: &str = include_str!("requirements.txt");

/// Says "verified" or why not. Reads a secret, headers and a body from a JSON document.
const VERIFY: &str = r#"
import json, sys
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
given = json.load(sys.stdin)
try:
    Webhook(given["secret"]).verify(given["body"], given["headers"])
    print("verified")
except WebhookVerificationError as error:
    print("refused:", error)
"#;

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_plJ3nmyCDGBKInavdOK15jsl+d2aKKDYJ2zZt5GwGPk=";

/// A Python that has the library.
fn python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("standardwebhooks");
        let python = folder.join("venv/bin/python");
        let mark = folder.join("installed");
        if std::fs::read_to_string(&mark).is_ok_and(|had| had == REQUIREMENTS) {
            return python;
        }
        // What is left of an installation that did not come to its end is of no use.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("requirements.txt"), REQUIREMENTS).unwrap();
        run(Command::new("python3").args(["-m", "venv", "venv"]).current_dir(&folder));
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"];
        run(Command::new(&python).args(pip).arg("requirements.txt").current_dir(&folder));
        std::fs::write(mark, REQUIREMENTS).unwrap();
        python
    })
}

/// What the library says about a delivery.
fn verdict(secret: &str, seen: &Seen, body: &str) -> String {
    let names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
    let headers: serde_json::Map<_, _> =
        names.iter().map(|name| ((*name).into(), json!(seen.header(name).unwrap()))).collect();
    let given = json!({"secret": secret, "headers": headers, "body": body});
    let mut child = Command::new(python())
        .args(["-c", VERIFY])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(given.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A worker that signs with the secrets of these files.
fn signing(secrets: &[(&str, &str)]) -> Bench {
    let mut bench = Bench::asleep();
    let files = secrets.iter().map(|(name, secret)| {
        let path = bench.folder.join(name);
        std::fs::write(&path, format!("{secret}\n")).unwrap();
        format!("{:?}", path.display().to_string())
    });
    let files: Vec<String> = files.collect();
    let table = format!("{KEYED}[effects.mail.signing]\nsecret_files = [{}]\n", files.join(", "));
    bench.configure(&bench.mail(&table));
    bench.run();
    bench
}

#[test]
fn the_official_library_verifies_every_delivery() {
    let bench = signing(&[("secret", OLD)]);
    bench.provider.script("/mail", vec![Step::Drop, reply(500, ""), reply(200, "")]);
    let id = bench.stage_as("mail", None, "{\"name\":\"Ärzte €\"}");
    bench.wait_for(id, "delivered");
    let seen = bench.provider.seen_at("/mail");
    assert_eq!(seen.len(), 3);
    for seen in &seen {
        assert_eq!(seen.header("webhook-id"), Some(bench.key(id).as_str()), "one message");
        assert_eq!(verdict(OLD, seen, &seen.message.text()), "verified");
        assert_eq!(
            verdict(OLD, seen, "{\"name\":\"Mallory\"}"),
            "refused: No matching signature found"
        );
        assert_eq!(
            verdict(NEW, seen, &seen.message.text()),
            "refused: No matching signature found"
        );
    }
}

/// A secret is exchanged while the worker runs: no receiver sees a delivery that it cannot verify.
#[test]
fn two_secrets_sign_while_one_is_exchanged_for_the_other() {
    let bench = signing(&[("one", OLD), ("two", NEW)]);
    let id = bench.stage();
    bench.wait_for(id, "delivered");
    let both = bench.provider.seen_at("/mail").pop().unwrap();
    assert_eq!(both.header("webhook-signature").unwrap().split(' ').count(), 2);
    for secret in [OLD, NEW] {
        assert_eq!(verdict(secret, &both, &both.message.text()), "verified");
    }
    // The old one's file gets the new secret; nobody starts or signals anything.
    std::fs::write(bench.folder.join("one"), NEW).unwrap();
    let id = bench.stage();
    bench.wait_for(id, "delivered");
    let new = bench.provider.seen_at("/mail").pop().unwrap();
    assert_eq!(verdict(NEW, &new, &new.message.text()), "verified");
    assert!(verdict(OLD, &new, &new.message.text()).starts_with("refused"));
}

#[test]
fn nothing_leaves_unsigned_where_a_secret_is_missing() {
    let bench = signing(&[("secret", OLD)]);
    std::fs::remove_file(bench.folder.join("secret")).unwrap();
    let id = bench.stage();
    super::kit::until("it is told", || bench.state(id).1.contains("no such file"));
    assert_eq!(bench.provider.count("/mail"), 0);
    std::fs::write(bench.folder.join("secret"), OLD).unwrap();
    bench.wait_for(id, "delivered");
    assert!(!bench.log().contains("MfKQ9r8"), "a secret stands in no log");
}
