//! How do people write lengths and sizes?
//!
//! `24h`, `500ms`, `1MiB`, `64KB`: a whole number and a unit. A bare number is refused, because half
//! of all readers would take it for seconds and the other half for milliseconds.

use std::fmt;
use std::time::Duration;

/// Why a text is not a length or a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitError {
    text: String,
    wanted: &'static str,
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not {}", self.text, self.wanted)
    }
}

impl std::error::Error for UnitError {}

/// Reads a length of time: `500ms`, `30s`, `5m`, `24h`, `7d`.
///
/// # Errors
///
/// If there is no unit, an unknown one, or the number is not whole or too large.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    const UNITS: &[(&str, u64)] =
        &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    parse(text, UNITS, "a length of time such as 500ms, 30s, 5m, 24h or 7d")
        .map(Duration::from_millis)
}

/// Reads a size: `512B`, `64KiB`, `1MiB`, `2GiB`, and the decimal `kB`, `MB`, `GB`.
///
/// # Errors
///
/// If there is no unit, an unknown one, or the number is not whole or too large.
pub fn parse_size(text: &str) -> Result<usize, UnitError> {
    const UNITS: &[(&str, u64)] = &[
        ("B", 1),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("kB", 1_000),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
    ];
    const WANTED: &str = "a size such as 512B, 64KiB or 1MiB";
    let bytes = parse(text, UNITS, WANTED)?;
    usize::try_from(bytes).map_err(|_| UnitError { text: text.into(), wanted: WANTED })
}

/// Writes a length the way [`parse_duration`] reads it, in the largest unit that fits exactly.
pub fn show_duration(length: Duration) -> String {
    let ms = length.as_millis();
    for (unit, size) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)] {
        if ms >= size && ms.is_multiple_of(size) {
            return format!("{}{unit}", ms / size);
        }
    }
    if ms == 0 { "0s".into() } else { format!("{ms}ms") }
}

/// Writes a size the way [`parse_size`] reads it, in the largest binary unit that fits exactly.
pub fn show_size(bytes: usize) -> String {
    for (unit, size) in [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= size && bytes.is_multiple_of(size) {
            return format!("{}{unit}", bytes / size);
        }
    }
    format!("{bytes}B")
}

fn parse(text: &str, units: &[(&str, u64)], wanted: &'static str) -> Result<u64, UnitError> {
    let error = || UnitError { text: text.into(), wanted };
    let trimmed = text.trim();
    let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = trimmed.split_at_checked(digits).ok_or_else(error)?;
    let number: u64 = number.parse().map_err(|_| error())?;
    let (_, size) = units.iter().find(|(name, _)| *name == unit.trim_start()).ok_or_else(error)?;
    number.checked_mul(*size).ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_sizes_are_read() {
        for (text, ms) in [
            ("500ms", 500),
            ("0s", 0),
            ("30s", 30_000),
            ("5 m", 300_000),
            ("24h", 86_400_000),
            (" 7d ", 604_800_000),
        ] {
            assert_eq!(parse_duration(text).map(|d| d.as_millis()), Ok(ms), "{text}");
        }
        for (text, bytes) in [("0B", 0), ("64KiB", 65_536), ("1MiB", 1 << 20), ("3kB", 3_000)] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "5",
            "s",
            "-1s",
            "1.5h",
            "5 parsecs",
            "99999999999999999999s",
            "999999999999999999d",
            "é",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        for text in ["", "5", "1mib", "99999999999999999GiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        for ms in [0, 1, 999, 1_000, 61_000, 3_600_000, 86_400_000] {
            let length = Duration::from_millis(ms);
            assert_eq!(parse_duration(&show_duration(length)), Ok(length));
        }
        for bytes in [0, 1, 1024, 1025, 1 << 20, 3 << 30] {
            assert_eq!(parse_size(&show_size(bytes)), Ok(bytes));
        }
    }
}
