//! How are fields read one after the other?
//!
//! Nothing is believed of a length or a count before the bytes are there, and each number has one
//! spelling.

use bytes::Bytes;
use http::StatusCode;

use crate::time::Time;

/// Reads fields one after the other. `None` means that they do not fit.
pub(super) struct Reader {
    pub(super) bytes: Bytes,
    pub(super) at: usize,
}

impl Reader {
    pub(super) fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let end = self.at.checked_add(N)?;
        let array = self.bytes.get(self.at..end)?.try_into().ok()?;
        self.at = end;
        Some(array)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte holds the last bit only; more would be another spelling.
            if shift == 63 && bits > 1 {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                // A last byte of zero adds nothing: the same number has a shorter spelling, and a
                // record has one encoding only.
                return (shift == 0 || bits != 0).then_some(number);
            }
        }
        None
    }

    /// A count that is at most `max`, so that nothing is allocated for a lie.
    pub(super) fn count(&mut self, max: usize) -> Option<usize> {
        usize::try_from(self.number()?).ok().filter(|count| *count <= max)
    }

    pub(super) fn byte_string(&mut self) -> Option<Bytes> {
        let length = self.number()?;
        self.take(length)
    }

    pub(super) fn take(&mut self, length: u64) -> Option<Bytes> {
        let length = usize::try_from(length).ok()?;
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len())?;
        let slice = self.bytes.slice(self.at..end);
        self.at = end;
        Some(slice)
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    pub(super) fn text(&mut self) -> Option<Box<str>> {
        let bytes = self.byte_string()?;
        std::str::from_utf8(&bytes).ok().map(Into::into)
    }

    pub(super) fn time(&mut self) -> Option<Time> {
        self.number().map(Time::from_ms)
    }

    /// A status, where zero stands for none.
    pub(super) fn status(&mut self) -> Option<Option<StatusCode>> {
        match self.code()? {
            None => Some(None),
            Some(code) => StatusCode::from_u16(code).ok().map(Some),
        }
    }

    pub(super) fn code(&mut self) -> Option<Option<u16>> {
        let code = u16::try_from(self.number()?).ok()?;
        Some((code != 0).then_some(code))
    }

    pub(super) fn one_of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        all.get(usize::from(self.byte()?)).copied()
    }
}
