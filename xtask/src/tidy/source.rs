//! What does a source file say to the compiler, apart from its tests?
//!
//! A small reader instead of a parser: comments, the insides of strings, and what is compiled for tests only become spaces, so
//! that lines keep their numbers.

use std::path::{Path, PathBuf};

use crate::Error;

/// One file.
pub(crate) struct SourceFile {
    /// Its path from the root of the repository.
    pub path: PathBuf,
    /// The module that it is: no names for the root of its crate.
    pub module: Vec<String>,
    /// The file as it stands.
    pub text: String,
    /// The code that is shipped.
    pub code: String,
    /// The strings of that code, each with its line.
    pub strings: Vec<(usize, String)>,
}

/// Reads the Rust files below a folder, without those that are compiled for tests only.
pub(crate) fn read_folder(root: &Path, folder: &str) -> Result<Vec<SourceFile>, Error> {
    let mut files = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                let text = std::fs::read_to_string(&path)?;
                let below = path.strip_prefix(root.join(folder))?;
                files.push(SourceFile::new(&Path::new(folder).join(below), module_of(below), text));
            }
        }
    }
    let of_tests: Vec<Vec<String>> = files.iter().flat_map(SourceFile::test_modules).collect();
    files.retain(|file| !of_tests.iter().any(|tests| file.module.starts_with(tests)));
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(files)
}

/// The module that a file is, by its path in its crate.
fn module_of(path: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        path.with_extension("").iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        names.pop();
    }
    names
}

impl SourceFile {
    pub(crate) fn new(path: &Path, module: Vec<String>, text: String) -> Self {
        let (bare, strings) = without_comments_and_strings(&text);
        let code = without_tests(&bare);
        let lines: Vec<&str> = code.lines().collect();
        // A string whose quotes are gone belongs to a test.
        let is_shipped =
            |line: usize| lines.get(line.wrapping_sub(1)).is_some_and(|line| line.contains('"'));
        let strings = strings.into_iter().filter(|(line, _)| is_shipped(*line)).collect();
        Self { path: path.into(), module, code, strings, text }
    }

    /// The modules that this file declares for tests: `#[cfg(test)] mod tests;`.
    fn test_modules(&self) -> Vec<Vec<String>> {
        let declarations = self.text.split("#[cfg(test)]").skip(1);
        let names = declarations.filter_map(|rest| {
            let rest = rest.trim_start();
            let name = rest.strip_prefix("pub(crate) ").unwrap_or(rest).strip_prefix("mod ")?;
            name.split_once(';')
                .map(|(name, _)| name.trim())
                .filter(|name| !name.contains([' ', '{']))
        });
        names.map(|name| [&self.module[..], &[name.to_owned()]].concat()).collect()
    }
}

/// The same text with spaces for comments and for the insides of strings, and those strings.
fn without_comments_and_strings(text: &str) -> (String, Vec<(usize, String)>) {
    let characters: Vec<char> = text.chars().collect();
    let at = |place: usize| characters.get(place).copied().unwrap_or('\0');
    let mut out = String::with_capacity(text.len());
    let mut strings = Vec::new();
    let mut place = 0;
    while place < characters.len() {
        let end = match (at(place), at(place + 1)) {
            ('/', '/') => until(&characters, place, |rest| rest.starts_with(&['\n'])),
            ('/', '*') => until(&characters, place + 2, |rest| rest.starts_with(&['*', '/'])) + 2,
            ('r', '"' | '#')
                if !is_word(at(place.wrapping_sub(1)))
                    && raw_quote(&characters, place).is_some() =>
            {
                let (begin, hashes) = raw_quote(&characters, place).unwrap_or_default();
                let closing: Vec<char> = std::iter::once('"').chain(vec!['#'; hashes]).collect();
                let end = until(&characters, begin, |rest| rest.starts_with(&closing));
                strings.push((
                    line_at(&out),
                    characters.get(begin..end).unwrap_or_default().iter().collect(),
                ));
                end + closing.len()
            }
            ('"', _) => {
                let mut end = place + 1;
                while end < characters.len() && at(end) != '"' {
                    end += if at(end) == '\\' { 2 } else { 1 };
                }
                strings.push((
                    line_at(&out),
                    characters.get(place + 1..end).unwrap_or_default().iter().collect(),
                ));
                end + 1
            }
            // A character, not a lifetime.
            ('\'', '\\') => until(&characters, place + 3, |rest| rest.starts_with(&['\''])) + 1,
            ('\'', _) if at(place + 2) == '\'' => place + 3,
            (character, _) => {
                out.push(character);
                place += 1;
                continue;
            }
        };
        let is_string = at(place) == '"' || at(place) == 'r';
        for (number, place) in (place..end.min(characters.len())).enumerate() {
            let is_quote = is_string && (number == 0 || place + 1 == end);
            out.push(match at(place) {
                '\n' => '\n',
                _ if is_quote => '"',
                _ => ' ',
            });
        }
        place = end;
    }
    (out, strings)
}

