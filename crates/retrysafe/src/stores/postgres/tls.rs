//! How is a connection encrypted?
//!
//! With rustls, and verified by the server's name: a connection that anybody could have answered is
//! not worth its handshake, so there is no mode without verification.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};

use super::fault::ConnectError;

#[derive(Clone)]
pub(super) struct Connector(Arc<ClientConfig>);

pub(super) struct Handshake {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

pub(super) struct Encrypted(tokio_rustls::client::TlsStream<Socket>);

/// A connector that trusts the certificates of a file, or the system's.
pub(super) fn connector(roots: Option<&Path>) -> Result<Connector, ConnectError> {
    let mut trusted = RootCertStore::empty();
    match roots {
        Some(file) => {
            let wrong = |error| ConnectError::because("sslrootcert cannot be read", error);
            for certificate in CertificateDer::pem_file_iter(file).map_err(wrong)? {
                let certificate = certificate.map_err(wrong)?;
                trusted.add(certificate).map_err(|error| {
                    ConnectError::because("sslrootcert holds no usable certificate", error)
                })?;
            }
        }
        None => {
            trusted.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let config =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| ConnectError::because("TLS cannot be set up", error))?
            .with_root_certificates(trusted)
            .with_no_client_auth();
    Ok(Connector(Arc::new(config)))
}

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Encrypted;
    type TlsConnect = Handshake;
    type Error = rustls::pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, Self::Error> {
        let name = ServerName::try_from(host)?.to_owned();
        Ok(Handshake { config: Arc::clone(&self.0), name })
    }
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        let connector = tokio_rustls::TlsConnector::from(self.config);
        Box::pin(async move { Ok(Encrypted(connector.connect(self.name, socket).await?)) })
    }
}

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
