//! What does the upstream say about a request that nobody knows about?
//!
//! The upstream saw `Retrysafe-Id` and `Retrysafe-Fence` with the request, so it can be asked by
//! them. Its JSON is mapped to a verdict by the `[reconcile]` table; whatever the table does not
//! name says nothing. That the upstream does not know a request is no proof, unless the route says
//! `absence = "proof"` and the settle time has passed.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use retrysafe::upkeep::{Lookup, Reconciler};
use retrysafe_core::machine::Proof;
use retrysafe_core::policy::Absence;
use retrysafe_core::record::{Answer, Record};
use retrysafe_core::store::Store;
use serde::Deserialize as _;
use serde_json::Value;

use super::Gateway;
use super::connect::Connector;
use crate::admin::Given;
use crate::config::{ReconcileFile, lookup};

/// The largest answer that is read: an answer to replay may stand in it.
const ANSWER_BYTES_MAX: usize = 2 << 20;

/// Asks the upstream over HTTP.
pub(crate) struct HttpLookup<S> {
    gateway: Arc<Gateway<S>>,
    /// Where to ask; none for the upstream itself.
    elsewhere: Option<(Connector, HeaderValue)>,
    /// The path, with its placeholders.
    template: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    meaning: Meaning,
}

/// How an answer is read.
struct Meaning {
    pointer: String,
    executed: Vec<String>,
    not_executed: Vec<String>,
    pending: Vec<String>,
    absent: Vec<u16>,
    response: Option<String>,
}

/// What an answer says, before the route's rules are asked.
#[derive(Debug, PartialEq, Eq)]
enum Says {
    Executed(Answer),
    NotExecuted,
    Pending,
    Absent,
    Nothing,
    /// It was executed, and the answer to replay cannot be read, for this reason.
    Unreadable(String),
}

impl<S: Store> HttpLookup<S> {
    /// The lookup of a `[reconcile]` table.
    ///
    /// # Errors
    ///
    /// What is wrong with the table.
    pub(crate) fn new(settings: &ReconcileFile, gateway: Arc<Gateway<S>>) -> Result<Self, String> {
        let (base, template) =
            lookup::split(&settings.url).map_err(|what| format!("reconcile.url: {what}"))?;
        let elsewhere = match base {
            None => None,
            Some(base) => {
                let authorities = gateway.live.load().config.authorities.clone();
                let connector = Connector::new(&base, authorities.as_deref())
                    .map_err(|error| format!("reconcile.url: {error}"))?;
                let host = HeaderValue::from_str(base.authority.as_str())
                    .map_err(|error| format!("reconcile.url: {error}"))?;
                Some((connector, host))
            }
        };
        let headers = settings.headers.iter().map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).ok();
            let value = HeaderValue::from_str(value).ok();
            name.zip(value).ok_or("reconcile.headers: not a header")
        });
        let headers = headers.collect::<Result<Vec<_>, _>>()?;
        let meaning = Meaning::new(settings);
        Ok(Self { gateway, elsewhere, template, headers, meaning })
    }

    async fn ask(&self, record: &Record) -> Result<(StatusCode, Bytes), String> {
        let live = self.gateway.live.load_full();
        let upstream = HeaderValue::from_str(live.config.upstream.authority.as_str());
        let (connector, host) = match (&self.elsewhere, upstream) {
            (Some((connector, host)), _) => (connector, host.clone()),
            (None, Ok(host)) => (&live.connector, host),
            (None, Err(error)) => return Err(error.to_string()),
        };
        let path = filled(&self.template, record);
        let mut request = Request::get(path)
            .header(header::HOST, host)
            .header(header::ACCEPT, "application/json")
            .body(Empty::<Bytes>::new())
            .map_err(|error| error.to_string())?;
        for (name, value) in &self.headers {
            request.headers_mut().append(name, value.clone());
        }
        let stream = connector.connect().await.map_err(|error| error.to_string())?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        tokio::spawn(async move {
            // Whatever goes wrong here is told to whoever waits for the answer.
            let _ = connection.await;
        });
        let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        Ok((status, body.map_err(|error| error.to_string())?.to_bytes()))
    }
}

impl<S: Store> Reconciler for HttpLookup<S> {
    async fn lookup(&self, unknown: &Record) -> Lookup {
        let (status, body) = match self.ask(unknown).await {
            Ok(answer) => answer,
            Err(why) => return Lookup::Inconclusive(why.into()),
        };
        match self.meaning.of(status, &body) {
            Says::Executed(answer) => Lookup::Executed(answer),
            Says::NotExecuted => Lookup::NotExecuted(Proof::burnt()),
            Says::Pending => Lookup::Pending,
            Says::Absent => Lookup::NotFound,
            // Never the body: it is the upstream's, and may hold anything.
            Says::Nothing => Lookup::Inconclusive(
                format!("status {}, and no state that [reconcile] names", status.as_u16()).into(),
            ),
            Says::Unreadable(why) => Lookup::Inconclusive(why.into()),
        }
    }

    fn absence(&self, unknown: &Record) -> Absence {
        let live = self.gateway.live.load_full();
        let mut routes = live.routes.all();
        let route = routes.find(|route| *route.label == *unknown.about.route);
        route.map_or(Absence::default(), |route| route.rules.policy.absence)
    }
}

