//! What does the program say about its configuration?

use super::kit::{Gateway, Step, Upstream, key, program, program_with};
use super::postgres::database;

fn check(toml: &str) -> (i32, String) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("c.toml"), toml).unwrap();
    let (code, out, err) = program(&["config", "check", "--config", "c.toml"], folder.path());
    (code, format!("{out}{err}"))
}

#[test]
fn everything_wrong_is_named_with_its_place() {
    let up = "upstream = \"http://127.0.0.1:1\"\n";
    for (toml, wanted) in [
        ("", vec!["upstream", "which API"]),
        ("[defaults]\nleese = \"3s\"\n", vec!["line 3, column 1", "leese", "lease"]),
        ("[defaults]\nttl = \"3 moons\"\n", vec!["line 3, column 7", "length of time"]),
        ("[defaults]\nttl = \"36501d\"\n", vec!["line 3, column 7", "longer than 36500d"]),
        ("[upkeep]\nreap_every = \"9999999h\"\n", vec!["line 3", "longer than 36500d"]),
        ("[[route]]\npath = \"pay\"\n", vec!["line 3", "slash"]),
        ("[[route]]\nkey = \"required\"\n", vec!["line 2", "route[0].path", "needs a path"]),
        ("[[route]]\npath = \"/v1/*\"\n", vec!["line 3", "route[0].path", "/v1/*", "{*rest}"]),
        ("[[route]]\npath = \"/o/:id\"\n", vec!["line 3", "route[0].path", "/o/:id", "{id}"]),
        ("[[route]]\npath = \"/%70ay\"\n", vec!["line 3", "guards no request"]),
        ("[[route]]\npath = \"/a//b\"\n", vec!["line 3", "guards no request"]),
        ("[route]\npath = \"/a\"\n", vec!["line 2", "[[route]]"]),
        ("[[route]]\npath = \"/a\"\n[[route]]\npath = \"/A\"\n", vec!["line 5", "same path"]),
        ("[defaults]\nmethods = [\"GET\"]\n", vec!["safe method"]),
        ("[defaults]\nscope = [\"jwt:sub\"]\n", vec!["[jwt]"]),
        ("[defaults]\nscope = [\"planet\"]\n", vec!["planet", "credential"]),
        ("[defaults]\nstrict = true\nkey = \"optional\"\n", vec!["line 4", "contradicts"]),
        ("[defaults]\nlease = \"5s\"\nlease_max = \"1s\"\n", vec!["line 4", "at least `lease`"]),
        ("[defaults]\nscope = [\"header:idempotency-key\"]\n", vec!["line 3", "is the key"]),
        ("[defaults]\nscope = [\"header:x-request-id\"]\n", vec!["line 3", "every attempt"]),
        ("[defaults]\nreplay_marker = \"content-length\"\n", vec!["line 3", "meaning of its own"]),
        ("[[route]]\npath = \"/a\"\nreplay_marker = \"host\"\n", vec!["line 4", "route[0].replay"]),
        ("[defaults]\nresponse_bytes_max = \"64MiB\"\n", vec!["line 3", "can hold", "63MiB"]),
        ("[[route]]\npath = \"/a\"\nresponse_bytes_max = \"1GiB\"\n", vec!["line 4", "63MiB"]),
        ("[defaults]\nupstream_timeout = \"0s\"\n", vec!["line 3", "longer than nothing"]),
        ("[upkeep]\nsweep_every = \"0s\"\n", vec!["line 3", "longer than nothing"]),
        ("[fingerprint]\nheaders = [\"Date\"]\n", vec!["line 3", "every attempt"]),
        ("[reconcile]\nurl = \"/lookup\"\n", vec!["line 3", "reconcile.url", "no {id}"]),
        ("[reconcile]\nurl = \"/l/{key}\"\n", vec!["line 3", "there is no {key}", "{fence}"]),
        ("[reconcile]\nevery = \"1m\"\n", vec!["line 2", "reconcile.url", "is not set"]),
        ("[admin]\ntoken = \"short\"\n", vec!["line 3", "16 characters", "openssl"]),
        ("[admin]\ntoken = \"sixteen letters!\"\n", vec!["line 3", "a space"]),
        (
            "[admin]\ntoken_file = \"/nonexistent\"\n",
            vec!["line 3", "`admin.token_file`: cannot read /nonexistent: no such file"],
        ),
        (
            "[tls]\ncertificate = \"/nonexistent\"\nkey = \"/missing\"\n",
            vec![
                "line 3",
                "`tls.certificate`: cannot read /nonexistent: no such file",
                "line 4",
                "`tls.key`: cannot read /missing: no such file",
            ],
        ),
        (
            "[tls]\ncertificate = \"c.toml\"\n",
            vec!["c.toml holds no cert", "`tls.key`: is not set"],
        ),
        ("[upstream_tls]\nauthorities = \"/nonexistent\"\n", vec!["line 3", "no such file"]),
        (
            "[jwt]\nalgorithms = [\"HS256\"]\nsecret = \"short\"\n",
            vec!["line 4", "jwt.secret", "32 bytes", "openssl"],
        ),
        (
            "[jwt]\nalgorithms = [\"RS256\"]\npublic_key_file = \"/nonexistent\"\n",
            vec!["line 4", "`jwt.public_key_file`: cannot read /nonexistent: no such file"],
        ),
        (
            "[reconcile]\nurl = \"/l/{id}\"\nsettle_time = \"89s\"\n[defaults]\nabsence = \"proof\"\n",
            vec!["line 4", "settle_time", "90s", "/{*rest}"],
        ),
        ("[fingerprint]\nexclude = [\"no-slash\"]\n", vec!["line 3", "fingerprint.exclude"]),
        (
            "[fingerprint]\nhost_aliases = [[\"a.test:80\", \"b\"]]\n",
            vec!["line 3", "without port"],
        ),
        (
            "[fingerprint]\nhost = false\nhost_aliases = [[\"a\", \"b\"]]\n",
            vec!["line 4", "host_aliases", "`host = false`"],
        ),
        ("[fingerprint]\nheaders = [\"Api_Version\"]\n", vec!["line 3", "hyphens"]),
        ("[defaults]\nkey_header = \"Content-Length\"\n", vec!["line 3", "meaning of its own"]),
        ("[defaults]\nkey_header = \"cookie\"\n", vec!["line 3", "meaning of its own"]),
        ("[defaults]\nkey_header = \"\"\n", vec!["line 3", "key_header"]),
        (
            "[defaults]\nkey_header = \"Idempotent-Replayed\"\n",
            vec!["line 3", "meaning of its own"],
        ),
        (
            "[[route]]\npath = \"/a\"\nkey_header = \"X-Key\"\nreplay_marker = \"x-key\"\n",
            vec!["line 5", "replay_marker", "nobody else uses"],
        ),
        (
            "[defaults]\nkey_header = \"X-Key\"\nscope = [\"header:x-key\"]\n",
            vec!["line 4", "scope", "is the key"],
        ),
        ("[defaults]\nscope = [\"header:X_Tenant\"]\n", vec!["line 3", "hyphens"]),
        ("[defaults]\nreplay_marker = \"host\"\n", vec!["line 3", "meaning of its own"]),
        ("[defaults]\ncors = [\"https://shop.example/\"]\n", vec!["line 3", "no path"]),
        ("[defaults]\ncors = [\"null\"]\n", vec!["line 3", "not an origin"]),
        (
            "[defaults]\ncors = [\"*\"]\ncors_credentials = true\n",
            vec!["line 3", "list the origins"],
        ),
    ] {
        let text = if toml.is_empty() { String::new() } else { format!("{up}{toml}") };
        let (code, told) = check(&text);
        assert_eq!(code, 1, "{toml}: {told}");
        for part in wanted {
            assert!(told.contains(part), "{toml} lacks {part:?}: {told}");
        }
    }
    for (toml, part) in [
        ("store = \"floppy:a\"\n", "disk:PATH"),
        ("store = \"redis://h?quarantine=9m\"\n", "?quarantine=10m or longer"),
        ("store = \"postgres://h/d?quarantine=9m\"\n", "?quarantine=10m or longer"),
        (
            "store = \"tiered:postgres://h/d?quarantine=9m|redis://h\"\n",
            "?quarantine=10m or longer",
        ),
        ("store = \"postgres://h/d?failover=soon\"\n", "failover"),
        ("listen = \"nowhere\"\n", "not an address"),
        ("upstream = \"ftp://x\"\n", "base URL"),
        ("head_time_max = \"0s\"\n", "longer than nothing"),
        ("trusted_networks = [\"10.0.0.0/99\"]\n", "not a network"),
    ] {
        let (code, told) =
            check(&format!("{}{toml}", if toml.starts_with("up") { "" } else { up }));
        assert!(code == 1 && told.contains(part) && told.contains("line"), "{toml}: {told}");
    }
}

