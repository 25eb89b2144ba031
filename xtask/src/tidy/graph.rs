//! Which module uses which?
//!
//! Paths that begin with `crate`, `super` or `self` are followed to the module that they lead to, also through names that a
//! module has taken in with `use`. What a module says about its own parts, and they about it, is no edge: rooms are siblings.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::source::{SourceFile, is_word};

/// A module, by the names from the root of its crate.
pub(crate) type Module = Vec<String>;

/// The modules of a crate.
pub(crate) struct Crate {
    pub folder: String,
    modules: BTreeSet<Module>,
    /// What the names mean that a module has taken in.
    taken: BTreeMap<Module, BTreeMap<String, Vec<String>>>,
    /// Uses of one module by another: whose file, and of what.
    uses: Vec<(Module, Module)>,
}

/// Below one module: which of its parts uses which, and by how many paths.
pub(crate) type Rooms = BTreeMap<(String, String), usize>;

impl Crate {
    pub(crate) fn read(folder: &str, files: &[SourceFile]) -> Self {
        let modules = files.iter().map(|file| file.module.clone()).collect();
        let mut graph =
            Self { folder: folder.into(), modules, taken: BTreeMap::new(), uses: Vec::new() };
        let paths: Vec<_> = files.iter().map(|file| (&file.module, paths(&file.code))).collect();
        for (module, paths) in &paths {
            for path in paths.iter().filter(|path| path.is_use) {
                if let (Some(name), Some(meant)) =
                    (&path.name, graph.absolute(module, &path.segments))
                {
                    graph.taken.entry((*module).clone()).or_default().insert(name.clone(), meant);
                }
            }
        }
        for (module, paths) in &paths {
            for path in paths {
                if let Some(meant) = graph.absolute(module, &path.segments) {
                    let target = graph.target(meant);
                    graph.uses.push(((*module).clone(), target));
                }
            }
        }
        graph
    }

    /// A path from the root of the crate, if it leads into this crate.
    fn absolute(&self, module: &[String], segments: &[String]) -> Option<Vec<String>> {
        let (first, mut rest) = segments.split_first()?;
        let mut here = module.to_vec();
        match first.as_str() {
            "crate" => here.clear(),
            "self" => {}
            "super" => {
                here.pop();
                while let Some((word, after)) = rest.split_first()
                    && word == "super"
                {
                    here.pop();
                    rest = after;
                }
            }
            child => {
                here.push(child.to_owned());
                if !self.modules.contains(&here) {
                    return None;
                }
            }
        }
        here.extend(rest.iter().cloned());
        Some(here)
    }

    /// The module in which a path ends, after every name that was taken in from elsewhere was followed.
    fn target(&self, mut path: Vec<String>) -> Module {
        // No chain of names is longer; one that leads back to itself ends here.
        for _ in 0..8 {
            let is_module =
                |depth: &usize| path.get(..*depth).is_some_and(|path| self.modules.contains(path));
            let depth = (0..=path.len()).rev().find(is_module).unwrap_or_default();
            let (module, rest) = path.split_at(depth);
            let Some((name, rest)) = rest.split_first() else { return path };
            match self.taken.get(module).and_then(|taken| taken.get(name)) {
                Some(meant) if *meant != path => path = [meant, rest].concat(),
                Some(_) | None => return module.to_vec(),
            }
        }
        path
    }

    /// Who uses whom below each module that has parts.
    pub(crate) fn rooms(&self) -> BTreeMap<Module, Rooms> {
        let mut all: BTreeMap<Module, Rooms> = BTreeMap::new();
        for (from, to) in &self.uses {
            let shared = from.iter().zip(to).take_while(|(one, other)| one == other).count();
            if let (Some(one), Some(other)) = (from.get(shared), to.get(shared)) {
                let below = from.iter().take(shared).cloned().collect();
                let rooms = all.entry(below).or_default();
                *rooms.entry((one.clone(), other.clone())).or_default() += 1;
            }
        }
        all
    }
}

impl fmt::Display for Crate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (module, rooms) in self.rooms() {
            writeln!(f, "{}", [std::slice::from_ref(&self.folder), &module].concat().join("/"))?;
            let mut lines: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for (from, to) in rooms.keys() {
                lines.entry(from).or_default().push(to);
            }
            for (from, to) in lines {
                writeln!(f, "    {from} → {}", to.join(" "))?;
            }
        }
        Ok(())
    }
}

/// A path that stands in the code.
#[derive(Debug, PartialEq, Eq)]
struct Mentioned {
    segments: Vec<String>,
    /// The name under which `use` takes it in; none for `*`.
    name: Option<String>,
    is_use: bool,
}

