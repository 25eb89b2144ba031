//! Who is asked about a request or a call that nobody knows about?
//!
//! The upstream saw `Retrysafe-Id` and `Retrysafe-Fence` with the request, so it can be asked by them. A call of a flow was sent with a key
//! of its own, by which the provider can be asked. What an answer means stands in `[reconcile]` or `[lookups.NAME]`. That nobody
//! knows a request there is no proof, unless the route says `absence = "proof"` and the settle time has passed.
//!
//! A table that names a path, and no server, asks the upstream that got the request. Every other one could say truthfully that it has not
//! executed the request, which would then run again. Where nobody can tell which upstream that is, nobody is asked.

use std::io;
use std::sync::{Arc, Weak};

use http::HeaderValue;
use retrysafe::evidence::DocumentVerdict;
use retrysafe::upkeep::{Lookup, LookupAnswer, Reconciler};
use retrysafe_core::flow::{RecoveryPoint, downstream_key};
use retrysafe_core::machine::Evidence;
use retrysafe_core::policy::Absence;
use retrysafe_core::record::Record;
use retrysafe_core::store::Store;

use super::Gateway;
use super::connect::Connector;
use super::destination::Destination;
use crate::config::lookup::{LookupRules, LookupSubject};
use crate::lookup::{self, Dialling, LookupFound, LookupQuestion, LookupServer, ProviderAnswer};

/// Asks over HTTP, by one table.
pub(crate) struct HttpLookup<S> {
    /// Not owned: the gateway knows whom to ask out of turn.
    gateway: Weak<Gateway<S>>,
    rules: LookupRules,
    /// The tables whose routes and calls are theirs. Empty for those tables themselves.
    others: Vec<LookupRules>,
    /// Where to ask; none for the upstream that got the request.
    elsewhere: Option<WayTo>,
}

/// The way to a server.
struct WayTo {
    connector: Connector,
    host: HeaderValue,
}

impl LookupServer for WayTo {
    fn dial(&self) -> Dialling<'_> {
        Box::pin(async {
            let stream = self.connector.connect().await?;
            Ok(Box::new(stream) as Box<dyn crate::dial::Stream>)
        })
    }

    fn host(&self) -> io::Result<HeaderValue> {
        Ok(self.host.clone())
    }
}

impl<S: Store> HttpLookup<S> {
    /// The lookup of a table. `all` are those of all tables.
    ///
    /// # Errors
    ///
    /// Why its server cannot be reached.
    pub(crate) fn new(
        rules: &LookupRules,
        all: &[LookupRules],
        gateway: &Arc<Gateway<S>>,
    ) -> Result<Self, String> {
        let told = |error: &dyn std::fmt::Display| format!("{}.url: {error}", rules.table);
        let elsewhere = match &rules.server {
            None => None,
            Some(server) => {
                let authorities = gateway.live.load().config.authorities.clone();
                let connector =
                    Connector::new(server, authorities.as_deref()).map_err(|error| told(&error))?;
                let host = HeaderValue::from_str(server.authority.as_str())
                    .map_err(|error| told(&error))?;
                Some(WayTo { connector, host })
            }
        };
        let is_rest = rules.routes.is_none() && rules.call.is_none();
        let others = all.iter().filter(|other| is_rest && other.table != rules.table);
        let others = others.cloned().collect();
        Ok(Self { gateway: Arc::downgrade(gateway), rules: rules.clone(), others, elsewhere })
    }

    async fn ask(&self, record: &Record) -> Result<ProviderAnswer, String> {
        let back;
        let (way, path) = match &self.elsewhere {
            Some(way) => (way, &*record.about.path),
            None => {
                back = self.way_back(record)?;
                (&back.0, &*back.1)
            }
        };
        let id = record.id.to_string();
        let fence = record.fence.0.to_string();
        let mut values = vec![("id", &*id), ("fence", &*fence), ("path", path)];
        let key = self
            .rules
            .call
            .as_ref()
            .map(|call| downstream_key(record.id, record.birth(), &call.phase));
        values.extend(key.as_deref().map(|key| ("key", key)));
        let identity = match self.rules.subject {
            LookupSubject::Requests => &*id,
            LookupSubject::Calls | LookupSubject::Effects => key.as_deref().unwrap_or_default(),
        };
        let question = LookupQuestion { values, identity, began_at: record.created_at };
        Ok(lookup::ask(&self.rules, &question, way).await)
    }

