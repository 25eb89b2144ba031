//! Does the worker ask about effects that may have been done, and read the answers by the table?

use super::bench::{Bench, UNKEYED};
use super::kit::{Step, reply, until};

/// A worker whose provider answers lookups like this, and an effect whose delivery was lost.
fn doubtful(lookup: Vec<Step>, more: &str) -> (Bench, i64) {
    let mut bench = Bench::asleep();
    let table = format!(
        "[effects.mail.lookup]\nurl = \"http://{}/lookup?key={{key}}\"\nevery = \"20ms\"\n\
         schedule = \"0s, 3×50ms\"\nheaders = {{ authorization = \"Bearer sk_live_7\" }}\n{more}\n\
         [effects.mail.lookup.outcomes]\nexecuted = {{ when = {{ \"/state\" = \"sent\" }}, body = \"/id\" }}\n\
         declined = {{ when = {{ \"/state\" = \"refused\" }}, status = 422 }}\n\
         not_executed.when = {{ \"/state\" = \"void\" }}\npending.when = {{ \"/state\" = \"queued\" }}\n",
        bench.provider.address
    );
    bench.configure(&format!("{}{table}", bench.mail(UNKEYED)));
    bench.provider.script("/mail", vec![Step::Drop, reply(200, "{}")]);
    bench.provider.script("/lookup", lookup);
    bench.run();
    let id = bench.stage();
    (bench, id)
}

#[test]
fn an_effect_is_decided_by_what_its_receiver_says() {
    let (bench, id) = doubtful(vec![reply(200, r#"{"state":"sent","id":"m-7"}"#)], "");
    assert_eq!(bench.wait_for(id, "delivered"), "m-7");
    assert_eq!(bench.provider.count("/mail"), 1);
    let asked = bench.provider.seen_at("/lookup").remove(0);
    assert_eq!(asked.target, format!("/lookup?key={}", bench.key(id)));
    assert_eq!(asked.header("authorization"), Some("Bearer sk_live_7"));

    let (bench, id) =
        doubtful(vec![reply(200, r#"{"state":"queued"}"#), reply(200, r#"{"state":"void"}"#)], "");
    bench.wait_for(id, "delivered");
    assert_eq!(bench.provider.count("/mail"), 2, "it was sent again");

    let (bench, id) = doubtful(vec![reply(200, r#"{"state":"refused"}"#)], "");
    bench.wait_for(id, "cancelled");
    assert_eq!(bench.provider.count("/mail"), 1);
}

#[test]
fn what_nobody_can_decide_stays_listed_with_what_was_answered() {
    for (answer, found) in [
        (reply(200, "<h1>sk_live_7</h1>"), "not JSON"),
        (reply(404, "{}"), "not found"),
        (Step::Reply(302, vec![("Location", "/mail".into())], vec![]), "redirects"),
        (Step::Drop, ""),
    ] {
        let (bench, id) = doubtful(vec![answer; 4], "");
        until("the schedule is used up", || {
            bench.ask("/metrics").1.contains("retrysafe_effects_dead_lettered{kind=\"mail\"} 1")
        });
        bench.wait_for(id, "unknown");
        assert_eq!((bench.provider.count("/mail"), bench.provider.count("/lookup")), (1, 4));
        let note = bench.sql(&format!("SELECT last_lookup FROM retrysafe.effect WHERE id = {id}"));
        assert!(note.contains(found), "{note}");
        assert!(!note.contains("sk_live"), "{note}");
    }
}
