//! Is a retry with the same bytes answered as every other retry is?
//!
//! A metric says how many replays were given without parsing the request, so each test knows which way an answer came. The
//! gateways here have one thread, because each thread remembers by itself.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use retrysafe_core::event;
use retrysafe_core::retry::{http_date, show_http_date};

use super::kit::{Gateway, PATIENCE, Step, Upstream, key, until};

const ONE_THREAD: &str = "threads = 1\n---\n";

/// A connection that stays open.
struct Caller {
    stream: TcpStream,
    held: Vec<u8>,
}

impl Caller {
    fn new(gateway: &Gateway) -> Self {
        let stream = TcpStream::connect(gateway.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, held: Vec::new() }
    }

    fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next answer, byte for byte; none at the end of the connection.
    fn answer(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.held.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.held[..end]).into_owned();
                let whole =
                    end + 4 + field(&head, "content-length").map_or(0, |it| it.parse().unwrap());
                if self.held.len() >= whole {
                    let bytes: Vec<u8> = self.held.drain(..whole).collect();
                    return Some(String::from_utf8(bytes).unwrap());
                }
            }
            let mut piece = [0; 16 << 10];
            let count = self.stream.read(&mut piece).unwrap_or_default();
            if count == 0 {
                return None;
            }
            self.held.extend_from_slice(&piece[..count]);
        }
    }

    fn ask(&mut self, bytes: &[u8]) -> String {
        self.write(bytes);
        self.answer().expect("an answer")
    }

    /// Asks until a request is answered by its bytes, and gives that answer.
    fn ask_by_bytes(&mut self, gateway: &Gateway, bytes: &[u8]) -> String {
        let mut last = None;
        until("a request is answered by its bytes", || {
            let before = by_bytes(gateway);
            last = Some(self.ask(bytes));
            by_bytes(gateway) > before
        });
        last.unwrap()
    }

    /// Asks for what is not answered by its bytes.
    fn ask_parsed(&mut self, gateway: &Gateway, bytes: &[u8]) -> String {
        let before = by_bytes(gateway);
        let answer = self.ask(bytes);
        assert_eq!(by_bytes(gateway), before, "parsed: {answer}");
        answer
    }
}

fn by_bytes(gateway: &Gateway) -> f64 {
    let text = gateway.metrics();
    let line = text.lines().find_map(|line| line.strip_prefix(event::REPLAYS_BY_BYTES.name));
    line.map_or(0.0, |count| count.trim().parse().unwrap())
}

fn field<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let head = answer.split("\r\n\r\n").next()?;
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

fn is_replay(answer: &str) -> bool {
    field(answer, "idempotent-replayed") == Some("true")
}

/// An answer without what is another one each time: its id, and the date of the moment.
fn lasting(answer: &str) -> String {
    let id = field(answer, "x-request-id").expect("an id");
    assert_eq!(id.len(), 32, "{answer}");
    let answer = answer.replace(id, "ID");
    match field(&answer, "date").filter(|date| date.ends_with("GMT")) {
        Some(date) => answer.replace(date, "DATE"),
        None => answer,
    }
}

fn post(path: &str, key: &str, more: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: api.test\r\nAuthorization: Bearer alice\r\nIdempotency-Key: {key}\r\n\
         Content-Type: application/json\r\n{more}Content-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

fn pay(path: &str) -> Vec<u8> {
    post(path, &key(), "", "{\"amount\":5}")
}

#[test]
fn an_answer_by_bytes_is_the_answer_that_the_parser_leads_to() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, ONE_THREAD);
    let fields = |fields: &[(&'static str, &str)]| {
        fields.iter().map(|(name, value)| (*name, (*value).to_owned())).collect::<Vec<_>>()
    };
    let own_date = ("Date", "Sun, 06 Nov 1994 08:49:37 GMT");
    let large = "x".repeat(12 << 10);
    for (path, status, headers, body) in [
        (
            "/made",
            201,
            fields(&[("Content-Type", "application/json"), ("ETag", "\"1\"")]),
            "{\"n\":1}",
        ),
        ("/empty", 200, fields(&[("X-Some", "thing")]), ""),
        ("/nothing", 204, fields(&[("X-Some", "thing")]), ""),
        ("/dated", 200, fields(&[own_date]), "dated"),
        ("/two", 200, fields(&[("Link", "a"), ("Vary", "Accept"), ("Link", "b")]), "two"),
        ("/refused", 422, fields(&[("Content-Type", "text/plain")]), "no"),
        ("/large", 200, fields(&[]), &large),
        ("/odd", 299, fields(&[]), "odd"),
    ] {
        upstream.script(path, vec![Step::Reply(status, headers, body.into())]);
        let mut caller = Caller::new(&gateway);
        let asked = pay(path);
        let first = caller.ask_parsed(&gateway, &asked);
        assert!(!is_replay(&first), "{first}");
        let parsed = caller.ask_parsed(&gateway, &asked);
        assert!(is_replay(&parsed), "{parsed}");
        for _ in 0..3 {
            let by_bytes = caller.ask_by_bytes(&gateway, &asked);
            assert_eq!(lasting(&by_bytes), lasting(&parsed), "{path}");
            assert_ne!(field(&by_bytes, "x-request-id"), field(&parsed, "x-request-id"));
            let date = field(&by_bytes, "date").expect("a date");
            assert!(http_date(date).is_some(), "{date}");
        }
        assert_eq!(upstream.count(path), 1, "{path}");
    }
}

