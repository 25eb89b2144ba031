//! What would be on the disk if the machine stopped now?
//!
//! A folder in memory that notes every call. What it shows is what a page cache would. From the notes
//! follows what is durable for sure, and what may be there or not: each sector of each write, each
//! change of a name, the folder itself. A page that is being written may also be left as neither.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::super::files::{StoreFile, StoreFolder};
use super::super::format::PAGE;
use super::script::Dice;

/// What a disk writes whole, or else leaves broken.
const SECTOR: usize = 512;

/// How long a call of a thread beside the writer waits for others to come first, at most.
const HELD_BACK_MAX: Duration = Duration::from_micros(300);

/// A call that changes something.
#[derive(Clone, Debug)]
pub(super) enum Call {
    /// The folder itself was made.
    MakeFolder,
    FlushParents,
    Create(String, usize),
    /// A file was created in place of one that had the name.
    Truncate(usize),
    Write(usize, usize, Arc<[u8]>),
    FlushFile(usize),
    /// A flush that failed, after which the pages count as clean: no later flush writes them.
    FlushFailed(usize),
    /// From which name, to which one, and the file that had it.
    Rename(String, String, usize),
    Remove(String),
    FlushNames,
}

/// What a folder holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    pub(super) names: BTreeMap<String, usize>,
    pub(super) files: Vec<Arc<Vec<u8>>>,
}

/// A folder in memory.
#[derive(Clone, Debug, Default)]
pub(super) struct TestFolder(Arc<Inside>);

#[derive(Debug, Default)]
struct Inside {
    state: Mutex<State>,
    /// Told of every call.
    called: Condvar,
}

#[derive(Debug, Default)]
struct State {
    image: Image,
    calls: Vec<Call>,
    /// Which call fails, counted from zero, and how.
    fault: Option<(usize, io::ErrorKind)>,
    /// The call from which on the process is dead.
    dead_from: Option<usize>,
    /// Whether the next flush of a file fails and leaves its pages clean.
    loses_flush: bool,
    count: usize,
    /// For how many segments there is room.
    room: Option<usize>,
    /// Whether somebody has taken the folder away.
    is_taken: bool,
    /// Whether calls of other threads than the writer's are held back now and then.
    dice: Option<Dice>,
}

#[derive(Debug)]
struct TestFile(usize, TestFolder);

impl TestFolder {
    fn with(state: State) -> Self {
        let inside = Inside { state: Mutex::new(state), called: Condvar::new() };
        Self(Arc::new(inside))
    }

    pub(super) fn of(image: Image) -> Self {
        Self::with(State { image, ..State::default() })
    }

    /// A folder whose call number `at` fails.
    pub(super) fn failing(at: usize, kind: io::ErrorKind) -> Self {
        Self::with(State { fault: Some((at, kind)), ..State::default() })
    }

    /// A folder that was just made, on a disk that is full when it holds so many segments.
    pub(super) fn with_room(segments: Option<usize>) -> Self {
        Self::with(State { calls: vec![Call::MakeFolder], room: segments, ..State::default() })
    }

