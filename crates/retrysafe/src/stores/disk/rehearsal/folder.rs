//! What would be on the disk if the machine stopped now?
//!
//! A folder in memory that notes every call. From the notes follows what is durable for sure, and
//! what may be there or not: each sector of each write, each change of a name, on its own.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use super::super::files::{File, Folder};
use super::super::format::SECTOR;

/// A call that changes something.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Create(String, usize),
    Write(usize, usize, Arc<[u8]>),
    FlushFile(usize),
    Rename(String, String),
    Remove(String),
    FlushNames,
}

/// What a folder holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    pub(super) names: BTreeMap<String, usize>,
    pub(super) files: Vec<Vec<u8>>,
}

/// A folder in memory.
#[derive(Clone, Debug, Default)]
pub(super) struct TestFolder(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    image: Image,
    calls: Vec<Call>,
    /// Which call fails, counted from zero, and how.
    fault: Option<(usize, io::ErrorKind)>,
    count: usize,
    /// For how many segments there is room.
    room: Option<usize>,
}

#[derive(Debug)]
struct TestFile(usize, TestFolder);

impl TestFolder {
    pub(super) fn of(image: Image) -> Self {
        Self(Arc::new(Mutex::new(State { image, ..State::default() })))
    }

    /// A folder whose call number `at` fails.
    pub(super) fn failing(at: usize, kind: io::ErrorKind) -> Self {
        Self(Arc::new(Mutex::new(State { fault: Some((at, kind)), ..State::default() })))
    }

    /// A folder on a disk that is full when it holds so many segments.
    pub(super) fn with_room(segments: Option<usize>) -> Self {
        Self(Arc::new(Mutex::new(State { room: segments, ..State::default() })))
    }

    /// Somebody makes room on the disk.
    pub(super) fn make_room(&self) {
        self.0.lock().unwrap().room = None;
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.0.lock().unwrap().calls.clone()
    }

    pub(super) fn calls_len(&self) -> usize {
        self.0.lock().unwrap().calls.len()
    }

    /// How many calls there were that could have failed.
    pub(super) fn count(&self) -> usize {
        self.0.lock().unwrap().count
    }

    pub(super) fn image(&self) -> Image {
        self.0.lock().unwrap().image.clone()
    }

    /// Changes bytes of a file behind the store's back.
    pub(super) fn damage(&self, name: &str, at: usize) {
        let mut state = self.0.lock().unwrap();
        let inode = state.image.names[name];
        state.image.files[inode][at] ^= 0x40;
    }

    fn call(&self, call: Call) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        let number = state.count;
        state.count += 1;
        if let Some((at, kind)) = state.fault
            && at == number
        {
            // A write that fails may have come half way.
            if let Call::Write(inode, offset, bytes) = call {
                let half = Call::Write(inode, offset, bytes[..bytes.len() / 2].into());
                state.image.apply(&half);
                state.calls.push(half);
            }
            return Err(kind.into());
        }
        state.image.apply(&call);
        state.calls.push(call);
        Ok(())
    }
}

impl Image {
    /// A number that tells images apart.
    pub(super) fn sum(&self) -> u64 {
        let names = self.names.iter().fold(0, |sum, (name, inode)| {
            let sum = crc32c::crc32c_append(sum, name.as_bytes());
            crc32c::crc32c_append(sum, &inode.to_le_bytes())
        });
        let files = self.files.iter().fold(1, |sum, file| crc32c::crc32c_append(sum, file));
        u64::from(names) << 32 | u64::from(files)
    }

    /// What the call changes if nothing is ever lost.
    fn apply(&mut self, call: &Call) {
        match call {
            Call::Create(name, inode) => {
                self.files.resize(self.files.len().max(inode + 1), Vec::new());
                self.names.insert(name.clone(), *inode);
            }
            Call::Write(inode, offset, bytes) => {
                self.files.resize(self.files.len().max(inode + 1), Vec::new());
                let file = &mut self.files[*inode];
                file.resize(file.len().max(offset + bytes.len()), 0);
                file[*offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            Call::Rename(from, to) => {
                if let Some(inode) = self.names.remove(from) {
                    self.names.insert(to.clone(), inode);
                }
            }
            Call::Remove(name) => {
                self.names.remove(name);
            }
            Call::FlushFile(_) | Call::FlushNames => {}
        }
    }
}

/// What is durable, and what may be, at one moment of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    pub(super) durable: Image,
    /// Sectors and names that were changed and not flushed, in order.
    pub(super) pending: Vec<Call>,
}

impl Disk {
    /// Goes one call further.
    pub(super) fn step(&mut self, call: &Call) {
        match call {
            Call::FlushFile(inode) => self.settle(|pending| is_write_to(pending, *inode)),
            Call::FlushNames => {
                self.settle(|pending| !matches!(pending, Call::Write(..)));
            }
            Call::Write(inode, offset, bytes) => {
                let mut at = 0;
                while at < bytes.len() {
                    let end = ((offset + at) / SECTOR + 1) * SECTOR - offset;
                    let part = bytes[at..end.min(bytes.len())].into();
                    self.pending.push(Call::Write(*inode, offset + at, part));
                    at = end;
                }
            }
            Call::Create(..) | Call::Rename(..) | Call::Remove(..) => {
                self.pending.push(call.clone());
            }
        }
    }

    fn settle(&mut self, is_flushed: impl Fn(&Call) -> bool) {
        let (flushed, rest): (Vec<_>, Vec<_>) = self.pending.drain(..).partition(is_flushed);
        self.pending = rest;
        flushed.iter().for_each(|call| self.durable.apply(call));
    }

    /// What is there after a crash, if of the pending changes those survive that `keeps` says.
    pub(super) fn crashed(&self, keeps: impl Fn(usize) -> bool) -> Image {
        let mut image = self.durable.clone();
        for (at, call) in self.pending.iter().enumerate() {
            if keeps(at) {
                image.apply(call);
            }
        }
        image
    }
}

fn is_write_to(call: &Call, file: usize) -> bool {
    matches!(call, Call::Write(inode, ..) if *inode == file)
}

impl Folder for TestFolder {
    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().unwrap().image.names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let inode = self.0.lock().unwrap().image.names.get(name).copied();
        let inode = inode.ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(TestFile(inode, self.clone())))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let state = self.0.lock().unwrap();
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
        self.call(Call::Rename(from.into(), to.into()))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.call(Call::Remove(name.into()))
    }

    fn flush(&self) -> io::Result<()> {
        self.call(Call::FlushNames)
    }
}

impl File for TestFile {
    fn bytes(&self) -> io::Result<u64> {
        let state = self.1.0.lock().unwrap();
        Ok(state.image.files.get(self.0).map_or(0, Vec::len) as u64)
    }

    fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.1.0.lock().unwrap();
        let file = state.image.files.get(self.0).map_or(&[][..], Vec::as_slice);
        let offset = offset as usize;
        let bytes = file.get(offset..offset + into.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        into.copy_from_slice(bytes);
        Ok(())
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.1.call(Call::Write(self.0, offset as usize, bytes.into()))
    }

    fn flush(&self) -> io::Result<()> {
        self.1.call(Call::FlushFile(self.0))
    }
}
