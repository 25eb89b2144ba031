//! Is a configuration that cannot work refused, with its cure?

use super::bench::Bench;
use super::kit::{Gateway, Upstream, program};

/// What `worker --check-config` says about a file.
fn checked(text: &str) -> (i32, String) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("retrysafe.toml"), text).unwrap();
    let check = ["worker", "--config", "retrysafe.toml", "--check-config"];
    let (code, out, err) = program(&check, folder.path());
    (code, format!("{out}{err}"))
}

const STORE: &str = "store = \"postgres://ann@127.0.0.1/shop\"\n";

#[test]
fn everything_wrong_is_named_with_its_place_and_cure() {
    for (table, setting, cure) in [
        ("remembers_keys_for = \"24h\"", "effects.mail.url", "where do effects of this kind go"),
        ("url = \"https://x.example\"", "effects.mail.remembers_keys_for", "takes_no_key = true"),
        ("url = \"https://x.example\"\ntakes_no_key = false", "remembers_keys_for", "24h"),
        (
            "url = \"https://x.example\"\ntakes_no_key = true\nremembers_keys_for = \"1h\"",
            "takes_no_key",
            "as well",
        ),
        (
            "url = \"https://x.example\"\nremembers_keys_for = \"5m\"",
            "remembers_keys_for",
            "too short",
        ),
        ("url = \"ftp://x.example\"\ntakes_no_key = true", "effects.mail.url", "http"),
        (
            "url = \"https://a:sk_live@x.example\"\ntakes_no_key = true",
            "effects.mail.url",
            "`headers`",
        ),
        (
            "destinations = [\"x.example\"]\ntakes_no_key = true",
            "effects.mail.destinations",
            "https:",
        ),
        (
            "url = \"https://x.example\"\ntakes_no_key = true\nmethod = \"GET\"",
            "effects.mail.method",
            "changes nothing",
        ),
        (
            "url = \"https://x.example\"\ntakes_no_key = true\nmethod = \"post\"",
            "effects.mail.method",
            "such as POST",
        ),
        (
            "url = \"https://x.example\"\ntakes_no_key = true\nkey_header = \"Host\"",
            "effects.mail.key_header",
            "meaning of its own",
        ),
        (
            "destinations = [\"https:\", \"https://a:sk_live@x.example\"]\ntakes_no_key = true",
            "effects.mail.destinations",
            "entry 2",
        ),
        (
            "url = \"https://x.example\"\ntakes_no_key = true\nkey_header = \"a b\"",
            "effects.mail.key_header",
            "header",
        ),
        (
            "url = \"https://x.example\"\ntakes_no_key = true\ndeadline = \"2h\"",
            "effects.mail.deadline",
            "1h",
        ),
        (
            "url = \"https://x.example\"\ntakes_no_key = true\nbackoff = \"2h\"\nbackoff_max = \"1h\"",
            "backoff_max",
            "shorter",
        ),
        (
            "url = \"https://x.example\"\ntakes_no_key = true\ndelivered = [99]",
            "effects.mail.delivered",
            "\"4xx\"",
        ),
        (
            "url = \"https://x.example\"\ntakes_no_key = true\ndelivered = [409]\nunknown = [409]",
            "effects.mail.unknown",
            "`delivered`",
        ),
        (
            "url = \"https://x.example\"\ntakes_no_key = true\nreference = \"id\"",
            "effects.mail.reference",
            "/id",
        ),
        (
            "url = \"https://x.example\"\ntakes_no_key = true\nallow_networks = [\"near\"]",
            "effects.mail.allow_networks",
            "10.0.0.0/8",
        ),
        (
            "url = \"https://x.example\"\ntakes_no_key = true\nfailure_max = 3",
            "effects.mail.failure_max",
            "`failures_max`",
        ),
        (
            "url = \"https://x.example\"\ntakes_no_key = true\n[effects.mail.headers]\nHost = \"y\"",
            "headers.Host",
            "leave it out",
        ),
        (
            "url = \"https://x.example\"\ntakes_no_key = true\n[effects.mail.signing]\nsecret_files = []",
            "signing.secret_files",
            "one file",
        ),
        (
            "url = \"https://x.example\"\ntakes_no_key = true\n[effects.mail.signing]\nsecret_files = [\"no-such\"]",
            "signing.secret_files",
            "no such file",
        ),
        (
            "url = \"https://x.example\"\ntakes_no_key = true\n[effects.mail.tls]\ncertificate = \"c.pem\"",
            "tls.certificate",
            "`key`",
        ),
        (
            "url = \"https://x.example\"\ntakes_no_key = true\n[effects.mail.tls]\nauthorities = \"no-such\"",
            "effects.mail.tls",
            "No such file",
        ),
    ] {
        let (code, told) = checked(&format!("{STORE}[effects.mail]\n{table}\n"));
        assert_eq!(code, 1, "{table}: {told}");
        assert!(told.contains(setting) && told.contains(cure), "{table}: {told}");
        assert!(told.contains("retrysafe.toml: line ") && !told.contains("sk_live"), "{told}");
        assert_eq!(told.lines().count(), 1, "{table}: {told}");
    }
}

