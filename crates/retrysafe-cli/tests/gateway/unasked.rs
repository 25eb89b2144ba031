//! What does an upstream that says more than it was asked do to others?

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::kit::{Gateway, Reader, key, request, send};
use super::proxying::server;

const ANSWER: &[u8] = b"HTTP/1.1 201 X\r\nContent-Length: 3\r\n\r\nown";

// Bytes that follow a whole answer were taken for the next caller's answer, if they came just as its request went out. They
// cannot be told apart on the wire; but an upstream that was once seen to send them is not trusted with a second request.
#[test]
fn an_upstream_that_spoke_unasked_gets_each_request_over_a_new_connection() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let upstream = server(move |stream| {
        let is_first = counted.fetch_add(1, Ordering::AcqRel) == 0;
        std::thread::spawn(move || {
            let mut out = stream.try_clone().unwrap();
            let mut reader = Reader::new(stream);
            while reader.message(false).is_some() {
                let twice = [ANSWER, ANSWER].concat();
                let _ = out.write_all(if is_first { &twice } else { ANSWER });
            }
        });
    });
    let gateway = Gateway::start(&upstream, "threads = 1\n---\n");
    let ask = || {
        let answer = gateway.post("/x", &key(), "{}");
        assert_eq!((answer.status(), answer.text().as_str()), (201, "own"));
    };
    ask();
    gateway.wait_for_log("upstream_spoke_unasked");
    for _ in 0..5 {
        ask();
    }
    assert_eq!(connections.load(Ordering::Acquire), 6, "one for each request");
}

fn informs_for_ever(mut stream: TcpStream) {
    let many = b"HTTP/1.1 102 Processing\r\n\r\n".repeat(4_096);
    while stream.write_all(&many).is_ok() {}
}

// The client read such heads for as long as there were any, and nobody else on its thread had a turn; not even the clock that
// would have ended it.
#[test]
fn an_upstream_that_never_comes_to_its_answer_holds_up_nobody_else() {
    let upstream = server(|stream| {
        std::thread::spawn(move || {
            let mut out = stream.try_clone().unwrap();
            let mut reader = Reader::new(stream);
            while let Some(asked) = reader.message(false) {
                if asked.start.contains("/endless") {
                    return informs_for_ever(out);
                }
                let _ = out.write_all(ANSWER);
            }
        });
    });
    let gateway = Gateway::start(&upstream, "threads = 1\n---\n");
    let address = gateway.address;
    let endless = std::thread::spawn(move || send(address, &request("GET", "/endless", &[], b"")));
    let others = std::thread::spawn(move || {
        for _ in 0..10 {
            assert_eq!(send(address, &request("GET", "/x", &[], b"")).status(), 201);
        }
    });
    others.join().expect("the others are answered");
    assert_eq!(endless.join().expect("it is given up").status(), 502);
}

// docs/config.md names the bound. What is kept is replayed with all of its fields.
#[test]
fn an_answer_may_have_as_many_fields_as_the_documents_say_and_no_more() {
    let upstream = server(|stream| {
        std::thread::spawn(move || {
            let mut out = stream.try_clone().unwrap();
            let mut reader = Reader::new(stream);
            while let Some(asked) = reader.message(false) {
                // One of the fields is the length.
                let more = if asked.start.contains("/too-many") { 512 } else { 511 };
                let fields: String =
                    (0..more).map(|number| format!("Link: <{number}>\r\n")).collect();
                let _ = write!(out, "HTTP/1.1 201 X\r\nContent-Length: 3\r\n{fields}\r\nown");
            }
        });
    });
    let gateway = Gateway::start(&upstream, "");
    let key_of_both = key();
    for is_replay in [false, true] {
        let answer = gateway.post("/many", &key_of_both, "{}");
        assert_eq!((answer.status(), answer.all("link").len()), (201, 511));
        assert_eq!(answer.is_replay(), is_replay);
    }
    let answer = gateway.post("/too-many", &key(), "{}");
    assert_eq!((answer.status(), answer.code().as_str()), (502, "outcome_unknown"));
}
