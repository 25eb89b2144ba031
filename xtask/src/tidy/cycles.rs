//! Which rooms need each other?
//!
//! Two rooms that use each other, by whatever detour, are one room with two doors: neither can be read, tested or moved
//! alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::graph::{Crate, Rooms};

/// Rooms that all lead to each other.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cycle {
    /// The module whose parts they are, by its folder.
    pub below: String,
    pub rooms: BTreeSet<String>,
    /// The uses between them, the rarest first: those are the easiest to end.
    pub uses: Vec<(usize, String, String)>,
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rooms: Vec<&str> = self.rooms.iter().map(String::as_str).collect();
        write!(f, "{}: {} need each other:", self.below, rooms.join(", "))?;
        for (count, from, to) in &self.uses {
            write!(f, " {from} → {to} ({count})")?;
        }
        Ok(())
    }
}

/// All cycles between siblings.
pub(crate) fn find(graph: &Crate) -> Vec<Cycle> {
    let mut cycles = Vec::new();
    for (module, rooms) in graph.rooms() {
        let below = [std::slice::from_ref(&graph.folder), &module].concat().join("/");
        cycles.extend(among(&rooms).into_iter().map(|(rooms, uses)| Cycle {
            below: below.clone(),
            rooms,
            uses,
        }));
    }
    cycles
}

type Found = (BTreeSet<String>, Vec<(usize, String, String)>);

fn among(rooms: &Rooms) -> Vec<Found> {
    let names: BTreeSet<&String> = rooms.keys().flat_map(|(from, to)| [from, to]).collect();
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        names.iter().map(|name| (*name, reached_from(name, rooms))).collect();
    let need_each_other = |one: &String, other: &String| {
        let leads = |from, to| reached.get(from).is_some_and(|all| all.contains(to));
        leads(one, other) && leads(other, one)
    };
    let mut done: BTreeSet<&String> = BTreeSet::new();
    let mut found = Vec::new();
    for name in &names {
        let cycle: BTreeSet<String> = names
            .iter()
            .filter(|other| need_each_other(name, other))
            .map(|other| (*other).clone())
            .collect();
        if cycle.len() > 1 && !done.contains(name) {
            done.extend(names.iter().filter(|other| cycle.contains(**other)));
            let inside =
                rooms.iter().filter(|((from, to), _)| cycle.contains(from) && cycle.contains(to));
            let mut uses: Vec<_> =
                inside.map(|((from, to), count)| (*count, from.clone(), to.clone())).collect();
            uses.sort();
            found.push((cycle, uses));
        }
    }
    found
}

fn reached_from<'a>(start: &String, rooms: &'a Rooms) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut next = vec![start];
    while let Some(room) = next.pop() {
        for (_, to) in rooms.keys().filter(|(from, _)| from == room) {
            if reached.insert(to) {
                next.push(to);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::super::graph::tests::of;
    use super::*;

    #[test]
    fn a_detour_is_a_cycle_and_a_tree_is_none() {
        let tree = of(&[
            ("", ""),
            ("a", "use crate::b::X; use crate::c::X;"),
            ("b", "use crate::c::X;"),
            ("c", ""),
        ]);
        assert_eq!(find(&tree), []);
        let graph = of(&[
            ("", ""),
            ("a", "use crate::b::{P, Q};"),
            ("b", "use crate::c::X;"),
            ("c", "fn f() { crate::a::g() }"),
            ("d", "use crate::a::X;"),
        ]);
        let [cycle] = &find(&graph)[..] else { panic!("one cycle") };
        assert_eq!(cycle.rooms.iter().map(String::as_str).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(
            cycle.to_string(),
            "x/src: a, b, c need each other: b → c (1) c → a (1) a → b (2)"
        );
    }
}
