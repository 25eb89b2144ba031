//! How does a caller behave, and what may it receive? Answers that carry its own name only.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::chance::Chance;
use super::{Ring, frames, requests};

/// How long a caller over HTTP/1.1 who has said everything may wait for the end of the connection: the time for a
/// request, for the upstream and for the next head together, twice, on a busy machine.
const END_MAX: Duration = Duration::from_secs(30);
/// How long a caller over HTTP/2 listens. Its streams may be left half-open, so there is no end to wait for.
const LISTEN_MAX: Duration = Duration::from_millis(300);

/// Sends and judges, one connection after the other.
pub(crate) fn call_until_over(ring: &Ring, address: SocketAddr, seed: u64, number: u64) {
    let is_h2 = number % 4 == 3;
    for count in 0.. {
        if ring.is_over() {
            return;
        }
        let part = (number << 40) | (count + 1);
        let mut chance = Chance::of(seed, part);
        let name = ring.new_name(&mut chance);
        let sent = if is_h2 {
            frames::connection_bytes(&mut chance, &name)
        } else {
            requests::connection_bytes(&mut chance, &name)
        };
        let Ok(heard) = exchange(&mut chance, address, &sent, is_h2) else { continue };
        ring.connections.fetch_add(1, Ordering::Relaxed);
        ring.received_bytes.fetch_add(heard.bytes.len() as u64, Ordering::Relaxed);
        if let Some(other) = ring.names_in(&heard.bytes).into_iter().find(|found| *found != name) {
            ring.found(told(
                &format!("{name} received an answer of {other}"),
                part,
                &sent,
                &heard.bytes,
            ));
        }
        if !is_h2 && !heard.is_ended {
            ring.found(told("the connection does not end", part, &sent, &heard.bytes));
        }
    }
}

/// What came back.
struct Heard {
    bytes: Vec<u8>,
    is_ended: bool,
}

/// Sends in one to three pieces, closes the sending side (HTTP/1.1), and listens to the end.
fn exchange(
    chance: &mut Chance,
    address: SocketAddr,
    sent: &[u8],
    is_h2: bool,
) -> std::io::Result<Heard> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(END_MAX))?;
    let mut rest = sent;
    for _ in 0..chance.below(3) {
        let (piece, others) = rest.split_at(chance.below(rest.len() + 1));
        rest = others;
        // Whoever has seen enough closes before everything is written.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    let _ = stream.write_all(rest);
    if !is_h2 {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let patience = if is_h2 { LISTEN_MAX } else { END_MAX };
    let begun = Instant::now();
    let mut heard = Heard { bytes: Vec::new(), is_ended: false };
    let mut chunk = [0; 16 << 10];
    while let Some(left) = patience.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk) {
            Ok(0) => heard.is_ended = true,
            Ok(count) => heard.bytes.extend_from_slice(chunk.get(..count).unwrap_or_default()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            // A connection that was reset has ended as well.
            Err(_) => heard.is_ended = true,
        }
        if heard.is_ended {
            break;
        }
    }
    Ok(heard)
}

/// A finding with the bytes that led to it.
fn told(what: &str, part: u64, sent: &[u8], received: &[u8]) -> String {
    const SHOWN_MAX: usize = 4000;
    let show = |bytes: &[u8]| bytes.get(..SHOWN_MAX).unwrap_or(bytes).escape_ascii().to_string();
    format!("{what} (connection {part:#x})\n  sent: {}\n  received: {}", show(sent), show(received))
}
