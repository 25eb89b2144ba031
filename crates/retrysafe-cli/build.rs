//! Which commit is the program made from?
//!
//! A published package says so in a file of its own; a clone is asked. Neither is an error: then it is not known. A development
//! build does not look: it would be made anew after every commit, for nothing but this line.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = if is_release {
        published().or_else(cloned).unwrap_or_else(|| "unknown".into())
    } else {
        "unknown (a development build)".into()
    };
    println!("cargo::rustc-env=BUILT_FROM_COMMIT={commit}");
}

/// The commit that `cargo package` notes in the package.
fn published() -> Option<String> {
    let notes = std::fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let after = notes.split_once("\"sha1\"")?.1;
    let commit = after.split('"').nth(1)?;
    is_commit(commit).then(|| commit.to_owned())
}

/// The commit of the clone that this package stands in.
fn cloned() -> Option<String> {
    // The package may stand in the folder of another repository, such as that of somebody's home.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    // Both change when the clone moves to another commit. What is not there must not be named: cargo would run this every time.
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", name])?;
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "HEAD"]).filter(|commit| is_commit(commit))
}

fn is_commit(text: &str) -> bool {
    text.len() >= 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