#[test]
fn a_worker_needs_a_database_and_a_kind() {
    let mail = "[effects.mail]\nurl = \"https://x.example\"\ntakes_no_key = true\n";
    for store in ["memory:", "disk:./data", "redis://127.0.0.1/0"] {
        let (code, told) = checked(&format!("store = \"{store}\"\n{mail}"));
        assert!(code == 1 && told.contains("`store`: is no PostgreSQL"), "{store}: {told}");
    }
    let (code, told) = checked(mail);
    assert!(code == 1 && told.contains("`store`"), "the default is a folder: {told}");
    let (code, told) = checked(STORE);
    assert!(code == 1 && told.contains("[effects.KIND]"), "{told}");
    let tiered =
        "store = { decide = \"postgres://a@127.0.0.1/d\", answer = \"redis://127.0.0.1\" }\n";
    for good in [STORE, tiered] {
        let (code, told) = checked(&format!("{good}{mail}"));
        assert!(code == 0 && told.contains("valid: 1 kind of effects"), "{told}");
    }
    let (code, told) =
        checked(&format!("store = \"postgres://ann@a.example,b.example/shop\"\n{mail}"));
    assert!(code == 1 && told.contains("several hosts"), "{told}");
}

/// One file is for both: what is wrong for a worker is wrong for the gateway's check too, and no credential is printed.
#[test]
fn the_gateway_takes_the_same_file() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "[effects.mail]\nurl = \"https://x.example\"\ntakes_no_key = true\n\
         [effects.mail.headers]\nAuthorization = \"Bearer planted\"\n",
    );
    let config = gateway.config();
    let config = config.to_str().unwrap();
    let (code, out, err) = program(&["config", "print", "--config", config], &gateway.folder);
    assert!(code == 0 && out.contains("[effects.mail]"), "{out}{err}");
    assert!(!out.contains("planted") && out.contains("Authorization = \"…\""), "{out}");
    gateway.configure("[effects.mail]\nurl = \"https://x.example\"\n");
    let (code, _, err) = program(&["config", "check", "--config", config], &gateway.folder);
    assert!(code == 1 && err.contains("effects.mail.remembers_keys_for"), "{err}");
}

#[test]
fn without_its_database_a_worker_does_not_start_and_says_why() {
    let bench = Bench::asleep();
    bench.configure(&bench.mail("takes_no_key = true\n"));
    let config = bench.config();
    let worker = ["worker", "--config", config.to_str().unwrap(), "--store"];
    let store = "postgres://u:planted@127.0.0.1:1/d";
    let bound = [("RETRYSAFE_STORE_WAIT_MAX", "300ms")];
    let worker: Vec<&str> = worker.into_iter().chain([store]).collect();
    let (code, out, err) = super::kit::program_with(&worker, &bench.folder, &bound);
    assert_eq!(code, 1);
    assert!(
        err.contains("cannot connect to PostgreSQL") && err.contains("store_wait_max"),
        "{err}"
    );
    assert!(!format!("{out}{err}").contains("planted"), "{out}{err}");
}
