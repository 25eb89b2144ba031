//! What do the variables of OpenTelemetry say?
//!
//! They are the specification's, not ours: other programs of the same machine read them too. So a value that cannot be used here is
//! a warning, and what holds without it holds.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};

use super::sampler::Sampler;

/// Where a collector listens, unless it is said.
const ENDPOINT: &str = "http://localhost:4318";

/// What is appended to an endpoint for all signals.
const TRACES_PATH: &str = "/v1/traces";

/// The bounds of the queue and of a batch, unless they are set; the specification's.
const QUEUE_MAX: usize = 2_048;
const BATCH_MAX: usize = 512;
const DELAY: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(10);

/// How many spans may ever wait: a misread number must not fill the memory.
const QUEUE_LIMIT: usize = 1 << 20;

/// How spans are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Protobuf,
}

/// Who sends the spans: attributes of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resource(pub Vec<(String, String)>);

/// How and where spans are sent.
#[derive(Clone, Debug)]
pub(super) struct TraceSettings {
    pub endpoint: Uri,
    pub encoding: Encoding,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub timeout: Duration,
    pub resource: Resource,
    pub sampler: Sampler,
    pub queue_max: usize,
    pub batch_max: usize,
    pub delay: Duration,
}

/// The variables, and what is wrong with them.
struct Variables<'a> {
    all: &'a BTreeMap<String, String>,
    warnings: &'a mut Vec<String>,
}

impl TraceSettings {
    /// What the variables say. None where they ask for no traces.
    pub(super) fn read(
        variables: &BTreeMap<String, String>,
        warnings: &mut Vec<String>,
    ) -> Option<Self> {
        let mut variables = Variables { all: variables, warnings };
        if !variables.wants_traces() {
            return None;
        }
        let endpoint = variables.endpoint()?;
        let encoding = variables.encoding()?;
        let queue_max = variables.number("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE_MAX);
        let queue_max = queue_max.clamp(1, QUEUE_LIMIT);
        let batch_max = variables.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH_MAX);
        Some(Self {
            endpoint,
            encoding,
            headers: variables.headers(),
            timeout: variables.milliseconds(
                &["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"],
                TIMEOUT,
            ),
            resource: variables.resource(),
            sampler: variables.sampler(),
            queue_max,
            batch_max: batch_max.clamp(1, queue_max),
            delay: variables.milliseconds(&["OTEL_BSP_SCHEDULE_DELAY"], DELAY),
        })
    }
}

