//! Where can a test break the operation off?
//!
//! At named points. With `BREAK_POINTS` set to an address, the program says there which point it has come to, and waits for
//! a word: `go`, `error` or `panic`. While it waits, it can be killed or stopped at exactly that point. Without the variable
//! nothing of this happens; an application of yours has no such file.

use std::io::{BufRead as _, BufReader, Error, ErrorKind, Write as _};
use std::net::TcpStream;

use tokio::task::{block_in_place, spawn_blocking};

#[derive(Clone, Debug)]
pub(crate) struct BreakPoints {
    address: Option<String>,
}

impl BreakPoints {
    pub(crate) fn from_environment() -> Self {
        Self { address: std::env::var("BREAK_POINTS").ok() }
    }

    /// The operation for this booking has come to this point.
    pub(crate) async fn at(&self, booking: &str, point: &str) -> Result<(), Error> {
        let Some(address) = self.address.clone() else { return Ok(()) };
        let line = format!("{} {booking} {point}\n", std::process::id());
        let asking = spawn_blocking(move || ask(&address, &line));
        let word = asking.await.map_err(Error::other)??;
        obey(&word, point)
    }

    /// The same, where nothing can be awaited.
    pub(crate) fn at_blocking(&self, booking: &str, point: &str) -> Result<(), Error> {
        let Some(address) = &self.address else { return Ok(()) };
        let line = format!("{} {booking} {point}\n", std::process::id());
        let word = block_in_place(|| ask(address, &line))?;
        obey(&word, point)
    }
}

fn ask(address: &str, line: &str) -> Result<String, Error> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(line.as_bytes())?;
    let mut word = String::new();
    BufReader::new(stream).read_line(&mut word)?;
    Ok(word)
}

#[allow(clippy::panic, reason = "a test wants to see what a panic does")]
fn obey(word: &str, point: &str) -> Result<(), Error> {
    match word.trim() {
        "go" => Ok(()),
        "panic" => panic!("broken off at {point}"),
        other => Err(Error::new(ErrorKind::Interrupted, format!("{other} at {point}"))),
    }
}
