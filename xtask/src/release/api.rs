//! What may users name, and has that changed?
//!
//! The public declarations of the two libraries, one per line, are kept in `api/`. `cargo xtask api` writes them anew, and the release
//! check names every line that came or went. They are read from the sources: the lint `unreachable_pub` sees to it that what is
//! `pub` there can be reached. (rustdoc's own listing needs a nightly toolchain, and its form changes.)

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::tidy::source::{SourceFile, read_folder};
use crate::{Error, root};

/// What is listed, by name and folder.
const LIBRARIES: [(&str, &str); 2] =
    [("retrysafe-core", "crates/retrysafe-core/src"), ("retrysafe", "crates/retrysafe/src")];

/// Writes the listings.
pub(crate) fn write() -> Result<(), Error> {
    for (name, folder) in LIBRARIES {
        let path = listing(name);
        std::fs::create_dir_all(path.parent().ok_or("a listing without a folder")?)?;
        let lines: Vec<String> = declared(folder)?.into_iter().collect();
        std::fs::write(path, lines.join("\n") + "\n")?;
    }
    Ok(())
}

/// Every line that came or went since the listings were written.
pub(super) fn changes() -> Result<Vec<String>, Error> {
    let mut changes = Vec::new();
    for (name, folder) in LIBRARIES {
        let text = std::fs::read_to_string(listing(name)).unwrap_or_default();
        let before: BTreeSet<String> = text.lines().map(str::to_owned).collect();
        let now = declared(folder)?;
        changes.extend(before.difference(&now).map(|line| format!("{name}: - {line}")));
        changes.extend(now.difference(&before).map(|line| format!("{name}: + {line}")));
    }
    Ok(changes)
}

fn listing(name: &str) -> PathBuf {
    root().join("api").join(name).with_extension("txt")
}

fn declared(folder: &str) -> Result<BTreeSet<String>, Error> {
    let files = read_folder(&root(), folder)?;
    Ok(files.iter().flat_map(declarations).collect())
}

/// The public declarations of a file, each with its module and what it is in.
fn declarations(file: &SourceFile) -> Vec<String> {
    let lines: Vec<&str> = file.code.lines().collect();
    let module = if file.module.is_empty() { "crate".into() } else { file.module.join("::") };
    let mut found = Vec::new();
    // The block that the line is in, by the place of its closing bracket.
    let mut block: Option<(usize, Block)> = None;
    for (at, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let text = line.trim_start();
        if block.as_ref().is_some_and(|(outer, _)| indent == *outer && text.starts_with('}')) {
            block = None;
        }
        let is_inside = |outer: &usize| indent == outer + 4;
        let counts = match &block {
            Some((outer, block)) if is_inside(outer) => block.shows(text),
            Some(_) => false,
            None => text.starts_with("pub "),
        };
        if counts {
            let whole = whole(lines.get(at..).unwrap_or_default());
            let inside = block.as_ref().map_or("", |(_, block)| block.name.as_str());
            let space = if inside.is_empty() { "" } else { " " };
            found.push(format!("{module}: {inside}{space}{whole}"));
        }
        if block.is_none()
            && let Some(opened) =
                Block::opened_by(&whole(lines.get(at..).unwrap_or_default()), text)
        {
            block = Some((indent, opened));
        }
    }
    found
}

/// A block whose parts may be public.
struct Block {
    name: String,
    kind: BlockKind,
}

enum BlockKind {
    /// Of fields or methods, each of which says whether it is public.
    Marked,
    /// Of variants, which are as public as their enum.
    Variants,
    /// Of a trait's items, which are as public as the trait.
    Items,
    /// Of a trait for a type: its items are known from the trait.
    Nothing,
}

impl Block {
    fn opened_by(whole: &str, text: &str) -> Option<Self> {
        let name = whole.split(" where ").next().unwrap_or_default().to_owned();
        let kind = if text.starts_with("pub enum ") {
            BlockKind::Variants
        } else if text.starts_with("pub trait ") {
            BlockKind::Items
        } else if text.starts_with("impl") && whole.contains(" for ") {
            BlockKind::Nothing
        } else if text.starts_with("impl") || text.starts_with("pub struct ") && text.ends_with('{')
        {
            BlockKind::Marked
        } else {
            return None;
        };
        Some(Self { name, kind })
    }

    fn shows(&self, text: &str) -> bool {
        match self.kind {
            BlockKind::Marked => text.starts_with("pub "),
            BlockKind::Variants => text.starts_with(char::is_uppercase),
            BlockKind::Items => {
                ["fn ", "async fn ", "type ", "const "].iter().any(|word| text.starts_with(word))
            }
            BlockKind::Nothing => false,
        }
    }
}

/// A declaration without its body, in one line.
fn whole(lines: &[&str]) -> String {
    let mut text = String::new();
    for line in lines {
        let line = line.trim();
        if !text.is_empty() && !line.is_empty() {
            text.push(' ');
        }
        text.push_str(line);
        if line.is_empty() || line.ends_with(['{', ';', '}']) || is_closed(&text) {
            break;
        }
    }
    let cut = text.find(" {").unwrap_or(text.len());
    let text =
        if text.starts_with("pub use") { text.as_str() } else { text.get(..cut).unwrap_or(&text) };
    text.trim_end_matches([',', ';', ' ']).replace("( ", "(").replace(", )", ")")
}

/// Whether a field or a variant ends here: at a comma outside of all brackets.
fn is_closed(text: &str) -> bool {
    let depth = text.chars().fold(0_i32, |depth, character| match character {
        '(' | '<' | '[' => depth + 1,
        ')' | '>' | ']' => depth - 1,
        _ => depth,
    });
    text.ends_with(',') && depth <= 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn what_users_can_name_is_listed_and_nothing_else() {
        let code = "pub struct Open {\n    pub seen: u8,\n    hidden: u8,\n}\n\npub enum Kind {\n    One,\n    Two {\n        inner: u8,\n    },\n}\n\n\
                    impl Open {\n    pub fn take(\n        self,\n        other: u8,\n    ) -> u8 {\n        other\n    }\n    fn own(&self) {}\n}\n\n\
                    impl Clone for Open {\n    fn clone(&self) -> Self {}\n}\n\npub trait Give {\n    fn give(&self) -> u8;\n}\n\npub(crate) fn no() {}\n";
        let file = SourceFile::new(Path::new("src/x.rs"), vec!["x".into()], code.to_owned());
        assert_eq!(
            declarations(&file),
            [
                "x: pub struct Open",
                "x: pub struct Open pub seen: u8",
                "x: pub enum Kind",
                "x: pub enum Kind One",
                "x: pub enum Kind Two",
                "x: impl Open pub fn take(self, other: u8) -> u8",
                "x: pub trait Give",
                "x: pub trait Give fn give(&self) -> u8",
            ]
        );
    }
}
