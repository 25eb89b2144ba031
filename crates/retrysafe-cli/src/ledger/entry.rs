//! What is one line of a ledger, and where does it stand?

use std::fmt;

use super::amount::Amount;

/// The longest key, in bytes. No provider's reference comes near.
pub(super) const KEY_BYTES_MAX: usize = 1024;

/// One line of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub key: String,
    /// None where no column of amounts was named.
    pub(super) amount: Option<Amount>,
    pub(super) currency: Option<String>,
    /// Further fields that are compared, in the order in which they were named.
    pub(super) fields: Vec<String>,
    pub(super) place: Place,
}

/// Where a line stands, for people to find it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The number of its first line in a file.
    Line(u64),
    /// The number of a row of a query's answer.
    Row(u64),
    /// The number of a page, and of an item on it.
    Item(u64, u64),
    /// The first digits of a record's id.
    Record(u64),
    /// The number of an effect.
    Effect(u64),
}

impl Place {
    /// As two numbers, for a file that is read again.
    pub(super) fn to_numbers(self) -> (u8, u64, u64) {
        match self {
            Self::Line(line) => (0, line, 0),
            Self::Row(row) => (1, row, 0),
            Self::Item(page, item) => (2, page, item),
            Self::Record(id) => (3, id, 0),
            Self::Effect(id) => (4, id, 0),
        }
    }

    pub(super) fn from_numbers(kind: u8, first: u64, second: u64) -> Option<Self> {
        Some(match kind {
            0 => Self::Line(first),
            1 => Self::Row(first),
            2 => Self::Item(first, second),
            3 => Self::Record(first),
            4 => Self::Effect(first),
            _ => return None,
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Row(row) => write!(f, "row {row}"),
            Self::Item(page, item) => write!(f, "page {page}, item {item}"),
            Self::Record(id) => write!(f, "record {id:016x}"),
            Self::Effect(id) => write!(f, "effect {id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_again_as_it_was_written() {
        for place in [
            Place::Line(7),
            Place::Row(8),
            Place::Item(9, 10),
            Place::Record(0xab),
            Place::Effect(u64::MAX),
        ] {
            let (kind, first, second) = place.to_numbers();
            assert_eq!(Place::from_numbers(kind, first, second), Some(place));
        }
        assert_eq!(Place::from_numbers(9, 0, 0), None);
        assert_eq!(Place::Record(0xab).to_string(), "record 00000000000000ab");
    }
}
