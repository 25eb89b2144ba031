//! In which languages is the operation written, and how is each program started?

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::install::run;

/// A program of the examples. All of them have the same points, tables and environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    /// `retrysafe::phases`.
    Rust,
    /// FastAPI and psycopg 3, over the SQL functions.
    Python,
    /// Express and pg, over the SQL functions.
    Node,
}

/// All of them.
pub(crate) const LANGUAGES: [Language; 3] = [Language::Rust, Language::Python, Language::Node];

impl Language {
    /// Whether the program has nothing but the SQL functions.
    pub(crate) fn is_sql(self) -> bool {
        match self {
            Self::Rust => false,
            Self::Python | Self::Node => true,
        }
    }

    pub(crate) fn command(self, listen: SocketAddr) -> Command {
        match self {
            Self::Rust => Command::new(env!("CARGO_BIN_EXE_ride-payments")),
            Self::Python => {
                let mut python = Command::new(python_packages().join("venv/bin/python"));
                python.args(["-B", "-m", "uvicorn", "rides:app", "--log-level", "warning"]);
                python.args(["--host", "127.0.0.1", "--port", &listen.port().to_string()]);
                python.current_dir(example("python-rides"));
                python
            }
            Self::Node => {
                let mut node = Command::new("node");
                node.arg("rides.js").current_dir(example("node-rides"));
                node.env("NODE_PATH", node_packages().join("node_modules"));
                node
            }
        }
    }
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// A folder with what the Python program needs.
fn python_packages() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        installed("python-rides", "requirements.txt", |folder| {
            run(Command::new("python3").args(["-m", "venv", "venv"]).current_dir(folder));
            let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"];
            let mut install = Command::new(folder.join("venv/bin/python"));
            run(install.args(pip).arg("requirements.txt").current_dir(folder));
        })
    })
}

/// A folder with what the Node program needs.
fn node_packages() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        installed("node-rides", "package.json", |folder| {
            let install = ["install", "--no-audit", "--no-fund", "--silent"];
            run(Command::new("npm").args(install).current_dir(folder));
        })
    })
}

/// Installs what this list of an example names, unless the same list was installed before.
fn installed(name: &str, list: &str, install: impl FnOnce(&Path)) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let wanted = std::fs::read_to_string(example(name).join(list)).unwrap();
    let mark = folder.join("installed");
    if std::fs::read_to_string(&mark).is_ok_and(|had| had == wanted) {
        return folder;
    }
    // What is left of an installation that did not come to its end is of no use.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(list), &wanted).unwrap();
    install(&folder);
    std::fs::write(mark, wanted).unwrap();
    folder
}

/// Whoever has only SQL needs little of it.
#[test]
fn an_operation_over_sql_has_less_than_150_lines() {
    for file in ["python-rides/rides.py", "node-rides/rides.js"] {
        let lines = std::fs::read_to_string(example(file)).unwrap().lines().count();
        assert!(lines < 150, "{file}: {lines}");
    }
}
