//! Does everything survive a crash while segments are filled and snapshots taken beside the writer?
//!
//! The threads are real, and the folder holds their calls back at chance, so that they fall between
//! any two of the writer's. The order in which the calls came is the order of the rehearsal.

use super::crashes::{Tried, crash_everywhere, share, work_off};
use super::folder::TestFolder;
use super::mixes::{MIXES, Mix, script};
use super::script::Run;

/// How many scripts there are of each mix.
const SEEDS: u64 = 1;

fn rehearse(mix: Mix, seed: u64) -> Tried {
    let folder = TestFolder::with_room(mix.room);
    folder.hold_threads_back(seed);
    let mut run = Run::start_with_threads(folder).unwrap();
    run.run(&script(mix, seed)).unwrap();
    // What runs beside the writer ends with the process, and the notes with it.
    run.log.as_mut().unwrap().await_threads();
    crash_everywhere(&run)
}

#[test]
fn everything_acknowledged_survives_a_crash_beside_the_threads() {
    let scripts = MIXES.iter().enumerate().flat_map(|(number, (name, mix))| {
        (0..SEEDS * share()).map(move |seed| (*name, *mix, 500_000 + number as u64 * 100 + seed))
    });
    let scripts: Vec<_> = scripts.collect();
    let count = scripts.len();
    let tried = work_off(scripts, rehearse);
    println!("{count} scripts with threads, {} images, 0 failures: {tried:?}", tried.images());
    assert!(tried.images() > 10_000, "{tried:?}");
}
