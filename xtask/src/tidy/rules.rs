//! What must a single file keep to?

use super::source::{SourceFile, is_word};

/// How many lines a file may have, without its tests. Past that it usually answers two questions.
const LINES_MAX: usize = 500;

/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 6] = ["utils", "util", "common", "helpers", "types", "misc"];

/// Where a status is chosen, and why there.
const STATUSES_STAND_IN: [(&str, &str); 9] = [
    ("crates/retrysafe-core/src/problem.rs", "every refusal"),
    ("crates/retrysafe-core/src/policy.rs", "which answers of a handler may be tried again"),
    ("crates/retrysafe-cli/src/admin/error.rs", "every refusal to an operator"),
    ("crates/retrysafe-cli/src/admin/mod.rs", "whether it is ready"),
    ("crates/retrysafe-cli/src/dashboard/error.rs", "why a page is not shown"),
    ("crates/retrysafe-cli/src/worker/pages.rs", "whether a worker is ready"),
    ("crates/retrysafe-cli/src/gateway/cors.rs", "the answer to a preflight"),
    ("crates/retrysafe-cli/src/gateway/proxy.rs", "stands for an answer that did not come"),
    ("crates/retrysafe-cli/src/demo/shop.rs", "the demo's own application"),
];

/// Where the names of metrics stand.
const METRICS_STAND_IN: &str = "crates/retrysafe-core/src/event.rs";

/// Folders whose code is there for tests: the conformance suite, the crash rehearsals, the simulator, the
/// counted loads and this tool.
const FOR_TESTS: [&str; 5] = [
    "crates/retrysafe-core/src/conformance",
    "crates/retrysafe/src/stores/disk/rehearsal",
    "crates/sim",
    "crates/counted",
    "xtask",
];

/// One complaint about a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub rule: &'static str,
    pub file: String,
    pub what: String,
}

/// All complaints about a file.
pub(crate) fn complaints(file: &SourceFile) -> Vec<Broken> {
    let path = file.path.to_string_lossy().into_owned();
    let mut all = Vec::new();
    let mut complain = |rule, what| all.push(Broken { rule, file: path.clone(), what });
    if !opens_with_a_question(file) {
        complain(
            "question",
            "it does not open with the question that it answers (`//! … ?`)".to_owned(),
        );
    }
    if let Some(name) = file.module.iter().find(|name| EMPTY_NAMES.contains(&name.as_str())) {
        complain("name", format!("`{name}` says nothing about what is inside"));
    }
    let lines = file.code.lines().filter(|line| !line.trim().is_empty()).count();
    if lines > LINES_MAX {
        complain(
            "length",
            format!("{lines} lines of code without tests and comments, {LINES_MAX} at the most"),
        );
    }
    if FOR_TESTS.iter().any(|folder| path.starts_with(folder)) {
        return all;
    }
    if !STATUSES_STAND_IN.iter().any(|(place, _)| *place == path) {
        for (number, line) in file.code.lines().enumerate() {
            if let Some(status) = chosen_status(line) {
                complain(
                    "status",
                    format!("line {}: {status} is chosen here and not in problem.rs", number + 1),
                );
            }
        }
    }
    if path != METRICS_STAND_IN {
        for (line, string) in &file.strings {
            if is_metric(string) {
                complain(
                    "metric",
                    format!("line {line}: the metric {string} is not named in event.rs"),
                );
            }
        }
    }
    all
}

/// The root of a crate is the crate's own page, and asks nothing.
fn opens_with_a_question(file: &SourceFile) -> bool {
    let opening = file.text.lines().take_while(|line| line.starts_with("//!"));
    file.module.is_empty() || opening.into_iter().any(|line| line.contains('?'))
}

