//! Which requests does a route's path stand for?
//!
//! `{name}` stands for one segment, `{*rest}` for everything from there on, the path before it included. A slash at the end makes no
//! difference, nor does case: a rule that is meant to guard should guard too much rather than too little.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use http::Method;
use matchit::Router;

use super::readings;

/// The path of a route as it is configured, and the methods that the route has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern<'a> {
    pub path: &'a str,
    pub methods: &'a [Method],
}

/// One router per method, so that a route does not stand in the way of methods that it lacks. They
/// lead to places in the list of routes.
pub(crate) type Routers = HashMap<Method, Router<usize>>;

/// The routers of a list of routes that was checked.
pub(crate) fn routers(routes: &[Pattern<'_>]) -> Routers {
    // The check has passed, so there is nothing to complain about here.
    build(routes).0
}

/// Says what is wrong with the paths of a list of routes, and with which of them.
pub(crate) fn check(routes: &[Pattern<'_>]) -> BTreeSet<(usize, String)> {
    let (routers, mut wrong) = build(routes);
    for (at, route) in routes.iter().enumerate() {
        if wrong.iter().all(|(other, _)| *other != at)
            && let Err(why) = reach(route, &routers)
        {
            wrong.insert((at, format!("{:?} guards no request: {why}", route.path)));
        }
    }
    wrong
}

/// Looks for the requests that a route is meant for.
fn reach(route: &Pattern<'_>, routers: &Routers) -> Result<(), &'static str> {
    let path = sample(route.path)?;
    let plain = readings::plain(&path)?;
    let mut routers = route.methods.iter().filter_map(|method| routers.get(method));
    if routers.all(|router| router.at(&plain).is_ok()) {
        Ok(())
    } else {
        Err("requests are read without what it writes, such as %2D for - or a second slash")
    }
}

/// Builds the routers, and says what is wrong.
fn build(routes: &[Pattern<'_>]) -> (Routers, BTreeSet<(usize, String)>) {
    let mut wrong = BTreeSet::new();
    let mut tables: HashMap<&Method, BTreeMap<(Rank, String), usize>> = HashMap::new();
    for (at, route) in routes.iter().enumerate() {
        for method in route.methods {
            let table = tables.entry(method).or_default();
            for spelling in spellings(route.path) {
                let is_written = spelling.0 == Rank::Written;
                match table.entry(spelling) {
                    Entry::Vacant(free) => {
                        free.insert(at);
                    }
                    Entry::Occupied(taken) if is_written && *taken.get() != at => {
                        wrong.insert((at, "another route has the same path and method".to_owned()));
                    }
                    Entry::Occupied(_) => {}
                }
            }
        }
    }
    let mut routers = Routers::new();
    for (method, table) in tables {
        let router = routers.entry(method.clone()).or_default();
        for ((rank, pattern), at) in table {
            // An implied spelling gives way to one that is there already.
            if let Err(error) = router.insert(pattern, at)
                && rank == Rank::Written
            {
                wrong.insert((at, error.to_string()));
            }
        }
    }
    (routers, wrong)
}

/// A path that a request for this route could have.
fn sample(path: &str) -> Result<String, &'static str> {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('{') {
        let (_, after) = after.split_once('}').ok_or("a brace is not closed")?;
        out.push_str(before);
        out.push_str("0-sample-0");
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// Which spelling counts where two routes share one: the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// As configured.
    Written,
    /// With or without the slash at its end.
    Slash,
    /// The path before the rest.
    BeforeRest,
}

/// A path's spelling for the router, and those that it implies.
fn spellings(path: &str) -> Vec<(Rank, String)> {
    let own = normal(path);
    let mut all = vec![(Rank::Written, own.clone())];
    match own.rfind("/{*") {
        Some(end) => {
            let before = own.get(..end).unwrap_or_default();
            all.push((Rank::BeforeRest, format!("{before}/")));
            if !before.is_empty() {
                all.push((Rank::BeforeRest, before.to_owned()));
            }
        }
        None => match own.strip_suffix('/') {
            Some("") => {}
            Some(before) => all.push((Rank::Slash, before.to_owned())),
            None => all.push((Rank::Slash, format!("{own}/"))),
        },
    }
    all
}

/// Literal parts in lower case, and parameters by number: two routes that differ only in the names
/// of their parameters are the same route.
fn normal(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    let mut number = 0;
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(&before.to_lowercase());
        let Some((name, after)) = after.split_once('}') else {
            out.push('{');
            rest = after;
            break;
        };
        let star = if name.starts_with('*') { "*" } else { "" };
        out.push_str(&format!("{{{star}p{number}}}"));
        number += 1;
        rest = after;
    }
    out.push_str(&rest.to_lowercase());
    out
}
