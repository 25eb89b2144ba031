//! What do the commands do for people and for scripts?

use super::kit::{Gateway, Step, TOKEN, Upstream, key, program, program_with};

#[test]
fn keys_are_listed_shown_and_decided_from_the_shell() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    for number in 0..3 {
        let path = format!("/lost/{number}");
        upstream.script(&path, vec![Step::Drop]);
        gateway.post(&path, &key(), "{}");
    }
    let kept = key();
    gateway.post("/fine", &kept, "{}");
    let admin = format!("http://{}", gateway.admin);
    let run = |arguments: &[&str]| {
        let all = [&["keys"][..], arguments, &["--admin", &admin]].concat();
        program_with(&all, &gateway.folder, &[("RETRYSAFE_ADMIN_TOKEN", TOKEN)])
    };
    let (code, table, _) = run(&["list"]);
    assert_eq!(code, 0);
    assert!(table.contains("STATE") && table.contains("/lost/2") && table.contains("completed"));
    let (_, listed, _) = run(&["list", "--state", "unknown", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["keys"].as_array().unwrap().len(), 3);
    let id = listed["keys"][0]["id"].as_str().unwrap().to_owned();
    let (_, shown, _) = run(&["show", &id]);
    assert!(shown.contains("WHAT") && shown.contains("began"), "{shown}");
    let (_, found, _) = run(&["find", &kept]);
    assert!(found.contains("/fine"), "{found}");
    let (code, out, err) = run(&["find", "nosuch"]);
    assert!(
        code == 1 && out.is_empty() && err.contains("no key is known by \"nosuch\""),
        "{out}{err}"
    );
    let (code, out, _) = run(&["find", "nosuch", "--json"]);
    let out: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, out["keys"].as_array().unwrap().len()), (1, 0));

    // Bulk verbs refuse to mean everything by accident.
    for verb in ["release", "expire"] {
        let (code, _, err) = run(&[verb, "--reason", "x"]);
        assert!(code == 1 && err.contains("a filter such as"), "{err}");
    }
    let (code, _, err) = run(&["release"]);
    assert!(code == 2 && err.contains("--reason"), "{err}");
    let (code, out, err) =
        run(&["resolve", &id, "--outcome", "completed", "--status", "201", "--reason", "seen"]);
    assert!(code == 0 && out.contains("1 done"), "{out}{err}");
    // A refusal is told in words.
    let (code, out, err) = run(&["release", &id, "--reason", "x"]);
    assert!(code == 1 && out.contains("0 done, 1 refused"), "{out}{err}");
    assert!(
        err.contains(&format!("{id}: 409: The record is completed")) && !err.contains('{'),
        "{err}"
    );
    // What a filter lists is shown and asked about. Nobody can be asked here.
    let (code, out, err) = run(&["release", "--state", "unknown", "--reason", "x"]);
    assert!(code == 1 && err.contains("release these 2 keys") && err.contains("--yes"), "{err}");
    assert!(out.contains("/lost/1") && out.contains("/lost/0"), "{out}");
    let (code, out, _) =
        run(&["release", "--state", "unknown", "--reason", "x", "--json", "--yes"]);
    let out: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, out["done"].as_array().unwrap().len()), (0, 2));
    let settled = ["expire", "--older-than", "0s", "--reason", "x"];
    let (code, _, err) = run(&settled);
    assert!(code == 1 && err.contains("--yes"), "{err}");
    let few = [&settled[..], &["--yes", "--max", "3"]].concat();
    let (code, _, err) = run(&few);
    assert!(code == 1 && err.contains("more than 3 keys match"), "{err}");
    let (code, out, _) = run(&[&settled[..], &["--yes"]].concat());
    assert!(code == 0 && out.contains("4 done"), "{out}");

    let stats = |more: &[&str]| {
        let all = [&["stats", "--admin", &admin, "--token", TOKEN][..], more].concat();
        program(&all, &gateway.folder)
    };
    gateway.post("/fine", &key(), "{}");
    assert!(stats(&[]).1.contains("/{*rest}"));
    let counted: serde_json::Value = serde_json::from_str(&stats(&["--json"]).1).unwrap();
    assert_eq!(counted["all"]["records"], 1);
    // In a folder whose configuration does not say which token.
    let elsewhere = tempfile::tempdir().unwrap();
    let (code, _, err) = program(&["keys", "list", "--admin", &admin], elsewhere.path());
    assert!(code == 1 && err.contains("401"), "{err}");
    let (code, out, _) = program(&["healthcheck", "--admin", &admin], &gateway.folder);
    assert_eq!((code, out.as_str()), (0, "ready\n"));
    assert_eq!(program(&["healthcheck", "--admin", "http://127.0.0.1:1"], &gateway.folder).0, 1);
}

#[test]
fn a_store_is_looked_after_while_the_gateway_rests() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "[defaults]\nttl = \"1ms\"\n");
    gateway.post("/a", &key(), "{}");
    gateway.post("/a", &key(), "{}");
    let config = gateway.config();
    let config = config.to_str().unwrap();
    let run = |verb: &str, folder: &std::path::Path| {
        program(&["store", verb, "--config", config, "--json"], folder)
    };
    let folder = gateway.folder.clone();
    let (code, _, err) = run("reap", &folder);
    assert!(code == 1, "the disk store has one owner at a time: {err}");
    gateway.signal("TERM");
    assert_eq!(gateway.wait(), Some(0));
    assert_eq!(run("migrate", &folder).0, 0);
    let (code, reaped, err) = run("reap", &folder);
    assert!(code == 0 && reaped.contains("\"reaped\": 2"), "{reaped}{err}");
    let (code, report, err) = run("doctor", &folder);
    assert!(code == 0 && report.contains("\"sound\": true"), "{report}{err}");
}

#[test]
fn completions_are_written_for_every_shell() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, _) = program(&["completions", shell], folder.path());
        assert!(code == 0 && script.contains("retrysafe"), "{shell}");
    }
}
