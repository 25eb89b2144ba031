//! From when on, and until when?
//!
//! From `since` on and before `until`, so that the windows of two days neither overlap nor leave a gap.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use super::quote::quoted;

/// A stretch of time. Without both ends it is all of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
}

impl Window {
    /// Reads both ends: RFC 3339, or a date, which begins at midnight UTC.
    ///
    /// # Errors
    ///
    /// Which end is no time.
    pub(crate) fn parse(since: Option<&str>, until: Option<&str>) -> Result<Self, String> {
        let end = |flag: &str, text: Option<&str>| {
            let read = |text| read_end(text).ok_or_else(|| wrong_end(flag, text));
            text.map(read).transpose()
        };
        let window = Self { since: end("--since", since)?, until: end("--until", until)? };
        if let (Some(since), Some(until)) = (window.since, window.until)
            && since >= until
        {
            return Err(format!("--since {since} is not before --until {until}"));
        }
        Ok(window)
    }

    /// Whether it is all of time.
    pub(crate) fn is_endless(&self) -> bool {
        self.since.is_none() && self.until.is_none()
    }

    /// Whether a time lies within it.
    pub(super) fn has_moment(&self, time: Timestamp) -> bool {
        self.since.is_none_or(|since| time >= since) && self.until.is_none_or(|until| time < until)
    }

    /// Whether the time that a line names lies within it: RFC 3339, or seconds since 1970.
    ///
    /// # Errors
    ///
    /// If it is no time.
    pub(super) fn has(&self, text: &str) -> Result<bool, String> {
        if self.is_endless() {
            return Ok(true);
        }
        let seconds = text.parse::<i64>().ok().and_then(|it| Timestamp::from_second(it).ok());
        let time = seconds.or_else(|| text.parse().ok());
        let time = time.ok_or_else(|| {
            format!(
                "{} is no time: write it as 2026-11-17T00:00:00Z, or in seconds since 1970",
                quoted(text)
            )
        })?;
        Ok(self.has_moment(time))
    }
}

fn read_end(text: &str) -> Option<Timestamp> {
    let midnight = |date: Date| date.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp());
    text.parse().ok().or_else(|| text.parse::<Date>().ok().and_then(midnight))
}

fn wrong_end(flag: &str, text: &str) -> String {
    format!(
        "{flag} {} is no time: write 2026-11-17, which begins at midnight UTC, or 2026-11-17T06:00:00Z",
        quoted(text)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_its_beginning_and_not_its_end() {
        let window = Window::parse(Some("2026-11-16"), Some("2026-11-17T00:00:00Z")).unwrap();
        for (time, is_within) in [
            ("2026-11-15T23:59:59.999Z", false),
            ("2026-11-16T00:00:00Z", true),
            ("2026-11-16T02:00:00+02:00", true),
            ("2026-11-16T23:59:59.999Z", true),
            ("2026-11-17T00:00:00Z", false),
            ("1763251200", false),
            ("1794787200", true),
        ] {
            assert_eq!(window.has(time), Ok(is_within), "{time}");
        }
        assert!(window.has("16.11.2026").is_err());
        assert!(Window::default().has("16.11.2026").unwrap(), "nobody asks for the time");
    }

    #[test]
    fn an_end_that_is_no_time_is_named() {
        assert!(Window::parse(Some("today"), None).unwrap_err().contains("--since \"today\""));
        let reversed = Window::parse(Some("2026-11-17"), Some("2026-11-17"));
        assert!(reversed.unwrap_err().contains("not before"));
    }
}