#[test]
fn one_check_names_everything_that_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let file = "listen = 8080\nh2c = \"perhaps\"\nthreds = 3\nupstream = = \"x\"\n\
                [defaults]\nttl = \"soon\"\nmode = \"perhaps\"\nreplay_marker = \"content-length\"\n\
                scope = [\"header:idempotency-key\", \"planet\"]\nresponse_bytes_max = \"70MiB\"\n\
                [[route]]\npath = \"/v1/*\"\n[[route]]\npath = \"/o/:id\"\nkey = \"please\"\n\
                [tls]\ncertificate = \"/nonexistent\"\nkey = \"/missing\"\n\
                [jwt]\nalgorithms = [\"HS256\"]\nsecret = \"short\"\n\
                [reconcile]\nurl = \"/lookup\"\n";
    std::fs::write(folder.path().join("c.toml"), file).unwrap();
    let variables = [("RETRYSAFE_UPKEEP_SWEEP_EVERY", "often"), ("RETRYSAFE_DEFAULTS_LEASE", "0s")];
    let arguments = ["config", "check", "--config", "c.toml", "--admin", "nowhere"];
    let (code, _, told) = program_with(&arguments, folder.path(), &variables);
    assert_eq!(code, 1, "{told}");
    for wanted in [
        "c.toml: line 1, column 10: `listen`",
        "c.toml: line 2, column 7: `h2c`",
        "c.toml: line 3, column 1: `threds`: there is no such setting; did you mean `threads`?",
        "c.toml: line 4,",
        "c.toml: line 6, column 7: `defaults.ttl`",
        "c.toml: line 7, column 8: `defaults.mode`",
        "c.toml: line 8, column 1: `defaults.replay_marker`",
        "c.toml: line 9, column 1: `defaults.scope`: idempotency-key",
        "c.toml: line 9, column 1: `defaults.scope`: \"planet\"",
        "c.toml: line 10, column 1: `defaults.response_bytes_max`",
        "c.toml: line 12, column 1: `route[0].path`",
        "c.toml: line 14, column 1: `route[1].path`",
        "c.toml: line 15, column 7: `route[1].key`",
        "c.toml: line 17, column 1: `tls.certificate`: cannot read /nonexistent: no such file",
        "c.toml: line 18, column 1: `tls.key`: cannot read /missing: no such file",
        "c.toml: line 21, column 1: `jwt.secret`",
        "c.toml: line 23, column 1: `reconcile.url`",
        "RETRYSAFE_UPKEEP_SWEEP_EVERY: `upkeep.sweep_every`",
        "RETRYSAFE_DEFAULTS_LEASE: `defaults.lease`",
        "--admin: `admin.listen`",
    ] {
        assert!(told.contains(wanted), "lacks {wanted:?}:\n{told}");
    }
    // What was wrong is not said to be missing as well.
    assert_eq!(told.matches("`listen`").count(), 1, "{told}");
    assert!(!told.contains("`upstream`: is not set"), "{told}");
}

