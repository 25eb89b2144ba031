//! Does the log say what became of each request?

use super::kit::{
    Gate, Gateway, Message, PATIENCE, Step, Upstream, key, raw, reply, request, send,
};

/// What the log says of the request with this id.
fn outcome(gateway: &Gateway, id: &str) -> String {
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        let log = gateway.log();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str(line).ok());
        let said = lines.find(|line: &serde_json::Value| line["request_id"] == id);
        if let Some(line) = said {
            return line["outcome"].as_str().unwrap().to_owned();
        }
        assert!(std::time::Instant::now() < end, "no line for {id}: {log}");
    }
}

#[test]
fn every_outcome_has_its_word() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "[[route]]\npath = \"/watch\"\nmethods = [\"POST\"]\nmode = \"observe\"\n",
    );
    let said = |answer: &Message| outcome(&gateway, answer.header("x-request-id").unwrap());
    let post = |path: &str, key: &str, body: &str| said(&gateway.post(path, key, body));
    let one = key();
    assert_eq!(post("/a", &one, "{}"), "executed");
    assert_eq!(post("/a", &one, "{}"), "replayed");
    assert_eq!(post("/a", &one, "[]"), "mismatch");
    assert_eq!(post("/a", "a b", "[]"), "refused:idempotency_key_invalid");
    assert_eq!(post("/watch", &one, "{}"), "observed");
    upstream.script("/lost", vec![Step::Drop]);
    assert_eq!(post("/lost", &one, "{}"), "mismatch");
    let two = key();
    assert_eq!(post("/lost", &two, "{}"), "unknown", "just now");
    assert_eq!(post("/lost", &two, "{}"), "unknown", "and still");
    upstream.script("/big", vec![reply(201, &"x".repeat(2 << 20))]);
    let three = key();
    assert_eq!(post("/big", &three, "{}"), "executed");
    assert_eq!(post("/big", &three, "{}"), "not_stored");
    let bare = |method: &str, path: &str| {
        said(&send(gateway.address, &request(method, path, &[("Expect", "100-continue")], b"")))
    };
    assert_eq!(bare("POST", "/a"), "passed");
    assert_eq!(bare("GET", "/a"), "passed");
    assert_eq!(bare("PUT", "/lost"), "refused:upstream_failed");
    assert_eq!(bare("GET", "/.well-known/idempotency"), "answered");
    assert_eq!(bare("post", "/a"), "refused:request_malformed");

    let gate = Gate::default();
    upstream.script("/slow", vec![Step::Held(gate.clone(), Box::new(reply(201, "{}")))]);
    let (four, address) = (key(), gateway.address);
    let asked = request("POST", "/slow", &[("Idempotency-Key", &four)], b"{}");
    let again = asked.clone();
    let running = std::thread::spawn(move || raw(address, &asked, false));
    upstream.wait("/slow", 1);
    assert_eq!(said(&send(address, &again)), "in_progress");
    gate.open();
    assert_eq!(said(&running.join().unwrap()[0]), "executed");
}
