//! Which rule holds for a request?
//!
//! A `[[route]]` holds for its path and its methods; everything else falls to the defaults, so that
//! a method nobody thought of is still covered. Of several paths that fit, the most specific one
//! that has the method counts. A trailing `{*rest}` includes the path before it, and a slash at the
//! end makes no difference: a rule that is meant to guard should guard too much rather than too
//! little. For the same reason a path on which some method needs a key refuses methods that a server
//! could take for it: all but the safe ones, PUT, DELETE and those that a rule covers.

use std::sync::Arc;

use http::{Method, StatusCode};
use metrics::Counter;
use retrysafe::layer::RoutePolicy;
use retrysafe_core::event;
use retrysafe_core::policy::{KeyRule, Mode};
use retrysafe_core::problem::Refusal;

use super::destination::{Destination, Destinations};
use super::durations::RouteDurations;
use crate::config::{Config, RouteRules};
use crate::paths::patterns::{self, Routers};
use crate::paths::readings::{self, Readings};

/// All routes.
pub(crate) struct Routes {
    routers: Routers,
    destinations: Destinations,
    defaults: Arc<Route>,
    all: Vec<Arc<Route>>,
}

/// One route.
#[derive(Debug)]
pub(crate) struct Route {
    /// Its path as configured: its label in records, metrics and logs.
    pub label: Arc<str>,
    /// What holds for it.
    pub rules: RouteRules,
    /// The same, as the layer takes it.
    pub policy: Arc<RoutePolicy>,
    /// How long its requests took.
    pub(super) durations: RouteDurations,
    /// Answers by class of their status, from 1xx to 5xx.
    answered: [Counter; 5],
}

impl Routes {
    /// The table of a configuration.
    pub(crate) fn new(config: &Config) -> Self {
        let patterns: Vec<_> = config.routes.iter().map(RouteRules::pattern).collect();
        let routers = patterns::routers(&patterns);
        let all = config.routes.iter().map(|rules| Route::shared(rules, true)).collect();
        let destinations = Destinations::new(config);
        Self { routers, destinations, defaults: Route::shared(&config.defaults, false), all }
    }

    /// The route of a request.
    ///
    /// # Errors
    ///
    /// Why it is refused: its path is malformed, or has readings that lead to different rules; or
    /// its method could pass for a guarded one.
    pub(crate) fn find(&self, path: &str, method: &Method) -> Result<&Arc<Route>, Refusal> {
        self.find_on_way(path, method, &Destination::default())
    }

    /// Where a request goes, whatever its method.
    ///
    /// # Errors
    ///
    /// Why it is refused: its path has readings that lead to different upstreams.
    pub(crate) fn destination(&self, path: &str) -> Result<Destination, Refusal> {
        self.destinations.of(path).map_err(Refusal::Malformed)
    }

    /// The route of a request that goes to a destination.
    ///
    /// # Errors
    ///
    /// As for `find`; and if the upstream could read the path that is left of it as one with another rule.
    pub(crate) fn find_on_way(
        &self,
        path: &str,
        method: &Method,
        destination: &Destination,
    ) -> Result<&Arc<Route>, Refusal> {
        let mut readings = readings::read(path).map_err(Refusal::Malformed)?;
        let further = destination.readings_beyond(path).map_err(Refusal::Malformed)?;
        readings.others.extend(further);
        let mut found = self.at(&readings.first, method);
        for other in &readings.others {
            let other = self.at(other, method);
            found = self.either(found, other, method).map_err(Refusal::Malformed)?;
        }
        let is_odd = !method.is_safe() && ![Method::PUT, Method::DELETE].contains(method);
        if is_odd && !found.rules.policy.covers(method) && self.is_guarded(&readings, found) {
            return Err(Refusal::MethodRefused);
        }
        Ok(found)
    }

    /// Whether some method needs a key on a path. `found` is the route of the method in question.
    fn is_guarded(&self, readings: &Readings<'_>, found: &Route) -> bool {
        let of_others = readings.all().flat_map(|path| {
            let places = self.routers.values().filter_map(move |router| router.at(path).ok());
            places.filter_map(|place| self.all.get(*place.value))
        });
        found.needs_key() || of_others.into_iter().any(|route| route.needs_key())
    }

    /// The rule where two readings may each be the right one: a route wins over the defaults,
    /// unless it demands less.
    fn either<'a>(
        &'a self,
        one: &'a Arc<Route>,
        other: &'a Arc<Route>,
        method: &Method,
    ) -> Result<&'a Arc<Route>, &'static str> {
        let is_default = |route| Arc::ptr_eq(route, &self.defaults);
        let (named, other) = if is_default(one) { (other, one) } else { (one, other) };
        let is_safe = is_default(other) && named.demands(method) >= other.demands(method);
        if is_safe || Arc::ptr_eq(named, other) {
            Ok(named)
        } else {
            Err("the path can be read in two ways that lead to different rules")
        }
    }

    /// All routes, the defaults last.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.all.iter().chain([&self.defaults])
    }

    /// The route of everything that no other names.
    pub(crate) fn defaults(&self) -> &Arc<Route> {
        &self.defaults
    }

    /// The route of one reading of a path.
    fn at(&self, path: &str, method: &Method) -> &Arc<Route> {
        let found = self.routers.get(method).and_then(|router| router.at(path).ok());
        found.and_then(|found| self.all.get(*found.value)).unwrap_or(&self.defaults)
    }
}

