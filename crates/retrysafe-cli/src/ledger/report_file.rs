//! How is what was found handed to the dashboard?
//!
//! As the report for scripts, with the comparison's name and time. The file is replaced in one step, and only after both ledgers were read
//! to their ends. It holds keys and amounts, so that only its owner may read it.

use std::io::Write as _;
use std::path::Path;

use jiff::Timestamp;

use super::report::Report;

/// Writes the file.
///
/// # Errors
///
/// If it cannot be written.
pub(crate) fn write_report(
    path: &Path,
    name: &str,
    report: &Report,
    now: Timestamp,
) -> Result<(), String> {
    let told = |error: &dyn std::fmt::Display| format!("--report-file {}: {error}", path.display());
    let mut document = report.document();
    if let Some(members) = document.as_object_mut() {
        members.insert("name".into(), name.into());
        members.insert("compared_at".into(), format!("{now:.0}").into());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|error| told(&error))?;
    writeln!(file, "{document}").map_err(|error| told(&error))?;
    file.persist(path).map_err(|error| told(&error))?;
    Ok(())
}
