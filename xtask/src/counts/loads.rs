//! What do the layer and the disk store do for one request, in their own process?

use super::callgrind::{self, Totals};
use super::programs::Programs;
use crate::Error;
use crate::local::{self, Folder};

/// The loads of `crates/counted`: what they are called in the table, and there.
pub(super) const LOADS: [(&str, &str); 3] = [
    ("layer, memory store, first", "layer-first"),
    ("layer, memory store, replay", "layer-replay"),
    ("disk store, begin and settle", "disk"),
];

/// Counts one load with so many requests.
pub(super) fn count(programs: &Programs, load: &str, requests: u64) -> Result<Totals, Error> {
    let folder = Folder::new("counts")?;
    let out = folder.path().join("callgrind");
    let mut command = callgrind::command(&programs.counted, &out);
    local::run(command.args([load, &requests.to_string()]))?;
    Totals::read(&out)
}
