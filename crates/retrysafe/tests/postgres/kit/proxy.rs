//! How is a connection cut at the worst moment?
//!
//! A proxy between the store and its server that knows where a transaction ends. Armed, it lets one
//! commit through and swallows the answer, or swallows the commit.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Where the next transaction is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Nowhere.
    No,
    /// Before its commit reaches the server.
    BeforeCommit,
    /// After the server has committed, before the answer.
    AfterCommit,
}

#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    armed: Arc<AtomicU8>,
    cuts: Arc<AtomicUsize>,
}

impl Proxy {
    /// A proxy to the server on this port of this machine.
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let proxy = Self {
            address: listener.local_addr().expect("an address"),
            armed: Arc::default(),
            cuts: Arc::default(),
        };
        let (armed, cuts) = (Arc::clone(&proxy.armed), Arc::clone(&proxy.cuts));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", port)).await;
                let Ok(server) = server else { continue };
                tokio::spawn(relay(client, server, Arc::clone(&armed), Arc::clone(&cuts)));
            }
        });
        proxy
    }

    pub(crate) fn arm(&self, cut: Cut) {
        self.armed.store(cut as u8, Ordering::SeqCst);
    }

    /// How many connections were cut.
    pub(crate) fn cuts(&self) -> usize {
        self.cuts.load(Ordering::SeqCst)
    }
}

/// A commit as the driver sends it: a simple query.
const COMMIT: &[u8] = b"Q\0\0\0\x0bCOMMIT\0";
/// The answer to it.
const COMMITTED: &[u8] = b"C\0\0\0\x0bCOMMIT\0";

async fn relay(
    mut client: TcpStream,
    mut server: TcpStream,
    armed: Arc<AtomicU8>,
    cuts: Arc<AtomicUsize>,
) {
    let (mut up, mut down) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut sent: Vec<u8> = Vec::new();
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let Ok(count @ 1..) = read else { return };
                let bytes = &up[..count];
                // A commit may come in two pieces.
                let before = sent.len();
                sent.extend_from_slice(bytes);
                let commit = sent.windows(COMMIT.len()).position(|window| window == COMMIT);
                let cut = match commit {
                    Some(_) => armed.swap(Cut::No as u8, Ordering::SeqCst),
                    None => Cut::No as u8,
                };
                if cut == Cut::BeforeCommit as u8 {
                    let until = commit.unwrap_or(0).saturating_sub(before).min(count);
                    let _ = server.write_all(&bytes[..until]).await;
                    cuts.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                if server.write_all(bytes).await.is_err() {
                    return;
                }
                if cut == Cut::AfterCommit as u8 {
                    swallow(&mut server).await;
                    cuts.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                let tail = sent.len().saturating_sub(COMMIT.len() - 1);
                sent.drain(..if commit.is_some() { sent.len() } else { tail });
            }
            read = server.read(&mut down) => {
                let Ok(count @ 1..) = read else { return };
                if client.write_all(&down[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Reads until the server says that it has committed.
async fn swallow(server: &mut TcpStream) {
    let (mut answer, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    while !answer.windows(COMMITTED.len()).any(|window| window == COMMITTED) {
        match server.read(&mut buffer).await {
            Ok(count @ 1..) => answer.extend_from_slice(&buffer[..count]),
            Ok(_) | Err(_) => return,
        }
    }
}
