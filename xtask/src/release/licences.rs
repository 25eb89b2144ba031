//! May everything that is built in be built in?

use std::process::Command;

use crate::{Error, cargo};

/// Licences that ask for no more than their text. Two of them at once are fine, and of a choice one is enough.
const PERMITTED: [&str; 10] = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// The packages whose licence is not permitted, and what it is.
pub(crate) fn unknown() -> Result<Vec<(String, String)>, Error> {
    let mut ask = cargo();
    ask.args(["metadata", "--format-version", "1", "--filter-platform", &host()?]);
    let told = ask.stderr(std::process::Stdio::inherit()).output()?;
    let metadata: serde_json::Value = serde_json::from_slice(&told.stdout)?;
    let packages =
        metadata.get("packages").and_then(|packages| packages.as_array()).ok_or("no packages")?;
    let text = |package: &serde_json::Value, field: &str| {
        package.get(field).and_then(|field| field.as_str()).unwrap_or_default().to_owned()
    };
    let all = packages.iter().map(|package| (text(package, "name"), text(package, "license")));
    Ok(all.filter(|(_, licence)| !is_permitted(licence)).collect())
}

/// The system that this runs on: others need packages that nobody has fetched.
fn host() -> Result<String, Error> {
    let told = Command::new("rustc").arg("-vV").output()?;
    let told = String::from_utf8(told.stdout)?;
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc does not name its host".into())
}

/// Whether a licence is permitted, such as `(MIT OR Apache-2.0) AND Unicode-3.0`. Some write a slash for a choice.
fn is_permitted(licence: &str) -> bool {
    let choice = licence.replace(" / ", " OR ").replace('/', " OR ");
    all_of(&choice)
}

fn all_of(text: &str) -> bool {
    parts(text, " AND ").iter().all(|part| one_of(part))
}

fn one_of(text: &str) -> bool {
    let is_known = |text: &str| match text.strip_prefix('(').and_then(|text| text.strip_suffix(')'))
    {
        Some(inside) => all_of(inside),
        None => PERMITTED.contains(&text),
    };
    parts(text, " OR ").iter().any(|part| is_known(part.trim()))
}

/// The parts of a text between these words, as far as they do not stand in parentheses.
fn parts<'a>(text: &'a str, word: &str) -> Vec<&'a str> {
    let mut parts = Vec::new();
    let mut depth = 0_usize;
    let mut begin = 0;
    for (place, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ' ' if depth == 0 && text.get(place..).is_some_and(|rest| rest.starts_with(word)) => {
                parts.extend(text.get(begin..place));
                begin = place + word.len();
            }
            _ => {}
        }
    }
    parts.extend(text.get(begin..));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_needs_one_and_a_sum_needs_all() {
        for licence in [
            "MIT",
            "MIT/Apache-2.0",
            "Apache-2.0 / MIT",
            "GPL-3.0 OR MIT",
            "(MIT OR GPL-3.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
        ] {
            assert!(is_permitted(licence), "{licence}");
        }
        for licence in ["", "GPL-3.0", "MIT AND GPL-3.0", "(GPL-3.0 OR AGPL-3.0) AND MIT", "MITX"] {
            assert!(!is_permitted(licence), "{licence}");
        }
    }
}
