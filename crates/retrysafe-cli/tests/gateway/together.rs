//! Do several gateways on one PostgreSQL run a request once?

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::kit::{
    Gate, Gateway, Message, PATIENCE, Step, Upstream, key, raw, reply, request, until,
};
use super::postgres::database;

/// Two gateways whose leases end while a test waits, and a sweeper that sees it.
fn pair(upstream: &Upstream) -> [Gateway; 2] {
    pair_with_lease(upstream, "3s")
}

fn pair_with_lease(upstream: &Upstream, lease: &str) -> [Gateway; 2] {
    let store = database();
    let config = format!("[defaults]\nlease = \"{lease}\"\n[upkeep]\nsweep_every = \"100ms\"\n");
    [(); 2].map(|()| Gateway::start_on(&store, upstream, &config))
}

/// One try. None if nobody answers, as when the gateway is dead.
fn attempt(address: SocketAddr, path: &str, key: &str) -> Option<Message> {
    let stream = std::net::TcpStream::connect(address).ok()?;
    drop(stream);
    let asked = request("POST", path, &[("Idempotency-Key", key)], b"{}");
    std::panic::catch_unwind(|| raw(address, &asked, false)).ok()?.pop()
}

/// Tries one gateway after the other until the answer is final.
fn insist(gateways: [SocketAddr; 2], path: &str, key: &str) -> Message {
    let end = Instant::now() + PATIENCE;
    for address in gateways.into_iter().cycle() {
        match attempt(address, path, key) {
            Some(answer) if answer.status() < 300 || answer.code() == "outcome_unknown" => {
                return answer;
            }
            Some(_) | None => {}
        }
        assert!(Instant::now() < end, "{key} is stuck");
        std::thread::sleep(Duration::from_millis(10));
    }
    unreachable!("the gateways go round");
}

fn in_background(gateway: &Gateway, path: &'static str, key: &str) -> JoinHandle<Option<Message>> {
    let (address, key) = (gateway.address, key.to_owned());
    std::thread::spawn(move || attempt(address, path, &key))
}

#[test]
fn one_of_two_is_killed_in_mid_traffic_and_nothing_runs_twice() {
    const CLIENTS: usize = 6;
    const KEYS: usize = 60;
    const KILL_AFTER: usize = 80;
    let upstream = Upstream::start();
    // Longer than a machine stalls: only the kill may end a lease.
    let [mut one, two] = pair_with_lease(&upstream, "5s");
    let addresses = [one.address, two.address];
    let gate = Gate::default();
    upstream.script("/held", vec![Step::Held(gate.clone(), Box::new(reply(201, "{}")))]);
    let held: Vec<String> = (0..3).map(|_| key()).collect();
    let running: Vec<_> = held.iter().map(|key| in_background(&one, "/held", key)).collect();
    upstream.wait("/held", held.len());

    let started = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let started = Arc::clone(&started);
            let mut order = addresses;
            order.rotate_left(client % 2);
            std::thread::spawn(move || {
                let answered = (0..KEYS).map(|_| {
                    started.fetch_add(1, Ordering::AcqRel);
                    let key = key();
                    let first = insist(order, "/pay", &key);
                    // A double click, on the other gateway.
                    order.reverse();
                    (key.clone(), first, insist(order, "/pay", &key))
                });
                answered.collect::<Vec<_>>()
            })
        })
        .collect();
    until("the traffic flows", || started.load(Ordering::Acquire) >= KILL_AFTER);
    one.kill();
    for running in running {
        assert!(running.join().unwrap().is_none(), "nobody answers for a dead process");
    }
    gate.open();

    let mut executed: HashMap<String, usize> = HashMap::new();
    let answers: Vec<_> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
    assert_eq!(answers.len(), CLIENTS * KEYS);
    for seen in upstream.seen_at("/pay").into_iter().chain(upstream.seen_at("/held")) {
        *executed.entry(seen.header("idempotency-key").unwrap().to_owned()).or_default() += 1;
    }
    for (key, first, again) in &answers {
        let times = executed.get(key).copied().unwrap_or_default();
        assert!(times <= 1, "{key} ran {times} times");
        match first.status() {
            201 => {
                assert_eq!((times, again.status()), (1, 201));
                assert_eq!(again.body, first.body, "one answer for {key}");
            }
            _ => assert_eq!(again.code(), "outcome_unknown", "{key} stays unknown"),
        }
    }
    // Those that the dead one was carrying: nobody knows, and nobody runs them again.
    for key in &held {
        assert_eq!(insist([two.address; 2], "/held", key).code(), "outcome_unknown");
        assert_eq!(executed[key], 1);
    }
    let known = answers.iter().filter(|(_, first, _)| first.status() == 201).count();
    assert!(known + CLIENTS >= answers.len(), "at most one per client was under way: {known}");
}

#[test]
fn a_paused_owner_still_tells_the_truth_while_nobody_has_decided() {
    let upstream = Upstream::start();
    let [one, two] = pair(&upstream);
    let gate = Gate::default();
    upstream.script("/late", vec![Step::Held(gate.clone(), Box::new(reply(201, "{\"late\":1}")))]);
    let key = key();
    let owner = in_background(&one, "/late", &key);
    upstream.wait("/late", 1);
    one.signal("STOP");
    let told = insist([two.address; 2], "/late", &key);
    assert_eq!((told.status(), told.code().as_str()), (409, "outcome_unknown"));
    gate.open();
    one.signal("CONT");

    let answer = owner.join().unwrap().expect("the owner answers its caller");
    assert_eq!((answer.status(), answer.text().as_str()), (201, "{\"late\":1}"));
    let replayed = attempt(two.address, "/late", &key).unwrap();
    assert!(replayed.is_replay() && replayed.body == answer.body, "{replayed:?}");
    assert_eq!(upstream.count("/late"), 1);
}

#[test]
fn a_paused_owner_loses_once_somebody_has_decided() {
    let upstream = Upstream::start();
    let [one, two] = pair(&upstream);
    let gate = Gate::default();
    upstream.script("/lost", vec![Step::Held(gate.clone(), Box::new(reply(201, "{\"late\":1}")))]);
    let key = key();
    let owner = in_background(&one, "/lost", &key);
    upstream.wait("/lost", 1);
    one.signal("STOP");
    assert_eq!(insist([two.address; 2], "/lost", &key).code(), "outcome_unknown");
    let seen = two.unknown_at("/lost");
    let verdict = "{\"outcome\":\"completed\",\"reason\":\"seen in the ledger\",\
        \"response\":{\"status\":202,\"headers\":[],\"body\":\"decided\"}}";
    let decided = two.decide(&seen, "resolve", verdict);
    assert_eq!(decided.status(), 200, "{}", decided.text());
    gate.open();
    one.signal("CONT");

    // The owner's caller hears what holds, not what came too late.
    let answer = owner.join().unwrap().expect("the owner answers its caller");
    assert_eq!((answer.status(), answer.text().as_str()), (202, "decided"));
    let replayed = attempt(two.address, "/lost", &key).unwrap();
    assert_eq!((replayed.status(), replayed.text().as_str()), (202, "decided"));
    assert_eq!(upstream.count("/lost"), 1);
}