#[test]
fn requests_in_pieces_and_several_in_one_are_answered_in_order() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, ONE_THREAD);
    let (one, two) = (pay("/one"), pay("/two"));
    let mut caller = Caller::new(&gateway);
    let first = lasting(&caller.ask_by_bytes(&gateway, &one));
    let second = lasting(&caller.ask_by_bytes(&gateway, &two));
    let fresh = || pay("/fresh");
    for (pieces, expected) in [
        (vec![[&one[..], &two].concat()], vec![Some(&first), Some(&second)]),
        (vec![[&one[..], &fresh()].concat()], vec![Some(&first), None]),
        (vec![[&fresh()[..], &one].concat()], vec![None, Some(&first)]),
        (
            vec![[&one[..], &two[..20]].concat(), two[20..].to_vec()],
            vec![Some(&first), Some(&second)],
        ),
        (
            vec![one.clone(), two.clone(), one.clone()],
            vec![Some(&first), Some(&second), Some(&first)],
        ),
        (one.chunks(1).map(Into::into).collect(), vec![Some(&first)]),
        (one.chunks(50).map(Into::into).collect(), vec![Some(&first)]),
        (one.chunks(one.len() - 3).map(Into::into).collect(), vec![Some(&first)]),
    ] {
        let mut caller = Caller::new(&gateway);
        for piece in &pieces {
            caller.write(piece);
        }
        for expected in &expected {
            let answer = caller.answer().expect("an answer");
            match expected {
                Some(expected) => assert_eq!(lasting(&answer), **expected),
                None => assert!(!is_replay(&answer) && body(&answer).starts_with("{\"n\":")),
            }
        }
        // Whatever came before, the connection goes on.
        assert_eq!(lasting(&caller.ask(&two)), second);
    }
    assert_eq!(
        (upstream.count("/one"), upstream.count("/two"), upstream.count("/fresh")),
        (1, 1, 2)
    );
}

#[test]
fn a_large_body_on_the_way_does_not_end_it() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, ONE_THREAD);
    let asked = pay("/known");
    let mut caller = Caller::new(&gateway);
    let known = lasting(&caller.ask_by_bytes(&gateway, &asked));
    let large = post("/upload", &key(), "", &"x".repeat(300 << 10));
    assert!(!is_replay(&caller.ask(&large)));
    let again = lasting(&caller.ask_by_bytes(&gateway, &asked));
    assert_eq!(again, known, "on the same connection");
}

#[test]
fn one_byte_more_or_less_is_another_request() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, ONE_THREAD);
    let key = key();
    let asked = post("/pay", &key, "", "{\"amount\":5}");
    let mut caller = Caller::new(&gateway);
    let known = caller.ask_by_bytes(&gateway, &asked);
    let text = String::from_utf8(asked.clone()).unwrap();
    let mut with = |from: &str, to: &str| {
        assert!(text.contains(from));
        caller.ask_parsed(&gateway, text.replace(from, to).as_bytes())
    };
    let status = |answer: &str| answer.split(' ').nth(1).unwrap_or_default().to_owned();
    assert_eq!(status(&with("\"amount\":5", "\"amount\":6")), "422");
    assert_eq!(status(&with("/pay", "/pax")), "422");
    let bob = with("alice", "alicf");
    assert!(!is_replay(&bob) && status(&bob) == "201", "{bob}");
    assert!(!is_replay(&with(&key, &format!("{key}x"))));
    // The same request in other bytes is the same request, and is parsed.
    let spelt = with("Host: api.test", "host: api.test");
    assert_eq!(lasting(&spelt), lasting(&known));
    assert_eq!(lasting(&caller.ask_by_bytes(&gateway, &asked)), lasting(&known));
    assert_eq!(upstream.count("/pay"), 3, "alice's, somebody else's, and another key");
}