#[test]
fn what_is_inherited_is_named_once_where_it_is_written() {
    let routes = "[[route]]\npath = \"/a\"\n[[route]]\npath = \"/b\"\n";
    let up = "upstream = \"http://127.0.0.1:1\"\n";
    let (code, told) = check(&format!("{up}[defaults]\nscope = [\"planet\"]\n{routes}"));
    assert!(code == 1 && told.contains("line 3, column 1: `defaults.scope`: \"planet\""), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    // A route that writes the same mistake again is named, too.
    let again = format!("{up}[defaults]\nscope = [\"planet\"]\n{routes}scope = [\"planet\"]\n");
    let (_, told) = check(&again);
    assert!(
        told.lines().count() == 2 && told.contains("line 8, column 1: `route[1].scope`"),
        "{told}"
    );
    // What is wrong only together with the defaults is the route's own.
    let together = format!("{up}[defaults]\nlease_max = \"2m\"\n{routes}lease = \"5m\"\n");
    let (_, told) = check(&together);
    assert!(told.lines().count() == 1 && told.contains("`route[1].lease_max`"), "{told}");
    let (_, told) = check(&format!("{up}[defaults]\nscope = []\n"));
    assert!(told.contains("names nobody"), "{told}");
}

#[test]
fn a_value_of_another_kind_is_answered_with_how_to_write_it() {
    for (toml, told) in [
        ("[defaults]\nlease = 60\n", "`defaults.lease`: is a number: write \"60s\""),
        ("[defaults]\nrequest_bytes_max = \"many\"\n", "`defaults.request_bytes_max`"),
        ("[defaults]\nmethods = \"POST\"\n", "`defaults.methods`: is not a list: write [\"POST\"]"),
        ("listen = 8080\n", "`listen`: is a number: write a text in quotation marks"),
        (
            "[defaults]\nlease = 1.5\n",
            "`defaults.lease`: is a number: write a text in quotation marks",
        ),
        ("threads = \"2\"\n", "`threads`: is a text: write 2"),
        ("h2c = \"true\"\n", "`h2c`: is a text: write true"),
        (
            "[defaults]\nkey = 1\n",
            "`defaults.key`: write one of \"required\", \"optional\", \"off\"",
        ),
        ("h2c = 1\n", "`h2c`: is a number: write true or false"),
        ("admin = \"127.0.0.1:1\"\n", "`admin`: is not a table: write [admin]"),
        (
            "[defaults]\nscope = [1]\n",
            "`defaults.scope`: is a number: write a text in quotation marks",
        ),
    ] {
        let (code, shown) = check(&format!("upstream = \"http://127.0.0.1:1\"\n{toml}"));
        assert!(code == 1 && shown.contains(told), "{toml}: {shown}");
        assert!(!shown.contains("expected"), "{toml}: {shown}");
    }
}

/// The bound of the check is no guess: an answer of this size is kept and replayed.
#[test]
fn the_largest_answer_that_the_check_admits_is_kept() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let disk = format!("disk:{}", folder.path().display());
    // The bound is about the store, not about the speed of the machine that runs this test.
    let postgres = format!("{}?deadline=20s", database());
    for (store, mebibytes) in [(disk, 63_u32), (postgres, 16)] {
        let noise = |at: u32| at.wrapping_mul(0x9e37_79b9).to_le_bytes()[3];
        let body: Vec<u8> = (0..mebibytes << 20).map(noise).collect();
        let path = format!("/large/{mebibytes}");
        upstream.script(&path, vec![Step::Reply(201, vec![], body.clone())]);
        let toml = |more| format!("[defaults]\nresponse_bytes_max = \"{}MiB\"\n", mebibytes + more);
        let mut gateway = Gateway::start_on(&store, &upstream, &toml(0));
        let key = key();
        for is_replay in [false, true] {
            let answer = gateway.post(&path, &key, "{}");
            assert_eq!((answer.status(), answer.is_replay()), (201, is_replay), "{store}");
            assert!(answer.body == body, "{store}: other bytes");
        }
        gateway.kill();
        gateway.configure(&toml(1));
        gateway.spawn();
        assert_eq!(gateway.wait(), Some(1), "a start refuses more");
        assert!(gateway.log().contains("response_bytes_max"), "{}", gateway.log());
    }
}

