//! Which rule holds for a request?
//!
//! A `[[route]]` holds for its path and its methods; everything else falls to the defaults, so that
//! a method nobody thought of is still covered. A trailing `{*rest}` includes the path before it,
//! and a slash at the end makes no difference: a rule that is meant to guard should guard too much
//! rather than too little.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use http::{Method, StatusCode};
use matchit::Router;
use metrics::Counter;
use retrysafe::layer::RoutePolicy;
use retrysafe_core::event;
use retrysafe_core::policy::{KeyRule, Mode};

use super::path;
use crate::config::{Config, RouteRules};

/// All routes.
pub(crate) struct Routes {
    router: Router<Vec<Arc<Route>>>,
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
    /// Whether it was said that tokens that expire make poor scopes.
    pub warned: AtomicBool,
    /// Answers by class of their status, from 1xx to 5xx.
    answered: [Counter; 5],
}

impl Routes {
    /// The table of a configuration.
    pub(crate) fn new(config: &Config) -> Self {
        let all: Vec<Arc<Route>> = config.routes.iter().map(Route::shared).collect();
        // The check of the configuration has passed, so there is nothing to complain about here.
        let (router, _) = build(&all, |route| &route.rules);
        Self { router, defaults: Route::shared(&config.defaults), all }
    }

    /// The route of a request.
    ///
    /// # Errors
    ///
    /// Why the path is refused: it is malformed, or its readings lead to different rules.
    pub(crate) fn find(&self, path: &str, method: &Method) -> Result<&Arc<Route>, &'static str> {
        let readings = path::read(path)?;
        let plain = self.named(&readings.plain, method);
        let Some(generous) = &readings.generous else { return Ok(plain.unwrap_or(&self.defaults)) };
        match (plain, self.named(generous, method)) {
            (Some(a), Some(b)) if !Arc::ptr_eq(a, b) => {
                Err("the path can be read in two ways that lead to different rules")
            }
            (Some(route), _) | (None, Some(route)) => Ok(route),
            (None, None) => Ok(&self.defaults),
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

    fn named(&self, path: &str, method: &Method) -> Option<&Arc<Route>> {
        let here = self.router.at(path).ok()?.value;
        here.iter().find(|route| route.rules.policy.methods.contains(method))
    }
}

impl Route {
    fn shared(rules: &RouteRules) -> Arc<Self> {
        let label: Arc<str> = rules.path.as_str().into();
        let counter = |class: &'static str| {
            let route = Arc::clone(&label);
            metrics::counter!(event::REQUESTS.name, "route" => route, "class" => class)
        };
        Arc::new(Self {
            policy: Arc::new(RoutePolicy::new(Arc::clone(&label), rules.policy.clone())),
            rules: rules.clone(),
            warned: AtomicBool::new(false),
            answered: ["1xx", "2xx", "3xx", "4xx", "5xx"].map(counter),
            label,
        })
    }

    /// How much it demands: more is greater.
    pub(crate) fn demands(&self) -> impl Ord {
        let policy = &self.rules.policy;
        (policy.mode == Mode::Enforce, policy.key == KeyRule::Required)
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).saturating_sub(1);
        if let Some(counter) = self.answered.get(class) {
            counter.increment(1);
        }
    }
}

/// Says what is wrong with the paths of a list of routes, and with which of them.
pub(crate) fn check(routes: &[RouteRules]) -> Result<(), (usize, String)> {
    let numbered: Vec<(usize, &RouteRules)> = routes.iter().enumerate().collect();
    match build(&numbered, |(_, rules)| rules).1 {
        Some(wrong) => Err(wrong),
        None => Ok(()),
    }
}

/// Builds the router, and says what is wrong first.
fn build<T: Clone>(
    routes: &[T],
    rules: impl Fn(&T) -> &RouteRules,
) -> (Router<Vec<T>>, Option<(usize, String)>) {
    let mut wrong = None;
    // Explicit spellings first: an implied one must not take the place of one that was written.
    let mut patterns: BTreeMap<(bool, String), Vec<T>> = BTreeMap::new();
    for (at, route) in routes.iter().enumerate() {
        let own = rules(route);
        for (implied, pattern) in spellings(&own.path).into_iter().enumerate() {
            let here = patterns.entry((implied > 0, pattern)).or_default();
            let methods = &own.policy.methods;
            let clash = here.iter().any(|other| {
                rules(other).policy.methods.iter().any(|method| methods.contains(method))
            });
            if clash && implied == 0 {
                let what = "another route has the same path and method".to_owned();
                wrong.get_or_insert((at, what));
            }
            here.push(route.clone());
        }
    }
    let mut router = Router::new();
    for ((implied, pattern), here) in patterns {
        if let Err(error) = router.insert(pattern.as_str(), here)
            && !implied
        {
            let at = routes.iter().position(|route| {
                spellings(&rules(route).path).first().is_some_and(|first| *first == pattern)
            });
            wrong.get_or_insert((at.unwrap_or_default(), error.to_string()));
        }
    }
    (router, wrong)
}

/// A path's spelling for the router, and those that it implies.
fn spellings(path: &str) -> Vec<String> {
    let own = normal(path);
    let mut all = vec![own.clone()];
    match own.rfind("/{*") {
        Some(0) => all.push("/".into()),
        Some(end) => {
            let before = own.get(..end).unwrap_or_default();
            all.extend([before.to_owned(), format!("{before}/")]);
        }
        None => match own.strip_suffix('/') {
            Some("") | None => all.push(format!("{own}/")),
            Some(before) => all.push(before.to_owned()),
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
            Err(why) => why.into(),
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
    fn methods_share_a_path_and_duplicates_are_refused() {
        let routes = table(&[("/a/{id}", &["POST"]), ("/a/{name}", &["PUT"])]).unwrap();
        assert_eq!(found(&routes, "/a/1", Method::PUT), "/a/{name}");
        assert_eq!(found(&routes, "/a/1", Method::POST), "/a/{id}");
        let twice = table(&[("/a/{id}", &["POST"]), ("/A/{x}", &["POST", "PUT"])]);
        assert!(twice.err().unwrap().contains("route[1]"));
        assert!(table(&[("/a/{*rest}/b", &["POST"])]).is_err());
    }
}
