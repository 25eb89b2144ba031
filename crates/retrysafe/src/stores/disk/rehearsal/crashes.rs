//! Is everything acknowledged there after a crash at any call?

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use retrysafe_core::scope::Id;
use retrysafe_core::store::Inserted;
use tokio::sync::oneshot;

use super::super::doctor::examine;
use super::super::index::SHARDS;
use super::super::open::open as open_store;
use super::super::ops::{LogWriter, WriterOp};
use super::super::snapshot_taker;
use super::folder::{Call, Disk, Image, TestFolder};
use super::mixes::{MIXES, Mix, script};
use super::script::{Dice, Known, Model, Run, START, check, first, settings};
use crate::stores::clock::Clock;

/// Of this many pending changes every subset is tried.
const ALL_SUBSETS: usize = 5;

/// How many subsets are tried where there are more, and how many of the latest changes are tried one
/// by one: what a flush has lost long ago stays open for ever.
const SAMPLES: u64 = 24;
const LATEST: usize = 12;

/// Of so many images one is asked of the doctor, and one is crashed again while it is being opened.
const DOCTOR_EVERY: usize = 16;
const AGAIN_EVERY: usize = 100;

/// How many scripts there are of each mix.
const SEEDS: u64 = 3;

/// What was tried.
#[derive(Debug, Default)]
pub(super) struct Tried {
    /// Images with each sector old or new.
    sectors: usize,
    /// Images with each page old or new.
    pages: usize,
    /// Images with pages that are neither.
    garbage: usize,
    /// Images in which the folder itself is gone.
    no_folder: usize,
    /// Images of a crash during the opening that follows a crash.
    again: usize,
    /// Images that the doctor was asked about.
    doctor: usize,
    calls: usize,
    kills_in_commit: usize,
    flushes_lost: usize,
    turns: u64,
    recycled: u64,
    copies: u64,
    snapshots: usize,
}

impl Tried {
    pub(super) fn images(&self) -> usize {
        self.sectors + self.pages + self.garbage + self.no_folder + self.again
    }
}

impl std::ops::AddAssign for Tried {
    fn add_assign(&mut self, other: Self) {
        self.sectors += other.sectors;
        self.pages += other.pages;
        self.garbage += other.garbage;
        self.no_folder += other.no_folder;
        self.again += other.again;
        self.doctor += other.doctor;
        self.calls += other.calls;
        self.kills_in_commit += other.kills_in_commit;
        self.flushes_lost += other.flushes_lost;
        self.turns += other.turns;
        self.recycled += other.recycled;
        self.copies += other.copies;
        self.snapshots += other.snapshots;
    }
}

/// Opens what a crash has left. That must always be possible.
fn open(folder: &TestFolder) -> LogWriter {
    // The wall clock has gone back to the beginning: only the mark can help.
    let (clock, _) = Clock::manual(START);
    open_store(Arc::new(folder.clone()), settings(clock)).unwrap_or_else(|e| panic!("{e}"))
}

/// All that a store shows.
fn shown(log: &LogWriter) -> Model {
    let entries = (0..SHARDS).flat_map(|number| log.reader.index.shard(number));
    let records = entries.map(|entry| log.reader.read(&entry).unwrap());
    records.map(|record| (record.id, record)).collect()
}

/// Opens an image and compares it with what was known.
pub(super) fn judge(image: Image, was: &Known, would_be: &Known) {
    let mut log = open(&TestFolder::of(image));
    let reader = Arc::clone(&log.reader);
    assert!(reader.clock.now() >= was.marked, "the clock went back");
    for id in would_be.model.keys().chain(was.model.keys()) {
        let found = reader.find(id).unwrap();
        check(was.model.get(id), would_be.model.get(id), found.as_ref(), would_be.now);
    }
    let known = |id: &Id| was.model.contains_key(id) || would_be.model.contains_key(id);
    for record in shown(&log).values() {
        assert!(known(&record.id), "nobody asked for {record:?}");
    }
    // It goes on, with numbers that were never given out.
    let (reply, mut answer) = oneshot::channel();
    log.commit([WriterOp::Insert(Box::new(first(1_000_000, 9)), reply)]);
    match answer.try_recv().unwrap().unwrap().value {
        Inserted::New(record) => {
            let last = was.model.values().map(|record| record.version).max().unwrap_or(0);
            assert!(record.version > last, "version {} after {last}", record.version);
        }
        Inserted::Exists(record) => panic!("nobody asked for {record:?}"),
    }
}

/// Crashes around one moment of a script.
struct Moment<'a> {
    disk: &'a Disk,
    seed: u64,
    was: &'a Known,
    would_be: &'a Known,
    number: usize,
    seen: &'a mut HashSet<(usize, u64)>,
    tried: &'a mut Tried,
}