/// Every path of a file: those of `use` with all their branches, and others that begin with `crate`, `super` or `self`.
fn paths(code: &str) -> Vec<Mentioned> {
    let words = words(code);
    let mut found = Vec::new();
    let mut place = 0;
    while let Some(word) = words.get(place) {
        let before = place.checked_sub(1).and_then(|before| words.get(before)).map(String::as_str);
        place += 1;
        if word == "use" {
            branches(&words, &mut place, &[], true, &mut found);
        } else if ["crate", "super", "self"].contains(&word.as_str())
            && before != Some("::")
            && before != Some("$")
            && words.get(place).is_some_and(|next| next == "::")
        {
            place -= 1;
            branches(&words, &mut place, &[], false, &mut found);
        }
    }
    found
}

/// Reads one path, and whatever it branches into.
fn branches(
    words: &[String],
    place: &mut usize,
    before: &[String],
    is_use: bool,
    found: &mut Vec<Mentioned>,
) {
    let mut segments = before.to_vec();
    loop {
        match words.get(*place).map(String::as_str) {
            Some("{") if is_use => {
                *place += 1;
                while words.get(*place).is_some_and(|word| word != "}") {
                    branches(words, place, &segments, is_use, found);
                    if words.get(*place).is_some_and(|word| word == ",") {
                        *place += 1;
                    }
                }
                *place += 1;
                return;
            }
            Some("*") if is_use => {
                *place += 1;
                return found.push(Mentioned { segments, name: None, is_use });
            }
            Some(word) if word.starts_with(is_word) => {
                if !(word == "self" && !before.is_empty() && segments == before) {
                    segments.push(word.to_owned());
                }
                *place += 1;
            }
            Some(_) | None => {
                // Nothing that could be read: the next word is somebody else's.
                *place += 1;
                return;
            }
        }
        if words.get(*place).is_some_and(|word| word == "::") {
            *place += 1;
            continue;
        }
        let mut name = segments.last().cloned();
        if is_use && words.get(*place).is_some_and(|word| word == "as") {
            name = words.get(*place + 1).cloned();
            *place += 2;
        }
        return found.push(Mentioned { segments, name, is_use });
    }
}

/// The words and signs of code.
fn words(code: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut characters = code.chars().peekable();
    while let Some(character) = characters.next() {
        if is_word(character) {
            let mut word = String::from(character);
            while let Some(next) = characters.next_if(|next| is_word(*next)) {
                word.push(next);
            }
            words.push(word);
        } else if character == ':' && characters.next_if_eq(&':').is_some() {
            words.push("::".into());
        } else if !character.is_whitespace() {
            words.push(character.into());
        }
    }
    words
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::path::Path;

    /// A crate of modules such as `a::b`, each with its code.
    pub(crate) fn of(modules: &[(&str, &str)]) -> Crate {
        let file = |(module, code): &(&str, &str)| {
            let module = module.split("::").filter(|name| !name.is_empty()).map(str::to_owned);
            SourceFile::new(Path::new("x.rs"), module.collect(), (*code).to_owned())
        };
        Crate::read("x/src", &modules.iter().map(file).collect::<Vec<_>>())
    }

    fn edges(graph: &Crate, below: &[&str]) -> Vec<String> {
        let below: Module = below.iter().map(|name| (*name).to_owned()).collect();
        let rooms = graph.rooms();
        let keys = rooms.get(&below).into_iter().flat_map(BTreeMap::keys);
        keys.map(|(from, to)| format!("{from}→{to}")).collect()
    }

    #[test]
    fn every_way_of_naming_a_module_is_an_edge() {
        for code in [
            "use crate::b::Thing;",
            "use crate::{b, c::{self, Other as Another}};",
            "use super::b;",
            "fn f() { super::b::g(); }",
            "fn f() -> crate::b::Thing { todo }",
            "pub(crate) use crate::b::*;",
        ] {
            let graph = of(&[("", ""), ("a", code), ("b", ""), ("c", "")]);
            assert!(edges(&graph, &[]).contains(&"a→b".to_owned()), "{code}");
        }
        for code in [
            "use std::b;",
            "// crate::b",
            "fn f() { b::g(); }",
            "pub(crate) fn b() {}",
            "use self::b::X;",
        ] {
            let graph = of(&[("", ""), ("a", code), ("b", "")]);
            assert_eq!(edges(&graph, &[]), Vec::<String>::new(), "{code}");
        }
    }

    #[test]
    fn a_name_that_was_taken_in_leads_to_where_it_comes_from() {
        let graph = of(&[
            ("", "use a::Thing; pub use b::Other as Another;"),
            ("a", ""),
            ("b", "use super::Thing;"),
            ("c", "use crate::Another;"),
        ]);
        assert_eq!(edges(&graph, &[]), ["b→a", "c→b"]);
    }

    #[test]
    fn parts_of_rooms_make_edges_at_every_level() {
        let graph = of(&[
            ("", ""),
            ("a", ""),
            ("a::x", "use super::y::Y; use crate::b::z::Z;"),
            ("a::y", "use super::x;"),
            ("b", ""),
            ("b::z", ""),
        ]);
        assert_eq!(edges(&graph, &[]), ["a→b"]);
        assert_eq!(edges(&graph, &["a"]), ["x→y", "y→x"]);
    }
}
