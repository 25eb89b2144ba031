//! What does the gateway do for one request?
//!
//! The program with one serving thread, its disk store and its request log, in front of an upstream of
//! this process. One connection asks, one request after the other, so that every batch of the store holds one write.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::callgrind::{self, Totals};
use super::programs::Programs;
use crate::Error;
use crate::local::{Folder, free_address};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// A request that is not covered.
    Get,
    /// A request with a key of its own.
    First,
    /// A request that was answered before.
    Replay,
}

/// The loads, by what they are called in the table.
pub(super) const LOADS: [(&str, Asked); 3] = [
    ("gateway, uncovered GET", Asked::Get),
    ("gateway, disk store, first POST", Asked::First),
    ("gateway, disk store, replay", Asked::Replay),
];

/// How long the gateway may take to start or to end under callgrind, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// As large as the bodies of the project's measurements.
const BODY_BYTES: usize = 1_024;

/// Counts everything that a gateway does for these requests, from its start to its end.
pub(super) fn count(programs: &Programs, loads: &[(Asked, u64)]) -> Result<Totals, Error> {
    let folder = Folder::new("counts")?;
    let (address, upstream) = (free_address()?, start_upstream()?);
    let config = folder.path().join("retrysafe.toml");
    // The admin listener looks at the metrics every few seconds, and how many of those a run has is not the requests' doing.
    let text = format!(
        "listen = \"{address}\"\nupstream = \"http://{upstream}\"\nstore = \"disk:{}\"\nthreads = 1\n\
         [admin]\nlisten = \"off\"\n",
        folder.path().join("data").display()
    );
    std::fs::write(&config, text)?;
    let out = folder.path().join("callgrind");
    let mut command = callgrind::command(&programs.gateway, &out);
    command.args(["serve", "--config"]).arg(&config);
    let mut gateway = GatewayProcess(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    let mut connection = gateway.connect(address)?;
    let mut next = 0;
    for (asked, requests) in loads {
        for _ in 0..*requests {
            next += 1;
            ask(&mut connection, &request(*asked, next))?;
        }
    }
    drop(connection);
    gateway.end()?;
    Totals::read(&out)
}

/// A gateway that ends when this does.
struct GatewayProcess(Child);

impl GatewayProcess {
    /// The one connection over which everything is asked.
    fn connect(&mut self, address: SocketAddr) -> Result<TcpStream, Error> {
        let begun = Instant::now();
        loop {
            if let Ok(stream) = TcpStream::connect(address) {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                return Ok(stream);
            }
            if let Some(status) = self.0.try_wait()? {
                return Err(format!("the gateway ended with {status}").into());
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("the gateway does not listen at {address}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Lets it end in good order, so that callgrind writes its counts.
    fn end(mut self) -> Result<(), Error> {
        Command::new("kill").arg(self.0.id().to_string()).status()?;
        let status = self.0.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the gateway ended with {status}").into())
        }
    }
}

impl Drop for GatewayProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn request(asked: Asked, number: u64) -> Vec<u8> {
    let number = match asked {
        Asked::Get => return b"GET /things/1 HTTP/1.1\r\nHost: api.test\r\n\r\n".to_vec(),
        Asked::First => number,
        Asked::Replay => 1,
    };
    let body = format!(
        "{{\"amount\":499,\"currency\":\"eur\",\"note\":\"{}\",\"customer\":{{\"id\":7,\"vip\":false}}}}",
        "x".repeat(BODY_BYTES)
    );
    format!(
        "POST /payments HTTP/1.1\r\nHost: api.test\r\nContent-Type: application/json\r\nAuthorization: Bearer counts\r\n\
         Idempotency-Key: 4f0c2b54-9a53-4f6e-8f4b-{number:012x}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Sends a request in one piece, and reads its answer, which must be a good one.
fn ask(connection: &mut TcpStream, request: &[u8]) -> Result<(), Error> {
    connection.write_all(request)?;
    let head = read_message(connection)?.ok_or("the gateway has closed the connection")?;
    if head.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(head.into()) }
}

/// Reads a message whole and gives its head; none at the end of the connection.
fn read_message(connection: &mut TcpStream) -> Result<Option<String>, Error> {
    let (mut held, mut piece) = (Vec::new(), [0; 8 << 10]);
    loop {
        let length = connection.read(&mut piece)?;
        if length == 0 {
            return Ok(None);
        }
        held.extend_from_slice(piece.get(..length).unwrap_or_default());
        let Some(head) = held.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let text = String::from_utf8_lossy(held.get(..head).unwrap_or_default()).into_owned();
        if held.len() >= head + 4 + content_length(&text) {
            return Ok(Some(text));
        }
    }
}

fn content_length(head: &str) -> usize {
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    let mut lengths = fields.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    lengths.next().and_then(|(_, length)| length.parse().ok()).unwrap_or_default()
}

/// Starts an upstream that answers everything with the same kilobyte, in one piece.
fn start_upstream() -> Result<SocketAddr, Error> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let body = "x".repeat(BODY_BYTES);
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {BODY_BYTES}\r\n\r\n{body}");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || {
                // The gateway closes when it ends.
                while let Ok(Some(_)) = read_message(&mut stream) {
                    if stream.write_all(answer.as_bytes()).is_err() {
                        break;
                    }
                }
            });
        }
    });
    Ok(address)
}
