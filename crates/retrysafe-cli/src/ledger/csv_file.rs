//! How is a ledger read from a CSV file?
//!
//! Its first line names the columns. Fields may be quoted and have line breaks in them. Every line must have as many
//! fields as the first, and no line may be longer than a bound: a quote that is never closed would otherwise be read
//! to the end of the file, into memory.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use csv::{ByteRecord, ErrorKind, Reader, ReaderBuilder};

use super::columns::{Columns, Values};
use super::entry::{Entry, Place};
use super::quote::quoted;
use super::window::Window;

/// The longest line, in bytes, whatever line breaks are quoted in it.
pub(super) const LINE_BYTES_MAX: u64 = 1 << 20;

/// How much of the file is read ahead.
const BUFFER_BYTES: usize = 64 * 1024;

/// How many names of columns stand in an error.
const NAMED_MAX: usize = 20;

/// A CSV file that is read from its beginning to its end.
#[derive(Debug)]
pub(super) struct CsvLedger {
    reader: Reader<BoundedFile>,
    record: ByteRecord,
    columns: Columns,
    /// Where each wanted column stands.
    places: Vec<usize>,
    window: Window,
}

impl CsvLedger {
    pub(super) fn open(
        path: &Path,
        delimiter: u8,
        columns: Columns,
        window: Window,
    ) -> Result<Self, String> {
        let file = File::open(path).map_err(|error| error.to_string())?;
        let bounded = BoundedFile::new(file);
        let mut reader = ReaderBuilder::new()
            .delimiter(delimiter)
            .buffer_capacity(BUFFER_BYTES)
            .from_reader(bounded);
        let header = reader.byte_headers().map_err(|error| told(&error, 1))?.clone();
        let places = find_columns(&header, &columns, delimiter)?;
        Ok(Self { reader, record: ByteRecord::new(), columns, places, window })
    }

    /// The next line within the window; none at the end.
    pub(super) fn next(&mut self) -> Result<Option<Entry>, String> {
        loop {
            let begins_at = self.reader.position().byte();
            self.reader.get_mut().read_until = begins_at + LINE_BYTES_MAX + BUFFER_BYTES as u64;
            match self.reader.read_byte_record(&mut self.record) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(error) => {
                    let byte = error.position().map_or(begins_at, csv::Position::byte);
                    return Err(told(&error, self.reader.get_mut().line_at(byte)));
                }
            }
            let line = self.reader.get_mut().line_at(begins_at);
            let wrong = |why: String| format!("line {line}: {why}");
            let values = CsvLine::read(&self.record, &self.places).map_err(wrong)?;
            let entry =
                self.columns.entry(&values, &self.window, Place::Line(line)).map_err(wrong)?;
            if entry.is_some() {
                return Ok(entry);
            }
        }
    }
}

/// The wanted fields of one line.
struct CsvLine<'r> {
    record: &'r ByteRecord,
    places: &'r [usize],
}

impl<'r> CsvLine<'r> {
    /// Makes sure that every wanted field is text.
    fn read(record: &'r ByteRecord, places: &'r [usize]) -> Result<Self, String> {
        for place in places {
            let field = record.get(*place).unwrap_or_default();
            std::str::from_utf8(field).map_err(|_| not_utf8(field))?;
        }
        Ok(Self { record, places })
    }
}

impl Values for CsvLine<'_> {
    fn value(&self, at: usize) -> Option<&str> {
        std::str::from_utf8(self.record.get(*self.places.get(at)?)?).ok()
    }
}

fn not_utf8(field: &[u8]) -> String {
    let shown = String::from_utf8_lossy(field);
    format!("{} is not UTF-8: convert the file, for example with iconv -t UTF-8", quoted(&shown))
}

/// Where each wanted column stands in the first line.
fn find_columns(
    header: &ByteRecord,
    columns: &Columns,
    delimiter: u8,
) -> Result<Vec<usize>, String> {
    if header.is_empty() {
        return Err("the file is empty: its first line must name the columns".into());
    }
    let place = |name: &str| {
        let mut found = header.iter().enumerate().filter(|(_, column)| *column == name.as_bytes());
        let Some((place, _)) = found.next() else { return Err(no_column(name, header, delimiter)) };
        match found.next() {
            None => Ok(place),
            Some(_) => Err(format!("line 1 names the column {} twice", quoted(name))),
        }
    };
    columns.wanted().into_iter().map(place).collect()
}

fn no_column(name: &str, header: &ByteRecord, delimiter: u8) -> String {
    let names =
        header.iter().take(NAMED_MAX).map(|column| quoted(&String::from_utf8_lossy(column)));
    let names: Vec<String> = names.collect();
    let hint = if header.len() == 1 {
        format!(
            " (fields are separated by {:?}; --delimiter says otherwise)",
            char::from(delimiter)
        )
    } else {
        String::new()
    };
    format!(
        "there is no column {}: line 1 must name the columns, and names {}{hint}",
        quoted(name),
        names.join(", ")
    )
}

/// An error of the reader with its line.
fn told(error: &csv::Error, line: u64) -> String {
    if let ErrorKind::Io(error) = error.kind() {
        return error.to_string();
    }
    if let ErrorKind::UnequalLengths { expected_len, len, .. } = error.kind() {
        return format!(
            "line {line}: it has {len} fields, and line 1 names {expected_len} columns"
        );
    }
    format!("line {line}: {error}")
}

