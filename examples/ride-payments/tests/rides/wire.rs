//! How is a connection to the database cut at the worst moment?
//!
//! A proxy that knows which messages commit something: a COMMIT, and a statement that writes records outside of a
//! transaction. Armed, it swallows the n-th of them, or lets it be applied and swallows the answer. It can also cut all
//! connections at once.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::program::PACE;

/// Statements that are a transaction of their own and write a record.
const WRITES: [&[u8]; 3] = [b"retrysafe.write_v", b"retrysafe.change_v", b"CALL retrysafe."];

/// Where a commit is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Before it reaches the server.
    NotApplied,
    /// After the server has applied it, before the answer.
    AnswerLost,
}

#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    armed: Mutex<Armed>,
    generation: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Armed {
    /// How many commits pass before the one that is cut, and how it is cut.
    cut: Option<(usize, Cut)>,
    /// The commits that have come since the wire was armed.
    seen: usize,
}

impl Wire {
    /// A proxy to the server on this port of this machine.
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (generation, _) = watch::channel(0);
        let shared = Arc::new(Shared { armed: Mutex::default(), generation });
        let theirs = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                // Each message is sent by itself, and must not wait for the next one.
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let shared = Arc::clone(&theirs);
                tokio::spawn(async move {
                    let mut cut = shared.generation.subscribe();
                    cut.mark_unchanged();
                    tokio::select! {
                        () = relay(client, server, &shared) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { address, shared }
    }

    /// Cuts the commit that comes after so many others. Counts from now on.
    pub(crate) fn arm(&self, after: usize, cut: Cut) {
        *self.shared.armed.lock().unwrap() = Armed { cut: Some((after, cut)), seen: 0 };
    }

    /// Cuts nothing. Counts from now on, and gives how many commits were seen before.
    pub(crate) fn disarm(&self) -> usize {
        std::mem::take(&mut *self.shared.armed.lock().unwrap()).seen
    }

    /// Waits until the cut that was armed has happened: the last commit may come after the answer.
    pub(crate) async fn has_cut(&self) {
        while self.shared.armed.lock().unwrap().cut.is_some() {
            tokio::time::sleep(PACE).await;
        }
    }

    /// Waits until so many commits were seen since it was armed or disarmed last.
    pub(crate) async fn has_seen(&self, commits: usize) {
        while self.shared.armed.lock().unwrap().seen < commits {
            tokio::time::sleep(PACE).await;
        }
    }

    /// Cuts all connections.
    pub(crate) fn cut_all(&self) {
        self.shared.generation.send_modify(|generation| *generation += 1);
    }
}

impl Shared {
    /// A commit has come. How it is cut, if it is.
    fn commit_comes(&self) -> Option<Cut> {
        let mut armed = self.armed.lock().unwrap();
        let number = armed.seen;
        armed.seen += 1;
        let cut = armed.cut.filter(|(after, _)| *after == number).map(|(_, cut)| cut);
        if cut.is_some() {
            armed.cut = None;
        }
        cut
    }
}

async fn relay(mut client: TcpStream, mut server: TcpStream, shared: &Shared) {
    let mut asked = Frames { bytes: Vec::new(), has_type: false };
    let mut told = Frames { bytes: Vec::new(), has_type: true };
    let mut writes = HashSet::new();
    let mut is_in_transaction = false;
    // The answer to the next `ReadyForQuery` is lost, and the connection with it.
    let mut is_answer_lost = false;
    let (mut up, mut down) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let Ok(count @ 1..) = read else { return };
                asked.bytes.extend_from_slice(&up[..count]);
                while let Some(message) = asked.next() {
                    if commits(&message, &mut writes, is_in_transaction) {
                        match shared.commit_comes() {
                            None => {}
                            Some(Cut::NotApplied) => return,
                            Some(Cut::AnswerLost) => is_answer_lost = true,
                        }
                    }
                    if server.write_all(&message).await.is_err() {
                        return;
                    }
                }
            }
            read = server.read(&mut down) => {
                let Ok(count @ 1..) = read else { return };
                told.bytes.extend_from_slice(&down[..count]);
                while let Some(message) = told.next() {
                    if message[0] == b'Z' {
                        is_in_transaction = message[5] != b'I';
                        if is_answer_lost {
                            return;
                        }
                    }
                    if !is_answer_lost && client.write_all(&message).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// Whether this message of a client commits something.
fn commits(message: &[u8], writes: &mut HashSet<Vec<u8>>, is_in_transaction: bool) -> bool {
    let holds = |text: &[u8]| message.windows(text.len()).any(|window| window == text);
    let text = |from: usize| {
        let rest = message.get(from..).unwrap_or_default();
        rest[..rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len())].to_vec()
    };
    match message[0] {
        b'P' => {
            if WRITES.iter().any(|write| holds(write)) {
                writes.insert(text(5));
            } else {
                writes.remove(&text(5));
            }
            false
        }
        // The name of the portal comes first, and is empty.
        b'B' => !is_in_transaction && writes.contains(&text(6)),
        b'Q' => {
            let is_write = WRITES.iter().any(|write| holds(write));
            // By itself, or at the end of a message that has more statements.
            let is_end =
                text(5).eq_ignore_ascii_case(b"COMMIT") || text(5).ends_with(b"COMMIT AND CHAIN");
            is_end || (is_write && !is_in_transaction)
        }
        _ => false,
    }
}

/// Messages of the protocol, one after the other.
struct Frames {
    bytes: Vec<u8>,
    /// The first message of a client has no type.
    has_type: bool,
}

impl Frames {
    fn next(&mut self) -> Option<Vec<u8>> {
        let before = usize::from(self.has_type);
        let length = self.bytes.get(before..before + 4)?;
        let length = u32::from_be_bytes(length.try_into().unwrap()) as usize + before;
        if self.bytes.len() < length {
            return None;
        }
        self.has_type = true;
        Some(self.bytes.drain(..length).collect())
    }
}
