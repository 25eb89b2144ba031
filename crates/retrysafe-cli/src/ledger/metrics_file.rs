//! How are the counts handed to a collector of text files?
//!
//! In Prometheus' text format, for the textfile collector of its node exporter. The file is replaced in one step, so
//! that nobody reads half of it. It is written only after both ledgers were read to their ends: an alert on the age of
//! its timestamp finds a comparison that fails.

use std::io::Write as _;
use std::path::Path;

use jiff::Timestamp;
use retrysafe_core::event::{self, Metric};

use super::report::{Report, side_lines};

/// Writes the file.
///
/// # Errors
///
/// If it cannot be written, or the name of the comparison is no label.
pub(crate) fn write_metrics(
    path: &Path,
    name: &str,
    report: &Report,
    now: Timestamp,
) -> Result<(), String> {
    let told =
        |error: &dyn std::fmt::Display| format!("--metrics-file {}: {error}", path.display());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|error| told(&error))?;
    file.write_all(text(name, report, now).as_bytes()).map_err(|error| told(&error))?;
    readable_by_all(file.as_file()).map_err(|error| told(&error))?;
    file.persist(path).map_err(|error| told(&error))?;
    Ok(())
}

/// The collector runs as somebody else, and the file holds counts only.
fn readable_by_all(file: &std::fs::File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

fn text(name: &str, report: &Report, now: Timestamp) -> String {
    let found = &report.comparison;
    let name = name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let mut text = String::new();
    let mut put = |metric: Metric, values: &[(&str, u64)]| {
        text.push_str(&format!(
            "# HELP {0} {1}\n# TYPE {0} gauge\n",
            metric.name,
            metric.help.trim()
        ));
        for (value, count) in values {
            let more = match metric.labels {
                [_, label] => format!(",{label}=\"{value}\""),
                _ => String::new(),
            };
            text.push_str(&format!("{}{{ledger=\"{name}\"{more}}} {count}\n", metric.name));
        }
    };
    put(event::LEDGER_LINES, &side_lines(report));
    put(
        event::LEDGER_DIFFERENCES,
        &[
            ("missing_here", found.missing_here),
            ("missing_there", found.missing_there),
            ("different", found.different),
        ],
    );
    put(event::LEDGER_COMPARED, &[("", u64::try_from(now.as_second()).unwrap_or_default())]);
    text
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn the_file_is_what_a_collector_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.prom");
        let now = Timestamp::from_second(1_794_787_200).unwrap();
        write_metrics(&path, "a\"b", &report(), now).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        for line in [
            "# TYPE retrysafe_ledger_differences gauge",
            "retrysafe_ledger_lines{ledger=\"a\\\"b\",side=\"ours\"} 7",
            "retrysafe_ledger_differences{ledger=\"a\\\"b\",kind=\"missing_here\"} 2",
            "retrysafe_ledger_compared_timestamp_seconds{ledger=\"a\\\"b\"} 1794787200",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in {text}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
        let nowhere = folder.path().join("absent").join("ledger.prom");
        assert!(
            write_metrics(&nowhere, "x", &report(), now).unwrap_err().contains("--metrics-file")
        );
    }
}
