//! What is behind the gateway? A payments API that protects nothing and executes whatever arrives.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::Error;

/// The running stub. It lives as long as the process.
pub(crate) struct Stub {
    pub(crate) address: SocketAddr,
    pub(crate) executed: Arc<AtomicU64>,
}

/// A request, as far as anybody here needs it.
pub(crate) struct Request {
    /// Everything, as it came.
    pub(crate) bytes: Vec<u8>,
    pub(crate) method: String,
    pub(crate) key: String,
}

impl Stub {
    pub(crate) fn start() -> Result<Self, Error> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let executed: Arc<AtomicU64> = Arc::default();
        let begun: Arc<AtomicU64> = Arc::default();
        let counter = executed.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let begun = begun.clone();
                let executed = counter.clone();
                std::thread::spawn(move || while exchange(&stream, &begun, &executed).is_some() {});
            }
        });
        Ok(Self { address, executed })
    }
}

/// One request: a charge, which takes a second if it is called slow, or the counts.
fn exchange(mut stream: &TcpStream, begun: &AtomicU64, executed: &AtomicU64) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let request = read(&mut reader)?;
    let body = if request.method == "GET" {
        let begun = begun.load(Ordering::SeqCst);
        let executed = executed.load(Ordering::SeqCst);
        serde_json::json!({ "begun": begun, "executed": executed })
    } else {
        begun.fetch_add(1, Ordering::SeqCst);
        if String::from_utf8_lossy(&request.bytes).contains("slow") {
            std::thread::sleep(Duration::from_secs(1));
        }
        let number = executed.fetch_add(1, Ordering::SeqCst) + 1;
        serde_json::json!({ "id": format!("ch_{number}"), "object": "charge", "paid": true })
    };
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).ok()
}

/// Reads a request whole.
pub(crate) fn read(reader: &mut BufReader<&TcpStream>) -> Option<Request> {
    let mut bytes = Vec::new();
    let mut key = String::new();
    let mut length = 0;
    reader.read_until(b'\n', &mut bytes).ok().filter(|read| *read > 0)?;
    let method = String::from_utf8_lossy(&bytes).split(' ').next()?.to_owned();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        bytes.extend_from_slice(line.as_bytes());
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "idempotency-key" => key = value.trim().to_owned(),
            "content-length" => length = value.trim().parse().ok()?,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    bytes.extend_from_slice(&body);
    Some(Request { bytes, method, key })
}
