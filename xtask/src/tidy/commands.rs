//! Do the documents name commands that exist?
//!
//! The tests run every command line of the program that stands in the documents. Here are those that no test runs: the
//! verbs of this tool.

use std::path::Path;

use super::source::is_word;
use crate::{Error, HELP};

/// The documents that tell people what to type.
const DOCUMENTS: [&str; 6] = [
    "README.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "docs",
    "benches/README.md",
];

/// A complaint for each command that does not exist.
pub(crate) fn complaints(root: &Path) -> Result<Vec<String>, Error> {
    let mut all = Vec::new();
    for document in DOCUMENTS {
        let path = root.join(document);
        let files = if path.is_dir() {
            std::fs::read_dir(&path)?
                .map(|entry| Ok(entry?.path()))
                .collect::<Result<Vec<_>, Error>>()?
        } else {
            vec![path]
        };
        for file in files
            .iter()
            .filter(|file| file.extension().is_some_and(|kind| kind == "md") && file.exists())
        {
            let text = std::fs::read_to_string(file)?;
            let name = file.strip_prefix(root).unwrap_or(file).display();
            all.extend(
                unknown(&text)
                    .into_iter()
                    .map(|verb| format!("{name}: `cargo xtask {verb}` does not exist")),
            );
        }
    }
    Ok(all)
}

/// The verbs of a text that this tool does not have.
fn unknown(text: &str) -> Vec<String> {
    let verbs: Vec<&str> = HELP.lines().filter_map(verb).collect();
    text.split("cargo xtask ")
        .skip(1)
        .map(|rest| {
            rest.split(|character| !is_word(character) && character != '-')
                .next()
                .unwrap_or_default()
        })
        .filter(|verb| !verb.is_empty() && !verbs.contains(verb))
        .map(str::to_owned)
        .collect()
}

/// The verb of a line of the help.
fn verb(line: &str) -> Option<&str> {
    line.strip_prefix("cargo xtask ")?.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_does_not_exist_is_found() {
        let text = "Run `cargo xtask test`, then\n```\ncargo xtask fuzz wire 60\ncargo xtask polish\n```\n";
        assert_eq!(unknown(text), ["polish"]);
        assert!(unknown("`cargo xtask` lists them").is_empty());
    }
}
