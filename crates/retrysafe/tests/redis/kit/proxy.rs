//! How is a connection cut at the worst moment, or frozen?

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What a proxy does with what it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Passes it on.
    Pass,
    /// Passes the next request on, and cuts the connection instead of its answer.
    CutAnswer,
    /// Passes nothing on, and keeps the connection.
    Freeze,
}

#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    target: Arc<AtomicU16>,
    mode: Arc<AtomicU8>,
    cuts: Arc<AtomicUsize>,
    newer: Arc<Newer>,
}

/// How a server of another version is played.
#[derive(Debug, Default)]
struct Newer {
    /// What WAITAOF is answered with. Nothing: the server is what it is.
    flushed: Mutex<Option<(u8, u8)>>,
    waits: AtomicUsize,
}

impl Newer {
    /// A command of a newer server, as one that this server knows and answers alike. The driver sends
    /// a pipeline in one piece.
    fn translated(&self, asked: &[u8]) -> Vec<u8> {
        let Some((own, replicas)) = *self.flushed.lock().unwrap() else { return asked.to_vec() };
        let Some(at) = asked.windows(7).position(|word| word == b"WAITAOF") else {
            return asked.to_vec();
        };
        self.waits.fetch_add(1, Ordering::SeqCst);
        // Four parts, of which the name is the first: it begins with *4 and $7.
        let start = at - b"*4\r\n$7\r\n".len();
        let end = asked[at..].iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(6);
        let end = at + end.expect("three arguments follow").0 + 1;
        let script = format!("return {{{own},{replicas}}}");
        let eval = format!("*3\r\n$4\r\nEVAL\r\n${}\r\n{script}\r\n$1\r\n0\r\n", script.len());
        [&asked[..start], eval.as_bytes(), &asked[end..]].concat()
    }

    /// What the server says of its version, as a newer one would.
    fn dressed(&self, answered: &mut [u8]) {
        const SAID: &[u8] = b"redis_version:7.0";
        if self.flushed.lock().unwrap().is_some()
            && let Some(at) = answered.windows(SAID.len()).position(|said| said == SAID)
        {
            answered[at + SAID.len() - 1] = b'2';
        }
    }
}

impl Proxy {
    /// A proxy to the server on this port of this machine.
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let proxy = Self {
            port: listener.local_addr().expect("an address").port(),
            target: Arc::new(AtomicU16::new(port)),
            mode: Arc::default(),
            cuts: Arc::default(),
            newer: Arc::default(),
        };
        let (mode, cuts) = (Arc::clone(&proxy.mode), Arc::clone(&proxy.cuts));
        let newer = Arc::clone(&proxy.newer);
        let target = Arc::clone(&proxy.target);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let port = target.load(Ordering::SeqCst);
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                let (mode, cuts) = (Arc::clone(&mode), Arc::clone(&cuts));
                tokio::spawn(relay(client, server, mode, cuts, Arc::clone(&newer)));
            }
        });
        proxy
    }

    /// Leads new connections to another server, as an address that moves does.
    pub(crate) fn lead_to(&self, port: u16) {
        self.target.store(port, Ordering::SeqCst);
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::SeqCst);
    }

    /// How many connections were cut.
    pub(crate) fn cuts(&self) -> usize {
        self.cuts.load(Ordering::SeqCst)
    }

    /// Makes the server look like 7.2, and answers WAITAOF with so many flushes of its own and of
    /// replicas.
    pub(crate) fn act_as_newer(&self, own: u8, replicas: u8) {
        *self.newer.flushed.lock().unwrap() = Some((own, replicas));
    }

    /// How often WAITAOF was asked.
    pub(crate) fn waits(&self) -> usize {
        self.newer.waits.load(Ordering::SeqCst)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

async fn relay(
    mut client: TcpStream,
    mut server: TcpStream,
    mode: Arc<AtomicU8>,
    cuts: Arc<AtomicUsize>,
    newer: Arc<Newer>,
) {
    let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let is_frozen = || mode.load(Ordering::SeqCst) == Mode::Freeze as u8;
        while is_frozen() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::select! {
            read = client.read(&mut asked) => match read {
                Ok(length @ 1..) if !is_frozen() => {
                    if server.write_all(&newer.translated(&asked[..length])).await.is_err() {
                        return;
                    }
                }
                Ok(1..) => {}
                _ => return,
            },
            read = server.read(&mut answered) => match read {
                Ok(length @ 1..) => {
                    let cut = mode.compare_exchange(
                        Mode::CutAnswer as u8,
                        Mode::Pass as u8,
                        Ordering::SeqCst,
                        Ordering::SeqCst,
                    );
                    if cut.is_ok() {
                        cuts.fetch_add(1, Ordering::SeqCst);
                        return;
                    }
                    newer.dressed(&mut answered[..length]);
                    if !is_frozen() && client.write_all(&answered[..length]).await.is_err() {
                        return;
                    }
                }
                _ => return,
            },
        }
    }
}
