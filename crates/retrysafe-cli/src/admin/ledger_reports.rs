//! What did the last comparisons of ledgers find?
//!
//! `retrysafe reconcile compare --report-file` leaves what it has found in a file; `admin.ledger_reports` names those files. They are
//! read when somebody asks. A file that is missing or damaged says so, and hides no other.

use std::io::Read as _;
use std::path::Path;

use axum::Json;
use axum::extract::State;
use retrysafe_core::store::Store;
use serde_json::{Value, json};

use super::Shared;

/// The largest report that is shown: some thousand differences.
const REPORT_BYTES_MAX: u64 = 4 << 20;

pub(super) async fn list<S: Store>(State(admin): Shared<S>) -> Json<Value> {
    let settings = admin.settings.load_full();
    let read = tokio::task::spawn_blocking(move || {
        settings.ledger_reports.iter().map(|path| shown(path)).collect::<Vec<Value>>()
    });
    Json(json!({"reports": read.await.unwrap_or_default()}))
}

fn shown(path: &Path) -> Value {
    let file = path.display().to_string();
    match read(path) {
        Ok(report) => json!({"file": file, "report": report}),
        Err(why) => json!({"file": file, "error": why}),
    }
}

fn read(path: &Path) -> Result<Value, String> {
    let facts = std::fs::metadata(path).map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            return "not there yet: `retrysafe reconcile compare --report-file` writes it"
                .to_owned();
        }
        error.to_string()
    })?;
    // A pipe would be waited for.
    if !facts.is_file() {
        return Err("not a file".to_owned());
    }
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let mut text = Vec::new();
    file.take(REPORT_BYTES_MAX + 1).read_to_end(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > REPORT_BYTES_MAX {
        return Err(format!(
            "larger than {REPORT_BYTES_MAX} bytes: compare with a smaller --limit"
        ));
    }
    let report: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    let is_report = report.get("compared_at").is_some() && report.get("equal").is_some();
    if is_report { Ok(report) } else { Err("not a report of a comparison".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_report_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        let told = |path: &Path| shown(path)["error"].as_str().unwrap_or_default().to_owned();
        assert!(told(&path).contains("not there yet"));
        assert!(told(folder.path()).contains("not a file"));
        for (text, why) in
            [("{", "EOF"), ("[]", "not a report"), ("{\"equal\":true}", "not a report")]
        {
            std::fs::write(&path, text).unwrap();
            assert!(told(&path).contains(why), "{text}: {}", told(&path));
        }
        std::fs::File::create(&path).unwrap().set_len(REPORT_BYTES_MAX + 1).unwrap();
        assert!(told(&path).contains("larger than"));
        std::fs::write(&path, "{\"equal\":true,\"compared_at\":\"x\"}").unwrap();
        assert_eq!(shown(&path)["report"]["equal"], true);
    }
}
