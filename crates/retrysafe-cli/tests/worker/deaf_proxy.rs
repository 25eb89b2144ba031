//! How does a test keep a database's notifications from arriving, and nothing else?
//!
//! A proxy that leaves the notifications out of what the server says, as poolers of transactions do.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// The type of a notification in PostgreSQL's protocol.
const NOTIFICATION: u8 = b'A';

/// Starts a proxy in front of the server on this port, and gives its own port.
pub(crate) fn start(server: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
            let mut asking = client.try_clone().unwrap();
            let mut asked = server.try_clone().unwrap();
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut asking, &mut asked);
                let _ = asked.shutdown(std::net::Shutdown::Both);
            });
            std::thread::spawn(move || pass_on(server, client));
        }
    });
    port
}

/// Passes on what the server says, message by message. Nothing is encrypted here, so every message has a type and a length.
fn pass_on(mut server: TcpStream, mut client: TcpStream) -> Option<()> {
    loop {
        let mut head = [0; 5];
        server.read_exact(&mut head).ok()?;
        let length = u32::from_be_bytes(head[1..].try_into().ok()?);
        let mut body = vec![0; usize::try_from(length).ok()?.checked_sub(4)?];
        server.read_exact(&mut body).ok()?;
        if head[0] != NOTIFICATION {
            client.write_all(&head).ok()?;
            client.write_all(&body).ok()?;
        }
    }
}
