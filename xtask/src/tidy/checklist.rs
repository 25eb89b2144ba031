//! Does every test exist that the checklist names?

use std::collections::BTreeSet;
use std::path::Path;

use crate::Error;

/// The page with the names.
const PAGE: &str = "docs/checklist.md";

/// Where tests are.
const FOLDERS: [&str; 3] = ["crates", "examples", "xtask"];

/// The fewest underscores of a test's name: names here are sentences. What else stands in code spans has fewer.
const UNDERSCORES_MIN: usize = 2;

/// A complaint for each name that is no test, and one if there are none at all.
pub(crate) fn complaints(root: &Path) -> Result<Vec<String>, Error> {
    let mut tests = BTreeSet::new();
    for folder in FOLDERS {
        read_folder(&root.join(folder), &mut tests)?;
    }
    let named = names(&std::fs::read_to_string(root.join(PAGE))?);
    let mut complaints: Vec<String> =
        named.difference(&tests).map(|name| format!("{PAGE}: there is no test `{name}`")).collect();
    if named.is_empty() {
        complaints.push(format!("{PAGE}: it names no test"));
    }
    Ok(complaints)
}

/// The tests that a page names: code spans that are a function's name of several words.
fn names(page: &str) -> BTreeSet<String> {
    page.split('`').skip(1).step_by(2).filter(|span| is_name(span)).map(str::to_owned).collect()
}

fn is_name(span: &str) -> bool {
    let is_of_a_name =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    span.bytes().all(is_of_a_name) && span.matches('_').count() >= UNDERSCORES_MIN
}

fn read_folder(folder: &Path, tests: &mut BTreeSet<String>) -> Result<(), Error> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read_folder(&path, tests)?;
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            tests.extend(tests_of(&std::fs::read_to_string(path)?));
        }
    }
    Ok(())
}

/// The functions of a source that have a `#[test]` of some kind among the attributes before them.
fn tests_of(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[") {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        } else if let Some((_, rest)) = line.split_once("fn ") {
            let name = rest.split('(').next().unwrap_or_default();
            if is_test {
                found.push(name.to_owned());
            }
            is_test = false;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_that_the_checklist_names_exists() {
        assert_eq!(complaints(&crate::root()).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_name_that_is_no_test_is_found() {
        let source = "#[test]\nfn a_is_b() {}\nfn b_is_c() {}\n#[tokio::test(flavor = \"x\")]\n#[should_panic]\nasync fn c_is_d() {}";
        assert_eq!(tests_of(source), ["a_is_b", "c_is_d"]);
        let page = "| `a_is_b`, `b_is_c` | `cargo xtask test`, `ttl`, `lease_max` |";
        assert_eq!(names(page), BTreeSet::from(["a_is_b".to_owned(), "b_is_c".to_owned()]));
    }
}
