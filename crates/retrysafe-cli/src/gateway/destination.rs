//! To which upstream does a request go, and under which path?
//!
//! An upstream is found by the path alone, so that the methods of a path have one home. A server may read a path in several ways
//! (`paths::readings`). If two readings lead to two upstreams, nobody can say which one is meant, and the request is refused. Where a
//! prefix is taken off, the upstream reads what is left. So every reading of the rest, put back behind the prefix, must lead to the same
//! place, and its rule counts as well: no spelling leads to a rule that demands less.

use http::Uri;
use http::uri::PathAndQuery;
use matchit::Router;

use crate::config::{Config, Target};
use crate::paths::{patterns, readings};

/// Where the requests of all paths go.
pub(super) struct Destinations {
    /// None where everything goes to the upstream at the top.
    router: Option<Router<usize>>,
    all: Vec<Destination>,
}

/// Where a request goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Destination {
    /// The place of its upstream among all. The one at the top is the first.
    pub upstream: usize,
    /// What is taken off its path.
    pub prefix: Option<Box<str>>,
}

impl Destinations {
    pub(super) fn new(config: &Config) -> Self {
        let upstreams = config.upstreams();
        let patterns: Vec<_> = config.targets.iter().map(Target::pattern).collect();
        let router = patterns::routers(&patterns).into_values().next();
        let destination = |target: &Target| Destination {
            upstream: upstreams.iter().position(|it| **it == target.upstream).unwrap_or_default(),
            prefix: target.prefix.as_deref().map(Into::into),
        };
        Self { router, all: config.targets.iter().map(destination).collect() }
    }

    /// The one destination of all readings of a path.
    pub(super) fn of(&self, path: &str) -> Result<Destination, &'static str> {
        if self.router.is_none() {
            return Ok(Destination::default());
        }
        let readings = readings::read(path)?;
        let found = self.at(&readings.first);
        let destination = found.cloned().unwrap_or_default();
        let further = destination.readings_beyond(path)?;
        let mut others = readings.others.iter().chain(&further);
        if others.all(|other| self.at(other) == found) {
            Ok(destination)
        } else {
            Err("the path can be read in two ways that lead to different upstreams")
        }
    }

    fn at(&self, path: &str) -> Option<&Destination> {
        let found = self.router.as_ref()?.at(path).ok()?;
        self.all.get(*found.value)
    }
}

