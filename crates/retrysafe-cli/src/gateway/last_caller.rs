//! Who was asking last on this connection?
//!
//! Most connections serve one caller, request after request. Its credential is the same bytes each time,
//! so its digest need not be computed anew. Only what is decided by `Authorization` alone is remembered:
//! on a route whose scope is the credential, for a request that shows no other one.

use std::sync::{Arc, Mutex, PoisonError};

use http::header::{self, HeaderMap, HeaderValue};
use retrysafe_core::Caller;
use retrysafe_core::credential::API_KEYS;
use retrysafe_core::problem::Refusal;

use super::jwt::Verifier;
use super::route::Route;
use super::scope;
use crate::config::ScopePart;

/// The last caller of one connection.
#[derive(Debug, Default)]
pub(crate) struct LastCaller(Mutex<Option<KnownCaller>>);

#[derive(Debug)]
struct KnownCaller {
    route: Arc<Route>,
    authorization: HeaderValue,
    caller: Caller,
}

impl LastCaller {
    /// Who is asking, by the rules of a route.
    ///
    /// # Errors
    ///
    /// See [`scope::of`].
    pub(crate) fn of(
        &self,
        route: &Arc<Route>,
        headers: &HeaderMap,
        verifier: Option<&Verifier>,
    ) -> Result<Caller, Refusal> {
        let shown = only_authorization(route, headers);
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(shown), Some(last)) = (shown, &*last)
            && Arc::ptr_eq(&last.route, route)
            && last.authorization == shown
        {
            return Ok(last.caller.clone());
        }
        let caller = scope::of(route, headers, verifier)?.caller;
        if let Some(shown) = shown {
            let (route, authorization) = (Arc::clone(route), shown.clone());
            *last = Some(KnownCaller { route, authorization, caller: caller.clone() });
        }
        Ok(caller)
    }
}

/// The only `Authorization`, where nothing else decides who is asking. A header that `Connection` names
/// may be one that counts, so such a request is looked at in full.
fn only_authorization<'a>(route: &Route, headers: &'a HeaderMap) -> Option<&'a HeaderValue> {
    let by_credential = matches!(route.rules.scope.as_slice(), [ScopePart::Credential]);
    let decides = |name: &header::HeaderName| {
        *name == header::COOKIE || *name == header::CONNECTION || API_KEYS.contains(name)
    };
    if !by_credential || headers.keys().any(decides) {
        return None;
    }
    let mut lines = headers.get_all(header::AUTHORIZATION).iter();
    let (line, None) = (lines.next(), lines.next()) else { return None };
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file::{File, RouteSettings};
    use crate::gateway::route::Routes;

    fn route(scope: &str) -> Arc<Route> {
        let scope = Some(vec![scope.into()]);
        let defaults = RouteSettings { scope, ..RouteSettings::default() };
        let file = File { upstream: Some("http://x".into()), defaults, ..File::default() };
        Arc::clone(Routes::new(&crate::config::resolve(&file).unwrap()).defaults())
    }

    fn map(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    #[test]
    fn what_is_remembered_is_what_would_be_found() {
        let last = LastCaller::default();
        let (route, other) = (route("credential"), route("header:x-tenant"));
        let alice = ("authorization", "Bearer alice");
        for headers in [
            &[alice][..],
            &[alice],
            &[("authorization", "Bearer bob")],
            &[alice, ("x-api-key", "k")],
            &[alice],
            &[alice, ("cookie", "sid=1")],
            &[alice, ("connection", "x-api-key"), ("x-api-key", "k")],
            &[alice, alice],
            &[("cookie", "sid=1")],
            &[],
            &[alice, ("x-tenant", "acme")],
        ] {
            let headers = map(headers);
            for route in [&route, &other, &route] {
                let found = scope::of(route, &headers, None).map(|asker| asker.caller);
                assert_eq!(last.of(route, &headers, None), found, "{headers:?}");
            }
        }
    }
}
