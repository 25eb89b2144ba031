//! How is a connection cut at the worst moment, or frozen?

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicUsize, Ordering};
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
        };
        let (mode, cuts) = (Arc::clone(&proxy.mode), Arc::clone(&proxy.cuts));
        let target = Arc::clone(&proxy.target);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let port = target.load(Ordering::SeqCst);
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                tokio::spawn(relay(client, server, Arc::clone(&mode), Arc::clone(&cuts)));
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

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

async fn relay(
    mut client: TcpStream,
    mut server: TcpStream,
    mode: Arc<AtomicU8>,
    cuts: Arc<AtomicUsize>,
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
                    if server.write_all(&asked[..length]).await.is_err() {
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
                    if !is_frozen() && client.write_all(&answered[..length]).await.is_err() {
                        return;
                    }
                }
                _ => return,
            },
        }
    }
}