#[test]
fn what_is_not_decided_by_bytes_is_parsed_each_time() {
    let upstream = Upstream::start();
    let routes = "threads = 1\n---\n[[route]]\npath = \"/aged\"\nmethods = [\"POST\"]\nfirst_sent_age_max = \"1h\"\n";
    let gateway = Gateway::start(&upstream, routes);
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let sent = show_http_date(now);
    for (path, more, ends) in [
        ("/paged", "Origin: https://shop.test\r\n".to_owned(), false),
        ("/named", "X-Request-Id: mine\r\n".to_owned(), false),
        ("/aged", format!("Repeatability-First-Sent: {sent}\r\n"), false),
        ("/expecting", "Expect: 100-continue\r\n".to_owned(), false),
        ("/closing", "Connection: close\r\n".to_owned(), true),
    ] {
        let asked = post(path, &key(), &more, "{\"amount\":5}");
        let before = by_bytes(&gateway);
        let mut caller = Caller::new(&gateway);
        for round in 0..6 {
            let mut answer = caller.ask(&asked);
            if answer.starts_with("HTTP/1.1 100") {
                answer = caller.answer().unwrap();
            }
            assert_eq!(is_replay(&answer), round > 0, "{path}: {answer}");
            if ends {
                assert_eq!(caller.answer(), None, "{path}");
                caller = Caller::new(&gateway);
            }
        }
        assert_eq!(by_bytes(&gateway), before, "{path}");
        assert_eq!(upstream.count(path), 1, "{path}");
    }
}

#[test]
fn an_expired_record_is_not_given_again() {
    let upstream = Upstream::start();
    let short = "[[route]]\npath = \"/short\"\nmethods = [\"POST\"]\nttl = \"3s\"\n";
    let gateway = Gateway::start(&upstream, &format!("{ONE_THREAD}{short}"));
    let asked = pay("/pay");
    let mut caller = Caller::new(&gateway);
    let known = caller.ask_by_bytes(&gateway, &asked);
    let listed = gateway.ask("GET", "/api/v1/keys?limit=10", "").json();
    let id = listed["keys"][0]["id"].as_str().unwrap().to_owned();
    let expire =
        gateway.ask("POST", &format!("/api/v1/keys/{id}/expire"), "{\"reason\":\"asked to\"}");
    assert_eq!(expire.status(), 200);
    let anew = caller.ask_parsed(&gateway, &asked);
    assert!(!is_replay(&anew), "{anew}");
    assert_eq!((body(&known), body(&anew)), ("{\"n\":1}", "{\"n\":2}"));
    let again = caller.ask_by_bytes(&gateway, &asked);
    assert_eq!(body(&again), "{\"n\":2}", "the answer of the new record");
    assert_eq!(upstream.count("/pay"), 2);

    let asked = pay("/short");
    let mut last = caller.ask_by_bytes(&gateway, &asked);
    until("the record has expired by itself", || {
        let answer = caller.ask(&asked);
        let is_anew = !is_replay(&answer);
        if !is_anew {
            assert_eq!(body(&answer), body(&last));
        }
        last = answer;
        is_anew
    });
    assert!(upstream.count("/short") >= 2);
}

#[test]
fn another_configuration_and_limits_hold_at_once() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, ONE_THREAD);
    let asked = pay("/pay");
    let mut caller = Caller::new(&gateway);
    caller.ask_by_bytes(&gateway, &asked);
    let reload = |toml: &str| {
        let taken = |gateway: &Gateway| gateway.log().matches("configuration reloaded").count();
        let before = taken(&gateway);
        gateway.configure(toml);
        gateway.signal("HUP");
        until("the configuration is taken", || taken(&gateway) > before);
    };
    reload("threads = 1\n---\n[defaults]\nreplay_marker = \"x-replayed\"\n");
    let other = caller.ask_parsed(&gateway, &asked);
    assert_eq!(field(&other, "x-replayed"), Some("true"), "{other}");
    let by_bytes_now = caller.ask_by_bytes(&gateway, &asked);
    assert_eq!(lasting(&by_bytes_now), lasting(&other));
    reload("threads = 1\n---\n[limits]\nretries_per_key_per_second = 1\n");
    let before = by_bytes(&gateway);
    until("a retry is too fast", || caller.ask(&asked).contains("retry_too_fast"));
    assert_eq!(by_bytes(&gateway), before);
    reload(ONE_THREAD);
    assert!(is_replay(&caller.ask_by_bytes(&gateway, &asked)));
    assert_eq!(upstream.count("/pay"), 1);
}

