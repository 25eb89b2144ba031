//! How is a worker stopped, or cut off, at one statement?
//!
//! A proxy between a worker and its database that knows the worker's three statements by their names. It holds them, or cuts
//! their connections: before they reach the server, or after the server has committed them and before the answer.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What a worker asks of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Statement {
    Claim,
    Mark,
    Finish,
}

const STATEMENTS: [(&[u8], Statement); 3] = [
    (b"claim_effects_v1", Statement::Claim),
    (b"mark_effects_v1", Statement::Mark),
    (b"finish_effects_v1", Statement::Finish),
];

/// On which side of the server's commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Before,
    After,
}

/// What happens to a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// It waits until the gate opens.
    Hold,
    /// Its connection is cut.
    Cut,
}

/// What happens to the next statements of a kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate {
    pub(crate) statement: Statement,
    pub(crate) side: Side,
    pub(crate) act: Act,
    /// How many statements it is for.
    pub(crate) times: usize,
}

#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    accepting: tokio::task::AbortHandle,
}

#[derive(Debug)]
struct Shared {
    gate: Mutex<Option<Gate>>,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// How many statements have come to the gate.
    met: usize,
    is_open: bool,
    is_gone: bool,
}

impl Wire {
    /// A proxy to the server on this port of this machine, with a gate in it.
    pub(crate) async fn to(port: u16, gate: Option<Gate>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            gate: Mutex::new(gate),
            state: watch::Sender::new(State::default()),
        });
        let theirs = Arc::clone(&shared);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                // Each message is sent by itself, and must not wait for the next one.
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let shared = Arc::clone(&theirs);
                tokio::spawn(async move {
                    let mut state = shared.state.subscribe();
                    tokio::select! {
                        () = relay(client, server, &shared) => {}
                        _ = state.wait_for(|state| state.is_gone) => {}
                    }
                });
            }
        });
        Self { address, shared, accepting: accepting.abort_handle() }
    }

    /// Waits until so many statements have come to the gate.
    pub(crate) async fn has_met(&self, statements: usize) {
        let mut state = self.shared.state.subscribe();
        state.wait_for(|state| state.met >= statements).await.unwrap();
    }

    /// Lets everything go on.
    pub(crate) fn open(&self) {
        self.shared.state.send_modify(|state| state.is_open = true);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.accepting.abort();
        self.shared.state.send_modify(|state| state.is_gone = true);
    }
}

impl Shared {
    /// What happens to this statement on this side, if anything does. It is used up.
    fn take(&self, statement: Statement, side: Side) -> Option<Act> {
        let mut gate = self.gate.lock().unwrap();
        let met = gate.as_mut().filter(|gate| gate.statement == statement && gate.side == side)?;
        if met.times == 0 {
            return None;
        }
        met.times -= 1;
        Some(met.act)
    }

    /// A statement is at the gate. True if it goes on, once it may.
    async fn passes(&self, act: Option<Act>) -> bool {
        let Some(act) = act else { return true };
        self.state.send_modify(|state| state.met += 1);
        if act == Act::Hold {
            let mut state = self.state.subscribe();
            state.wait_for(|state| state.is_open).await.unwrap();
        }
        act == Act::Hold
    }
}

async fn relay(mut client: TcpStream, mut server: TcpStream, shared: &Shared) {
    let mut asked = Frames { bytes: Vec::new(), has_type: false };
    let mut told = Frames { bytes: Vec::new(), has_type: true };
    let mut known = HashMap::new();
    // What becomes of the answer to the statement that the server works on.
    let mut act_after: Option<Act> = None;
    let mut kept = Vec::new();
    let (mut up, mut down) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let Ok(count @ 1..) = read else { return };
                asked.bytes.extend_from_slice(&up[..count]);
                while let Some(message) = asked.next() {
                    if let Some(statement) = statement_of(&message, &mut known) {
                        if !shared.passes(shared.take(statement, Side::Before)).await {
                            return;
                        }
                        act_after = shared.take(statement, Side::After);
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
                    let is_end = message[0] == b'Z';
                    kept.extend(message);
                    if is_end && !shared.passes(act_after.take()).await {
                        return;
                    }
                    if act_after.is_some() {
                        continue;
                    }
                    if client.write_all(&std::mem::take(&mut kept)).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// Which of the worker's statements this message carries out, if it is one of them.
fn statement_of(message: &[u8], known: &mut HashMap<Vec<u8>, Statement>) -> Option<Statement> {
    let mut texts = message.get(5..)?.split(|byte| *byte == 0);
    match message[0] {
        b'P' => {
            let name = texts.next()?.to_vec();
            let query = texts.next()?;
            let holds = |text: &[u8]| query.windows(text.len()).any(|window| window == text);
            match STATEMENTS.iter().find(|(text, _)| holds(text)) {
                Some((_, statement)) => known.insert(name, *statement),
                None => known.remove(&name),
            };
            None
        }
        // The name of the portal comes first.
        b'B' => known.get(texts.nth(1)?).copied(),
        _ => None,
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
