//! How do the names read? Counts what a reader trips over; a count is information, not a complaint.
//!
//! What a trait demands of its implementations has no name of ours. A name of one word is rarely enough for a reader who jumps in from a stack trace, and a name that two
//! types share is worse. `match` on a boolean hides an `if`, and a tuple that is taken apart at once hides two lines.

use std::collections::BTreeMap;
use std::fmt;

use super::source::SourceFile;

/// What was counted in the crates so far.
#[derive(Default)]
pub(crate) struct NameCounts {
    /// Each type's name, with how many declarations have it.
    types: BTreeMap<String, usize>,
    functions: usize,
    functions_of_one_word: usize,
    matches_on_a_boolean: usize,
    tuples_taken_apart: usize,
}

impl NameCounts {
    pub(crate) fn read(&mut self, file: &SourceFile) {
        // The indent of the `impl` of a trait that the line is in.
        let mut of_trait = None;
        for whole in file.code.lines() {
            let line = whole.trim();
            let indent = whole.len() - whole.trim_start().len();
            if line.starts_with("impl") && line.contains(" for ") {
                of_trait = Some(indent);
            }
            if line == "}" && of_trait == Some(indent) {
                of_trait = None;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            for pair in words.windows(2).filter(|_| of_trait.is_none()) {
                match *pair {
                    ["struct" | "enum" | "trait" | "type", name] => self.note_type(name),
                    ["fn", name] => self.note_function(name),
                    _ => {}
                }
            }
            self.matches_on_a_boolean += usize::from(line.starts_with("true =>"));
            self.tuples_taken_apart += usize::from(takes_a_tuple_apart(line));
        }
    }

    fn note_type(&mut self, name: &str) {
        let name = identifier(name);
        if name.starts_with(char::is_uppercase) {
            *self.types.entry(name.to_owned()).or_default() += 1;
        }
    }

    fn note_function(&mut self, name: &str) {
        self.functions += 1;
        self.functions_of_one_word += usize::from(!identifier(name).contains('_'));
    }
}

impl fmt::Display for NameCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types: usize = self.types.values().sum();
        let one_word: usize =
            self.types.iter().filter(|(name, _)| is_one_word(name)).map(|(_, times)| times).sum();
        let shared: usize = self.types.values().filter(|times| **times > 1).sum();
        let percent = |part: usize, whole: usize| part * 100 / whole.max(1);
        writeln!(f, "names")?;
        writeln!(f, "    {:>3} % of {types} types have one word", percent(one_word, types))?;
        writeln!(f, "    {:>3} % of them share their name with another", percent(shared, types))?;
        let functions_of_one_word = percent(self.functions_of_one_word, self.functions);
        writeln!(
            f,
            "    {functions_of_one_word:>3} % of {} functions have one word",
            self.functions
        )?;
        writeln!(f, "    {:>3} times a match on a boolean", self.matches_on_a_boolean)?;
        write!(
            f,
            "    {:>3} times a tuple made and taken apart in one line",
            self.tuples_taken_apart
        )
    }
}

fn identifier(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

fn is_one_word(name: &str) -> bool {
    name.chars().skip(1).all(|c| !c.is_uppercase())
}

fn takes_a_tuple_apart(line: &str) -> bool {
    let Some(rest) = line.strip_prefix("let (") else { return false };
    rest.split_once(" = ").is_some_and(|(_, value)| value.starts_with('('))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn names_are_counted_as_they_are_declared() {
        let code = "struct Answer<'a>(u8);\nenum Answer { A }\npub trait HeldAnswer {}\nfn take_it() {}\nfn run() {\n\
                    match is_on {\n true => {}\n false => {}\n }\n let (a, b) = (1, 2);\n let (c, d) = pair();\n}\n";
        let mut counts = NameCounts::default();
        counts.read(&SourceFile::new(Path::new("src/x.rs"), Vec::new(), code.to_owned()));
        let shown = counts.to_string();
        assert!(shown.contains(" 66 % of 3 types have one word"), "{shown}");
        assert!(shown.contains(" 66 % of them share"), "{shown}");
        assert!(shown.contains(" 50 % of 2 functions"), "{shown}");
        assert!(shown.contains("  1 times a match on a boolean"), "{shown}");
        assert!(shown.contains("  1 times a tuple made"), "{shown}");
    }

    #[test]
    fn what_a_trait_demands_is_not_counted() {
        let code = "impl Service for Proxy {\n    type Response = u8;\n    fn call() {\n        if x {\n        }\n    }\n}\nfn run_it() {}\n";
        let mut counts = NameCounts::default();
        counts.read(&SourceFile::new(Path::new("src/x.rs"), Vec::new(), code.to_owned()));
        let shown = counts.to_string();
        assert!(shown.contains(" of 0 types"), "{shown}");
        assert!(shown.contains("  0 % of 1 functions"), "{shown}");
    }
}
