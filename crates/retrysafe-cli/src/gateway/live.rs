//! What holds right now?
//!
//! Everything that a reload may exchange, in one piece: a request takes it once and sees one
//! configuration from its beginning to its end.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use super::connect::Connector;
use super::guard::GuardedHeaders;
use super::jwt::Verifier;
use super::route::Routes;
use super::upstream_state::LiveUpstream;
use crate::config::{self, Complaint, Config, TlsFile, Upstream};

/// What holds right now.
pub(crate) struct Live {
    pub config: Config,
    pub routes: Routes,
    /// The headers that may be spelt in one way only.
    pub guard: GuardedHeaders,
    /// Every upstream, the one at the top first.
    pub upstreams: Vec<Arc<LiveUpstream>>,
    pub verifier: Option<Arc<Verifier>>,
    pub tls: Option<TlsAcceptor>,
    /// The policy document, as it is published.
    pub published: serde_json::Value,
}

impl Live {
    /// Everything that a configuration stands for. What a key server has said before a reload still
    /// counts after it, if it is the same server.
    ///
    /// # Errors
    ///
    /// If one of its files cannot be read or used.
    pub(crate) fn new(config: Config, former: Option<&Self>) -> Result<Self, String> {
        let tls = config.tls.as_ref().map(acceptor).transpose().map_err(in_one)?;
        let upstreams = upstreams(&config, former)?;
        let same_server = former.filter(|former| {
            former.config.jwt == config.jwt
                && config.jwt.as_ref().is_some_and(|jwt| jwt.jwks_url.is_some())
        });
        let verifier = match (same_server, &config.jwt) {
            (Some(former), _) => former.verifier.clone(),
            (None, Some(jwt)) => Some(Arc::new(Verifier::new(jwt).map_err(in_one)?)),
            (None, None) => None,
        };
        let routes = Routes::new(&config);
        let published = super::published::document(&routes);
        let guard = GuardedHeaders::new(&config);
        Ok(Self { config, routes, guard, upstreams, verifier, tls, published })
    }

    /// The same, with another way to the upstream at the top.
    pub(crate) fn over(mut self, connector: Connector) -> Self {
        if let Some(top) = self.upstreams.first_mut() {
            let upstream = top.upstream.clone();
            let health = Arc::clone(&top.health);
            *top = Arc::new(LiveUpstream { upstream, connector, health });
        }
        self
    }
}

/// All upstreams of a configuration. What is known of the health of one that stays is kept.
fn upstreams(config: &Config, former: Option<&Live>) -> Result<Vec<Arc<LiveUpstream>>, String> {
    let is_checked = config.health.is_some();
    let known = |upstream: &Upstream| {
        let all = former.filter(|_| is_checked)?.upstreams.iter();
        all.map(|it| (&it.upstream, &it.health))
            .find(|(it, _)| *it == upstream)
            .map(|(_, health)| Arc::clone(health))
    };
    let live = |upstream: &Upstream| {
        let connector = Connector::new(upstream, config.authorities.as_deref())
            .map_err(|error| format!("upstream: {error}"))?;
        let health = known(upstream).unwrap_or_default();
        Ok(Arc::new(LiveUpstream { upstream: upstream.clone(), connector, health }))
    };
    config.upstreams().into_iter().map(live).collect()
}

fn in_one(complaints: Vec<Complaint>) -> String {
    complaints.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// TLS towards callers.
///
/// # Errors
///
/// What is wrong with its files.
pub(crate) fn acceptor(tls: &TlsFile) -> Result<TlsAcceptor, Vec<Complaint>> {
    let (certificates, key) = match (certificates(&tls.certificate), private_key(&tls.key)) {
        (Ok(certificates), Ok(key)) => (certificates, key),
        (certificates, key) => {
            return Err(certificates.err().into_iter().chain(key.err()).collect());
        }
    };
    let server = ServerConfig::builder().with_no_client_auth().with_single_cert(certificates, key);
    let mut server = server.map_err(|error| {
        let what = format!("does not fit the certificate {}: {error}", tls.certificate);
        vec![Complaint::new("tls.key", what)]
    })?;
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(server)))
}

fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, Complaint> {
    let pem = read("tls.certificate", path)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match read {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) | Err(_) => {
            let what = format!("{path} holds no certificates in PEM form");
            Err(Complaint::new("tls.certificate", what))
        }
    }
}

fn private_key(path: &str) -> Result<PrivateKeyDer<'static>, Complaint> {
    let pem = read("tls.key", path)?;
    PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|_| Complaint::new("tls.key", format!("{path} holds no private key in PEM form")))
}

fn read(setting: &str, path: &str) -> Result<Vec<u8>, Complaint> {
    if path.is_empty() {
        return Err(Complaint::new(setting, "is not set: name a PEM file"));
    }
    std::fs::read(path).map_err(|error| Complaint::new(setting, config::unreadable(path, &error)))
}
