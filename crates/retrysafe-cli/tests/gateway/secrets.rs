//! Does anything show a key, a body or a credential?

use super::kit::{Gateway, Step, Upstream, reply, request, send};

#[test]
fn planted_secrets_are_found_nowhere() {
    let upstream = Upstream::start();
    // The most talkative log there is.
    let gateway = Gateway::start(&upstream, "[log]\nlevel = \"trace\"\n");
    let (key, body, token, cookie, answer) = (
        "planted-key-7f3a@example.com",
        "planted-body-4111111111111111",
        "planted-token-sk_live_9",
        "planted-cookie-sid",
        "planted-answer-iban",
    );
    let bearer = format!("Bearer {token}");
    let document = format!("{{\"card\":\"{body}\"}}");
    upstream.script("/ok", vec![reply(201, &format!("{{\"iban\":\"{answer}\"}}"))]);
    upstream.script("/lost", vec![Step::Drop]);
    upstream.script("/odd", vec![Step::Raw(format!("HTTP/9 {answer}\r\n\r\n").into_bytes())]);
    let mut told = String::new();
    let more = [("Authorization", bearer.as_str()), ("Cookie", cookie), ("X-Api-Key", token)];
    for path in ["/ok", "/ok", "/lost", "/lost", "/odd"] {
        let got = gateway.post_with(path, &format!("{key}{path}"), &document, &more);
        if got.status() >= 400 {
            told.push_str(&got.text());
        }
    }
    // Mismatch, a bad key, a refused request, a wrong admin token, the caller's own status page.
    told.push_str(&gateway.post_with("/ok", &format!("{key}/ok"), "{}", &more).text());
    told.push_str(&gateway.post_with("/ok", &format!("{key} x"), "{}", &more).text());
    let asked = request("POST", "/ok", &[("Expect", "x"), ("Idempotency-Key", key)], b"{}");
    told.push_str(&send(gateway.address, &asked).text());
    let headers = [("Idempotency-Key", key), ("Authorization", bearer.as_str())];
    let page = request("GET", "/.well-known/idempotency/key", &headers, b"");
    told.push_str(&send(gateway.address, &page).text());
    let wrong = request("GET", "/api/v1/keys", &[("Authorization", bearer.as_str())], b"");
    told.push_str(&send(gateway.admin, &wrong).text());

    let listed = gateway.ask("GET", "/api/v1/keys?limit=1000", "").json();
    let mut shown = listed.to_string();
    for record in listed["keys"].as_array().unwrap() {
        let id = record["id"].as_str().unwrap();
        shown.push_str(&gateway.ask("GET", &format!("/api/v1/keys/{id}"), "").text());
    }
    shown.push_str(&gateway.ask("GET", "/api/v1/stats", "").text());
    assert!(shown.contains("/lost") && shown.contains("timeline"));
    let metrics = gateway.metrics();
    gateway.wait_for_log("/odd");
    let log = gateway.log();
    for secret in [key, body, token, cookie, answer] {
        for (place, text) in
            [("answers", &told), ("admin", &shown), ("metrics", &metrics), ("log", &log)]
        {
            let found = text.find(secret).map(|at| {
                let from = at.saturating_sub(200);
                String::from_utf8_lossy(&text.as_bytes()[from..(at + 60).min(text.len())])
                    .into_owned()
            });
            assert_eq!(found, None, "{secret} in the {place}");
        }
    }
    assert!(!log.contains(super::kit::TOKEN), "the admin token in the log");
}