impl Destination {
    /// How the upstream may read what is left of a path, each put back behind the prefix.
    pub(super) fn readings_beyond(&self, path: &str) -> Result<Vec<String>, &'static str> {
        let Some(prefix) = &self.prefix else { return Ok(Vec::new()) };
        let left = self.left_of(path)?;
        let readings = readings::read(left)?;
        let prefix = prefix.to_ascii_lowercase();
        Ok(readings.all().map(|reading| format!("{prefix}{reading}")).collect())
    }

    /// What is left of a path without the prefix.
    pub(super) fn left_of<'a>(&self, path: &'a str) -> Result<&'a str, &'static str> {
        let Some(prefix) = &self.prefix else { return Ok(path) };
        match path.strip_prefix(&**prefix) {
            Some("") => Ok("/"),
            // To some servers two slashes begin the name of a host.
            Some(left) if left.starts_with('/') && !left.starts_with("//") => Ok(left),
            Some(_) | None => {
                Err("the prefix of the path is spelt in another way than the route's")
            }
        }
    }

    /// What a request asks the upstream for.
    pub(super) fn target(&self, uri: &Uri) -> Option<PathAndQuery> {
        let left = self.left_of(uri.path()).ok()?;
        match uri.query() {
            Some(query) => format!("{left}?{query}").parse().ok(),
            None => left.parse().ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file::{File, RouteSettings};
    use crate::gateway::route::Routes;
    use http::Method;
    use retrysafe_core::policy::KeyRule;

    fn route(path: &str, upstream: Option<&str>, strips: bool, key: KeyRule) -> RouteSettings {
        RouteSettings {
            path: Some(path.into()),
            upstream: upstream.map(Into::into),
            strip_prefix: strips.then_some(true),
            key: Some(key.into()),
            ..RouteSettings::default()
        }
    }

    fn table(route: Vec<RouteSettings>) -> Routes {
        let file = File { upstream: Some("http://top".into()), route, ..File::default() };
        Routes::new(&crate::config::resolve(&file).unwrap())
    }

    /// The upstream's place and the path that it is asked for, or why not.
    fn goes(routes: &Routes, path: &str) -> Result<(usize, String), String> {
        let uri: Uri = path.parse().unwrap();
        let found = routes.destination(uri.path()).map_err(|refusal| format!("{refusal:?}"))?;
        let target = found.target(&uri).unwrap();
        Ok((found.upstream, target.to_string()))
    }

    #[test]
    fn of_prefixes_that_nest_the_longer_one_counts() {
        let routes = table(vec![
            route("/a/{*rest}", Some("http://a"), true, KeyRule::Optional),
            route("/a/b/{*rest}", Some("http://b"), true, KeyRule::Optional),
            route("/a/b/plain", Some("http://c"), false, KeyRule::Optional),
        ]);
        for (path, upstream, target) in [
            ("/a", 1, "/"),
            ("/a/", 1, "/"),
            ("/a?x=1", 1, "/?x=1"),
            ("/a/x?y=/a/b", 1, "/x?y=/a/b"),
            ("/a/bb/x", 1, "/bb/x"),
            ("/a/b", 2, "/"),
            ("/a/b/x%2fy", 2, "/x%2fy"),
            ("/a/b/plain", 3, "/a/b/plain"),
            ("/ab/x", 0, "/ab/x"),
            ("/x", 0, "/x"),
        ] {
            assert_eq!(goes(&routes, path), Ok((upstream, target.into())), "{path}");
        }
        for path in [
            "/a/b/../x",
            "/a/%2e%2e/x",
            "/a/x/..%2fb/y",
            "/x/../a/y",
            "/a%2fb/x",
            "/%61/x",
            "/A/x",
            "/a//b/x",
            "//a/x",
            "/a;v=1/b/x",
            "/a//evil.example/x",
        ] {
            assert!(goes(&routes, path).is_err(), "{path}: {:?}", goes(&routes, path));
        }
    }

    /// The upstream reads what is left of the path, and may end at a place whose rule demands more.
    #[test]
    fn no_reading_of_what_is_left_leads_to_a_rule_that_demands_less() {
        let routes = table(vec![
            route("/shop/{*rest}", Some("http://shop"), true, KeyRule::Off),
            route("/shop/shop/pay", None, false, KeyRule::Required),
            route("/shop/pay", None, false, KeyRule::Required),
        ]);
        let find = |path: &str| {
            let destination = routes.destination(path)?;
            routes
                .find_on_way(path, &Method::POST, &destination)
                .map(|route| route.label.to_string())
        };
        assert_eq!(find("/shop/list").unwrap(), "/shop/{*rest}");
        assert_eq!(find("/shop/pay").unwrap(), "/shop/pay");
        assert_eq!(find("/shop/pay/").unwrap(), "/shop/pay");
        for path in [
            "/shop/x/../pay",
            "/shop/%70ay",
            "/shop/x%2f..%2fpay",
            "/shop/pay;x=1",
            // Resolved whole it is /shop/list. The upstream resolves `/../shop/pay` to its own /shop/pay.
            "/shop/%2e%2e/shop/pay",
            "/shop/..%2fshop/pay",
        ] {
            let found = find(path);
            let is_guarded = found.as_ref().is_ok_and(|label| label.ends_with("/pay"));
            assert!(found.is_err() || is_guarded, "{path}: {found:?}");
        }
        assert!(find("/shop/%2e%2e/shop/list").is_ok_and(|label| label == "/shop/{*rest}"));
    }
}
