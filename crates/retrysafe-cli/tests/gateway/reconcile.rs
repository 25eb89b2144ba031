//! Is an unknown outcome resolved by asking the upstream?

use super::kit::{Gateway, PATIENCE, Step, Upstream, key, reply};

/// As short as a settle time of 400 ms allows.
const SHORT: &str = "lease = \"200ms\"\nupstream_timeout = \"200ms\"\n";

fn config(more: &str) -> String {
    format!(
        "[reconcile]\nurl = \"/lookup?id={{id}}&fence={{fence}}\"\nevery = \"20ms\"\n\
         schedule = [\"0s\", \"400ms\", \"800ms\", \"3s\"]\nsettle_time = \"400ms\"\n\
         response = \"/answer\"\nheaders = {{ authorization = \"Bearer gateway\" }}\n{more}"
    )
}

/// Loses the answer of a request, lets the upstream say this when asked, and gives what the caller
/// is told once it is no more `outcome_unknown`.
fn told(lookup: Step, more: &str) -> (Upstream, Gateway, super::kit::Message, usize) {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &config(more));
    upstream.script("/pay", vec![Step::Drop, reply(201, "{\"ran\":\"again\"}")]);
    upstream.script("/lookup", vec![lookup]);
    let key = key();
    assert_eq!(gateway.post("/pay", &key, "{}").code(), "outcome_unknown");
    let end = std::time::Instant::now() + PATIENCE;
    let mut asked = 0;
    loop {
        let answer = gateway.post("/pay", &key, "{}");
        asked = asked.max(upstream.count("/lookup"));
        let used_up = gateway.metrics().contains("retrysafe_dead_lettered 1");
        if answer.code() != "outcome_unknown" || used_up {
            return (upstream, gateway, answer, asked);
        }
        assert!(std::time::Instant::now() < end, "never decided: {}", gateway.log());
    }
}

#[test]
fn what_the_upstream_executed_is_answered_and_never_run_again() {
    let found =
        r#"{"state":"executed","answer":{"status":201,"headers":[["X-A","1"]],"body":"paid"}}"#;
    let (upstream, gateway, answer, _) = told(reply(200, found), "");
    assert!(answer.is_replay());
    assert_eq!((answer.status(), answer.text().as_str()), (201, "paid"));
    assert_eq!(upstream.count("/pay"), 1);
    let lookup = upstream.seen_at("/lookup").remove(0);
    assert_eq!(lookup.header("authorization"), Some("Bearer gateway"));
    let id = upstream.seen_at("/pay")[0].header("retrysafe-id").unwrap().to_owned();
    let fence = upstream.seen_at("/pay")[0].header("retrysafe-fence").unwrap().to_owned();
    assert_eq!(lookup.target, format!("/lookup?id={id}&fence={fence}"));
    let shown = gateway.ask("GET", &format!("/api/v1/keys/{id}"), "").json();
    let last = shown["timeline"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["what"], &last["judge"]), (&"resolved".into(), &"reconciler".into()));
}

#[test]
fn what_the_upstream_refused_for_good_runs_again() {
    let (upstream, _gateway, answer, _) = told(reply(200, r#"{"state":"not_executed"}"#), "");
    assert_eq!((answer.status(), answer.text().as_str()), (201, "{\"ran\":\"again\"}"));
    assert_eq!(upstream.count("/pay"), 2);
}

#[test]
fn an_absence_proves_nothing_unless_the_route_says_so() {
    let (upstream, _gateway, answer, asked) = told(reply(404, "{}"), "");
    assert_eq!((answer.code().as_str(), upstream.count("/pay")), ("outcome_unknown", 1));
    assert!(asked >= 1);
    let (upstream, _gateway, answer, _) =
        told(reply(404, "{}"), &format!("[defaults]\nabsence = \"proof\"\n{SHORT}"));
    assert_eq!((answer.status(), upstream.count("/pay")), (201, 2));
}

#[test]
fn an_answer_that_makes_no_sense_decides_nothing() {
    for odd in [reply(200, "nonsense"), reply(500, r#"{"state":"executed"}"#), Step::Drop] {
        let (upstream, _gateway, answer, _) = told(odd, "");
        assert_eq!((answer.code().as_str(), upstream.count("/pay")), ("outcome_unknown", 1));
    }
}
