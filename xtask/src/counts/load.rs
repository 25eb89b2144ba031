//! Which requests are counted? The same bytes each time, one after the other over one connection.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::Error;

/// How long one answer may take under a tool that makes everything fifty times as slow.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// What kind of request is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One that is not covered, and passes.
    Uncovered,
    /// One that is executed for the first time, durably.
    First,
    /// One that is answered from its record.
    Replay,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Uncovered, Self::First, Self::Replay];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Uncovered => "uncovered",
            Self::First => "first",
            Self::Replay => "replay",
        }
    }

    fn request(self, number: usize) -> String {
        let body =
            r#"{"amount":1999,"currency":"eur","source":"tok_visa","description":"one thing"}"#;
        let method = match self {
            Self::Uncovered => "PUT",
            Self::First | Self::Replay => "POST",
        };
        let key = match self {
            Self::Uncovered => String::new(),
            Self::First => format!("idempotency-key: 5d8a1c8e-0000-4000-8000-{number:012}\r\n"),
            Self::Replay => "idempotency-key: 5d8a1c8e-0000-4000-8000-000000000000\r\n".to_owned(),
        };
        format!(
            "{method} /v1/payments HTTP/1.1\r\nhost: api.example.com\r\nuser-agent: shop/1.4\r\naccept: application/json\r\n\
             content-type: application/json\r\nauthorization: Bearer sk_test_4eC39HqLyjWDarjtT1zdp7dc\r\n{key}content-length: {}\r\n\r\n{body}",
            body.len()
        )
    }
}

/// Sends so many requests of a kind, and reads their answers.
pub(super) fn send(gateway: SocketAddr, kind: Kind, requests: usize) -> Result<(), Error> {
    let stream = TcpStream::connect(gateway)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    let mut answers = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    for number in 0..requests {
        stream.write_all(kind.request(number).as_bytes())?;
        let head = read_message(&mut answers)?.ok_or("the gateway hung up")?;
        let is_replay = head.contains("idempotent-replayed: true");
        if !head.starts_with("HTTP/1.1 201") || is_replay != (kind == Kind::Replay && number > 0) {
            return Err(format!("{kind:?} {number} was answered: {head}").into());
        }
    }
    Ok(())
}

/// Reads one message with a `Content-Length`, and gives its head. None at the end of the connection.
fn read_message(stream: &mut BufReader<TcpStream>) -> Result<Option<String>, Error> {
    let mut head = String::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
        if line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    std::io::copy(&mut stream.take(length), &mut std::io::sink())?;
    Ok(Some(head))
}

/// An upstream that gives the same answer to everything.
pub(super) struct Upstream {
    pub(super) address: SocketAddr,
}

impl Upstream {
    /// Its threads end with their connections, and with this program.
    pub(super) fn start() -> Result<Self, Error> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || serve(stream).is_ok());
            }
        });
        Ok(Self { address })
    }
}

fn serve(mut stream: TcpStream) -> Result<(), Error> {
    let body = r#"{"id":"pay_1","status":"succeeded","amount":1999,"currency":"eur"}"#;
    let answer = format!(
        "HTTP/1.1 201 Created\r\ncontent-type: application/json\r\nlocation: /v1/payments/pay_1\r\n\
         date: Mon, 16 Nov 2026 12:00:00 GMT\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.set_nodelay(true)?;
    let mut requests = BufReader::new(stream.try_clone()?);
    while read_message(&mut requests)?.is_some() {
        stream.write_all(answer.as_bytes())?;
    }
    Ok(())
}
