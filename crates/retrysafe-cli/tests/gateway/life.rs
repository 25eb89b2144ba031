//! What do a crash, a stop and a reload leave behind?

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::kit::{Gate, Gateway, Step, Upstream, key, raw, reply, request};

/// Posts with new keys until told to stop; counts answers by whether they are 201.
fn load(gateway: &Gateway, path: &'static str, stop: &Arc<AtomicBool>) -> Vec<Loading> {
    (0..4)
        .map(|_| {
            let (address, stop) = (gateway.address, Arc::clone(stop));
            let answered = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&answered);
            let thread = std::thread::spawn(move || {
                let mut others = Vec::new();
                while !stop.load(Ordering::Acquire) {
                    let Ok(stream) = std::net::TcpStream::connect(address) else { break };
                    drop(stream);
                    let asked = request("POST", path, &[("Idempotency-Key", &key())], b"{}");
                    let answers = std::panic::catch_unwind(|| raw(address, &asked, false))
                        .unwrap_or_default();
                    match answers.first() {
                        Some(answer) if answer.status() == 201 => {
                            counted.fetch_add(1, Ordering::AcqRel);
                        }
                        Some(answer) => {
                            others.push(format!("{} {}", answer.status(), answer.text()))
                        }
                        None => break,
                    }
                }
                others
            });
            Loading { answered, thread }
        })
        .collect()
}

struct Loading {
    answered: Arc<AtomicUsize>,
    thread: std::thread::JoinHandle<Vec<String>>,
}

fn wait_for_answers(loading: &[Loading], more: usize) {
    let sum = || loading.iter().map(|one| one.answered.load(Ordering::Acquire)).sum::<usize>();
    let enough = sum() + more;
    let end = std::time::Instant::now() + super::kit::PATIENCE;
    while sum() < enough {
        assert!(std::time::Instant::now() < end, "the load stands still");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_stop_under_load_loses_no_request() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "");
    let stop = Arc::new(AtomicBool::new(false));
    let loading = load(&gateway, "/load", &stop);
    wait_for_answers(&loading, 50);
    gateway.signal("TERM");
    assert_eq!(gateway.wait(), Some(0), "{}", gateway.log());
    stop.store(true, Ordering::Release);
    let mut answered = 0;
    for one in loading {
        assert_eq!(one.thread.join().unwrap(), Vec::<String>::new(), "answers that are not 201");
        answered += one.answered.load(Ordering::Acquire);
    }
    assert_eq!(upstream.count("/load"), answered, "every execution was answered");
    assert!(gateway.log().contains("stopped"));
}

#[test]
fn reloads_under_load_drop_no_request() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "[defaults]\nttl = \"1h\"\n");
    let stop = Arc::new(AtomicBool::new(false));
    let loading = load(&gateway, "/load", &stop);
    for round in 1..=10 {
        wait_for_answers(&loading, 20);
        gateway.configure(&format!("[defaults]\nttl = \"{round}h\"\nwait_max = \"{round}s\"\n"));
        gateway.signal("HUP");
    }
    wait_for_answers(&loading, 20);
    stop.store(true, Ordering::Release);
    let mut answered = 0;
    for one in loading {
        assert_eq!(one.thread.join().unwrap(), Vec::<String>::new(), "answers that are not 201");
        answered += one.answered.load(Ordering::Acquire);
    }
    assert_eq!(upstream.count("/load"), answered);
    gateway.wait_for_log("configuration reloaded");
}

#[test]
fn a_reload_takes_what_is_valid_and_keeps_the_old_otherwise() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let bare = || {
        let asked = request("POST", "/r", &[], b"{}");
        super::kit::send(gateway.address, &asked).status()
    };
    assert_eq!(bare(), 201);
    gateway.configure("[defaults]\nkey = \"required\"\n");
    gateway.signal("HUP");
    gateway.wait_for_log("configuration reloaded");
    assert_eq!(bare(), 400);
    for (toml, why) in [
        ("[defaults]\nkeyy = \"optional\"\n", "did you mean"),
        ("[defaults]\nkey = \"optional\"\nscope = [\"const:x\"]\n", "scope cannot change"),
        ("[fingerprint]\nheaders = [\"api-version\"]\n", "fingerprint cannot change"),
        ("[tls]\ncertificate = \"/nonexistent\"\nkey = \"/nonexistent\"\n", "tls"),
    ] {
        gateway.configure(toml);
        gateway.signal("HUP");
        gateway.wait_for_log(why);
        assert_eq!(bare(), 400, "{toml}");
    }
    assert!(gateway.metrics().contains("retrysafe_config_last_reload_successful 0"));
}

#[test]
fn while_stopping_it_is_alive_and_not_ready() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "");
    let gate = Gate::default();
    upstream.script("/slow", vec![Step::Held(gate.clone(), Box::new(reply(201, "{}")))]);
    let address = gateway.address;
    let running = std::thread::spawn(move || {
        raw(address, &request("POST", "/slow", &[("Idempotency-Key", &key())], b"{}"), false)
    });
    upstream.wait("/slow", 1);
    gateway.signal("TERM");
    gateway.wait_for_log("not ready any more");
    assert_eq!(gateway.ask("GET", "/livez", "").status(), 200);
    assert_eq!(gateway.ask("GET", "/readyz", "").status(), 503);
    gate.open();
    assert_eq!(running.join().unwrap()[0].status(), 201);
    assert_eq!(gateway.wait(), Some(0));
}

// The time for a head is a minute; whoever stops a service seldom waits that long.
#[test]
fn a_head_that_never_ends_does_not_hold_up_a_stop() {
    let upstream = Upstream::start();
    for (more, begun) in
        [("", "POST /pay HT"), ("h2c = true\n---\n", "P"), ("h2c = true\n---\n", "")]
    {
        let mut gateway = Gateway::start(&upstream, more);
        let mut half = TcpStream::connect(gateway.address).unwrap();
        half.write_all(begun.as_bytes()).unwrap();
        // Answered, so the connection before it was accepted too.
        assert_eq!(gateway.post("/ok", &key(), "{}").status(), 201);
        gateway.signal("TERM");
        assert_eq!(gateway.wait(), Some(0), "{begun:?}: {}", gateway.log());
    }
}