/// A file of which no more is read than one line may have, and whose lines are counted: the reader counts a line that ends in
/// CR LF one too late.
#[derive(Debug)]
struct BoundedFile {
    file: File,
    read: u64,
    /// Up to where it may be read now.
    read_until: u64,
    /// The ends of lines that were read ahead: where, and whether the line is blank.
    ends: VecDeque<(u64, bool)>,
    /// How many lines are over.
    line: u64,
    /// Whether the line that is being read is blank so far.
    is_blank: bool,
}

impl BoundedFile {
    fn new(file: File) -> Self {
        Self {
            file,
            read: 0,
            read_until: LINE_BYTES_MAX,
            ends: VecDeque::new(),
            line: 0,
            is_blank: true,
        }
    }

    /// The number of the line on which what begins at or behind a byte stands. Blank lines are passed over.
    fn line_at(&mut self, byte: u64) -> u64 {
        while self.ends.front().is_some_and(|(end, is_blank)| *end <= byte && byte > 0 || *is_blank)
        {
            self.ends.pop_front();
            self.line += 1;
        }
        self.line + 1
    }
}

impl Read for BoundedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read >= self.read_until {
            return Err(io::Error::other(format!(
                "a line is longer than {LINE_BYTES_MAX} bytes: is there a quote that is never closed?"
            )));
        }
        let count = self.file.read(buffer)?;
        for (at, byte) in (self.read..).zip(buffer.iter().take(count)) {
            if *byte == b'\n' {
                self.ends.push_back((at, self.is_blank));
                self.is_blank = true;
            } else if *byte != b'\r' {
                self.is_blank = false;
            }
        }
        self.read += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::super::columns::tests::columns;
    use super::*;

    fn open(text: &[u8]) -> Result<CsvLedger, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        CsvLedger::open(file.path(), b',', columns(), Window::default())
    }

    /// The keys and the lines on which they stand; or what went wrong.
    fn read(text: &[u8]) -> Result<Vec<String>, String> {
        let mut ledger = open(text)?;
        let mut found = Vec::new();
        while let Some(entry) = ledger.next()? {
            found.push(format!("{} {}", entry.key, entry.place));
        }
        Ok(found)
    }

    #[test]
    fn what_other_programs_export_is_read() {
        let plain = "id,amount,currency,status\na,1,EUR,paid\nb,-2.50,EUR,paid\n";
        assert_eq!(read(plain.as_bytes()).unwrap(), ["a line 2", "b line 3"]);
        let windows = format!("\u{feff}{}", plain.replace('\n', "\r\n"));
        assert_eq!(read(windows.as_bytes()).unwrap(), ["a line 2", "b line 3"], "BOM and CRLF");
        assert_eq!(
            read(plain.trim_end().as_bytes()).unwrap(),
            ["a line 2", "b line 3"],
            "no last line break"
        );
        let quoted =
            "status,\"id\",amount,currency\n\"pa\nid, \"\"twice\"\"\",\"a,1\",1,EUR\nx,b,2,EUR\n";
        assert_eq!(read(quoted.as_bytes()).unwrap(), ["a,1 line 2", "b line 4"]);
        let blank =
            "\r\n\r\nid,amount,currency,status\r\n\r\na,1,EUR,paid\n\n\nb,1,EUR,paid\r\n\r\n";
        assert_eq!(
            read(blank.as_bytes()).unwrap(),
            ["a line 5", "b line 8"],
            "blank lines, and both kinds"
        );
        assert_eq!(read(b"id,amount,currency,status\n").unwrap(), Vec::<String>::new(), "no lines");
        // What nobody asked for may be in any encoding.
        let other = b"id,amount,currency,status,note\na,1,EUR,paid,\xff\xfe\n";
        assert_eq!(read(other).unwrap(), ["a line 2"]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, told) in [
            (&b""[..], "empty"),
            (
                b"a,1,EUR,paid\nb,2,EUR,paid\n",
                "no column \"id\": line 1 must name the columns, and names \"a\", \"1\"",
            ),
            (b"id;amount;currency;status\n", "--delimiter"),
            (b"id,amount,currency,status,id\n", "twice"),
            (
                b"id,amount,currency,status\na,1,EUR,paid\nb,12,50,EUR,paid\n",
                "line 3: it has 5 fields",
            ),
            (b"id,amount,currency,status\na,1,EUR\n", "line 2: it has 3 fields"),
            (
                b"id,amount,currency,status\na,\"12,50\",EUR,paid\n",
                "line 2: column \"amount\": \"12,50\"",
            ),
            (
                b"id,amount,currency,status\na,1,EUR,paid\nb,1e3,EUR,paid\n",
                "line 3: column \"amount\": \"1e3\"",
            ),
            (
                b"id,amount,currency,status\r\na,1,EUR,paid\r\n,1,EUR,paid\r\n",
                "line 3: it has no key",
            ),
            (b"id,amount,currency,status\n\xff,1,EUR,paid\n", "line 2: \"\u{fffd}\" is not UTF-8"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn a_quote_that_is_never_closed_does_not_fill_the_memory() {
        let mut text = b"id,amount,currency,status\na,1,EUR,\"".to_vec();
        text.resize(3 << 20, b'x');
        assert!(read(&text).unwrap_err().contains("longer than"));
        let mut header = b"id,".to_vec();
        header.resize(3 << 20, b'x');
        assert!(read(&header).unwrap_err().contains("longer than"));
        // Many short lines are no long one.
        let lines: String =
            (0..100_000).map(|number| format!("{number:08},1,EUR,paid-and-more\n")).collect();
        let long = format!("id,amount,currency,status\n{lines}");
        assert!(long.len() > 2 << 20);
        assert_eq!(read(long.as_bytes()).unwrap().len(), 100_000);
    }
}
