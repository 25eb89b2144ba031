//! How do other people's packages get here? As their registries publish them, in the versions that `clients/peers/` pins.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The applications on Express, with their packages, in a folder of their own.
pub fn node(folder: &Path) -> PathBuf {
    let copy = copy_of("node", folder);
    run(Command::new("npm").args(["ci", "--no-audit", "--no-fund", "--silent"]).current_dir(&copy));
    copy
}

/// The applications on FastAPI, with their packages in `venv`.
pub fn python(folder: &Path) -> PathBuf {
    let copy = copy_of("python", folder);
    run(Command::new("python3").args(["-m", "venv", "venv"]).current_dir(&copy));
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", "requirements.txt"];
    run(Command::new(copy.join("venv/bin/python")).args(install).current_dir(&copy));
    copy
}

fn copy_of(name: &str, folder: &Path) -> PathBuf {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../clients/peers")).join(name);
    let copy = folder.join("applications");
    std::fs::create_dir_all(&copy).unwrap();
    for file in std::fs::read_dir(source).unwrap().flatten() {
        std::fs::copy(file.path(), copy.join(file.file_name())).unwrap();
    }
    copy.canonicalize().unwrap()
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?} ended with {status}");
}
