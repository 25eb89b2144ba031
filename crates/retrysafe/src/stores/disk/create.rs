//! How does an empty folder become a store?
//!
//! The file `store` comes last: without it there is no store, and with it there are segments. A crash
//! on the way leaves segments that were never in use and files that end in `.new`; the next opening
//! begins again from there.

use std::hash::{BuildHasher as _, Hasher as _};

use super::error::OpenError;
use super::files::StoreFolder;
use super::folder::OWNER;
use super::format::{PAGE, StoreDescription};
use super::segments::{is_segment, name_of};
use super::spares::fill;
use super::{CreatePolicy, StoreSettings};

pub(crate) const STORE: &str = "store";
const STORE_NEW: &str = "store.new";

/// Marks a folder to which a salvage is being written. It is there before anything else and goes last:
/// a salvage that did not come to its end must not be taken for a store, for the keys that it has not
/// copied would run again.
pub(crate) const UNFINISHED: &str = "salvage-unfinished";

/// What may lie in a folder that becomes a store: what a crash left, a file system, or the gateway.
const HARMLESS: [&str; 5] = [STORE_NEW, UNFINISHED, "lost+found", OWNER, "admin-token"];

/// How many segments a store begins with: one to write, one kept for settling on a full disk.
pub(crate) const SEGMENTS_FIRST: usize = 2;

/// Refuses a folder that holds a store without its first file, or something else.
pub(crate) fn check_vacant(folder: &dyn StoreFolder, names: &[String]) -> Result<(), OpenError> {
    // A store that has lost its first file is still a store, whatever else lies beside it.
    for name in names.iter().filter(|name| is_segment(name)) {
        if !is_blank(folder, name)? {
            return Err(OpenError::damaged(STORE, 0, "the file is missing"));
        }
    }
    let is_strange = |name: &&String| {
        !is_segment(name) && !is_unfinished_segment(name) && !HARMLESS.contains(&name.as_str())
    };
    if let Some(found) = names.iter().find(is_strange) {
        return Err(OpenError::NotAStore { found: found.clone() });
    }
    Ok(())
}

/// Makes a store of a folder that holds none.
pub(crate) fn create(
    folder: &dyn StoreFolder,
    names: &[String],
    settings: &StoreSettings,
) -> Result<(), OpenError> {
    check_vacant(folder, names)?;
    match settings.create {
        CreatePolicy::IfAbsent => {}
        CreatePolicy::Never => return Err(OpenError::Absent),
    }
    remove_unfinished(folder, names)?;
    for slot in 0..SEGMENTS_FIRST {
        fill(folder, slot, settings.segment_bytes).map_err(OpenError::io("fill", name_of(slot)))?;
    }
    let random = std::hash::RandomState::new().build_hasher().finish();
    let store = StoreDescription { store: random, segment_bytes: settings.segment_bytes };
    let written = || {
        let file = folder.create(STORE_NEW)?;
        file.write(&store.encode(), 0)?;
        file.flush()?;
        folder.rename(STORE_NEW, STORE)?;
        folder.flush()
    };
    written().map_err(OpenError::io("create", STORE))
}

/// Whether this is a segment that was being filled.
fn is_unfinished_segment(name: &str) -> bool {
    name.strip_suffix(".new").is_some_and(is_segment)
}

/// Removes what was being made when the last owner ended.
pub(crate) fn remove_unfinished(
    folder: &dyn StoreFolder,
    names: &[String],
) -> Result<(), OpenError> {
    for name in names.iter().filter(|name| name.ends_with(".new")) {
        folder.remove(name).map_err(OpenError::io("remove", name))?;
    }
    Ok(())
}

/// Whether a segment was never in use.
fn is_blank(folder: &dyn StoreFolder, name: &str) -> Result<bool, OpenError> {
    let read = || {
        let file = folder.open(name)?;
        let mut page = vec![0; PAGE.min(file.bytes()? as usize)];
        file.read(&mut page, 0)?;
        Ok(page.iter().all(|byte| *byte == 0))
    };
    read().map_err(OpenError::io("read", name))
}