/// Tries every crash before call number `at`.
pub(super) fn crash(
    disk: &Disk,
    at: usize,
    known: &[Known],
    seen: &mut HashSet<(usize, u64)>,
    tried: &mut Tried,
) {
    // What was acknowledged when this call was made, and what the step it belongs to would do.
    let number = known.partition_point(|known| known.calls <= at);
    let was = &known[number.saturating_sub(1)];
    let would_be = known.get(number).unwrap_or(was);
    let mut moment = Moment { disk, seed: at as u64, was, would_be, number, seen, tried };
    moment.by_sector();
    moment.by_page();
    moment.with_garbage();
}

impl Moment<'_> {
    /// Judges an image, unless one like it was judged. Says whether.
    fn attempt(&mut self, image: Image) -> bool {
        if !self.seen.insert((self.number, image.sum())) {
            return false;
        }
        let count = self.seen.len();
        if image.names.is_empty() {
            self.tried.no_folder += 1;
        }
        if count.is_multiple_of(DOCTOR_EVERY) && image.names.contains_key("store") {
            let report = examine(&TestFolder::of(image.clone())).unwrap();
            assert!(report.is_sound(), "it opens, and the doctor says: {report}");
            self.tried.doctor += 1;
        }
        if count.is_multiple_of(AGAIN_EVERY) {
            self.again(&image);
        }
        judge(image, self.was, self.would_be);
        true
    }

    /// Each sector of each write, and each change of a name, survives or not.
    fn by_sector(&mut self) {
        let disk = self.disk;
        let pending = disk.pending.len();
        let mut images = vec![disk.crashed(|_| false), disk.crashed(|_| true)];
        if pending <= ALL_SUBSETS {
            images.extend((0..1_u32 << pending).map(|set| disk.crashed(|n| set >> n & 1 == 1)));
        } else {
            for one in pending.saturating_sub(LATEST)..pending {
                images.push(disk.crashed(|n| n == one));
                images.push(disk.crashed(|n| n != one));
                images.push(disk.crashed(|n| n < one));
            }
            for sample in 0..SAMPLES {
                let mut dice = Dice(sample << 32 | self.seed);
                let keeps: Vec<bool> = (0..pending).map(|_| dice.below(2) == 1).collect();
                images.push(disk.crashed(|n| keeps[n]));
            }
        }
        for image in images {
            self.tried.sectors += usize::from(self.attempt(image));
        }
    }

    /// Each page survives whole or not at all.
    fn by_page(&mut self) {
        let disk = self.disk;
        let count = self.disk.dirty.len();
        for one in 0..count.min(ALL_SUBSETS) {
            for image in
                [disk.crashed_by_page(|page| page == one), disk.crashed_by_page(|page| page != one)]
            {
                self.tried.pages += usize::from(self.attempt(image));
            }
        }
    }

    /// Of the pages that are being written some sectors are neither old nor new, whatever stands in
    /// them.
    fn with_garbage(&mut self) {
        let disk = self.disk;
        let seed = self.seed;
        for one in 0..disk.dirty.len().min(ALL_SUBSETS) {
            let mut dice = Dice(seed << 8 | one as u64);
            let some = dice.below(256);
            for image in [
                disk.crashed_with_garbage(|_| true, |page, _| page == one, seed),
                disk.crashed_with_garbage(|_| false, |page, _| page == one, seed),
                disk.crashed_with_garbage(|_| true, |p, s| p == one && some >> s & 1 == 1, seed),
                disk.crashed_with_garbage(|n| n % 2 == 0, |p, s| p == one && s == 0, seed),
            ] {
                self.tried.garbage += usize::from(self.attempt(image));
            }
        }
    }

    /// Crashes again, at every call of the opening that follows this crash.
    fn again(&mut self, image: &Image) {
        let folder = TestFolder::of(image.clone());
        let log = open(&folder);
        let shown = Arc::new(shown(&log));
        drop(log);
        let mut disk = Disk::holding(image.clone());
        let calls = folder.calls();
        for call in &calls {
            for image in a_few_crashes(&disk) {
                judge(image, self.was, self.would_be);
                self.tried.again += 1;
            }
            disk.step(call);
        }
        // What an opening has shown is acknowledged.
        let now = Known { model: shown, ..self.was.clone() };
        for image in a_few_crashes(&disk) {
            judge(image, &now, &now);
            self.tried.again += 1;
        }
    }
}

