//! Are callers who behave served while others do not? One request after the other, first and replay.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Ring;
use super::chance::Chance;

/// How long an answer may take, on a machine that is busy with the attack.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// The pause between two probes.
const PAUSE: Duration = Duration::from_millis(50);

/// Each new key is sent twice; both answers must be right and the same.
pub(crate) fn ask_until_over(ring: &Ring, address: SocketAddr, seed: u64) {
    let mut chance = Chance::of(seed, 1 << 61);
    while !ring.is_over() {
        let name = ring.new_name(&mut chance);
        let body = format!("{{\"caller\":\"{name}\"}}");
        let request = format!(
            "POST /probe HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAuthorization: Bearer {name}\r\n\
             Idempotency-Key: {name}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        for attempt in ["first", "replay"] {
            match ask(address, &request) {
                Err(error) => ring.found(format!("a probe ({attempt}) was not answered: {error}")),
                Ok(answer) => {
                    let is_right = answer.starts_with("HTTP/1.1 200")
                        && ring.names_in(answer.as_bytes()).iter().all(|found| *found == name)
                        && (attempt == "first") != answer.contains("idempotent-replayed: true");
                    if is_right {
                        ring.probes.fetch_add(1, Ordering::Relaxed);
                    } else {
                        ring.found(format!("a probe ({attempt}) was answered wrongly: {answer}"));
                    }
                }
            }
        }
        std::thread::sleep(PAUSE);
    }
}

fn ask(address: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
