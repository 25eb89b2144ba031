//! How does a worker's process live and die?

use std::collections::BTreeSet;

use super::bench::{Bench, KEYED, UNKEYED, server};
use super::kit::{Gate, Step, program, reply, until};
use super::pooler::Pooler;

/// A provider that has done it, and whose answer does not come before the gate is open.
fn does_it_and_is_silent(bench: &Bench) -> Gate {
    let gate = Gate::default();
    let held = Step::Held(gate.clone(), Box::new(reply(200, "{}")));
    bench.provider.script("/mail", vec![held, reply(200, "{}")]);
    gate
}

/// How many effects a provider has done that does nothing twice for one key.
fn effects_by_key(bench: &Bench) -> usize {
    let seen = bench.provider.seen_at("/mail");
    let keys: BTreeSet<_> =
        seen.iter().map(|seen| seen.header("idempotency-key").unwrap()).collect();
    keys.len()
}

/// The crash that makes second effects: the provider has done it, and the worker dies before that is recorded.
#[test]
fn a_worker_killed_before_it_records_costs_no_second_effect_where_keys_are_remembered() {
    let mut bench = Bench::start(KEYED);
    let gate = does_it_and_is_silent(&bench);
    let id = bench.stage();
    bench.provider.wait("/mail", 1);
    bench.kill();
    gate.open();
    bench.end_leases();
    bench.run();
    bench.wait_for(id, "delivered");
    assert_eq!((bench.provider.count("/mail"), effects_by_key(&bench)), (2, 1));
}

#[test]
fn a_worker_killed_before_it_records_leaves_an_unknown_effect_where_no_key_is_taken() {
    let mut bench = Bench::start(UNKEYED);
    let gate = does_it_and_is_silent(&bench);
    let id = bench.stage();
    bench.provider.wait("/mail", 1);
    bench.kill();
    gate.open();
    bench.end_leases();
    bench.run();
    bench.wait_for(id, "unknown");
    let next = bench.stage();
    bench.wait_for(next, "delivered");
    assert_eq!(bench.provider.count("/mail"), 2, "one of each effect");
}

#[test]
fn a_stop_waits_for_what_is_under_way_and_claims_nothing_more() {
    let mut bench = Bench::start(&format!("{UNKEYED}at_once = 1\n"));
    let gate = does_it_and_is_silent(&bench);
    let first = bench.stage();
    bench.provider.wait("/mail", 1);
    let second = bench.stage();
    bench.signal("TERM");
    bench.wait_for_log("nothing more is claimed");
    assert_eq!(bench.ask("/readyz").0, 503);
    assert_eq!(bench.ask("/livez").0, 200);
    gate.open();
    assert_eq!(bench.wait_for_end(), Some(0), "{}", bench.log());
    assert_eq!(bench.state(first).0, "delivered");
    assert_eq!(bench.state(second).0, "ready", "it was never claimed, or handed back");
    assert_eq!(bench.provider.count("/mail"), 1);
}

#[test]
fn a_second_signal_ends_at_once_and_says_what_was_left() {
    let mut bench = Bench::asleep();
    bench.configure(&bench.mail(UNKEYED));
    // Longer than this test waits.
    let file = std::fs::read_to_string(bench.config()).unwrap();
    std::fs::write(bench.config(), file.replace("drain_max = \"10s\"", "drain_max = \"10m\""))
        .unwrap();
    bench.run();
    let gate = does_it_and_is_silent(&bench);
    let id = bench.stage();
    bench.provider.wait("/mail", 1);
    bench.signal("TERM");
    bench.wait_for_log("nothing more is claimed");
    bench.signal("TERM");
    assert_eq!(bench.wait_for_end(), Some(1));
    assert!(bench.log().contains("\"deliveries\":1"), "{}", bench.log());
    gate.open();
    assert_eq!(bench.state(id).0, "leased", "another worker finds it when its lease ends");
}

#[test]
fn a_stop_gives_up_after_its_patience() {
    let mut bench = Bench::asleep();
    bench.configure(&bench.mail(UNKEYED));
    let file = std::fs::read_to_string(bench.config()).unwrap();
    std::fs::write(bench.config(), file.replace("drain_max = \"10s\"", "drain_max = \"100ms\""))
        .unwrap();
    bench.run();
    let gate = does_it_and_is_silent(&bench);
    bench.stage();
    bench.provider.wait("/mail", 1);
    bench.signal("INT");
    assert_eq!(bench.wait_for_end(), Some(1));
    assert!(bench.log().contains("stopped before everything had ended"), "{}", bench.log());
    gate.open();
}