impl Variables<'_> {
    /// A variable that is empty counts as absent.
    fn get(&self, name: &str) -> Option<&str> {
        self.all.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    fn first(&self, names: &[&'static str]) -> Option<(&'static str, String)> {
        names.iter().find_map(|name| Some((*name, self.get(name)?.to_owned())))
    }

    fn warn(&mut self, name: &str, what: impl Display) {
        self.warnings.push(format!("{name}: {what}"));
    }

    /// Somebody has to name a collector, or to ask for traces: a gateway that is told nothing sends nothing.
    fn wants_traces(&mut self) -> bool {
        if self.get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return false;
        }
        let is_named = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]
            .iter()
            .any(|name| self.get(name).is_some());
        let Some(exporters) = self.get("OTEL_TRACES_EXPORTER").map(str::to_owned) else {
            return is_named;
        };
        let mut named = exporters.split(',').map(str::trim);
        if named.clone().any(|exporter| exporter == "otlp") {
            return true;
        }
        if named.any(|exporter| exporter != "none") {
            let what = "this program knows `otlp` and `none`; there are no traces";
            self.warn("OTEL_TRACES_EXPORTER", what);
        }
        false
    }

    fn endpoint(&mut self) -> Option<Uri> {
        let own = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
        let (name, url) = match self.get(own) {
            Some(url) => (own, url.to_owned()),
            None => {
                let name = "OTEL_EXPORTER_OTLP_ENDPOINT";
                let base = self.get(name).unwrap_or(ENDPOINT).trim_end_matches('/');
                (name, format!("{base}{TRACES_PATH}"))
            }
        };
        let usable = Uri::from_str(&url).ok().filter(|uri| {
            matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
        });
        if usable.is_none() {
            self.warn(name, "not a URL that begins with http:// or https://; there are no traces");
        }
        usable
    }

    fn encoding(&mut self) -> Option<Encoding> {
        let names = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
        let Some((name, protocol)) = self.first(&names) else { return Some(Encoding::Protobuf) };
        match protocol.as_str() {
            "http/protobuf" => Some(Encoding::Protobuf),
            "http/json" => Some(Encoding::Json),
            _ => {
                let what = "this program speaks `http/protobuf` and `http/json` (collectors listen \
                            for them on port 4318); there are no traces";
                self.warn(name, what);
                None
            }
        }
    }

    /// `name=value` pairs for the collector, such as a credential. They are never logged.
    fn headers(&mut self) -> Vec<(HeaderName, HeaderValue)> {
        let names = ["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"];
        let Some((variable, list)) = self.first(&names) else { return Vec::new() };
        let mut headers = Vec::new();
        for pair in pairs(&list) {
            let header = pair.and_then(|(name, value)| {
                Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?))
            });
            match header {
                Some(header) => headers.push(header),
                None => self.warn(variable, "a part of it is no `name=value` and is left out"),
            }
        }
        headers
    }

    /// Who we are: the name that is set beats the attributes, and those beat what we say by ourselves.
    fn resource(&mut self) -> Resource {
        let mut attributes = BTreeMap::from([
            ("service.name".to_owned(), "retrysafe".to_owned()),
            ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            ("telemetry.sdk.language".to_owned(), "rust".to_owned()),
            ("telemetry.sdk.name".to_owned(), "retrysafe".to_owned()),
            ("telemetry.sdk.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ]);
        let name = "OTEL_RESOURCE_ATTRIBUTES";
        let list = self.get(name).unwrap_or_default().to_owned();
        for pair in pairs(&list) {
            match pair {
                Some(pair) => drop(attributes.insert(pair.0, pair.1)),
                None => self.warn(name, "a part of it is no `name=value` and is left out"),
            }
        }
        if let Some(name) = self.get("OTEL_SERVICE_NAME") {
            attributes.insert("service.name".to_owned(), name.to_owned());
        }
        Resource(attributes.into_iter().collect())
    }

    fn sampler(&mut self) -> Sampler {
        let name = "OTEL_TRACES_SAMPLER";
        let Some(sampler) = self.get(name).map(str::to_owned) else { return Sampler::default() };
        let plain = sampler.strip_prefix("parentbased_");
        let follows_parent = plain.is_some();
        match plain.unwrap_or(&sampler) {
            "always_on" => Sampler { follows_parent, ratio: 1.0 },
            "always_off" => Sampler { follows_parent, ratio: 0.0 },
            "traceidratio" => Sampler { follows_parent, ratio: self.ratio() },
            _ => {
                self.warn(name, "no sampler of this name is known; parentbased_always_on holds");
                Sampler::default()
            }
        }
    }

    fn ratio(&mut self) -> f64 {
        let name = "OTEL_TRACES_SAMPLER_ARG";
        let Some(given) = self.get(name) else { return 1.0 };
        match given.parse::<f64>() {
            Ok(ratio) if (0.0..=1.0).contains(&ratio) => ratio,
            Ok(_) | Err(_) => {
                self.warn(name, "not a number from 0 to 1; every trace is recorded");
                1.0
            }
        }
    }

    fn number(&mut self, name: &str, otherwise: usize) -> usize {
        match self.get(name).map(str::parse::<usize>) {
            None => otherwise,
            Some(Ok(number)) if number > 0 => number,
            Some(_) => {
                self.warn(name, format!("not a whole number above zero; {otherwise} holds"));
                otherwise
            }
        }
    }

    fn milliseconds(&mut self, names: &[&'static str], otherwise: Duration) -> Duration {
        let Some((name, _)) = self.first(names) else { return otherwise };
        let otherwise = usize::try_from(otherwise.as_millis()).unwrap_or(usize::MAX);
        Duration::from_millis(self.number(name, otherwise) as u64)
    }
}

/// `name=value,name=value`, with percent-encoding. None for each that is none.
fn pairs(list: &str) -> impl Iterator<Item = Option<(String, String)>> {
    list.split(',').map(str::trim).filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let name = decoded(name.trim())?;
        (!name.is_empty()).then_some((name, decoded(value.trim())?))
    })
}

/// A text without its percent-encoding.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let high = digit(bytes.next()?)?;
        let low = digit(bytes.next()?)?;
        out.push(u8::try_from(high << 4 | low).ok()?);
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> (Option<TraceSettings>, Vec<String>) {
        let variables =
            variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let mut warnings = Vec::new();
        (TraceSettings::read(&variables, &mut warnings), warnings)
    }

    const AT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/");

    #[test]
    fn nothing_is_sent_unless_somebody_asks() {
        for variables in [
            &[][..],
            &[("OTEL_SERVICE_NAME", "pay")],
            &[AT, ("OTEL_SDK_DISABLED", "TRUE")],
            &[AT, ("OTEL_TRACES_EXPORTER", "none")],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")],
        ] {
            let (settings, warnings) = read(variables);
            assert!(settings.is_none() && warnings.is_empty(), "{variables:?}");
        }
    }

    #[test]
    fn endpoints_are_found_as_the_specification_says() {
        let endpoint = |variables: &[_]| read(variables).0.map(|it| it.endpoint.to_string());
        assert_eq!(endpoint(&[AT]).unwrap(), "http://c:4318/v1/traces");
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://t.example/otlp");
        assert_eq!(endpoint(&[AT, own]).unwrap(), "https://t.example/otlp");
        let asked = [("OTEL_TRACES_EXPORTER", "otlp")];
        assert_eq!(endpoint(&asked).unwrap(), "http://localhost:4318/v1/traces");
    }

    #[test]
    fn what_cannot_be_used_is_a_warning() {
        for (name, value, is_traced) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", false),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "c:4318", false),
            ("OTEL_TRACES_EXPORTER", "zipkin", false),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote", true),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "many", true),
            ("OTEL_EXPORTER_OTLP_HEADERS", "no pair", true),
            ("OTEL_RESOURCE_ATTRIBUTES", "=x", true),
        ] {
            let (settings, warnings) = read(&[AT, (name, value)]);
            assert_eq!(
                (settings.is_some(), warnings.len()),
                (is_traced, 1),
                "{name}: {warnings:?}"
            );
            assert!(warnings[0].starts_with(name), "{warnings:?}");
        }
        let sampler = ("OTEL_TRACES_SAMPLER", "traceidratio");
        assert_eq!(read(&[AT, sampler, ("OTEL_TRACES_SAMPLER_ARG", "7")]).1.len(), 1);
    }

    #[test]
    fn everything_that_is_named_is_read() {
        let (settings, warnings) = read(&[
            AT,
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x, x-tenant=a"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,service.name=other"),
            ("OTEL_SERVICE_NAME", "pay"),
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "100"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1000"),
            ("OTEL_BSP_SCHEDULE_DELAY", "20"),
        ]);
        assert_eq!(warnings, Vec::<String>::new());
        let settings = settings.unwrap();
        assert_eq!(settings.encoding, Encoding::Json);
        assert_eq!(settings.headers[0].1, "Bearer x");
        assert_eq!(settings.timeout, Duration::from_millis(1_500));
        assert_eq!(settings.sampler, Sampler { follows_parent: true, ratio: 0.25 });
        assert_eq!((settings.queue_max, settings.batch_max), (100, 100));
        assert_eq!(settings.delay, Duration::from_millis(20));
        let Resource(attributes) = settings.resource;
        for (name, value) in [("service.name", "pay"), ("deployment.environment", "test")] {
            assert!(attributes.contains(&(name.into(), value.into())), "{attributes:?}");
        }
    }
}
