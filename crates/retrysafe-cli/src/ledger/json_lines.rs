//! How is a ledger read from a file with a JSON object on each line?

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;

use super::columns::Columns;
use super::csv_file::LINE_BYTES_MAX;
use super::entry::{Entry, Place};
use super::pointer::Pointers;
use super::window::Window;

/// How much of the file is read ahead.
const BUFFER_BYTES: usize = 64 * 1024;

/// What some programs write before UTF-8.
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// A file of JSON lines that is read from its beginning to its end.
#[derive(Debug)]
pub(super) struct JsonLinesLedger {
    file: BufReader<File>,
    /// The number of the line that was read last.
    line: u64,
    bytes: Vec<u8>,
    columns: Columns,
    pointers: Pointers,
    window: Window,
}

impl JsonLinesLedger {
    pub(super) fn open(path: &Path, columns: Columns, window: Window) -> Result<Self, String> {
        let file = File::open(path).map_err(|error| error.to_string())?;
        let file = BufReader::with_capacity(BUFFER_BYTES, file);
        let pointers = Pointers::new(columns.wanted())?;
        Ok(Self { file, line: 0, bytes: Vec::new(), columns, pointers, window })
    }

    /// The next line within the window; none at the end. Blank lines are passed over.
    pub(super) fn next(&mut self) -> Result<Option<Entry>, String> {
        loop {
            self.bytes.clear();
            let mut bounded = self.file.by_ref().take(LINE_BYTES_MAX + 1);
            let count =
                bounded.read_until(b'\n', &mut self.bytes).map_err(|error| error.to_string())?;
            if count == 0 {
                return Ok(None);
            }
            self.line += 1;
            let entry = self.entry().map_err(|why| format!("line {}: {why}", self.line))?;
            if entry.is_some() {
                return Ok(entry);
            }
        }
    }

    fn entry(&self) -> Result<Option<Entry>, String> {
        if self.bytes.len() as u64 > LINE_BYTES_MAX {
            return Err(format!("it is longer than {LINE_BYTES_MAX} bytes"));
        }
        let text = std::str::from_utf8(&self.bytes)
            .map_err(|_| "it is not UTF-8: convert the file, for example with iconv -t UTF-8")?;
        let text =
            if self.line == 1 { text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text) } else { text };
        let text = text.trim_ascii();
        if text.is_empty() {
            return Ok(None);
        }
        if !text.starts_with('{') {
            return Err(
                "it is no JSON object; each line must be one, such as {\"id\": \"k1\"}".into()
            );
        }
        let values = self.pointers.texts(text)?;
        self.columns.entry(values.as_slice(), &self.window, Place::Line(self.line))
    }
}

#[cfg(test)]
mod tests {
    use super::super::columns::tests::columns;
    use super::*;

    fn read(text: &[u8]) -> Result<Vec<String>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let mut ledger = JsonLinesLedger::open(file.path(), columns(), Window::default())?;
        let mut found = Vec::new();
        while let Some(entry) = ledger.next()? {
            found.push(format!("{} {} {}", entry.key, entry.amount.unwrap(), entry.place));
        }
        Ok(found)
    }

    #[test]
    fn numbers_and_texts_are_amounts() {
        let text = "\u{feff}{\"id\":\"a\",\"amount\":12.50,\"currency\":\"EUR\"}\r\n\r\n{\"id\":7,\"amount\":\"-0.1\",\"currency\":\"EUR\",\"status\":null}";
        assert_eq!(read(text.as_bytes()).unwrap(), ["a 12.50 line 1", "7 -0.10 line 3"]);
        assert_eq!(read(b"").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let fine = "{\"id\":\"a\",\"amount\":1,\"currency\":\"EUR\"}\n";
        for (line, told) in [
            ("[1]\n", "no JSON object"),
            ("id,amount\n", "no JSON object"),
            ("{\"id\":\"b\",\"amount\":1", "EOF"),
            ("{\"id\":\"b\",\"amount\":1e3,\"currency\":\"EUR\"}\n", "\"1e3\" is no amount"),
            (
                "{\"id\":\"b\",\"amount\":\"12,50\",\"currency\":\"EUR\"}\n",
                "\"12,50\" is no amount",
            ),
            ("{\"id\":\"b\",\"amount\":null,\"currency\":\"EUR\"}\n", "is no amount"),
            ("{\"id\":\"b\",\"id\":\"c\",\"amount\":1,\"currency\":\"EUR\"}\n", "twice"),
            ("{\"id\":{},\"amount\":1,\"currency\":\"EUR\"}\n", "no plain value"),
            ("{\"amount\":1,\"currency\":\"EUR\"}\n", "no key"),
        ] {
            let error = read(format!("{fine}{line}").as_bytes()).unwrap_err();
            assert!(error.starts_with("line 2: ") && error.contains(told), "{line}: {error}");
        }
        assert!(read(b"{\"id\":\"\xff\"}\n").unwrap_err().contains("line 1: it is not UTF-8"));
        let mut long = b"{\"id\":\"".to_vec();
        long.resize(3 << 20, b'x');
        assert!(read(&long).unwrap_err().contains("line 1: it is longer than"));
    }
}
