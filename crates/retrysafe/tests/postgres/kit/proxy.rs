//! How is a connection cut at the worst moment?
//!
//! A proxy between the store and its server that knows which statements write. Each of them is a
//! transaction of its own. Armed, the proxy lets one through and swallows the answer, or swallows the
//! statement. A COMMIT of the application's own transaction is armed apart.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Where the next transaction is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Nowhere.
    No,
    /// Before its statement reaches the server.
    BeforeCommit,
    /// After the server has committed, before the answer.
    AfterCommit,
    /// Before its statement reaches the server, and the connection stays open.
    Hang,
}

#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    armed: Armed,
    cuts: Arc<AtomicUsize>,
    away: Arc<watch::Sender<bool>>,
}

/// Where the next write and the next COMMIT are cut.
#[derive(Clone, Debug, Default)]
struct Armed {
    write: Arc<AtomicU8>,
    commit: Arc<AtomicU8>,
    /// Whether nobody is there any more after the next cut.
    leaves: Arc<AtomicBool>,
}

impl Armed {
    /// Where this message is cut. What was armed for it is used up.
    fn take(&self, kind: Kind) -> u8 {
        match kind {
            Kind::Write => self.write.swap(Cut::No as u8, Ordering::SeqCst),
            Kind::Commit => self.commit.swap(Cut::No as u8, Ordering::SeqCst),
            Kind::Other => Cut::No as u8,
        }
    }
}

/// What a message asks of the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A statement that writes records, as a transaction of its own.
    Write,
    /// The end of a transaction of the application's.
    Commit,
    Other,
}

impl Proxy {
    /// A proxy to the server on this port of this machine.
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let proxy = Self {
            address: listener.local_addr().expect("an address"),
            armed: Armed::default(),
            cuts: Arc::default(),
            away: Arc::new(watch::Sender::new(false)),
        };
        let (armed, cuts) = (proxy.armed.clone(), Arc::clone(&proxy.cuts));
        let away = Arc::clone(&proxy.away);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *away.borrow() {
                    continue;
                }
                let server = TcpStream::connect(("127.0.0.1", port)).await;
                let Ok(server) = server else { continue };
                let relayed =
                    relay(client, server, armed.clone(), Arc::clone(&cuts), Arc::clone(&away));
                let mut left = away.subscribe();
                tokio::spawn(async move {
                    tokio::select! {
                        () = relayed => {}
                        _ = left.wait_for(|is_away| *is_away) => {}
                    }
                });
            }
        });
        proxy
    }

    pub(crate) fn arm(&self, cut: Cut) {
        self.armed.write.store(cut as u8, Ordering::SeqCst);
    }

    /// Cuts the next COMMIT of an application's own transaction.
    pub(crate) fn arm_commit(&self, cut: Cut) {
        self.armed.commit.store(cut as u8, Ordering::SeqCst);
    }

    /// Cuts the next write, and all other connections with it. New ones are refused until it is back.
    pub(crate) fn arm_and_leave(&self, cut: Cut) {
        self.armed.leaves.store(true, Ordering::SeqCst);
        self.arm(cut);
    }

    /// The server can be reached again.
    pub(crate) fn come_back(&self) {
        self.armed.leaves.store(false, Ordering::SeqCst);
        self.away.send_replace(false);
    }

    /// How many connections were cut.
    pub(crate) fn cuts(&self) -> usize {
        self.cuts.load(Ordering::SeqCst)
    }
}

async fn relay(
    mut client: TcpStream,
    mut server: TcpStream,
    armed: Armed,
    cuts: Arc<AtomicUsize>,
    away: Arc<watch::Sender<bool>>,
) {
    let cut_off = || {
        cuts.fetch_add(1, Ordering::SeqCst);
        if armed.leaves.load(Ordering::SeqCst) {
            away.send_replace(true);
        }
    };
    let (mut up, mut down) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut asked = Asked::default();
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let Ok(count @ 1..) = read else { return };
                asked.bytes.extend_from_slice(&up[..count]);
                while let Some((message, kind)) = asked.next() {
                    let cut = armed.take(kind);
                    if cut == Cut::BeforeCommit as u8 {
                        cut_off();
                        return;
                    }
                    if cut == Cut::Hang as u8 {
                        cuts.fetch_add(1, Ordering::SeqCst);
                        std::future::pending::<()>().await;
                    }
                    if server.write_all(&message).await.is_err() {
                        return;
                    }
                    if cut == Cut::AfterCommit as u8 {
                        // The rest of what belongs to it: execute, and the end of the transaction.
                        let is_whole = kind == Kind::Commit;
                        while !is_whole && (asked.bytes.is_empty() || asked.next_is_partial()) {
                            let Ok(count @ 1..) = client.read(&mut up).await else { return };
                            asked.bytes.extend_from_slice(&up[..count]);
                        }
                        if server.write_all(&asked.bytes).await.is_err() {
                            return;
                        }
                        swallow(&mut server).await;
                        cut_off();
                        return;
                    }
                }
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

/// What a client sends, message by message.
#[derive(Default)]
struct Asked {
    bytes: Vec<u8>,
    has_begun: bool,
    /// The names of the statements that write.
    writes: HashSet<Vec<u8>>,
}

impl Asked {
    /// The length of the next message, if all of it is here.
    fn length(&self) -> Option<usize> {
        // The first message of a connection has no type.
        let before = usize::from(self.has_begun);
        let length = self.bytes.get(before..before + 4)?;
        let length = u32::from_be_bytes(length.try_into().unwrap()) as usize + before;
        (self.bytes.len() >= length).then_some(length)
    }

    fn next_is_partial(&self) -> bool {
        self.length().is_none()
    }

    /// The next message, and what it asks of the server.
    fn next(&mut self) -> Option<(Vec<u8>, Kind)> {
        let length = self.length()?;
        let message: Vec<u8> = self.bytes.drain(..length).collect();
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let name = |from: usize| {
            let rest = &message[from..];
            rest[..rest.iter().position(|byte| *byte == 0).unwrap_or(0)].to_vec()
        };
        let holds = |text: &[u8]| message.windows(text.len()).any(|window| window == text);
        let kind = match message[0] {
            _ if is_first => Kind::Other,
            b'P' if holds(b"retrysafe.write_v")
                || holds(b"retrysafe.change_v")
                || holds(b"CALL retrysafe.") =>
            {
                self.writes.insert(name(5));
                Kind::Other
            }
            b'P' => {
                self.writes.remove(&name(5));
                Kind::Other
            }
            // The name of the portal comes first, and is empty.
            b'B' if self.writes.contains(&name(6)) => Kind::Write,
            // By itself, or at the end of a message that has more statements.
            b'Q' if name(5) == b"COMMIT" || name(5).ends_with(b"COMMIT AND CHAIN") => Kind::Commit,
            _ => Kind::Other,
        };
        Some((message, kind))
    }
}

/// Reads until the server is ready for the next transaction: this one is committed.
async fn swallow(server: &mut TcpStream) {
    loop {
        let mut head = [0; 5];
        if server.read_exact(&mut head).await.is_err() {
            return;
        }
        let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize - 4;
        let mut body = vec![0; length];
        if server.read_exact(&mut body).await.is_err() || head[0] == b'Z' {
            return;
        }
    }
}