/// Some of the crashes of a moment.
fn a_few_crashes(disk: &Disk) -> Vec<Image> {
    let is_name = |n: usize| !matches!(disk.pending[n].call, Call::Write(..));
    let mut images = vec![
        disk.crashed(|_| false),
        disk.crashed(|_| true),
        disk.crashed(|n| is_name(n) || n % 2 == 0),
        disk.crashed(|n| !is_name(n) && n % 2 == 1),
        disk.crashed_with_garbage(|_| true, |_, sector| sector % 2 == 0, 7),
        disk.crashed_with_garbage(|_| false, |_, sector| sector % 3 == 0, 7),
    ];
    images.dedup_by_key(|image| image.sum());
    images
}

/// Tries every crash of a script that has run.
pub(super) fn crash_everywhere(run: &Run) -> Tried {
    let calls = run.folder.calls();
    let mut seen = HashSet::new();
    let mut disk = Disk::default();
    let mut tried = Tried::default();
    for (at, call) in calls.iter().enumerate() {
        crash(&disk, at, &run.known, &mut seen, &mut tried);
        disk.step(call);
        let is_snapshot = matches!(call, Call::Rename(_, to, _) if to == "snapshot");
        tried.snapshots += usize::from(is_snapshot);
    }
    crash(&disk, calls.len(), &run.known, &mut seen, &mut tried);
    tried.calls += calls.len();
    tried.kills_in_commit += run.killed;
    tried.flushes_lost += run.flushes_lost;
    let log = run.log.as_ref().unwrap();
    tried.turns += log.tail().generation;
    tried.recycled += log.tail().generation.saturating_sub(u64::from(log.tail().ring.slots()));
    tried.copies += log.copied();
    tried
}

fn rehearse(mix: Mix, seed: u64) -> Tried {
    let mut run = Run::start(TestFolder::with_room(mix.room)).unwrap();
    run.run(&script(mix, seed)).unwrap();
    crash_everywhere(&run)
}

/// How many times as many scripts as usual are asked for.
pub(super) fn share() -> u64 {
    std::env::var("REHEARSE_SHARE").ok().and_then(|share| share.parse().ok()).unwrap_or(1)
}

/// Rehearses scripts on both processors until there are none left.
pub(super) fn work_off<T: Copy + Send>(
    scripts: Vec<(&str, T, u64)>,
    rehearse: impl Fn(T, u64) -> Tried + Sync,
) -> Tried {
    let scripts = Mutex::new(scripts);
    let work = || {
        let mut all = Tried::default();
        loop {
            let next = scripts.lock().unwrap().pop();
            let Some((name, mix, seed)) = next else { return all };
            let caught =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| rehearse(mix, seed)));
            all += caught.unwrap_or_else(|panic| {
                println!("script `{name}` failed; again with REHEARSE_SEED={seed}");
                std::panic::resume_unwind(panic)
            });
        }
    };
    let mut tried = Tried::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            tried += worker.join().unwrap();
        }
    });
    tried
}

#[test]
fn everything_acknowledged_survives_a_crash_at_any_call() {
    let only = std::env::var("REHEARSE_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let scripts = MIXES.iter().enumerate().flat_map(|(number, (name, mix))| {
        (0..SEEDS * share()).map(move |seed| (*name, *mix, number as u64 * 10_000 + seed))
    });
    let scripts: Vec<_> = scripts.filter(|one| only.is_none_or(|only| only == one.2)).collect();
    let count = scripts.len();
    let tried = work_off(scripts, rehearse);
    println!("{count} scripts, {} images, 0 failures: {tried:?}", tried.images());
    if only.is_none() {
        assert!(tried.images() >= 40_000, "{tried:?}");
        assert!(tried.pages > 300 && tried.garbage > 3_000 && tried.again > 5_000, "{tried:?}");
        assert!(tried.no_folder > 25 && tried.doctor > 500, "{tried:?}");
        assert!(tried.kills_in_commit > 20 && tried.flushes_lost > 30, "{tried:?}");
        assert!(tried.turns > 100 && tried.recycled > 50, "{tried:?}");
        assert!(tried.copies > 50 && tried.snapshots > 25, "{tried:?}");
    }
}

#[test]
fn a_snapshot_that_is_later_than_its_position_changes_nothing() {
    for (number, (_, mix)) in MIXES.into_iter().enumerate() {
        for seed in 0..10 {
            let mix = mix.in_one_life();
            let mut run = Run::start(TestFolder::with_room(mix.room)).unwrap();
            run.run(&script(mix, 9_000 + number as u64 * 100 + seed)).unwrap();
            let job = snapshot_taker::job(run.log.as_ref().unwrap().tail()).unwrap();
            run.run(&script(mix, 19_000 + number as u64 * 100 + seed)[..20]).unwrap();
            job();
            run.open_after_all().unwrap();
        }
    }
}
