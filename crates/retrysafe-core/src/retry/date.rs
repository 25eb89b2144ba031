//! When does a header say to come back?

use std::time::Duration;

/// Reads `Retry-After`: seconds, or an HTTP date. Anything else says nothing.
pub fn retry_after(value: &[u8], unix_now: u64) -> Option<Duration> {
    let text = std::str::from_utf8(value).ok()?.trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        // More digits than a number holds still means "very long".
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    http_date(text).map(|at| Duration::from_secs(at.saturating_sub(unix_now)))
}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Reads an IMF-fixdate, `Sun, 06 Nov 1994 08:49:37 GMT`, as seconds since the Unix epoch.
pub fn http_date(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once(", ")?;
    let mut words = rest.split(' ');
    let number =
        |word: Option<&str>, max: u64| word?.parse::<u64>().ok().filter(|number| *number <= max);
    let day = number(words.next(), 31)?;
    let name = words.next()?;
    let month = MONTHS.iter().position(|month| *month == name)? as u64;
    let year = number(words.next(), 9_999).filter(|year| *year >= 1970)?;
    let mut clock = words.next()?.split(':');
    let hour = number(clock.next(), 23)?;
    let minute = number(clock.next(), 59)?;
    let second = number(clock.next(), 60)?;
    if words.next() != Some("GMT") || words.next().is_some() || clock.next().is_some() || day == 0 {
        return None;
    }
    Some(((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second)
}

/// Writes seconds since the Unix epoch as an IMF-fixdate.
pub fn show_http_date(unix: u64) -> String {
    const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    // The year 9999 ends here; the format has no room for a later one.
    let unix = unix.min(253_402_300_799);
    let day_count = unix / 86_400;
    let weekday = WEEKDAYS.get((day_count % 7) as usize).copied().unwrap_or_default();
    let mut year = 1970 + day_count / 366;
    while days(year + 1, 0, 1) <= day_count {
        year += 1;
    }
    let month = (0..12).rev().find(|month| days(year, *month, 1) <= day_count).unwrap_or_default();
    let day = day_count - days(year, month, 1) + 1;
    let name = MONTHS.get(month as usize).copied().unwrap_or_default();
    let (hour, minute, second) = (unix / 3_600 % 24, unix / 60 % 60, unix % 60);
    format!("{weekday}, {day:02} {name} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

/// Days from the Unix epoch to a day of a year from 1970 on; months count from zero.
fn days(year: u64, month: u64, day: u64) -> u64 {
    const BEFORE: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let before = BEFORE.get(month as usize).copied().unwrap_or_default();
    (year - 1970) * 365
        + (leaps(year - 1) - leaps(1969))
        + before
        + u64::from(is_leap && month > 1)
        + day
        - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_they_are_read() {
        assert_eq!(http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(show_http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(show_http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        for unix in (0..4_000_000_000).step_by(86_400 * 13 + 7_919) {
            assert_eq!(http_date(&show_http_date(unix)), Some(unix));
        }
        assert_eq!(show_http_date(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(show_http_date(u64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
    }
}
