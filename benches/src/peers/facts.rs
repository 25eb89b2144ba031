//! Does a setup keep its promise? Two tests, each on the servers that are measured afterwards.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::setups::Setup;

/// How many callers send the same request at once.
const DUPLICATES: usize = 20;

/// How long the operation takes while they do.
const SLOW_MS: u32 = 100;

pub struct Facts {
    /// How often the operation ran for all duplicates together.
    pub executions: usize,
    /// What the retry got after every server was killed and started again.
    pub after_kill: String,
}

pub fn find(setup: &mut Setup) -> Facts {
    Facts { executions: executions(setup), after_kill: after_kill(setup) }
}

/// How often simultaneous duplicates of one request ran.
fn executions(setup: &Setup) -> usize {
    let (address, cookie) = (setup.address(), session(setup));
    let before = payments(address);
    let callers: Vec<_> = (0..DUPLICATES)
        .map(|_| {
            let request = pay("duplicates", SLOW_MS, &cookie);
            std::thread::spawn(move || ask(address, &request))
        })
        .collect();
    for caller in callers {
        caller.join().unwrap();
    }
    payments(address) - before
}

/// What a retry gets after a crash of everything.
fn after_kill(setup: &mut Setup) -> String {
    let cookie = session(setup);
    // Others come first, so that the application's counter is not at its beginning: an operation that runs again after
    // the crash cannot have the same number.
    for other in ["other-1", "other-2", "other-3"] {
        ask(setup.address(), &pay(other, 0, &cookie));
    }
    let first = ask(setup.address(), &pay("survivor", 0, &cookie));
    assert!(first.starts_with("HTTP/1.1 201"), "{}: {first}", setup.name);
    for server in &mut setup.servers {
        server.kill();
    }
    for server in &mut setup.servers {
        server.restart();
    }
    let retry = ask(setup.address(), &pay("survivor", 0, &cookie));
    let body = |answer: &str| answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    match retry.get(9..12) {
        Some("201") if body(&retry) == body(&first) => "replayed".into(),
        Some("201") => "lost: ran again".into(),
        status => format!("{}", status.unwrap_or("no answer")),
    }
}

/// The cookie's line of a new session, where callers are told apart by it.
fn session(setup: &Setup) -> String {
    if !setup.has_sessions {
        return String::new();
    }
    let answer = ask(setup.address(), "GET /session HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n\r\n");
    let cookie = answer.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a session");
    format!("Cookie: {}\r\n", cookie.split(';').next().unwrap_or_default())
}

/// How often the operation has run since the application started.
fn payments(address: SocketAddr) -> usize {
    let answer = ask(address, "GET /payments HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n\r\n");
    answer.matches("pay-").count()
}

fn pay(key: &str, slow_ms: u32, cookie: &str) -> String {
    let body = r#"{"amount":499}"#;
    format!(
        "POST /payments HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Authorization: Bearer bench\r\nIdempotency-Key: {key}\r\nX-Slow: {slow_ms}\r\n{cookie}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The whole answer to a request on a connection of its own.
fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // A connection that is reset after its answer counts by what came.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}
