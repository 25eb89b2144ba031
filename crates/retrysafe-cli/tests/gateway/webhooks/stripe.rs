//! Are events believed that Stripe's own libraries sign?
//!
//! The libraries are asked themselves: those for Node and for Python, from their packages.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::{Value, json};

use super::super::install::run;
use super::super::kit::{Gateway, Message, Step, Upstream, key, request, send, until};
use super::desk::now;

const SECRET: &str = "whsec_of_the_tests_0123456789abcdef";
const ROTATED: &str = "whsec_of_the_tests_fedcba9876543210";

/// Each reads a secret, a body and a time from a JSON document, and says the header.
const NODE: &str = r#"
const Stripe = (await import("stripe")).default;
const stripe = new Stripe("sk_test_1");
let text = "";
for await (const piece of process.stdin) text += piece;
const given = JSON.parse(text);
process.stdout.write(stripe.webhooks.generateTestHeaderString(
  { payload: given.body, secret: given.secret, timestamp: given.time }));
"#;
const PYTHON: &str = r#"
import json, sys
import stripe
given = json.load(sys.stdin)
signed = "%d.%s" % (given["time"], given["body"])
signature = stripe.WebhookSignature._compute_signature(signed, given["secret"])
header = "t=%d,v1=%s" % (given["time"], signature)
stripe.Webhook.construct_event(given["body"], header, given["secret"], tolerance=10**9)
sys.stdout.write(header)
"#;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A folder that has a package, installed once for what these files say.
fn installed(name: &str, files: &[&str], install: impl FnOnce(&Path)) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let from = repository().join("clients").join(name);
    let read = |file: &&str| std::fs::read_to_string(from.join(file)).unwrap();
    let wanted: String = files.iter().map(read).collect();
    let mark = folder.join("installed");
    if std::fs::read_to_string(&mark).is_ok_and(|had| had == wanted) {
        return folder;
    }
    // What is left of an installation that did not come to its end is of no use.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    for file in files {
        std::fs::copy(from.join(file), folder.join(file)).unwrap();
    }
    install(&folder);
    std::fs::write(mark, wanted).unwrap();
    folder
}

fn node() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        installed("stripe-node", &["package.json", "package-lock.json"], |folder| {
            run(Command::new("npm")
                .args(["ci", "--no-audit", "--no-fund", "--silent"])
                .current_dir(folder));
        })
    })
}

fn python() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        installed("stripe-python", &["requirements.txt"], |folder| {
            run(Command::new("python3").args(["-m", "venv", "venv"]).current_dir(folder));
            let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"];
            let python = folder.join("venv/bin/python");
            run(Command::new(python).args(pip).arg("requirements.txt").current_dir(folder));
        })
    })
}

/// The header that a library gives to an event.
fn header(mut library: Command, secret: &str, body: &str, time: u64) -> String {
    let given = json!({"secret": secret, "body": body, "time": time});
    let mut child = library
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(given.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn of_node() -> Command {
    let mut command = Command::new("node");
    command.args(["--input-type=module", "--eval", NODE]).current_dir(node());
    command
}

fn of_python() -> Command {
    let mut command = Command::new(python().join("venv/bin/python"));
    command.args(["-c", PYTHON]);
    command
}

fn deliver(gateway: &Gateway, header: &str, body: &str) -> Message {
    let headers =
        [("Stripe-Signature", header), ("Content-Type", "application/json; charset=utf-8")];
    send(gateway.address, &request("POST", "/webhooks/stripe", &headers, body.as_bytes()))
}

/// An event as Stripe sends one.
fn event(id: &str, record: &str) -> Value {
    json!({
        "id": id, "object": "event", "api_version": "2025-01-27.acacia", "created": now(), "livemode": false,
        "pending_webhooks": 1, "type": "charge.succeeded", "request": {"id": "req_1", "idempotency_key": "k"},
        "data": {"object": {
            "id": "ch_1", "object": "charge", "amount": 100, "description": "Ärzte €",
            "metadata": {"retrysafe_id": record},
        }},
    })
}

#[test]
fn what_the_official_libraries_sign_is_believed_and_nothing_else() {
    let upstream = Upstream::start();
    let gateway = Gateway::start_as(&upstream, "", |gateway| {
        let folder = gateway.folder.display().to_string();
        std::fs::write(gateway.folder.join("old"), SECRET).unwrap();
        std::fs::write(gateway.folder.join("new"), format!("{ROTATED}\n")).unwrap();
        gateway.toml = format!(
            r#"
[webhooks.stripe]
path = "/webhooks/stripe"
scheme = "stripe"
secret_files = ["{folder}/old", "{folder}/new"]
match = [{{ by = "id", at = "/data/object/metadata/retrysafe_id" }}]
outcomes.executed = {{ when = {{ "/type" = "charge.succeeded" }}, status = 201, body = "/data/object" }}
"#
        );
    });
    upstream.otherwise(Some(Step::Drop));
    for (at, (library, secret)) in [
        (of_node as fn() -> Command, SECRET),
        (of_python, SECRET),
        (of_node, ROTATED),
        (of_python, ROTATED),
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("/charges-{at}");
        let key = key();
        assert_eq!(gateway.post(&path, &key, "{}").code(), "outcome_unknown");
        let record = upstream.seen_at(&path)[0].header("retrysafe-id").unwrap().to_owned();
        let body = event(&format!("evt_{at}"), &record).to_string();
        let time = now();
        let right = header(library(), secret, &body, time);
        // Another secret, another time, another body, an old one.
        let forged = header(library(), "whsec_somebody_elses_secret", &body, time);
        let old = header(library(), secret, &body, time - 600);
        let moved = right.replace(&format!("t={time}"), &format!("t={}", time + 1));
        for (header, body) in [
            (&forged, body.clone()),
            (&old, body.clone()),
            (&moved, body.clone()),
            (&right, body.replace("\"amount\":100", "\"amount\":101")),
        ] {
            let told = deliver(&gateway, header, &body);
            assert_eq!((told.status(), told.code().as_str()), (400, "webhook_refused"), "{header}");
        }
        assert_eq!(
            gateway.post(&path, &key, "{}").code(),
            "outcome_unknown",
            "nothing was decided"
        );
        let told = deliver(&gateway, &right, &body);
        assert_eq!(told.status(), 200, "{}", told.text());
        until("it is decided", || gateway.post(&path, &key, "{}").is_replay());
        assert_eq!(gateway.post(&path, &key, "{}").json()["description"], "Ärzte €");
    }
}