impl Route {
    fn shared(rules: &RouteRules, is_named: bool) -> Arc<Self> {
        let label: Arc<str> = rules.path.as_str().into();
        let counter = |class: &'static str| {
            let route = Arc::clone(&label);
            metrics::counter!(event::REQUESTS.name, "route" => route, "class" => class)
        };
        Arc::new(Self {
            policy: Arc::new(RoutePolicy::new(Arc::clone(&label), rules.policy.clone())),
            rules: rules.clone(),
            durations: RouteDurations::new(is_named.then(|| Arc::clone(&label))),
            answered: ["1xx", "2xx", "3xx", "4xx", "5xx"].map(counter),
            label,
        })
    }

    /// How much it demands of a method: more is greater, and nothing is least.
    pub(crate) fn demands(&self, method: &Method) -> impl Ord + use<> {
        let policy = &self.rules.policy;
        let demands = (policy.mode == Mode::Enforce, policy.key == KeyRule::Required);
        policy.covers(method).then_some(demands)
    }

    /// Whether the methods that it covers need a key.
    fn needs_key(&self) -> bool {
        let policy = &self.rules.policy;
        policy.mode == Mode::Enforce && policy.key == KeyRule::Required
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).saturating_sub(1);
        if let Some(counter) = self.answered.get(class) {
            counter.increment(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file::{File, RouteSettings};

    fn table(paths: &[(&str, &[&str])]) -> Result<Routes, String> {
        let route = paths
            .iter()
            .map(|(path, methods)| RouteSettings {
                path: Some((*path).into()),
                methods: Some(methods.iter().map(|method| (*method).into()).collect()),
                ..RouteSettings::default()
            })
            .collect();
        let file = File { upstream: Some("http://x".into()), route, ..File::default() };
        crate::config::resolve(&file)
            .map(|config| Routes::new(&config))
            .map_err(|complaints| format!("{complaints:?}"))
    }

    fn found(routes: &Routes, path: &str, method: Method) -> String {
        match routes.find(path, &method) {
            Ok(route) => route.label.to_string(),
            Err(refusal) => format!("{refusal:?}"),
        }
    }

    #[test]
    fn a_route_is_found_under_every_spelling() {
        let routes = table(&[("/pay", &["POST"]), ("/money/{*rest}", &["POST"])]).unwrap();
        for path in ["/pay", "/pay/", "//pay", "/%70ay", "/pay;x=1", "/Pay", "/x/../pay", "/%2fpay"]
        {
            assert_eq!(found(&routes, path, Method::POST), "/pay", "{path}");
        }
        for path in ["/money", "/money/", "/money/a/b", "/money%2fa", "/MONEY/x"] {
            assert_eq!(found(&routes, path, Method::POST), "/money/{*rest}", "{path}");
        }
        assert_eq!(found(&routes, "/pay", Method::PATCH), "/{*rest}");
        assert_eq!(found(&routes, "/payments", Method::POST), "/{*rest}");
    }

    #[test]
    fn readings_that_disagree_are_refused() {
        let routes = table(&[("/a/{id}", &["POST"]), ("/a/{id}/b", &["POST"])]).unwrap();
        assert!(found(&routes, "/a/1%2fb", Method::POST).contains("two ways"));
        assert_eq!(found(&routes, "/a/1%2fc", Method::POST), "/a/{id}");
    }

    #[test]
    fn no_reading_leads_to_a_rule_that_demands_less() {
        let public = RouteSettings {
            path: Some("/public/{*rest}".into()),
            key: Some(KeyRule::Off.into()),
            ..RouteSettings::default()
        };
        let defaults =
            RouteSettings { key: Some(KeyRule::Required.into()), ..RouteSettings::default() };
        let upstream = Some("http://x".into());
        let file = File { upstream, defaults, route: vec![public], ..File::default() };
        let routes = Routes::new(&crate::config::resolve(&file).unwrap());
        for path in [
            "/public/..%2fpay",
            "/public/..;/pay",
            "/public/%252e%252e/pay",
            // Decoded once it is below `/pay`, decoded twice it is public again.
            "/public/..%2fpay%2f..%252fpublic/x",
            // To a server that does not resolve dot segments this is not public.
            "/x/../public/a",
            "/x/%2e%2e/public/a",
            // Nor is this to one that does not decode.
            "/%70ublic/a",
        ] {
            assert!(found(&routes, path, Method::POST).contains("two ways"), "{path}");
            assert_eq!(found(&routes, path, Method::GET), "/{*rest}", "{path}");
        }
        for path in ["/public/a%2fb", "/public/a;v=1", "/public/%61", "/public/a/../b"] {
            assert_eq!(found(&routes, path, Method::POST), "/public/{*rest}", "{path}");
        }
    }

    #[test]
    fn a_rule_holds_whether_dot_segments_are_resolved_or_not() {
        let routes = table(&[("/pay/{*rest}", &["POST"])]).unwrap();
        for path in [
            "/pay/../x",
            "/pay/%2e%2e/x",
            "/pay/.%2E/x",
            "/pay/..",
            "/pay/%2e%2e",
            "/pay%2f../x",
            "/pay%252f%252e%252e/x",
            "/x/../pay/%2e%2e/x",
            "/pay%3fx",
            "/pay%23",
            "/pay%253fx",
            "/pay%3b?x",
        ] {
            assert_eq!(found(&routes, path, Method::POST), "/pay/{*rest}", "{path}");
        }
        for path in ["/x/..", "/payx%3fy", "/x%3f/pay"] {
            assert_eq!(found(&routes, path, Method::POST), "/{*rest}", "{path}");
        }
    }

    #[test]
    fn a_guarded_path_refuses_methods_that_nobody_knows() {
        let required = |path: &str, methods: &[&str]| RouteSettings {
            path: Some(path.into()),
            methods: Some(methods.iter().map(|method| (*method).into()).collect()),
            key: Some(KeyRule::Required.into()),
            ..RouteSettings::default()
        };
        let observed = RouteSettings {
            mode: Some(Mode::Observe.into()),
            ..required("/watched/{*rest}", &["POST"])
        };
        let route =
            vec![required("/pay/{*rest}", &["POST"]), required("/lock", &["LOCK"]), observed];
        let file = File { upstream: Some("http://x".into()), route, ..File::default() };
        let routes = Routes::new(&crate::config::resolve(&file).unwrap());
        let find = |method: &str, path: &str| {
            routes.find(path, &Method::from_bytes(method.as_bytes()).unwrap()).map(|_| ())
        };
        for (method, path) in [
            ("FOO", "/pay/x"),
            ("LOCK", "/pay/x"),
            ("COPY", "/pay/../x"),
            ("COPY", "/x/../pay"),
            ("FOO", "/lock"),
        ] {
            assert_eq!(find(method, path), Err(Refusal::MethodRefused), "{method} {path}");
        }
        for (method, path) in [
            ("POST", "/pay/x"),
            ("PATCH", "/pay/x"),
            ("PUT", "/pay/x"),
            ("DELETE", "/pay/x"),
            ("GET", "/pay/x"),
            ("LOCK", "/lock"),
            ("FOO", "/watched/x"),
            ("FOO", "/x"),
        ] {
            assert_eq!(find(method, path), Ok(()), "{method} {path}");
        }
    }

    #[test]
    fn a_route_leaves_other_methods_to_less_specific_ones() {
        let routes = table(&[
            ("/all/{*rest}", &["PUT", "DELETE"]),
            ("/all/one", &["POST"]),
            ("/all/one/two", &["PUT"]),
            ("/money/{*rest}", &["POST"]),
            ("/money", &["PUT"]),
        ])
        .unwrap();
        for (path, method, label) in [
            ("/all/one", Method::POST, "/all/one"),
            ("/all/one", Method::PUT, "/all/{*rest}"),
            ("/all/one/", Method::DELETE, "/all/{*rest}"),
            ("/all/one/two", Method::PUT, "/all/one/two"),
            ("/all/one/t", Method::PUT, "/all/{*rest}"),
            ("/all/one/two/three", Method::PUT, "/all/{*rest}"),
            ("/all/two", Method::POST, "/{*rest}"),
            ("/money", Method::POST, "/money/{*rest}"),
            ("/money/", Method::POST, "/money/{*rest}"),
            ("/money", Method::PUT, "/money"),
        ] {
            assert_eq!(found(&routes, path, method.clone()), label, "{method} {path}");
        }
    }

    #[test]
    fn what_is_written_wins_over_what_is_implied() {
        let routes = table(&[("/a/{*rest}", &["POST"]), ("/a", &["POST"])]).unwrap();
        for (path, label) in [("/a", "/a"), ("/a/", "/a"), ("/a/b", "/a/{*rest}")] {
            assert_eq!(found(&routes, path, Method::POST), label, "{path}");
        }
    }

    #[test]
    fn methods_share_a_path_and_duplicates_are_refused() {
        let routes = table(&[("/a/{id}", &["POST"]), ("/a/{name}", &["PUT"])]).unwrap();
        assert_eq!(found(&routes, "/a/1", Method::PUT), "/a/{name}");
        assert_eq!(found(&routes, "/a/1", Method::POST), "/a/{id}");
        let twice = table(&[("/a/{id}", &["POST"]), ("/A/{x}", &["POST", "PUT"])]);
        assert!(twice.err().unwrap().contains("route[1]"));
        assert!(table(&[("/a/{*rest}/b", &["POST"])]).is_err());
        assert!(table(&[("/a", &["POST", "POST"])]).is_ok());
    }
}
