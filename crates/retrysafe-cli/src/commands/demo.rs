//! What does `demo` show?
//!
//! A tiny upstream that counts its executions, and this very program in front of it as a gateway on
//! a temporary disk store: a first request, and its replay.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

use super::call::Caller;
use crate::gateway::serve::Failure;
use crate::output::say;

/// How often the gateway is asked whether it is ready, and how long between.
const READY_ASKS: u32 = 200;
const READY_PAUSE: Duration = Duration::from_millis(25);

/// Shows it.
///
/// # Errors
///
/// If a part of it cannot be started or does not do what it should.
pub(crate) async fn run() -> Result<(), Failure> {
    let executions = Arc::new(AtomicU64::new(0));
    let upstream = upstream(Arc::clone(&executions)).await?;
    let folder = Folder(std::env::temp_dir().join(format!("retrysafe-{}", uuid::Uuid::new_v4())));
    let (listen, admin) = (free_address().await?, free_address().await?);
    let mut gateway = gateway(upstream, listen, admin, &folder.0)?;
    say(&format!(
        "upstream http://{upstream}, gateway http://{listen}, store {}",
        folder.0.display()
    ));
    let shown = show(listen, admin, &executions).await;
    // Whatever became of it, the gateway goes; the folder goes with its guard.
    let _ = gateway.kill().await;
    shown
}

async fn show(
    listen: SocketAddr,
    admin: SocketAddr,
    executions: &AtomicU64,
) -> Result<(), Failure> {
    let caller = Caller::at(&format!("http://{admin}"), None)?;
    let mut asks = 0;
    while let Err(error) = caller.get("/readyz").await {
        asks += 1;
        if asks >= READY_ASKS {
            return Err(error);
        }
        tokio::time::sleep(READY_PAUSE).await;
    }
    let key = uuid::Uuid::new_v4().to_string();
    for title in ["first request", "the same again"] {
        say(&format!("\n{title}: POST /payments with Idempotency-Key: {key}"));
        for line in post(listen, &key).await? {
            say(&format!("  {line}"));
        }
    }
    let count = executions.load(Ordering::Acquire);
    say(&format!("\nthe upstream executed {count} time(s)"));
    if count == 1 { Ok(()) } else { Err("that should have been once".into()) }
}

async fn post(address: SocketAddr, key: &str) -> Result<Vec<String>, Failure> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        // Whatever goes wrong here is told to whoever waits for the answer.
        let _ = connection.await;
    });
    let request = Request::post("/payments")
        .header(header::HOST, address.to_string())
        .header(header::CONTENT_TYPE, "application/json")
        .header("idempotency-key", key)
        .body(Full::new(Bytes::from_static(b"{\"amount\":499}")))?;
    let answer = sender.send_request(request).await?;
    let mut lines = vec![answer.status().to_string()];
    for name in ["idempotent-replayed", "idempotency-expires"] {
        if let Some(value) = answer.headers().get(name) {
            lines.push(format!("{name}: {}", value.to_str()?));
        }
    }
    let body = answer.into_body().collect().await?.to_bytes();
    lines.push(String::from_utf8_lossy(&body).into_owned());
    Ok(lines)
}

async fn upstream(executions: Arc<AtomicU64>) -> Result<SocketAddr, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let executions = Arc::clone(&executions);
            let service = service_fn(move |_: Request<Incoming>| {
                let number = executions.fetch_add(1, Ordering::AcqRel) + 1;
                let body = format!("{{\"payment\":\"pay_{number}\"}}");
                let answer = Response::builder()
                    .status(201)
                    .header(header::CONTENT_TYPE, "application/json")
                    .body(Full::new(Bytes::from(body)))
                    .unwrap_or_default();
                std::future::ready(Ok::<_, Infallible>(answer))
            });
            let server = hyper::server::conn::http1::Builder::new();
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    Ok(address)
}

fn gateway(
    upstream: SocketAddr,
    listen: SocketAddr,
    admin: SocketAddr,
    folder: &Path,
) -> Result<Child, Failure> {
    let child = Command::new(std::env::current_exe()?)
        .args(["serve", "--upstream", &format!("http://{upstream}")])
        .args(["--listen", &listen.to_string(), "--admin", &admin.to_string()])
        .args(["--store", &format!("disk:{}", folder.display())])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    Ok(child)
}

/// An address that was free a moment ago.
async fn free_address() -> Result<SocketAddr, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0").await?.local_addr()?)
}

/// A folder that goes when this does.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // It lies where temporary things lie; one that stays is not worth a complaint.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
