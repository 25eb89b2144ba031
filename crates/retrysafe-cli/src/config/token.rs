//! Where is the admin token, if nobody has set one?
//!
//! In a file of the state folder that only its owner may read. It is made once and stays the same,
//! so that whoever may read the file may use the commands, before and after a restart. It is never
//! logged; the path of its file is.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::{Secret, read_secret};

const NAME: &str = "admin-token";

/// The file in which a gateway with this state folder keeps the token that it made.
pub(crate) fn path(state_folder: &Path) -> PathBuf {
    state_folder.join(NAME)
}

/// Makes the state folder, for its owner alone, if it is not there.
///
/// # Errors
///
/// The file system's.
pub(crate) fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// The token of this state folder, made now if there is none yet.
///
/// # Errors
///
/// Why there is none, and what to do.
pub(crate) fn read_or_make(state_folder: &Path) -> Result<Secret, String> {
    let path = path(state_folder);
    let cannot = |error: io::Error| {
        format!(
            "admin.token is not set, and a token that is made cannot be kept in {}: {error}. Set \
             admin.token or admin.token_file, or a state_folder that can be written, or \
             admin.listen = \"off\"",
            path.display()
        )
    };
    make_folder(state_folder).map_err(cannot)?;
    if !path.try_exists().map_err(cannot)? {
        make(&path).map_err(cannot)?;
    }
    close_to_others(&path).map_err(cannot)?;
    let token = read_secret(&path)?;
    if token.is_empty() {
        Err(format!("{} is empty; remove it, and a token is made", path.display()))
    } else {
        Ok(Secret(token))
    }
}

/// Makes a token under another name first: a crash leaves no half of one, and of two gateways that
/// start at once the second finds the first one's.
fn make(path: &Path) -> io::Result<()> {
    let new = path.with_extension(format!("new-{}", uuid::Uuid::new_v4().simple()));
    let made = || {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        writeln!(file, "{}", uuid::Uuid::new_v4().simple())?;
        file.sync_all()?;
        match fs::hard_link(&new, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    };
    let made = made();
    // It is there under its own name by now, or not at all.
    let _ = fs::remove_file(&new);
    made
}

/// A file that others may read, perhaps copied from elsewhere, is taken back from them.
fn close_to_others(path: &Path) -> io::Result<()> {
    let mut permissions = fs::metadata(path)?.permissions();
    if permissions.mode() & 0o077 == 0 {
        return Ok(());
    }
    tracing::warn!(path = %path.display(), "the admin token could be read by others");
    permissions.set_mode(0o600);
    fs::set_permissions(path, permissions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_token_is_made_once_and_for_its_owner_alone() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("state");
        let made = read_or_make(&folder).unwrap();
        assert!(made.0.len() >= 32);
        assert_eq!((mode(&folder), mode(&path(&folder))), (0o700, 0o600));
        assert_eq!(read_or_make(&folder).unwrap(), made);
        let names: Vec<_> = fs::read_dir(&folder).unwrap().flatten().collect();
        assert_eq!(names.len(), 1, "{names:?}");

        // One that others could read is closed to them.
        fs::set_permissions(path(&folder), fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read_or_make(&folder).unwrap(), made);
        assert_eq!(mode(&path(&folder)), 0o600);
        fs::write(path(&folder), "\n").unwrap();
        assert!(read_or_make(&folder).unwrap_err().contains("is empty"));
    }

    #[test]
    fn where_no_token_can_be_kept_the_settings_that_help_are_named() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("file");
        fs::write(&folder, "").unwrap();
        let told = read_or_make(&folder).unwrap_err();
        for setting in ["admin.token", "admin.token_file", "state_folder", "admin.listen"] {
            assert!(told.contains(setting), "{told}");
        }
    }

    #[test]
    fn of_two_that_start_at_once_both_have_one_token() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path();
        let tokens: Vec<Secret> = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| read_or_make(folder))).collect();
            starts.into_iter().map(|start| start.join().unwrap().unwrap()).collect()
        });
        assert!(tokens.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
