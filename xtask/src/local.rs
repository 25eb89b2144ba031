//! What runs on this machine for a while, and is gone afterwards? Folders, programs and ports.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::{Error, cargo, root};

/// How long a program may take to answer for the first time, on a busy machine.
const START_MAX: Duration = Duration::from_secs(60);

/// Where ports of this machine's programs begin, and how many there are: the system gives out others by itself.
const PORT_MIN: u32 = 12_000;
const PORTS: u32 = 18_000;

/// A temporary folder.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Result<Self, Error> {
        let path = std::env::temp_dir().join(format!("retrysafe-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A folder in it with a copy of the files of one of the repository's.
    pub(crate) fn copy_of(&self, source: &str) -> Result<PathBuf, Error> {
        let copy = self.0.join(source);
        std::fs::create_dir_all(&copy)?;
        for file in std::fs::read_dir(root().join(source))? {
            let file = file?;
            if file.file_type()?.is_file() {
                std::fs::copy(file.path(), copy.join(file.file_name()))?;
            }
        }
        Ok(copy)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It lies where temporary things lie; one that stays is not worth a failure.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A program that ends when this does.
pub(crate) struct Running(Child);

impl Running {
    /// Starts it, and waits until it answers HTTP at this address.
    pub(crate) fn start(command: &mut Command, address: SocketAddr) -> Result<Self, Error> {
        let mut running = Self(command.spawn()?);
        let begun = Instant::now();
        while get(address, "/").is_err() {
            if let Some(status) = running.0.try_wait()? {
                return Err(format!("{command:?} ended with {status}").into());
            }
            if begun.elapsed() > START_MAX {
                return Err(format!("{command:?} does not answer at {address}").into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(running)
    }

    /// The number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An address that was free a moment ago: below the ports that the system gives out by itself, one after the other, so that no
/// outgoing connection takes it before its program does.
pub(crate) fn free_address() -> Result<SocketAddr, Error> {
    static NEXT: AtomicU32 = AtomicU32::new(3_000);
    for _ in 0..PORTS {
        let from = std::process::id().wrapping_mul(97) % PORTS;
        let number = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(from) % PORTS;
        let port = u16::try_from(PORT_MIN + number)?;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return Ok(listener.local_addr()?);
        }
    }
    Err("no port is free".into())
}

/// Runs a command to its end, which must be a good one.
pub(crate) fn run(command: &mut Command) -> Result<(), Error> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} ended with {status}").into()) }
}

/// Builds the program `retrysafe`, and says where it is.
pub(crate) fn program() -> Result<PathBuf, Error> {
    let mut build = cargo();
    build.args(["build", "--quiet", "-p", "retrysafe-cli", "--message-format=json"]);
    let output = build.stderr(std::process::Stdio::inherit()).output()?;
    let lines = String::from_utf8(output.stdout)?;
    let path = lines.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message.get("executable")?.as_str().map(PathBuf::from)
    });
    path.ok_or_else(|| "the program was not built".into())
}

/// Asks for a document over a connection of its own, and gives the answer's head and body.
pub(crate) fn get(address: SocketAddr, path: &str) -> Result<(String, String), Error> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no whole answer")?;
    Ok((head.to_owned(), body.to_owned()))
}