    /// The upstream that got a request, and the path that it was asked for: without the prefix, where one is taken off.
    fn way_back(&self, record: &Record) -> Result<(WayTo, Box<str>), String> {
        let gateway = self.gateway.upgrade().ok_or("the gateway has stopped")?;
        let live = gateway.live.load();
        let is_one = live.upstreams.len() == 1;
        let cure = format!("set a whole URL as `{}.url`", self.rules.table);
        // A flow is an application's own record, and its path is the one that the application saw.
        if record.flow.is_some() && !is_one {
            return Err(format!(
                "nobody is asked: which upstream runs the flow is not known; {cure}"
            ));
        }
        let destination = if is_one {
            Destination::default()
        } else {
            live.routes.destination(&record.about.path).map_err(|_| {
                format!("nobody is asked: the request's path leads to no upstream for sure; {cure}")
            })?
        };
        let path = destination.left_of(&record.about.path)?;
        let upstream = live.upstreams.get(destination.upstream);
        let upstream = upstream.ok_or("nobody is asked: the upstream is not there any more")?;
        if upstream.upstream.http2 {
            return Err(format!(
                "nobody is asked: the request went to {}, and lookups speak HTTP/1.1; {cure}",
                upstream.upstream
            ));
        }
        let host = HeaderValue::from_str(upstream.upstream.authority.as_str());
        let host = host.map_err(|error| error.to_string())?;
        Ok((WayTo { connector: upstream.connector.clone(), host }, path.into()))
    }

    /// What is proven by a document. "Not executed" is about an attempt: where there were several, and the question did not name the
    /// present one, the answer may be about a former one, and the present one may have been executed.
    fn proven(&self, verdict: DocumentVerdict, record: &Record) -> Lookup {
        let is_about_any = record.attempts > 1 && !self.rules.template.contains("{fence}");
        if verdict == DocumentVerdict::NotExecuted && is_about_any {
            let why = "not executed, and not which of several attempts: put {fence} into the URL, or a person must decide";
            return Lookup::Inconclusive(why.into());
        }
        if verdict == DocumentVerdict::Pending {
            return Lookup::Pending;
        }
        let proven = match self.rules.subject {
            LookupSubject::Calls => verdict.about_call(),
            LookupSubject::Requests | LookupSubject::Effects => verdict.about_request(),
        };
        match proven {
            Ok(Evidence::Executed(answer)) => Lookup::Executed(answer),
            Ok(Evidence::CallExecuted(result)) => Lookup::CallExecuted(result),
            Ok(Evidence::NotExecuted(proof)) => Lookup::NotExecuted(proof),
            Err(why) => Lookup::Inconclusive(why),
        }
    }
}

/// The lookup that is asked about a record: one that names its route or its call, else the one that names none.
pub(super) fn concerned<'a>(all: &'a [LookupRules], unknown: &Record) -> Option<&'a LookupRules> {
    let named = all.iter().find(|rules| names(rules, unknown) == Some(true));
    named.or_else(|| all.iter().find(|rules| names(rules, unknown).is_none()))
}

impl<S: Store> Reconciler for HttpLookup<S> {
    async fn lookup(&self, unknown: &Record) -> Lookup {
        self.look_up_closely(unknown).await.found
    }

    async fn look_up_closely(&self, unknown: &Record) -> LookupAnswer {
        match self.ask(unknown).await {
            Err(why) => Lookup::Inconclusive(why.into()).into(),
            Ok(ProviderAnswer { found, excerpt }) => {
                let found = match found {
                    LookupFound::Absent => Lookup::NotFound,
                    LookupFound::TooOften(pause) => Lookup::AskedTooOften(pause),
                    LookupFound::Document(verdict) => self.proven(verdict, unknown),
                };
                LookupAnswer { found, excerpt }
            }
        }
    }

    fn concerns(&self, unknown: &Record) -> bool {
        names(&self.rules, unknown).unwrap_or(true)
            && !self.others.iter().any(|other| names(other, unknown) == Some(true))
    }

    fn absence(&self, unknown: &Record) -> Absence {
        let Some(gateway) = self.gateway.upgrade() else { return Absence::default() };
        let live = gateway.live.load_full();
        // Rules of one path for different methods have one label, so all of them must say so.
        let mut labelled =
            live.routes.all().filter(|route| *route.label == *unknown.about.route).peekable();
        let is_known = labelled.peek().is_some();
        let is_proof = labelled.all(|route| route.rules.policy.absence == Absence::Proof);
        if is_known && is_proof { Absence::Proof } else { Absence::default() }
    }
}

/// Whether a table names the route or the call of a record; none if the table names neither.
fn names(rules: &LookupRules, record: &Record) -> Option<bool> {
    if let Some(call) = &rules.call {
        let is_this_call = record.flow.as_ref().is_some_and(|flow| {
            *flow.flow().name == *call.flow
                && flow.recovery_point() == RecoveryPoint::Calling(call.number)
        });
        return Some(is_this_call);
    }
    let routes = rules.routes.as_ref()?;
    Some(routes.iter().any(|path| **path == *record.about.route))
}