/// "Audit: enumerate all state-changing endpoints and verify each enforces the header."
#[test]
fn an_openapi_document_shows_what_no_rule_guards() {
    let folder = tempfile::tempdir().unwrap();
    let toml = "upstream = \"http://127.0.0.1:1\"\n\
                [[route]]\npath = \"/v1/payments/{*rest}\"\nmethods = [\"POST\", \"PUT\"]\nkey = \"required\"\n\
                [[route]]\npath = \"/v1/refunds/{id}\"\nkey = \"required\"\nmode = \"observe\"\n\
                [[route]]\npath = \"/v1/hooks\"\nkey = \"off\"\n";
    std::fs::write(folder.path().join("c.toml"), toml).unwrap();
    let json = serde_json::json!({ "openapi": "3.1.0", "servers": [{ "url": "https://api.test/v1" }],
        "paths": {
            "/payments": { "post": {}, "get": {} },
            "/payments/{id}": { "put": {}, "delete": {} },
            "/refunds/{id}": { "patch": {} },
            "/hooks": { "post": {} },
            "/carts": { "post": {} },
        } });
    std::fs::write(folder.path().join("api.json"), json.to_string()).unwrap();
    let yaml = "openapi: 3.0.0\nservers:\n  - url: /v1\npaths:\n  /payments/{id}:\n    put:\n      \
                responses:\n        200:\n          description: done\n  /payments:\n    post: {}\n";
    std::fs::write(folder.path().join("api.yaml"), yaml).unwrap();
    let audit = |document| {
        let arguments = ["config", "check", "--config", "c.toml", "--openapi", document];
        program(&arguments, folder.path())
    };
    let (code, out, err) = audit("api.json");
    assert_eq!(code, 3, "{out}{err}");
    for line in [
        "DELETE /v1/payments/{id}: no rule covers DELETE",
        "PATCH  /v1/refunds/{id}: the route /v1/refunds/{id} says `mode = \"observe\"`",
        "POST   /v1/hooks: the route /v1/hooks says `key = \"off\"`",
        "POST   /v1/carts: runs unprotected without a key; [defaults] says `key = \"optional\"`",
        "4 of 6 operations",
    ] {
        assert!(out.contains(line), "lacks {line:?}: {out}");
    }
    assert!(
        !out.contains("GET") && !out.contains("PUT ") && !out.contains("/v1/payments:"),
        "{out}"
    );

    let (code, out, err) = audit("api.yaml");
    assert!(code == 0 && out.contains("0 of 2 operations"), "{out}{err}");
    let (code, _, err) = audit("missing.yaml");
    assert!(code == 1 && err.contains("cannot read missing.yaml: no such file"), "{err}");
    let (code, _, err) = audit("c.toml");
    assert!(code == 1 && err.contains("c.toml is no OpenAPI document"), "{err}");
}

