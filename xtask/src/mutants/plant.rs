//! Where is a mutant planted?
//!
//! In a copy of what git knows, with a target folder of its own: nobody's working tree is touched, and an interrupted run leaves
//! nothing behind but the copy, which the next one repairs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// A copy of the repository.
pub(crate) struct Workshop {
    pub folder: PathBuf,
    pub target: PathBuf,
}

/// Whether a mutant could be planted.
pub(crate) enum Planted {
    Yes(Plant),
    No,
}

/// A mutant in its place, until this is dropped.
pub(crate) struct Plant {
    path: PathBuf,
    healthy: String,
}

impl Workshop {
    /// Copies the repository, as far as the copy differs: what did not change is not compiled anew.
    pub(super) fn new(root: &Path, name: &str) -> Result<Self, Error> {
        let own = root.join("target/mutants").join(name);
        let folder = own.join("copy");
        let target = own.join("target");
        let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output()?;
        for name in listed.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let name = std::str::from_utf8(name)?;
            let from = root.join(name);
            let to = folder.join(name);
            // What git knows and the tree does not have was deleted, and is not missed.
            let Ok(bytes) = fs::read(&from) else { continue };
            if fs::read(&to).is_ok_and(|old| old == bytes) {
                continue;
            }
            fs::create_dir_all(to.parent().ok_or("a file without a folder")?)?;
            fs::write(to, bytes)?;
        }
        Ok(Self { folder, target })
    }

    /// Where the last words of a command are kept, for whoever wonders about a verdict.
    pub(super) fn said(&self, command: &str) -> PathBuf {
        self.folder.with_file_name(format!("{command}.said"))
    }

    /// Plants a mutant, if its place is found exactly once.
    pub(super) fn plant(&self, file: &str, old: &str, new: &str) -> Result<Planted, Error> {
        let path = self.folder.join(file);
        let healthy = fs::read_to_string(&path)?;
        if healthy.matches(old).count() != 1 {
            return Ok(Planted::No);
        }
        fs::write(&path, healthy.replace(old, new))?;
        Ok(Planted::Yes(Plant { path, healthy }))
    }
}

impl Drop for Plant {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.path, &self.healthy) {
            eprintln!("{}: cannot be restored: {error}", self.path.display());
        }
    }
}
