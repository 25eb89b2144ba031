//! What is between a client and the gateway? A cable that loses the first answer to every key.
//!
//! The request arrives and is executed; its answer is read from the gateway and thrown away, and the
//! client's connection is closed. To the client that is a dropped connection.

use std::collections::HashSet;
use std::io::{BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::stub::read;
use crate::Error;

/// The running cable. It lives as long as the process.
pub(crate) struct Cable {
    pub(crate) address: SocketAddr,
    pub(crate) lost: Arc<AtomicU64>,
}

impl Cable {
    pub(crate) fn start(gateway: SocketAddr) -> Result<Self, Error> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let lost: Arc<AtomicU64> = Arc::default();
        let seen: Arc<Mutex<HashSet<String>>> = Arc::default();
        let counter = lost.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let seen = seen.clone();
                let lost = counter.clone();
                std::thread::spawn(
                    move || while carry(&stream, gateway, &seen, &lost).is_some() {},
                );
            }
        });
        Ok(Self { address, lost })
    }
}

/// Carries one request and its answer, or loses the answer and hangs up.
fn carry(
    mut client: &TcpStream,
    gateway: SocketAddr,
    seen: &Mutex<HashSet<String>>,
    lost: &AtomicU64,
) -> Option<()> {
    let request = read(&mut BufReader::new(client))?;
    let upstream = TcpStream::connect(gateway).ok()?;
    (&upstream).write_all(&request.bytes).ok()?;
    // An answer has the same furniture as a request: a line, headers, a body of a given length.
    let answer = read(&mut BufReader::new(&upstream))?;
    if seen.lock().unwrap_or_else(PoisonError::into_inner).insert(request.key) {
        lost.fetch_add(1, Ordering::Relaxed);
        let _ = client.shutdown(std::net::Shutdown::Both);
        return None;
    }
    client.write_all(&answer.bytes).ok()
}
