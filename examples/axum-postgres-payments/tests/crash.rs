//! Are payment and answer both there or both absent, wherever the process dies?
//!
//! A proxy stands between the program and its database. It counts what passes in either direction,
//! and at the n-th piece it kills the program. n goes from the first piece to the last.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it measured"
)]

#[path = "../../../crates/retrysafe/tests/postgres/kit/cluster.rs"]
#[allow(dead_code, reason = "it is shared with other tests")]
mod cluster;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cluster::{Cluster, free_port};

/// The program under test, killed when the countdown is over.
struct Program {
    child: Mutex<Option<Child>>,
    countdown: AtomicI64,
    killed: AtomicBool,
}

impl Program {
    /// One piece has passed. False once the program is dead.
    fn passes(&self) -> bool {
        if self.countdown.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.kill();
            self.killed.store(true, Ordering::SeqCst);
        }
        !self.killed.load(Ordering::SeqCst)
    }

    fn kill(&self) {
        if let Some(mut child) = self.child.lock().unwrap().take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

fn proxy(server: u16, program: Arc<Program>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { return };
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            for (from, to) in [(client, server), back] {
                let program = Arc::clone(&program);
                std::thread::spawn(move || pump(from, to, &program));
            }
        }
    });
    address
}

fn pump(mut from: TcpStream, mut to: TcpStream, program: &Program) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if !program.passes() || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// Starts the program; the countdown is off.
fn start(cluster: &Cluster, database: &str) -> (Arc<Program>, SocketAddr) {
    let program = Arc::new(Program {
        child: Mutex::new(None),
        countdown: AtomicI64::new(i64::MAX),
        killed: AtomicBool::new(false),
    });
    let through = proxy(cluster.port, Arc::clone(&program));
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut child = Command::new(env!("CARGO_BIN_EXE_axum-postgres-payments"))
        .env("DATABASE_URL", format!("postgres://postgres@{through}/{database}"))
        .env("LISTEN", listen.to_string())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while TcpStream::connect(listen).is_err() {
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "the program ended before it listened: {ended:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    *program.child.lock().unwrap() = Some(child);
    (program, listen)
}

/// Sends the payment and gives the status of the answer, if there is one.
fn pay(address: SocketAddr, key: &str) -> Option<u16> {
    let body = format!("{{\"order\":\"{key}\",\"amount\":100}}");
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let request = format!(
        "POST /payments HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nIdempotency-Key: {key}\r\n\
        Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}

/// How many payments of this key there are, and how many completed records refer to one.
fn both(cluster: &Cluster, key: &str) -> (String, String) {
    let payments = format!("SELECT count(*) FROM payment WHERE \"order\" = '{key}'");
    let answers = format!(
        "SELECT count(*) FROM payment p JOIN retrysafe.record r ON r.id = p.record
        WHERE p.\"order\" = '{key}' AND r.state = 1 AND r.body IS NOT NULL"
    );
    (cluster.sql("postgres", &payments), cluster.sql("postgres", &answers))
}

#[test]
fn payment_and_answer_are_both_there_or_both_absent_wherever_the_process_dies() {
    let cluster = Cluster::start(&[]);
    let (mut program, mut address) = start(&cluster, "postgres");
    let (mut there, mut absent) = (0, 0);
    for step in 1.. {
        let key = format!("order-{step}");
        program.countdown.store(step, Ordering::SeqCst);
        let answer = pay(address, &key);
        let survived = program.countdown.swap(i64::MAX, Ordering::SeqCst) > 0;
        if survived {
            assert_eq!(answer, Some(201), "nothing was killed");
            break;
        }
        program.kill();
        // The server notices that its client is gone, and rolls back what was not committed.
        let running = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = 'postgres' AND state <> 'idle' AND pid <> pg_backend_pid()";
        while cluster.sql("postgres", running) != "0" {}
        let (payments, answers) = both(&cluster, &key);
        assert_eq!(payments, answers, "killed at step {step}");
        match payments.as_str() {
            "1" => there += 1,
            "0" => absent += 1,
            more => panic!("{more} payments"),
        }
        (program, address) = start(&cluster, "postgres");
        // The retry is answered from the record, or told that somebody was executing. It never pays
        // a second time.
        let again = pay(address, &key);
        match payments.as_str() {
            "1" => assert_eq!(again, Some(201), "step {step}"),
            _ => assert!(matches!(again, Some(201 | 409)), "{again:?} at step {step}"),
        }
        let (payments, answers) = both(&cluster, &key);
        assert!(payments == answers && payments.len() == 1, "{payments} payments after the retry");
        assert!(step < 500, "a payment has fewer steps than this");
    }
    program.kill();
    println!(
        "killed at {} steps: {there} times both were there, {absent} times neither",
        there + absent
    );
    assert!(there > 0 && absent > 0);
}