impl Meaning {
    fn new(settings: &ReconcileFile) -> Self {
        let or = |list: &Option<Vec<String>>, default: &str| {
            list.clone().unwrap_or_else(|| vec![default.to_owned()])
        };
        Self {
            pointer: settings.pointer.clone().unwrap_or_else(|| "/state".into()),
            executed: or(&settings.executed, "executed"),
            not_executed: or(&settings.not_executed, "not_executed"),
            pending: or(&settings.pending, "pending"),
            absent: settings.absent_statuses.clone().unwrap_or_else(|| vec![404]),
            response: settings.response.clone(),
        }
    }

    fn of(&self, status: StatusCode, body: &[u8]) -> Says {
        if self.absent.contains(&status.as_u16()) {
            return Says::Absent;
        }
        let document = serde_json::from_slice::<Value>(body).ok();
        let (true, Some(document)) = (status.is_success(), document) else { return Says::Nothing };
        let state = match document.pointer(&self.pointer) {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => return Says::Nothing,
        };
        if self.executed.contains(&state) {
            return self.executed(&document);
        }
        if self.not_executed.contains(&state) {
            return Says::NotExecuted;
        }
        if self.pending.contains(&state) { Says::Pending } else { Says::Nothing }
    }

    /// Executed, with the answer to replay if the document holds one. An answer that cannot be read decides nothing: a verdict is
    /// final, and would lose an answer that the upstream wants to give.
    fn executed(&self, document: &Value) -> Says {
        let given = self.response.as_ref().and_then(|pointer| document.pointer(pointer));
        let Some(given) = given.filter(|given| !given.is_null()) else {
            return Says::Executed(Answer::NotKept { status: None, location: None });
        };
        let read = Given::deserialize(given).map_err(|error| error.to_string());
        match read.and_then(Given::answer) {
            Ok(answer) => Says::Executed(answer),
            Err(why) => Says::Unreadable(format!(
                "executed, and what [reconcile] response points to cannot be read as an answer: {why}"
            )),
        }
    }
}

fn filled(template: &str, record: &Record) -> String {
    let path = template
        .replace("{id}", &record.id.to_string())
        .replace("{fence}", &record.fence.0.to_string())
        .replace("{path}", &crate::percent::encoded(&record.about.path));
    // A template that is no path would have been refused when the configuration was read.
    path.parse::<Uri>().map(|uri| uri.to_string()).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning() -> Meaning {
        Meaning::new(&ReconcileFile {
            url: "/x".into(),
            pointer: Some("/payment/status".into()),
            executed: Some(vec!["paid".into(), "2".into()]),
            response: Some("/answer".into()),
            ..ReconcileFile::default()
        })
    }

    fn says(status: u16, body: &str) -> Says {
        meaning().of(StatusCode::from_u16(status).unwrap(), body.as_bytes())
    }

    #[test]
    fn only_what_the_table_names_says_something() {
        let fact = Says::Executed(Answer::NotKept { status: None, location: None });
        assert_eq!(says(200, r#"{"payment":{"status":"paid"}}"#), fact);
        assert_eq!(says(200, r#"{"payment":{"status":2}}"#), fact);
        assert_eq!(says(200, r#"{"payment":{"status":"not_executed"}}"#), Says::NotExecuted);
        assert_eq!(says(200, r#"{"payment":{"status":"pending"}}"#), Says::Pending);
        assert_eq!(says(404, ""), Says::Absent);
        for (status, body) in [
            (200, r#"{"payment":{"status":"odd"}}"#),
            (200, r#"{"payment":"paid"}"#),
            (200, "paid"),
            (500, r#"{"payment":{"status":"paid"}}"#),
            (301, ""),
        ] {
            assert_eq!(says(status, body), Says::Nothing, "{status} {body}");
        }
    }

    #[test]
    fn an_answer_in_the_document_is_replayed() {
        let body = r#"{"payment":{"status":"paid"},"answer":{"status":201,"body":"{}"}}"#;
        let Says::Executed(Answer::Kept(answer)) = says(200, body) else { panic!() };
        assert_eq!((answer.status.as_u16(), &answer.body[..]), (201, &b"{}"[..]));
        for none in
            [r#"{"payment":{"status":"paid"},"answer":null}"#, r#"{"payment":{"status":"paid"}}"#]
        {
            assert!(matches!(says(200, none), Says::Executed(Answer::NotKept { .. })), "{none}");
        }
    }

    #[test]
    fn an_answer_that_cannot_be_read_decides_nothing_and_says_why() {
        for (answer, why) in [
            (r#"{"status":201,"body":{"id":7}}"#, "expected a string"),
            (r#"{"status":"x"}"#, "expected u16"),
            (r#"{"status":201,"headers":[["a b","c"]]}"#, "header"),
            (r#""paid""#, "expected struct"),
        ] {
            let body = format!(r#"{{"payment":{{"status":"paid"}},"answer":{answer}}}"#);
            let Says::Unreadable(said) = says(200, &body) else { panic!("{answer}") };
            assert!(said.contains(why), "{answer}: {said}");
        }
    }
}
