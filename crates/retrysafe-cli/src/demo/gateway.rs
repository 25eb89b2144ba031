//! How is the gateway run so that it can be killed? As a child process.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use retrysafe_core::key::IDEMPOTENCY_KEY;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::check::probe::Probe;
use crate::check::request::Shot;

/// How long the gateway may take to come up.
const START_MAX: Duration = Duration::from_secs(20);

/// How often a killed gateway is looked for, and how long between.
const GONE_LOOKS_MAX: u32 = 3_000;
const GONE_PAUSE: Duration = Duration::from_millis(10);

/// The ports that the gateway may get: below those that the system gives out by itself.
const PORT_MIN: u16 = 12_000;
const PORTS: u16 = 18_000;

/// The running gateway, its folder and what became of it.
pub(crate) struct Gateway {
    child: Child,
    folder: std::path::PathBuf,
    address: SocketAddr,
    admin: SocketAddr,
    token: String,
    kills: u32,
}

impl Gateway {
    /// Starts the gateway in front of the shop, on its embedded store in a new folder.
    pub(crate) async fn start(shop: SocketAddr) -> Result<Self, String> {
        let random = uuid::Uuid::new_v4().simple().to_string();
        let folder = std::env::temp_dir().join(format!("retrysafe-demo-{random}"));
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let [address, admin] = free_addresses()?;
        let store = folder.join("store");
        let config = format!(
            r#"listen = "{address}"
upstream = "http://{shop}"
store = "disk:{store}"

[admin]
listen = "{admin}"
token = "{random}"

[log]
level = "error"
requests = false

[upkeep]
sweep_every = "200ms"

# An unknown payment is looked up at the provider, which calls it off if it was not charged.
[reconcile]
url = "http://{shop}/lookup/{{id}}/{{fence}}"
pointer = "/state"
executed = ["charged"]
not_executed = ["called_off"]
response = "/answer"
every = "200ms"
schedule = "200ms, 300ms, 500ms, 1s, 3s, 5s"

[[route]]
path = "/payments"
strict = true
lease = "3s"
upstream_timeout = "3s"
"#,
            store = store.display(),
        );
        std::fs::write(folder.join("retrysafe.toml"), config).map_err(|e| e.to_string())?;
        let child = spawn(&folder)?;
        let gateway = Self { child, folder, address, admin, token: random, kills: 0 };
        gateway.ready().await?;
        Ok(gateway)
    }

    /// Kills the process as a power cut would, and starts another on the same store.
    pub(crate) async fn kill_and_restart(&mut self) -> Result<(), String> {
        self.child.kill().await.map_err(|error| error.to_string())?;
        self.kills += 1;
        self.child = spawn(&self.folder)?;
        self.ready().await
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn kills(&self) -> u32 {
        self.kills
    }

    pub(crate) fn curl_lines(&self) -> String {
        let line = |amount: u32| {
            format!(
                "  curl -i http://{}/payments -H 'Idempotency-Key: try-1' -H 'Authorization: Bearer me' -H 'Content-Type: application/json' -d '{{\"payment\":\"mine\",\"amount\":{amount}}}'\n",
                self.address
            )
        };
        [line(499), line(499), line(500)].concat()
    }

    pub(crate) fn admin_line(&self) -> String {
        format!("curl -H 'Authorization: Bearer {}' http://{}/api/v1/keys", self.token, self.admin)
    }

    pub(crate) fn dashboard_line(&self) -> String {
        format!("http://{}/   (its token: {})", self.admin, self.token)
    }

    /// Waits until the gateway says that it is ready.
    async fn ready(&self) -> Result<(), String> {
        let probe = Probe::new(Duration::from_secs(1), 50);
        let url = format!("http://{}/readyz", self.admin).parse().map_err(|_| "bad address")?;
        let shot = Shot {
            url,
            method: Method::GET,
            key_header: IDEMPOTENCY_KEY,
            headers: Vec::new(),
            body: Bytes::new(),
        };
        let deadline = Instant::now() + START_MAX;
        while Instant::now() < deadline {
            if probe.send(&shot).await.success().is_some() {
                return Ok(());
            }
        }
        Err("the gateway did not come up".into())
    }
}

impl Drop for Gateway {
    /// Ends the process and removes its folder, however the demo ends.
    fn drop(&mut self) {
        let _ = self.child.start_kill();
        // Until it is gone it may make another file in the folder. A killed process takes no time to
        // go; one that is stuck in the kernel is left behind with its folder.
        let mut looks = 0;
        while looks < GONE_LOOKS_MAX && matches!(self.child.try_wait(), Ok(None)) {
            looks += 1;
            std::thread::sleep(GONE_PAUSE);
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn spawn(folder: &std::path::Path) -> Result<Child, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    Command::new(program)
        .args(["serve", "--config"])
        .arg(folder.join("retrysafe.toml"))
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| error.to_string())
}

/// Two addresses that nobody has. They are used again after a kill, and while the gateway is down no
/// outgoing connection may get their ports.
fn free_addresses() -> Result<[SocketAddr; 2], String> {
    let (one, other) = (free_listener()?, free_listener()?);
    let address = |listener: &TcpListener| listener.local_addr().map_err(|e| e.to_string());
    Ok([address(&one)?, address(&other)?])
}

fn free_listener() -> Result<TcpListener, String> {
    let random = uuid::Uuid::new_v4().as_u128() % u128::from(PORTS);
    let first = u16::try_from(random).unwrap_or_default();
    let mut ports = (0..PORTS).map(|number| PORT_MIN + (first + number) % PORTS);
    let free = ports.find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok());
    free.ok_or_else(|| "no port is free".to_owned())
}
