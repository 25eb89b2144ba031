//! How fast may callers be?

use super::kit::{Gateway, Message, Upstream, key, until};

fn ask(gateway: &Gateway, key: &str, who: &str) -> Message {
    gateway.post_with("/limit", key, "{}", &[("Authorization", &format!("Bearer {who}"))])
}

#[test]
fn new_keys_are_limited_per_scope_and_known_ones_are_not() {
    let upstream = Upstream::start();
    // A second has long passed when the test has, if it must: one key in a minute is not in reach.
    let toml = "[limits]\nlive_keys_per_scope = 2\nnew_keys_per_scope_per_second = 100\n";
    let gateway = Gateway::start(&upstream, toml);
    let (one, two, three) = (key(), key(), key());
    assert_eq!(ask(&gateway, &one, "alice").status(), 201);
    assert_eq!(ask(&gateway, &two, "alice").status(), 201);
    let refused = ask(&gateway, &three, "alice");
    assert_eq!((refused.status(), refused.code().as_str()), (429, "key_rate_exceeded"));
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    for _ in 0..5 {
        assert!(ask(&gateway, &one, "alice").is_replay(), "a known key is not limited");
    }
    assert_eq!(ask(&gateway, &key(), "bob").status(), 201, "nor is another caller");
    assert_eq!(upstream.count("/limit"), 3);

    // A reload changes limits; the refused key is still free.
    gateway.configure("[limits]\nlive_keys_per_scope = 3\n");
    gateway.signal("HUP");
    until("the new limit holds", || ask(&gateway, &three, "alice").status() == 201);
    gateway.configure("");
    gateway.signal("HUP");
    until("nothing is limited", || (0..5).all(|_| ask(&gateway, &key(), "alice").status() == 201));
}

#[test]
fn one_key_and_one_caller_have_a_pace() {
    let upstream = Upstream::start();
    for limit in ["retries_per_key_per_second", "keyed_per_scope_per_second"] {
        let gateway = Gateway::start(&upstream, &format!("[limits]\n{limit} = 1\n"));
        let key = key();
        assert_eq!(ask(&gateway, &key, "alice").status(), 201, "{limit}");
        // Two within a second are too many; if the machine is slow, the next two are.
        until("the second is too fast", || {
            let told = ask(&gateway, &key, "alice");
            told.status() == 429 && told.code() == "retry_too_fast"
        });
    }
}