#[test]
fn a_variable_that_names_no_setting_draws_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let check = |variables: &[(&str, &str)]| {
        let arguments = ["config", "check", "--upstream", "http://127.0.0.1:1"];
        let (code, _, err) = program_with(&arguments, folder.path(), variables);
        assert_eq!(code, 0, "{err}");
        err
    };
    let told = check(&[("RETRYSAFE_DEFAULT_TTL", "1h"), ("RETRYSAFE_STROE", "memory:")]);
    assert!(told.contains("RETRYSAFE_DEFAULT_TTL") && told.contains("RETRYSAFE_DEFAULTS_TTL"));
    assert!(told.contains("RETRYSAFE_STROE") && told.contains("did you mean RETRYSAFE_STORE?"));
    let told = check(&[
        ("RETRYSAFE_SERVICE_HOST", "10.0.0.1"),
        ("RETRYSAFE_SERVICE_PORT_HTTP", "8080"),
        ("RETRYSAFE_PORT", "tcp://10.0.0.1:8080"),
        ("RETRYSAFE_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("RETRYSAFE_DEFAULTS_TTL", "1h"),
    ]);
    assert!(!told.contains("RETRYSAFE_"), "{told}");
}

#[test]
fn the_example_of_the_documentation_is_valid_and_complete() {
    let page = include_str!("../../../../docs/config.md");
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let (code, told) = check(example);
    assert_eq!(code, 0, "{told}");
    let folder = tempfile::tempdir().unwrap();
    let (_, schema, _) = program(&["config", "schema"], folder.path());
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    for table in ["defaults", "upkeep", "admin"] {
        for setting in schema["properties"][table]["properties"].as_object().unwrap().keys() {
            assert!(page.contains(&format!("`{setting}`")), "{table}.{setting} is not described");
        }
    }
    for setting in schema["properties"].as_object().unwrap().keys() {
        assert!(page.contains(setting.as_str()), "{setting} is not described");
    }
}

#[test]
fn flags_win_over_environment_over_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("c.toml"),
        "upstream = \"http://file:1\"\nlisten = \"127.0.0.1:1001\"\nstore = \"disk:./file\"\n\
         [admin]\ntoken = \"hidden-token-of-an-operator\"\n[defaults]\nttl = \"1h\"\n",
    )
    .unwrap();
    let print = |more: &[&str], variables: &[(&str, &str)]| {
        let arguments = [&["config", "print"][..], more].concat();
        let (code, out, err) = program_with(&arguments, folder.path(), variables);
        assert_eq!(code, 0, "{err}");
        out.parse::<toml::Table>().unwrap()
    };
    let environment = [
        ("RETRYSAFE_CONFIG", "c.toml"),
        ("RETRYSAFE_UPSTREAM", "http://environment:2"),
        ("RETRYSAFE_DEFAULTS_TTL", "2h"),
        ("RETRYSAFE_SERVICE_HOST", "10.0.0.1"),
    ];
    let shown = print(&["--upstream", "http://flag:3", "--require-key"], &environment);
    assert_eq!(shown["upstream"].as_str(), Some("http://flag:3"));
    assert_eq!(shown["listen"].as_str(), Some("127.0.0.1:1001"));
    assert_eq!(shown["defaults"]["ttl"].as_str(), Some("2h"));
    assert_eq!(shown["defaults"]["key"].as_str(), Some("required"));
    assert_eq!(shown["defaults"]["lease"].as_str(), Some("1m"), "defaults are shown too");
    assert!(!shown.to_string().contains("hidden-token-of-an-operator"));
    let shown = print(&["--config", "c.toml"], &[]);
    assert_eq!(shown["upstream"].as_str(), Some("http://file:1"));
    assert_eq!(shown["defaults"]["ttl"].as_str(), Some("1h"));

    let (code, _, err) = program_with(
        &["config", "check", "--upstream", "http://x"],
        folder.path(),
        &[("RETRYSAFE_DEFAULTS_TTL", "soon")],
    );
    assert!(code == 1 && err.contains("RETRYSAFE_DEFAULTS_TTL"), "{err}");
}