#[test]
fn it_says_what_it_does_and_shows_what_nobody_does() {
    let bench = Bench::start(KEYED);
    bench.stage_as("male", None, "{}");
    let log = bench.log();
    for said in [
        "retrysafe works",
        "remembers keys for 1d; an effect is sent again for 23h at the most",
        "postgres://…@127.0.0.1",
        "\"kind\":\"mail\"",
    ] {
        assert!(log.contains(said), "{said}: {log}");
    }
    let id = bench.stage();
    bench.wait_for(id, "delivered");
    bench.wait_for_metric("retrysafe_effect_deliveries_total{kind=\"mail\",end=\"delivered\"} 1");
    let line = bench.log().lines().find(|line| line.contains("\"delivery\"")).unwrap().to_owned();
    assert!(
        line.contains(&format!("\"effect\":{id}")) && line.contains("\"status\":201"),
        "{line}"
    );
    assert!(!bench.log().contains(&bench.key(id)), "a key stands in no log");

    let mut bench = bench;
    bench.kill();
    bench.run();
    bench.wait_for_log("a kind that is not configured here");
    assert!(bench.log().contains("\"kind\":\"male\""), "{}", bench.log());
    bench.wait_for_metric("retrysafe_effects_not_configured{kind=\"male\"} 1");
}

#[test]
fn a_worker_that_hears_no_notification_says_so_once_and_delivers_all_the_same() {
    let mut bench = Bench::asleep();
    let port = super::deaf_proxy::start(server().port);
    bench.store = bench.store.replace(&server().port.to_string(), &port.to_string());
    bench.configure(&bench.mail(KEYED));
    bench.run();
    bench.wait_for_log("outbox_polls");
    let id = bench.stage();
    bench.wait_for(id, "delivered");
    assert_eq!(bench.log().matches("outbox_polls").count(), 1);
    assert!(!bench.log().contains("outbox_listens"), "{}", bench.log());

    let direct = Bench::start(KEYED);
    direct.wait_for_log("outbox_listens");
}

/// Behind such a pooler a statement may be carried out that somebody else has prepared.
#[test]
fn a_pooler_that_mixes_up_prepared_statements_is_refused() {
    let bench = Bench::asleep();
    let pooler = Pooler::start(server().port);
    let store = bench.store.replace(&server().port.to_string(), &pooler.port.to_string());
    bench.configure(&bench.mail(KEYED));
    let config = bench.config();
    let worker = ["worker", "--config", config.to_str().unwrap(), "--store", &store];
    let (code, _, err) = program(&worker, &bench.folder);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("pooler of transactions") && err.contains("session mode"), "{err}");
}

#[test]
fn the_database_may_go_away_and_come_back() {
    let cluster = super::cluster::Cluster::start(&[]);
    let mut bench = Bench::asleep();
    bench.store = cluster.url("postgres");
    bench.configure(&bench.mail(KEYED));
    bench.run();
    let stage =
        "SELECT id FROM retrysafe.stage_v1('mail', NULL, NULL, '{}', NULL, NULL, NULL, NULL)";
    cluster.sql("postgres", stage);
    bench.provider.wait("/mail", 1);
    cluster.kill();
    until("it is not ready", || bench.ask("/readyz").0 == 503);
    assert_eq!(bench.ask("/livez").0, 200);
    cluster.up();
    cluster.sql("postgres", stage);
    bench.provider.wait("/mail", 2);
    until("it is ready again", || bench.ask("/readyz").0 == 200);
}

#[test]
fn two_processes_on_one_machine_need_two_listeners() {
    let bench = Bench::start(KEYED);
    let config = bench.config();
    let worker = ["worker", "--config", config.to_str().unwrap()];
    let (code, _, err) = program(&worker, &bench.folder);
    assert_eq!(code, 1);
    assert!(err.contains("--admin"), "{err}");
}

/// A kind that somebody had paused counted as late, and woke people.
#[test]
fn what_is_paused_is_told_apart_from_what_is_late() {
    let mut bench = Bench::asleep();
    bench.configure(&bench.mail(KEYED));
    bench.sql(
        "INSERT INTO retrysafe.effect_pause (kind, paused_at, reason, who) VALUES ('mail', 1, 'x', 'alice')",
    );
    let paused = bench.stage();
    bench.run();
    bench.wait_for_metric("retrysafe_effect_paused{kind=\"mail\"} 1");
    bench.wait_for_metric("retrysafe_effects{kind=\"mail\",state=\"ready\"} 1");
    assert_eq!(bench.state(paused).0, "ready");
    assert_eq!(bench.provider.count("/mail"), 0);
    bench.sql("DELETE FROM retrysafe.effect_pause");
    bench.wait_for(paused, "delivered");
    bench.wait_for_metric("retrysafe_effect_paused{kind=\"mail\"} 0");
}