/// Where the first rest begins that `is_end` knows.
fn until(characters: &[char], from: usize, is_end: impl Fn(&[char]) -> bool) -> usize {
    (from..characters.len())
        .find(|place| characters.get(*place..).is_some_and(&is_end))
        .unwrap_or(characters.len())
}

/// Where the inside of a raw string begins, and how many hashes it has.
fn raw_quote(characters: &[char], place: usize) -> Option<(usize, usize)> {
    let rest = characters.get(place + 1..)?;
    let hashes = rest.iter().take_while(|character| **character == '#').count();
    (rest.get(hashes) == Some(&'"')).then_some((place + 2 + hashes, hashes))
}

fn line_at(before: &str) -> usize {
    before.matches('\n').count() + 1
}

pub(crate) fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The same code with spaces for whatever `#[cfg(test)]` stands before: up to the end of its braces, or to its semicolon.
fn without_tests(code: &str) -> String {
    let mut out = String::with_capacity(code.len());
    let mut rest = code;
    while let Some((before, after)) = rest.split_once("#[cfg(test)]") {
        out.push_str(before);
        let mut depth = 0_usize;
        let is_end = |(_, character): &(usize, char)| {
            match character {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0 && matches!(character, '}' | ';')
        };
        let end = after.char_indices().find(is_end).map_or(after.len(), |(place, _)| place + 1);
        let (tests, next) = after.split_at(end);
        out.extend(tests.chars().map(|character| if character == '\n' { '\n' } else { ' ' }));
        rest = next;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> SourceFile {
        SourceFile::new(Path::new("a/src/b.rs"), vec!["b".into()], text.into())
    }

    #[test]
    fn comments_strings_and_tests_are_not_code() {
        let file = read(
            "use a::b; // crate::c\n/* crate::d\n */ fn f<'a>() { let s = \"crate::e\"; let c = '\"'; }\n\
             #[cfg(test)]\nmod tests {\n fn g() { let s = \"of a test\"; crate::h(); }\n}\nfn i() {}\n",
        );
        for gone in ["crate::c", "crate::d", "crate::e", "crate::h"] {
            assert!(!file.code.contains(gone), "{gone} in {}", file.code);
        }
        assert!(file.code.contains("use a::b;") && file.code.contains("fn i() {}"));
        assert_eq!(file.code.lines().count(), file.text.lines().count());
        assert_eq!(file.strings, [(3, "crate::e".to_owned())]);
    }

    #[test]
    fn strings_end_where_they_end() {
        let file = read(
            "let a = r#\"x \" y\"#; let b = \"q \\\" r\"; let c = r\"z\"; let d = '\\''; let e = \"s\";",
        );
        let strings: Vec<_> = file.strings.into_iter().map(|(_, string)| string).collect();
        assert_eq!(strings, ["x \" y", "q \\\" r", "z", "s"]);
    }

    #[test]
    fn a_file_of_tests_is_known_by_its_declaration() {
        assert_eq!(read("#[cfg(test)]\nmod tests;\n").test_modules(), [["b", "tests"]]);
        assert!(read("#[cfg(test)]\nmod tests {\n}\n").test_modules().is_empty());
    }

    #[test]
    fn a_path_names_its_module() {
        assert_eq!(module_of(Path::new("a/b.rs")), ["a", "b"]);
        assert_eq!(module_of(Path::new("a/mod.rs")), ["a"]);
        assert!(module_of(Path::new("lib.rs")).is_empty());
    }
}