#[test]
fn the_log_and_the_counters_show_no_difference() {
    let upstream = Upstream::start();
    let fields = "threads = 1\n---\n[log]\nformat = \"json\"\nfields = [\"method\", \"path\", \"status\", \"duration\", \"outcome\", \"route\", \"key\", \
                  \"request_id\", \"peer\", \"host\", \"user_agent\", \"upstream\"]\n";
    let gateway = Gateway::start(&upstream, fields);
    let asked = post("/pay", &key(), "User-Agent: tests\r\n", "{}");
    let mut caller = Caller::new(&gateway);
    caller.ask(&asked);
    let counted = || {
        let text = gateway.metrics();
        let names = [
            event::BEGIN.name,
            event::REQUESTS.name,
            "http_server_request_duration_seconds_count",
            event::SCOPE_DUPLICATES.name,
        ];
        let lines = text.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
        let rising = lines.filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse::<f64>().ok()?))
        });
        rising.collect::<std::collections::BTreeMap<_, _>>()
    };
    let line_of = |answer: &str| {
        let id = field(answer, "x-request-id").unwrap().to_owned();
        gateway.wait_for_log(&id);
        let log = gateway.log();
        let line = log.lines().find(|line| line.contains(&id)).unwrap();
        let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
        for changing in ["timestamp", "duration_s", "request_id"] {
            assert!(line.as_object_mut().unwrap().remove(changing).is_some(), "{changing}");
        }
        line
    };
    let mut rise = |is_by_bytes: bool| {
        loop {
            let before = counted();
            let answers = by_bytes(&gateway);
            let answer = caller.ask(&asked);
            if (by_bytes(&gateway) > answers) == is_by_bytes {
                let after = counted();
                let risen = |(name, value): (&String, &f64)| {
                    let more = value - before.get(name).copied().unwrap_or_default();
                    (more != 0.0).then(|| (name.clone(), more.to_string()))
                };
                return (after.iter().filter_map(risen).collect::<Vec<_>>(), line_of(&answer));
            }
        }
    };
    let parsed = rise(false);
    let by_bytes = rise(true);
    assert_eq!(by_bytes, parsed);
    assert!(parsed.0.len() >= 3, "{parsed:?}");
    assert_eq!(parsed.1["outcome"], "replayed");
    assert_eq!(parsed.1["peer"], "127.0.0.1");
}

/// Answers that nobody reads wait in the sockets, and then in the gateway.
#[test]
fn a_caller_that_reads_late_gets_every_answer() {
    const COUNT: usize = 1_500;
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, ONE_THREAD);
    upstream.script("/large", vec![Step::Reply(200, vec![], vec![b'x'; 12 << 10])]);
    let asked = pay("/large");
    let mut caller = Caller::new(&gateway);
    let known = lasting(&caller.ask_by_bytes(&gateway, &asked));
    let mut writing = caller.stream.try_clone().unwrap();
    let sent = asked.clone();
    let writer = std::thread::spawn(move || {
        for _ in 0..COUNT {
            writing.write_all(&sent).unwrap();
        }
        writing.shutdown(Shutdown::Write).unwrap();
    });
    until("the gateway holds answers back", || {
        gateway.metric(event::HELD_BYTES.name) > 0.0 || writer.is_finished()
    });
    for _ in 0..COUNT {
        assert_eq!(lasting(&caller.answer().expect("an answer")), known);
    }
    assert_eq!(caller.answer(), None);
    writer.join().unwrap();
    assert_eq!(upstream.count("/large"), 1);
}

#[test]
fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    const HEAD_TIME_MAX: Duration = Duration::from_secs(4);
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "threads = 1\nhead_time_max = \"4s\"\n---\n");
    let asked = pay("/pay");
    let end = Instant::now() + PATIENCE;
    loop {
        let mut caller = Caller::new(&gateway);
        caller.ask_by_bytes(&gateway, &asked);
        let before = by_bytes(&gateway);
        let (begun, mut last, mut longest) = (Instant::now(), Instant::now(), Duration::ZERO);
        let mut is_open = true;
        while is_open && begun.elapsed() < HEAD_TIME_MAX * 2 {
            longest = longest.max(last.elapsed());
            last = Instant::now();
            is_open = caller.stream.write_all(&asked).is_ok() && caller.answer().is_some();
        }
        if is_open {
            assert!(by_bytes(&gateway) > before);
            assert_eq!(caller.answer(), None, "it is closed when nobody asks any more");
            return;
        }
        // A machine that stood still for so long has made the connection an idle one.
        assert!(longest > HEAD_TIME_MAX / 4, "closed although it was busy");
        assert!(Instant::now() < end);
    }
}

#[test]
fn a_stop_closes_the_connection_and_a_half_closed_one_is_answered() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, ONE_THREAD);
    let asked = pay("/pay");
    let mut caller = Caller::new(&gateway);
    let known = lasting(&caller.ask_by_bytes(&gateway, &asked));
    let mut closing = Caller::new(&gateway);
    let before = by_bytes(&gateway);
    closing.write(&asked);
    closing.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(lasting(&closing.answer().expect("an answer")), known);
    assert_eq!(closing.answer(), None);
    assert_eq!(by_bytes(&gateway), before + 1.0, "the first request of a connection as well");
    gateway.signal("TERM");
    assert_eq!(caller.answer(), None, "an idle connection is closed");
    assert_eq!(gateway.wait(), Some(0));
}
