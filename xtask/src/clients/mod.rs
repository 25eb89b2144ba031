//! Do clients that nobody here wrote get along with the gateway?
//!
//! The official Stripe SDKs, from their packages, talk to a stub of a payments API through the
//! gateway with `dialect = "stripe"`, and on the way through a cable that loses the first answer to
//! every key. The scripts in `clients/` say what must come of it.

mod cable;
mod stub;

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::Ordering;

use crate::Error;
use crate::local::{Folder, Running, free_address, program, run};
use cable::Cable;
use stub::Stub;

pub(crate) fn all() -> Result<ExitCode, Error> {
    let folder = Folder::new("clients")?;
    let program = program()?;
    let node = folder.copy_of("clients/stripe-node")?;
    run(Command::new("npm")
        .args(["ci", "--no-audit", "--no-fund", "--silent"])
        .current_dir(&node))?;
    let python = folder.copy_of("clients/stripe-python")?;
    run(Command::new("python3").args(["-m", "venv", "venv"]).current_dir(&python))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"];
    run(Command::new(python.join("venv/bin/python"))
        .args(pip)
        .arg("requirements.txt")
        .current_dir(&python))?;

    let mut node_client = Command::new("node");
    node_client.arg("client.js").current_dir(&node);
    let mut python_client = Command::new(python.join("venv/bin/python"));
    python_client.arg("client.py").current_dir(&python);
    let mut is_fine = true;
    for (name, client) in [("npm stripe", node_client), ("PyPI stripe", python_client)] {
        println!("== {name}");
        is_fine &= meet(&program, &folder.path().join(name.replace(' ', "-")), client)?;
    }
    Ok(if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Lets one client talk to a gateway and a stub of its own.
fn meet(program: &Path, store: &Path, mut client: Command) -> Result<bool, Error> {
    let stub = Stub::start()?;
    let gateway = free_address()?;
    let admin = free_address()?;
    let _gateway = serve(program, store, gateway, admin, stub.address)?;
    let cable = Cable::start(gateway)?;
    let status = client
        .env("GATEWAY_PORT", gateway.port().to_string())
        .env("CABLE_PORT", cable.address.port().to_string())
        .env("STUB_PORT", stub.address.port().to_string())
        .status()?;
    println!(
        "   {} answers lost on the way, {} requests executed by the stub",
        cable.lost.load(Ordering::Relaxed),
        stub.executed.load(Ordering::Relaxed)
    );
    Ok(status.success())
}

fn serve(
    program: &Path,
    store: &Path,
    listen: SocketAddr,
    admin: SocketAddr,
    upstream: SocketAddr,
) -> Result<Running, Error> {
    std::fs::create_dir_all(store)?;
    let config = store.join("retrysafe.toml");
    let text = format!(
        "listen = \"{listen}\"\nupstream = \"http://{upstream}\"\nstore = \"disk:{}\"\n\
         [admin]\nlisten = \"{admin}\"\n[log]\nlevel = \"error\"\n[defaults]\ndialect = \"stripe\"\n",
        store.join("store").display()
    );
    std::fs::write(&config, text)?;
    let mut command = Command::new(program);
    command.args(["serve", "--config"]).arg(&config).stdout(Stdio::null());
    Running::start(&mut command, listen)
}
