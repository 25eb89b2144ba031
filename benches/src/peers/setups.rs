//! What stands in front of which application?

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::installed;
use crate::gateway::servers::{Server, free};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ecosystem {
    Node,
    Python,
    Rust,
}

/// Servers that are started in this order; callers ask the last one.
pub struct Setup {
    pub name: &'static str,
    pub servers: Vec<Server>,
    /// Whether callers are told apart by a session that they open.
    pub has_sessions: bool,
    /// Whether the last server only stands in front of the application.
    is_hop: bool,
}

impl Setup {
    fn of(name: &'static str, servers: Vec<Server>) -> Self {
        Self { name, servers, has_sessions: false, is_hop: false }
    }

    fn hop_of(name: &'static str, servers: Vec<Server>) -> Self {
        Self { is_hop: true, ..Self::of(name, servers) }
    }

    /// Where callers ask.
    pub fn address(&self) -> SocketAddr {
        self.servers.last().expect("a setup has a server").address
    }

    /// The server in front of the application.
    pub fn hop(&self) -> Option<&Server> {
        self.servers.last().filter(|_| self.is_hop)
    }
}

impl Ecosystem {
    pub const ALL: [Self; 3] = [Self::Node, Self::Python, Self::Rust];

    pub fn word(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Python => "python",
            Self::Rust => "rust",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::Node => "Express",
            Self::Python => "FastAPI, uvicorn with uvloop",
            Self::Rust => "axum, in process",
        }
    }

    /// Everything of this ecosystem, started. The first setup is the application alone.
    pub fn setups(self, folder: &Path) -> Vec<Setup> {
        match self {
            Self::Node => node(folder),
            Self::Python => python(folder),
            Self::Rust => rust(folder),
        }
    }
}

fn node(folder: &Path) -> Vec<Setup> {
    let applications = installed::node(folder);
    let app = |script: &str, redis: Option<&Server>| {
        let mut command = Command::new("node");
        command.arg(script).current_dir(&applications);
        application(command, redis)
    };
    let with_redis = |name, script, fsync: &str| {
        let redis = redis(&folder.join(format!("{script}-{fsync}")), fsync);
        let app = app(script, Some(&redis));
        Setup::of(name, vec![redis, app])
    };
    let (theirs, core) = ("express-idempotency.js", "node-idempotency-core.js");
    vec![
        Setup::of("Express alone", vec![app("alone.js", None)]),
        Setup::of("express-idempotency, memory", vec![app(theirs, None)]),
        with_redis("express-idempotency, Redis everysec", theirs, "everysec"),
        Setup::of("@node-idempotency/core, memory", vec![app(core, None)]),
        with_redis("@node-idempotency/core, Redis everysec", core, "everysec"),
        with_redis("@node-idempotency/core, Redis always", core, "always"),
        behind_nginx(app("alone.js", None), folder),
        behind_the_gateway(app("alone.js", None), folder),
    ]
}

fn python(folder: &Path) -> Vec<Setup> {
    let applications = installed::python(folder);
    let app = |protection: &str, redis: Option<&Server>| {
        let mut command = Command::new(applications.join("venv/bin/python"));
        command.arg("fastapi_app.py").env("PROTECTION", protection).current_dir(&applications);
        application(command, redis)
    };
    let with_redis = |name, fsync: &str| {
        let redis = redis(&folder.join(fsync), fsync);
        let app = app("redis", Some(&redis));
        Setup::of(name, vec![redis, app])
    };
    vec![
        Setup::of("FastAPI alone", vec![app("none", None)]),
        Setup::of("asgi-idempotency-header, memory", vec![app("memory", None)]),
        with_redis("asgi-idempotency-header, Redis everysec", "everysec"),
        behind_nginx(app("none", None), folder),
        behind_the_gateway(app("none", None), folder),
    ]
}

fn rust(folder: &Path) -> Vec<Setup> {
    let app = |variant: &str, place: &str| {
        let address = free();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["peers", "axum", variant, &address.to_string(), place]);
        Server::start("axum", address, command)
    };
    let valkey = |name, fsync: &str| {
        let redis = redis(&folder.join(fsync), fsync);
        let app = app("idempotent-valkey", &format!("redis://{}", redis.address));
        Setup::of(name, vec![redis, app])
    };
    let disk = folder.join("disk");
    vec![
        Setup::of("axum alone", vec![app("alone", "")]),
        Setup { has_sessions: true, ..Setup::of("axum-idempotent 0.6, memory", vec![app("axum-idempotent", "")]) },
        Setup::of("idempotent 2.0, memory", vec![app("idempotent-memory", "")]),
        valkey("idempotent 2.0, Redis everysec", "everysec"),
        valkey("idempotent 2.0, Redis always", "always"),
        Setup::of("retrysafe's layer, memory", vec![app("layer-memory", "")]),
        Setup::of("retrysafe's layer, disk (durable)", vec![app("layer-disk", &disk.display().to_string())]),
    ]
}

/// An application whose operation takes no time of its own.
fn application(mut command: Command, redis: Option<&Server>) -> Server {
    let address = free();
    command.env("PORT", address.port().to_string()).env("WAIT_MS", "0").env("NODE_ENV", "production");
    if let Some(redis) = redis {
        command.env("REDIS_URL", format!("redis://{}", redis.address));
    }
    Server::start("application", address, command)
}

/// A Redis of its own that writes every change to its log, and flushes it as told.
fn redis(folder: &Path, fsync: &str) -> Server {
    std::fs::create_dir_all(folder).unwrap();
    let address = free();
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--save", "", "--appendonly", "yes"]);
    command.args(["--appendfsync", fsync, "--dir"]).arg(folder);
    Server::start("Redis", address, command)
}

fn behind_nginx(app: Server, folder: &Path) -> Setup {
    let folder = folder.join("nginx");
    std::fs::create_dir(&folder).unwrap();
    let nginx = Server::nginx(app.address, &folder).expect("nginx is needed: apt-get install nginx-light");
    Setup::hop_of("behind nginx, unprotected", vec![app, nginx])
}

fn behind_the_gateway(app: Server, folder: &Path) -> Setup {
    let folder = folder.join("gateway");
    std::fs::create_dir(&folder).unwrap();
    let gateway = Server::gateway(app.address, &folder, "");
    Setup::hop_of("behind the gateway, disk (durable)", vec![app, gateway])
}
