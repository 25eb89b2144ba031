//! What holds right now?
//!
//! Everything that a reload may exchange, in one piece: a request takes it once and sees one
//! configuration from its beginning to its end.

use std::io;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use super::connect::Connector;
use super::jwt::Verifier;
use super::route::Routes;
use crate::config::{Config, TlsFile};

/// What holds right now.
pub(crate) struct Live {
    pub config: Config,
    pub routes: Routes,
    pub connector: Connector,
    pub verifier: Option<Verifier>,
    pub tls: Option<TlsAcceptor>,
    /// The policy document, as it is published.
    pub published: serde_json::Value,
}

impl Live {
    /// Everything that a configuration stands for.
    ///
    /// # Errors
    ///
    /// If one of its files cannot be read or used.
    pub(crate) fn new(config: Config) -> Result<Self, String> {
        let tls = config.tls.as_ref().map(acceptor).transpose();
        let tls = tls.map_err(|error| format!("tls: {error}"))?;
        let connector = Connector::new(&config.upstream, config.authorities.as_deref())
            .map_err(|error| format!("upstream_tls: {error}"))?;
        let verifier = config.jwt.as_ref().map(Verifier::new).transpose()?;
        let routes = Routes::new(&config);
        let published = super::wellknown::document(&routes);
        Ok(Self { config, routes, connector, verifier, tls, published })
    }
}

fn acceptor(tls: &TlsFile) -> io::Result<TlsAcceptor> {
    let certificates = CertificateDer::pem_file_iter(&tls.certificate)
        .map_err(io::Error::other)?
        .collect::<Result<Vec<_>, _>>()
        .map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(io::Error::other)?;
    let mut server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(io::Error::other)?;
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(server)))
}
