//! Is our side of a comparison what the database, the records and the effects say?

use serde_json::{Value, json};

use super::kit::{Gateway, Upstream, key, program, reply};
use super::postgres::{new_database, server};

/// Compares, and gives the exit code and the report.
fn compare(gateway: &Gateway, arguments: &[&str]) -> (i32, Value) {
    let all = [&["reconcile", "compare", "--format", "json"], arguments].concat();
    let (code, out, err) = program(&all, &gateway.folder);
    let report = serde_json::from_str(&out);
    (code, report.unwrap_or_else(|_| panic!("{arguments:?}: {code} {out}{err}")))
}

#[test]
fn a_query_gives_exact_amounts_in_byte_order_and_cannot_write() {
    let database = new_database();
    let url = server().url(&database);
    server().sql(
        &database,
        "CREATE TABLE paid (id text, amount numeric, currency text, at timestamptz);
         INSERT INTO paid VALUES ('b', 0.1, 'EUR', '2026-11-16 10:00+00'), ('B', -12345678901234567.89, 'EUR', '2026-11-16 11:00+00'),
            ('ä', 3, 'USD', '2026-11-16 12:00+00'), ('late', 1, 'EUR', '2026-11-17 00:00+00')",
    );
    let folder = tempfile::tempdir().unwrap();
    let theirs = "ref;sum;cur\nB;-12345678901234567.89;EUR\nb;0.10;EUR\nä;3.00;USD\n";
    std::fs::write(folder.path().join("theirs.csv"), theirs).unwrap();
    let run = |query: &str, more: &[&str]| {
        let basic =
            ["reconcile", "compare", "--ours", &url, "--theirs", "theirs.csv", "--delimiter", ";"];
        let columns = [
            "--key",
            "id=ref",
            "--amount",
            "amount=sum",
            "--currency",
            "currency=cur",
            "--query",
            query,
        ];
        program(&[&basic[..], &columns, more].concat(), folder.path())
    };
    let day = ["--since", "2026-11-16", "--until", "2026-11-17", "--format", "json"];
    // Theirs is a file of the day alone, and says so by a column of its own: here the query decides.
    let (code, _, err) = run("SELECT * FROM paid WHERE at >= :since AND at < :until", &day);
    assert!(code == 1 && err.contains("theirs") && err.contains("--time"), "{err}");
    let (code, out, err) =
        run("SELECT * FROM paid WHERE id <> 'late' -- today\n;", &["--format", "json"]);
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    assert_eq!((code, &report["same"]), (0, &json!(3)), "{out}");
    assert_eq!(report["sums"][0]["ours"], "-12345678901234567.79");

    let (code, _, err) = run("DELETE FROM paid RETURNING *", &[]);
    assert!(code == 1 && err.contains("ours (the query)"), "{err}");
    server().sql(&database, "CREATE SEQUENCE seen");
    let (code, _, err) = run("SELECT nextval('seen') AS id, 1 AS amount, 'EUR' AS currency", &[]);
    assert!(code == 1 && err.contains("read-only"), "{err}");
    assert_eq!(server().sql(&database, "SELECT count(*) FROM paid"), "4");
    let (code, _, err) = run("SELECT id, NULL AS amount, currency FROM paid", &[]);
    assert!(code == 1 && err.contains("row 1: column \"amount\""), "{err}");
}

#[test]
fn completed_records_and_delivered_effects_are_a_ledger() {
    let database = new_database();
    let upstream = Upstream::start();
    let gateway = Gateway::start_on(&server().url(&database), &upstream, "");
    for (path, body) in [
        ("/pay/2", r#"{"id":"ch_2","amount":{"value":0.30,"currency":"EUR"}}"#),
        ("/pay/1", r#"{"id":"ch_1","amount":{"value":12.50,"currency":"EUR"}}"#),
        ("/other", r#"{"fine":true}"#),
    ] {
        upstream.script(path, vec![reply(201, body)]);
        assert_eq!(gateway.post(path, &key(), "{}").status(), 201);
    }
    upstream.script("/lost", vec![super::kit::Step::Drop]);
    gateway.post("/lost", &key(), "{}");
    let theirs = "id,amount,currency\nch_1,12.5,EUR\nch_2,0.31,EUR\n";
    std::fs::write(gateway.folder.join("theirs.csv"), theirs).unwrap();
    let url = server().url(&database);
    let records = ["--ours", "records", "--store", &url, "--theirs", "theirs.csv"];
    let columns = ["--key", "/body/id=id", "--amount", "/body/amount/value=amount"];
    let more = ["--currency", "/body/amount/currency=currency"];
    let (code, report) = compare(&gateway, &[&records[..], &columns, &more].concat());
    assert_eq!(
        (code, &report["same"], &report["different"]),
        (3, &json!(1), &json!(1)),
        "{report}"
    );
    assert_eq!(report["without_key"], 1, "{report}");
    assert_eq!(report["differences"][0]["key"], "ch_2");
    assert_eq!(report["sums"][0]["ours_minus_theirs"], "-0.01");
    // Nobody was asked for the time of theirs, so there is nothing to compare it by.
    let since = ["--since", "2026-01-01"];
    let all = [&["reconcile", "compare"], &records[..], &columns, &since].concat();
    assert!(program(&all, &gateway.folder).2.contains("--time"));

    for number in 1..=3 {
        let stage = format!("SELECT id FROM retrysafe.stage('mail', 'x', name => 'n{number}')");
        let id = server().sql(&database, &stage);
        let lose = "UPDATE retrysafe.effect SET state = 3, fence = 1, marked_by = 1 WHERE id =";
        server().sql(&database, &format!("{lose} {id}"));
        let verdict = json!({"outcome": "delivered", "reason": "seen"}).to_string();
        let told = gateway.ask("POST", &format!("/api/v1/outbox/{id}/resolve"), &verdict);
        assert_eq!(told.status(), 200, "{}", told.text());
    }
    let keys = "SELECT string_agg(downstream_key, ' ' ORDER BY downstream_key COLLATE \"C\") FROM retrysafe.effect_done";
    let keys = server().sql(&database, keys);
    let theirs: String = keys.split(' ').map(|key| format!("{{\"key\":\"{key}\"}}\n")).collect();
    std::fs::write(gateway.folder.join("theirs.jsonl"), theirs).unwrap();
    let effects =
        ["--ours", "effects", "--store", &url, "--theirs", "theirs.jsonl", "--key", "key"];
    let (code, report) = compare(&gateway, &effects);
    assert_eq!((code, &report["same"]), (0, &json!(3)), "{report}");
    let (code, report) = compare(&gateway, &[&effects[..], &["--kind", "other"]].concat());
    assert_eq!((code, &report["missing_here"]), (3, &json!(3)), "{report}");
    // A disk store has no outbox, and says so.
    let disk =
        ["--ours", "effects", "--store", "disk:./d", "--theirs", "theirs.jsonl", "--key", "key"];
    let (code, _, err) = program(&[&["reconcile", "compare"], &disk[..]].concat(), &gateway.folder);
    assert!(code == 1 && err.contains("PostgreSQL"), "{err}");
}