/// The status that a line chooses for an answer. One that is compared, or stands in a pattern, is not chosen.
fn chosen_status(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("StatusCode::")?;
    let end = after.find(|character| !is_word(character)).unwrap_or(after.len());
    let (status, rest) = after.split_at(end);
    let is_constant = status.starts_with(|first: char| first.is_ascii_uppercase());
    let is_compared = [before, rest].iter().any(|side| {
        ["==", "!=", "matches!", "contains", "if let", "while let"]
            .iter()
            .any(|sign| side.contains(sign))
    });
    let is_pattern = [" =>", " |", " if "].iter().any(|sign| rest.starts_with(sign));
    (is_constant && !is_compared && !is_pattern).then_some(status)
}

fn is_metric(string: &str) -> bool {
    let rest = string.strip_prefix("retrysafe_");
    rest.is_some_and(|rest| {
        !rest.is_empty() && rest.chars().all(|c| c.is_ascii_lowercase() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn rules(path: &str, text: &str) -> Vec<&'static str> {
        let names =
            path.trim_end_matches(".rs").split('/').skip_while(|part| *part != "src").skip(1);
        let file =
            SourceFile::new(Path::new(path), names.map(str::to_owned).collect(), text.to_owned());
        complaints(&file).into_iter().map(|broken| broken.rule).collect()
    }

    const PLACE: &str = "crates/retrysafe/src/layer/x.rs";

    #[test]
    fn an_orderly_file_has_no_complaints() {
        let text = "//! What is this?\nfn f(s: StatusCode) -> bool { s == StatusCode::OK }\n";
        assert_eq!(rules(PLACE, text), Vec::<&str>::new());
    }

    #[test]
    fn a_file_opens_with_its_question() {
        assert_eq!(rules(PLACE, "//! This is something.\nfn f() {}\n"), ["question"]);
        assert_eq!(rules(PLACE, "fn f() {}\n// What?\n"), ["question"]);
    }

    #[test]
    fn a_name_says_what_is_inside() {
        assert_eq!(rules("crates/retrysafe/src/layer/utils.rs", "//! What?\n"), ["name"]);
    }

    #[test]
    fn a_long_file_is_two_files() {
        let long = |lines: usize| format!("//! What?\n{}", "fn f() {}\n".repeat(lines));
        assert_eq!(rules(PLACE, &long(LINES_MAX)), Vec::<&str>::new());
        assert_eq!(rules(PLACE, &long(LINES_MAX + 1)), ["length"]);
        let tests =
            format!("//! What?\n#[cfg(test)]\nmod tests {{\n{}}}\n", "fn f() {}\n".repeat(600));
        assert_eq!(rules(PLACE, &tests), Vec::<&str>::new());
    }

    #[test]
    fn a_status_is_chosen_in_one_place() {
        for line in [
            "*response.status_mut() = StatusCode::CONFLICT;",
            "(StatusCode::CONFLICT, told).into_response()",
            "Self::X => StatusCode::CONFLICT,",
        ] {
            let text = format!("//! What?\nfn f() {{ {line} }}\n");
            assert_eq!(rules(PLACE, &text), ["status"], "{line}");
            assert_eq!(rules("crates/retrysafe-core/src/problem.rs", &text), Vec::<&str>::new());
        }
        for line in [
            "match status { StatusCode::OK => {} StatusCode::CREATED | StatusCode::ACCEPTED => {} }",
            "let a = status != StatusCode::OK;",
            "if matches!(status, StatusCode::OK) {}",
            "let status = StatusCode::from_u16(code);",
        ] {
            assert_eq!(
                rules(PLACE, &format!("//! What?\nfn f() {{ {line} }}\n")),
                Vec::<&str>::new(),
                "{line}"
            );
        }
    }

    #[test]
    fn a_metric_is_named_in_one_place() {
        let text = "//! What?\nfn f() { counter!(\"retrysafe_of_its_own\").increment(1); }\n";
        assert_eq!(rules(PLACE, text), ["metric"]);
        assert_eq!(rules(METRICS_STAND_IN, text), Vec::<&str>::new());
        assert_eq!(rules(PLACE, "//! What?\n// \"retrysafe_x\"\n"), Vec::<&str>::new());
    }
}
