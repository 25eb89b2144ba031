//! How does a ledger come in order that does not fit into memory?
//!
//! As many lines as may be held are sorted and written to a temporary file, again and again; then the files are read side by
//! side. The files have no names, so that nothing is left behind however the program ends.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek as _, Write};

use super::amount::Amount;
use super::entry::{Entry, Place};

/// How many bytes of lines are held before they are written.
const RUN_BYTES_MAX: usize = 32 << 20;

/// What a line takes up beside its texts, about.
const ENTRY_BYTES: usize = 160;

/// How many files are read side by side. Past that they are made one, so that buffers and descriptors are bounded.
const RUNS_MAX: usize = 128;

/// The longest text that is written: no line is longer.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// Takes lines in any order.
#[derive(Debug)]
pub(super) struct Sorter {
    held: Vec<Entry>,
    held_bytes: usize,
    runs: Vec<File>,
    run_bytes_max: usize,
}

impl Default for Sorter {
    fn default() -> Self {
        Self { held: Vec::new(), held_bytes: 0, runs: Vec::new(), run_bytes_max: RUN_BYTES_MAX }
    }
}

impl Sorter {
    pub(super) fn push(&mut self, entry: Entry) -> Result<(), String> {
        let texts =
            entry.key.len() + entry.fields.iter().map(|field| field.len() + 24).sum::<usize>();
        self.held_bytes += ENTRY_BYTES + texts;
        self.held.push(entry);
        if self.held_bytes >= self.run_bytes_max {
            self.write_run().map_err(|error| told(&error))?;
        }
        Ok(())
    }

    /// All lines in the byte order of their keys.
    pub(super) fn finish(mut self) -> Result<SortedLedger, String> {
        self.write_run().and_then(|()| SortedLedger::open(self.runs)).map_err(|error| told(&error))
    }

    fn write_run(&mut self) -> io::Result<()> {
        // Lines with the same key stay in the order in which they came.
        self.held.sort_by(|one, other| one.key.as_bytes().cmp(other.key.as_bytes()));
        let mut file = BufWriter::new(tempfile::tempfile()?);
        for entry in self.held.drain(..) {
            write_entry(&mut file, &entry)?;
        }
        self.held_bytes = 0;
        self.runs.push(file.into_inner()?);
        if self.runs.len() == RUNS_MAX {
            let mut all = SortedLedger::open(std::mem::take(&mut self.runs))?;
            let mut file = BufWriter::new(tempfile::tempfile()?);
            while let Some(entry) = all.read()? {
                write_entry(&mut file, &entry)?;
            }
            self.runs.push(file.into_inner()?);
        }
        Ok(())
    }
}

fn told(error: &io::Error) -> String {
    let folder = std::env::temp_dir();
    format!(
        "sorting needs temporary files in {}: {error}; TMPDIR names another folder",
        folder.display()
    )
}

/// Lines in order.
#[derive(Debug)]
pub(super) struct SortedLedger {
    runs: Vec<BufReader<File>>,
    heads: BinaryHeap<Reverse<RunHead>>,
    last: Option<(String, Place)>,
}

impl SortedLedger {
    fn open(runs: Vec<File>) -> io::Result<Self> {
        let mut sorted = Self { runs: Vec::new(), heads: BinaryHeap::new(), last: None };
        for mut file in runs {
            file.rewind()?;
            sorted.runs.push(BufReader::with_capacity(64 * 1024, file));
        }
        for run in 0..sorted.runs.len() {
            sorted.read_head(run)?;
        }
        Ok(sorted)
    }

    fn read_head(&mut self, run: usize) -> io::Result<()> {
        let Some(file) = self.runs.get_mut(run) else { return Ok(()) };
        if let Some(entry) = read_entry(file)? {
            self.heads.push(Reverse(RunHead { entry, run }));
        }
        Ok(())
    }

    fn read(&mut self) -> io::Result<Option<Entry>> {
        let Some(Reverse(RunHead { entry, run })) = self.heads.pop() else { return Ok(None) };
        self.read_head(run)?;
        Ok(Some(entry))
    }

