//! What do the pages tell people to type?
//!
//! The README, SECURITY.md and every page of `docs/`, as far as a machine can read them: fenced blocks with their
//! language, what stands between backticks in the text, links and headings.

use std::path::{Path, PathBuf};

/// A page.
pub(crate) struct Page {
    /// Its name from the root of the repository.
    pub(crate) name: String,
    pub(crate) text: String,
}

/// A fenced block.
pub(crate) struct Block {
    /// The page and the line.
    pub(crate) at: String,
    pub(crate) language: String,
    pub(crate) text: String,
}

/// What stands between backticks.
pub(crate) struct Span {
    pub(crate) at: String,
    pub(crate) text: String,
}

/// A link to a file of the repository, or to a heading of one.
pub(crate) struct Link {
    pub(crate) at: String,
    /// What the reader sees.
    pub(crate) text: String,
    /// The file, from the root of the repository.
    pub(crate) file: PathBuf,
    /// The heading, as it stands after `#`.
    pub(crate) heading: Option<String>,
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Pages at the root that tell people what to type.
const AT_THE_ROOT: [&str; 2] = ["README.md", "SECURITY.md"];

/// The pages at the root, and every page below `docs/`.
pub(crate) fn all() -> Vec<Page> {
    let mut names: Vec<PathBuf> = AT_THE_ROOT.iter().map(PathBuf::from).collect();
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).unwrap().flatten() {
            let path = folder.join(entry.file_name());
            if entry.path().is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                names.push(path);
            }
        }
    }
    names.sort();
    names.iter().map(|name| Page::read(name)).collect()
}

impl Page {
    pub(crate) fn read(name: &Path) -> Self {
        let text = std::fs::read_to_string(root().join(name)).unwrap();
        Self { name: name.display().to_string(), text }
    }

    /// Its fenced blocks, without the indentation of a list that they stand in.
    pub(crate) fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<(usize, Block)> = None;
        for (number, line) in (1..).zip(self.text.lines()) {
            let indentation = line.len() - line.trim_start().len();
            match (line.trim().strip_prefix("```"), &mut open) {
                (Some(language), None) => {
                    let at = format!("{}:{number}", self.name);
                    let (language, text) = (language.to_owned(), String::new());
                    open = Some((indentation, Block { at, language, text }));
                }
                (Some(_), Some(_)) => blocks.extend(open.take().map(|(_, block)| block)),
                (None, Some((outer, block))) => {
                    block.text.push_str(line.get(indentation.min(*outer)..).unwrap_or_default());
                    block.text.push('\n');
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a block is not closed", self.name);
        blocks
    }

    /// What stands between backticks outside of blocks. A span may go on in the next line.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let mut spans = Vec::new();
        let mut is_block = false;
        let mut paragraph: Vec<(usize, &str)> = Vec::new();
        for (number, line) in (1..).zip(self.text.lines()).chain([(0, "")]) {
            let is_fence = line.trim().starts_with("```");
            if is_fence || is_block || line.trim().is_empty() || line.starts_with(['|', '#']) {
                paragraph.push((number, if is_fence || is_block { "" } else { line }));
                spans.extend(self.spans_of(&std::mem::take(&mut paragraph)));
                is_block ^= is_fence;
            } else {
                paragraph.push((number, line.trim()));
            }
        }
        spans
    }

    /// Its links to files of the repository, outside of blocks. Links to other places are not ours to judge.
    pub(crate) fn links(&self) -> Vec<Link> {
        let mut links = Vec::new();
        let mut is_block = false;
        for (number, line) in (1..).zip(self.text.lines()) {
            is_block ^= line.trim().starts_with("```");
            for (before, after) in line.match_indices("](").map(|(at, _)| line.split_at(at)) {
                let target = after[2..].split(')').next().unwrap_or_default();
                if is_block || target.contains("://") || target.starts_with("mailto:") {
                    continue;
                }
                let text = before.rsplit('[').next().unwrap_or_default().to_owned();
                let (file, heading) = match target.split_once('#') {
                    Some((file, heading)) => (file, Some(heading.to_owned())),
                    None => (target, None),
                };
                let own = Path::new(&self.name);
                let file = if file.is_empty() {
                    own.to_owned()
                } else {
                    own.parent().unwrap_or(Path::new("")).join(file)
                };
                links.push(Link { at: format!("{}:{number}", self.name), text, file, heading });
            }
        }
        links
    }

    /// Its headings, as they stand after `#` in a link: lower case, hyphens for spaces, nothing else but letters and digits.
    pub(crate) fn headings(&self) -> Vec<String> {
        let mut is_block = false;
        let mut headings = Vec::new();
        for line in self.text.lines() {
            is_block ^= line.trim().starts_with("```");
            if let (false, Some(heading)) = (is_block, line.strip_prefix('#')) {
                let text = heading.trim_start_matches('#').trim().to_lowercase();
                let kept =
                    text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
                headings.push(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
            }
        }
        headings
    }

    fn spans_of(&self, paragraph: &[(usize, &str)]) -> Vec<Span> {
        let first = paragraph.first().map_or(0, |(number, _)| *number);
        let text = paragraph.iter().map(|(_, line)| *line).collect::<Vec<_>>().join("\n");
        let mut line = first;
        let mut spans = Vec::new();
        for (at, part) in text.split('`').enumerate() {
            if at % 2 == 1 {
                let at = format!("{}:{line}", self.name);
                spans
                    .push(Span { at, text: part.split_whitespace().collect::<Vec<_>>().join(" ") });
            }
            line += part.matches('\n').count();
        }
        spans
    }
}

/// Programs whose command lines stand in blocks without a language.
const PROGRAMS: [&str; 4] = ["retrysafe", "cargo", "curl", "docker"];

impl Block {
    /// Its command lines, each in one piece. Where a block shows a session, those after `$ `.
    pub(crate) fn commands(&self) -> Vec<String> {
        let is_session = self.text.lines().any(|line| line.starts_with("$ "));
        let is_script = match self.language.as_str() {
            "sh" => true,
            "" => PROGRAMS.iter().any(|program| self.text.starts_with(&format!("{program} "))),
            _ => false,
        };
        let mut commands: Vec<String> = Vec::new();
        let mut goes_on = false;
        for line in self.text.lines() {
            let begun = if is_session { line.strip_prefix("$ ") } else { Some(line) };
            let (Some(line), true) = (begun.or(goes_on.then_some(line)), is_session || is_script)
            else {
                continue;
            };
            match (goes_on, commands.last_mut()) {
                (true, Some(last)) => {
                    last.push(' ');
                    last.push_str(line.trim());
                }
                (_, _) if line.trim().is_empty() || line.trim_start().starts_with('#') => {}
                (_, _) => commands.push(line.to_owned()),
            }
            let last = commands.last_mut();
            goes_on = last.as_ref().is_some_and(|last| last.ends_with('\\'));
            if let (true, Some(last)) = (goes_on, last) {
                last.pop();
            }
        }
        commands.into_iter().map(|command| without_comment(&command)).collect()
    }
}

/// A command line without the comment at its end.
fn without_comment(line: &str) -> String {
    let mut quote = None;
    let mut previous = ' ';
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            (None, '#') if previous == ' ' => return line[..at].trim().to_owned(),
            (_, _) => {}
        }
        previous = c;
    }
    line.trim().to_owned()
}