    /// From now on calls of the threads beside the writer come late, as chance will have it.
    pub(super) fn hold_threads_back(&self, seed: u64) {
        self.state().dice = Some(Dice(seed));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    /// Somebody makes room on the disk.
    pub(super) fn make_room(&self) {
        self.state().room = None;
    }

    /// The process dies after so many more calls; then it is gone until [`revive`](Self::revive).
    pub(super) fn die_after(&self, calls: usize) {
        let mut state = self.state();
        state.dead_from = Some(state.count + calls);
    }

    /// Another process comes. Says whether the former one had died.
    pub(super) fn revive(&self) -> bool {
        let mut state = self.state();
        state.loses_flush = false;
        let count = state.count;
        state.dead_from.take().is_some_and(|from| count > from)
    }

    pub(super) fn lose_next_flush(&self) {
        self.state().loses_flush = true;
    }

    pub(super) fn take_away(&self) {
        self.state().is_taken = true;
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    pub(super) fn calls_len(&self) -> usize {
        self.state().calls.len()
    }

    /// How many calls there were that could have failed.
    pub(super) fn count(&self) -> usize {
        self.state().count
    }

    pub(super) fn image(&self) -> Image {
        self.state().image.clone()
    }

    /// Changes bytes of a file behind the store's back.
    pub(super) fn damage(&self, name: &str, at: usize) {
        let mut state = self.state();
        let inode = state.image.names[name];
        Arc::make_mut(&mut state.image.files[inode])[at] ^= 0x40;
    }

    /// Lets others come first, now and then, if this is a thread beside the writer.
    fn hold_back(&self, mut state: MutexGuard<'_, State>) {
        let is_beside = std::thread::current().name().is_some_and(|n| n.starts_with("retrysafe-"));
        let wait_for = match &mut state.dice {
            Some(dice) if is_beside => dice.below(4) as usize,
            Some(_) | None => 0,
        };
        let until = state.calls.len() + wait_for;
        while state.calls.len() < until {
            let (back, timed) = self.0.called.wait_timeout(state, HELD_BACK_MAX).unwrap();
            state = back;
            if timed.timed_out() {
                return;
            }
        }
    }

    fn call(&self, call: Call) -> io::Result<()> {
        self.hold_back(self.state());
        let mut state = self.state();
        let number = state.count;
        state.count += 1;
        let dies = state.dead_from.is_some_and(|from| number >= from);
        let fails = state.fault.filter(|(at, _)| *at == number);
        if dies || fails.is_some() {
            // A write that fails may have come half way; so may the last one of a process.
            let is_last = state.dead_from.is_none_or(|from| number == from);
            if let Call::Write(inode, offset, bytes) = call
                && is_last
            {
                state.note(Call::Write(inode, offset, bytes[..bytes.len() / 2].into()));
            }
            let kind = fails.map_or(io::ErrorKind::BrokenPipe, |(_, kind)| kind);
            return Err(kind.into());
        }
        if let Call::FlushFile(inode) = call
            && std::mem::take(&mut state.loses_flush)
        {
            state.note(Call::FlushFailed(inode));
            return Err(io::Error::other("the flush failed and left the pages clean"));
        }
        state.note(call);
        self.0.called.notify_all();
        Ok(())
    }

    fn inode_of(&self, name: &str) -> io::Result<usize> {
        let inode = self.state().image.names.get(name).copied();
        inode.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl State {
    fn note(&mut self, call: Call) {
        self.image.apply(&call);
        self.calls.push(call);
    }
}

impl Image {
    /// A number that tells images apart.
    pub(super) fn sum(&self) -> u64 {
        let mut bytes = Vec::new();
        for (name, inode) in &self.names {
            bytes.extend_from_slice(name.as_bytes());
            let file = self.files.get(*inode).map_or(&[][..], |file| file.as_slice());
            bytes.extend_from_slice(&twox_hash::XxHash3_64::oneshot(file).to_le_bytes());
        }
        twox_hash::XxHash3_64::oneshot(&bytes)
    }

    fn file(&mut self, inode: usize) -> &mut Vec<u8> {
        let count = self.files.len().max(inode + 1);
        self.files.resize(count, Arc::default());
        Arc::make_mut(&mut self.files[inode])
    }

    fn part(&self, inode: usize, start: usize, length: usize) -> &[u8] {
        let file = self.files.get(inode).map_or(&[][..], |file| file.as_slice());
        file.get(start..file.len().min(start + length)).unwrap_or_default()
    }

    /// What the call changes if nothing is ever lost.
    fn apply(&mut self, call: &Call) {
        match call {
            Call::Create(name, inode) => {
                self.file(*inode);
                self.names.insert(name.clone(), *inode);
            }
            Call::Truncate(inode) => self.file(*inode).clear(),
            Call::Write(inode, offset, bytes) => {
                let file = self.file(*inode);
                file.resize(file.len().max(offset + bytes.len()), 0);
                file[*offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            Call::Rename(from, to, inode) => {
                self.file(*inode);
                if self.names.get(from) == Some(inode) {
                    self.names.remove(from);
                }
                self.names.insert(to.clone(), *inode);
            }
            Call::Remove(name) => {
                self.names.remove(name);
            }
            Call::MakeFolder
            | Call::FlushParents
            | Call::FlushFile(_)
            | Call::FlushFailed(_)
            | Call::FlushNames => {}
        }
    }
}

/// What is durable after some calls, and what may become so.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    pub(super) durable: Image,
    pub(super) pending: Vec<Pending>,
    /// Pages that are being written, by file and offset: whatever else stands in them is written
    /// with them.
    pub(super) dirty: BTreeSet<(usize, usize)>,
}

/// A change that may be on the disk or not.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) call: Call,
    /// Whether its pages count as clean: no flush makes it durable.
    is_clean: bool,
}

impl Disk {
    /// A disk that holds this for sure.
    pub(super) fn holding(durable: Image) -> Self {
        Self { durable, ..Self::default() }
    }

    pub(super) fn step(&mut self, call: &Call) {
        match call {
            Call::FlushParents => self.settle(|call| matches!(call, Call::MakeFolder)),
            Call::FlushNames => {
                self.settle(|call| {
                    matches!(call, Call::Create(..) | Call::Rename(..) | Call::Remove(..))
                });
            }
            Call::FlushFile(inode) => {
                self.settle(|call| is_content_of(call, *inode));
                self.dirty.retain(|(file, _)| file != inode);
            }
            Call::FlushFailed(inode) => {
                for pending in &mut self.pending {
                    pending.is_clean |= is_content_of(&pending.call, *inode);
                }
                self.dirty.retain(|(file, _)| file != inode);
            }
            Call::Write(inode, offset, bytes) => self.write(*inode, *offset, bytes),
            Call::MakeFolder
            | Call::Create(..)
            | Call::Truncate(_)
            | Call::Rename(..)
            | Call::Remove(..) => {
                self.pending.push(Pending { call: call.clone(), is_clean: false });
            }
        }
    }

    /// Notes each sector of a write that changes anything.
    fn write(&mut self, inode: usize, offset: usize, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            let start = offset + at;
            let end = ((start / SECTOR + 1) * SECTOR - offset).min(bytes.len());
            let part = &bytes[at..end];
            let is_pending = self.pending.iter().any(|one| is_over(&one.call, inode, start));
            if is_pending || self.durable.part(inode, start, part.len()) != part {
                let call = Call::Write(inode, start, part.into());
                self.pending.push(Pending { call, is_clean: false });
            }
            self.dirty.insert((inode, start / PAGE * PAGE));
            at = end;
        }
    }

    fn settle(&mut self, is_flushed: impl Fn(&Call) -> bool) {
        let (flushed, rest): (Vec<_>, Vec<_>) =
            self.pending.drain(..).partition(|one| !one.is_clean && is_flushed(&one.call));
        self.pending = rest;
        for Pending { call, .. } in &flushed {
            self.durable.apply(call);
            if let Call::Write(inode, offset, _) = call {
                // What was lost there before cannot come back.
                self.pending.retain(|one| !one.is_clean || !is_over(&one.call, *inode, *offset));
            }
        }
    }

    /// What is there after a crash, if of the pending changes those survive that `keeps` says.
    pub(super) fn crashed(&self, keeps: impl Fn(usize) -> bool) -> Image {
        let mut image = self.durable.clone();
        for (at, Pending { call, .. }) in self.pending.iter().enumerate() {
            if keeps(at) {
                image.apply(call);
            } else if matches!(call, Call::MakeFolder) {
                return Image::default();
            }
        }
        image
    }

    /// The same, where whole pages survive or not.
    pub(super) fn crashed_by_page(&self, keeps: impl Fn(usize) -> bool) -> Image {
        let mut pages: Vec<(usize, usize)> = Vec::new();
        let group: Vec<Option<usize>> = self
            .pending
            .iter()
            .map(|Pending { call, .. }| match call {
                Call::Write(inode, offset, _) => {
                    let page = (*inode, offset / PAGE * PAGE);
                    let known = pages.iter().position(|one| *one == page);
                    Some(known.unwrap_or_else(|| {
                        pages.push(page);
                        pages.len() - 1
                    }))
                }
                Call::MakeFolder
                | Call::FlushParents
                | Call::Create(..)
                | Call::Truncate(_)
                | Call::FlushFile(_)
                | Call::FlushFailed(_)
                | Call::Rename(..)
                | Call::Remove(..)
                | Call::FlushNames => None,
            })
            .collect();
        self.crashed(|n| group[n].is_none_or(&keeps))
    }

    /// The same, where a page that was being written is left as neither: the sectors that `breaks`
    /// says hold anything.
    pub(super) fn crashed_with_garbage(
        &self,
        keeps: impl Fn(usize) -> bool,
        breaks: impl Fn(usize, usize) -> bool,
        seed: u64,
    ) -> Image {
        let mut image = self.crashed(keeps);
        let mut dice = Dice(seed);
        for (page, (inode, start)) in self.dirty.iter().enumerate() {
            let Some(file) = image.files.get_mut(*inode).map(Arc::make_mut) else { continue };
            for sector in 0..PAGE / SECTOR {
                let from = start + sector * SECTOR;
                let until = file.len().min(from + SECTOR);
                if breaks(page, sector)
                    && let Some(bytes) = file.get_mut(from..until)
                {
                    bytes.fill_with(|| dice.below(256) as u8);
                }
            }
        }
        image
    }
}

/// Whether a call changes what a file holds.
fn is_content_of(call: &Call, file: usize) -> bool {
    matches!(call, Call::Write(inode, ..) | Call::Truncate(inode) if *inode == file)
}

/// Whether a call writes the sector at an offset.
fn is_over(call: &Call, file: usize, offset: usize) -> bool {
    matches!(call, Call::Write(inode, start, _)
        if *inode == file && start / SECTOR == offset / SECTOR)
}

impl StoreFolder for TestFolder {
    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.state().image.names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StoreFile>> {
        Ok(Arc::new(TestFile(self.inode_of(name)?, self.clone())))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn StoreFile>> {
        if let Ok(inode) = self.inode_of(name) {
            self.call(Call::Truncate(inode))?;
            return Ok(Arc::new(TestFile(inode, self.clone())));
        }
        let state = self.state();
        let inode = state.image.files.len();
        let segments = state.image.names.keys().filter(|name| name.starts_with("segment-")).count();
        let is_full = state.room.is_some_and(|room| segments >= room);
        drop(state);
        if is_full && name.starts_with("segment-") {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.call(Call::Create(name.into(), inode))?;
        Ok(Arc::new(TestFile(inode, self.clone())))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let inode = self.inode_of(from)?;
        self.call(Call::Rename(from.into(), to.into(), inode))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inode_of(name)?;
        self.call(Call::Remove(name.into()))
    }

    fn flush(&self) -> io::Result<()> {
        self.call(Call::FlushNames)
    }

    fn flush_parents(&self) -> io::Result<()> {
        self.call(Call::FlushParents)
    }

    fn close_to_others(&self) -> io::Result<()> {
        Ok(())
    }

    fn check_present(&self) -> io::Result<()> {
        if self.state().is_taken { Err(io::ErrorKind::NotFound.into()) } else { Ok(()) }
    }
}

impl StoreFile for TestFile {
    fn bytes(&self) -> io::Result<u64> {
        let state = self.1.state();
        Ok(state.image.files.get(self.0).map_or(0, |file| file.len()) as u64)
    }

    fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.1.state();
        let bytes = state.image.part(self.0, offset as usize, into.len());
        if bytes.len() != into.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        into.copy_from_slice(bytes);
        Ok(())
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.1.call(Call::Write(self.0, offset as usize, bytes.into()))
    }

    fn flush(&self) -> io::Result<()> {
        self.1.call(Call::FlushFile(self.0))
    }

    fn is_removed(&self) -> io::Result<bool> {
        Ok(!self.1.state().image.names.values().any(|inode| *inode == self.0))
    }
}