    /// The next line. A line that was read twice from the same place, as a scan of a store may do, comes once.
    pub(super) fn next(&mut self) -> Result<Option<Entry>, String> {
        while let Some(entry) = self.read().map_err(|error| told(&error))? {
            let is_again = self
                .last
                .as_ref()
                .is_some_and(|(key, place)| *key == entry.key && *place == entry.place);
            if !is_again {
                self.last = Some((entry.key.clone(), entry.place));
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }
}

/// The next line of one file.
#[derive(Debug)]
struct RunHead {
    entry: Entry,
    run: usize,
}

impl Ord for RunHead {
    fn cmp(&self, other: &Self) -> Ordering {
        let keys = self.entry.key.as_bytes().cmp(other.entry.key.as_bytes());
        keys.then(self.run.cmp(&other.run))
    }
}

impl PartialOrd for RunHead {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for RunHead {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for RunHead {}

fn write_entry(file: &mut impl Write, entry: &Entry) -> io::Result<()> {
    write_text(file, &entry.key)?;
    let (kind, first, second) = entry.place.to_numbers();
    file.write_all(&[kind, u8::from(entry.amount.is_some()), u8::from(entry.currency.is_some())])?;
    file.write_all(&first.to_le_bytes())?;
    file.write_all(&second.to_le_bytes())?;
    if let Some(amount) = entry.amount {
        file.write_all(&amount.to_bytes())?;
    }
    if let Some(currency) = &entry.currency {
        write_text(file, currency)?;
    }
    file.write_all(&(entry.fields.len() as u32).to_le_bytes())?;
    entry.fields.iter().try_for_each(|field| write_text(file, field))
}

fn write_text(file: &mut impl Write, text: &str) -> io::Result<()> {
    file.write_all(&(text.len() as u32).to_le_bytes())?;
    file.write_all(text.as_bytes())
}

/// The next line of a file; none at its end.
fn read_entry(file: &mut impl Read) -> io::Result<Option<Entry>> {
    let mut length = [0; 4];
    if file.read(&mut length[..1])? == 0 {
        return Ok(None);
    }
    file.read_exact(&mut length[1..])?;
    let key = read_text_of(file, length)?;
    let [kind, has_amount, has_currency] = read_bytes(file)?;
    let first = u64::from_le_bytes(read_bytes(file)?);
    let second = u64::from_le_bytes(read_bytes(file)?);
    let place = Place::from_numbers(kind, first, second).ok_or_else(damaged)?;
    let amount = if has_amount == 1 { Some(Amount::from_bytes(read_bytes(file)?)) } else { None };
    let currency = if has_currency == 1 { Some(read_text(file)?) } else { None };
    let count = u32::from_le_bytes(read_bytes(file)?);
    let fields = (0..count).map(|_| read_text(file)).collect::<io::Result<_>>()?;
    Ok(Some(Entry { key, amount, currency, fields, place }))
}

fn read_bytes<const N: usize>(file: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn read_text(file: &mut impl Read) -> io::Result<String> {
    let length = read_bytes(file)?;
    read_text_of(file, length)
}

fn read_text_of(file: &mut impl Read, length: [u8; 4]) -> io::Result<String> {
    let length = u32::from_le_bytes(length) as usize;
    if length > TEXT_BYTES_MAX {
        return Err(damaged());
    }
    let mut bytes = vec![0; length];
    file.read_exact(&mut bytes)?;
    String::from_utf8(bytes).map_err(|_| damaged())
}

fn damaged() -> io::Error {
    io::Error::other("a temporary file has changed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64) -> Entry {
        Entry {
            key: format!("{:05}", number * 7919 % 10_007),
            amount: (!number.is_multiple_of(3)).then(|| Amount::parse("-12.5").unwrap()),
            currency: (!number.is_multiple_of(2)).then(|| "EUR".into()),
            fields: vec![format!("ä{number}"), String::new()],
            place: Place::Line(number),
        }
    }

    #[test]
    fn lines_come_in_order_and_whole_however_often_files_are_merged() {
        // Four lines in a file: the files are merged into one eight times on the way.
        let mut sorter = Sorter { run_bytes_max: 700, ..Sorter::default() };
        for number in 0..4_000 {
            sorter.push(entry(number)).unwrap();
        }
        assert!(sorter.runs.len() < RUNS_MAX);
        let mut sorted = sorter.finish().unwrap();
        let mut expected: Vec<Entry> = (0..4_000).map(entry).collect();
        expected.sort_by(|one, other| one.key.cmp(&other.key));
        for expected in expected {
            assert_eq!(sorted.next().unwrap(), Some(expected));
        }
        assert_eq!(sorted.next().unwrap(), None);
        assert_eq!(Sorter::default().finish().unwrap().next().unwrap(), None, "an empty ledger");
    }

    #[test]
    fn a_line_that_was_read_twice_comes_once_and_two_lines_with_one_key_come_both() {
        let mut sorter = Sorter { run_bytes_max: 1, ..Sorter::default() };
        for number in [3, 1, 3, 2] {
            sorter.push(entry(number)).unwrap();
        }
        sorter.push(Entry { place: Place::Line(9), ..entry(3) }).unwrap();
        let mut sorted = sorter.finish().unwrap();
        let mut places = Vec::new();
        while let Some(entry) = sorted.next().unwrap() {
            places.push(entry.place);
        }
        assert_eq!(places.len(), 4, "{places:?}");
    }
}
