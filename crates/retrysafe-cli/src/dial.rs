//! How does the program connect to somebody else's server, and whom does it trust?

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use http::Uri;
use rustls::client::WantsClientCert;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Connects to URLs, each time anew, so that nothing is resent behind the caller's back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dialler {
    /// Read at the first `https` URL: it takes a while, and most runs need none.
    trust: Arc<OnceLock<Result<Arc<ClientConfig>, String>>>,
}

/// A connection.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Dialler {
    /// Connects to the server of an `http` or `https` URL.
    ///
    /// # Errors
    ///
    /// Whatever stood in the way. Nothing has been sent then.
    pub(crate) async fn dial(&self, url: &Uri) -> io::Result<Box<dyn Stream>> {
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let is_secure = url.scheme_str() == Some("https");
        let port = url.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
        let stream = TcpStream::connect((host.as_str(), port)).await?;
        stream.set_nodelay(true)?;
        if !is_secure {
            return Ok(Box::new(stream));
        }
        let trust = self.trust.get_or_init(|| client_config(None).map_err(|e| e.to_string()));
        let trust = trust.clone().map_err(io::Error::other)?;
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        Ok(Box::new(TlsConnector::from(trust).connect(name, stream).await?))
    }
}

/// A TLS client for HTTP/1.1 that trusts these authorities, or else the machine's.
///
/// # Errors
///
/// If the authorities cannot be read, or there are none.
pub(crate) fn client_config(authorities: Option<&Path>) -> io::Result<Arc<ClientConfig>> {
    let client = client_builder(authorities)?.with_no_client_auth();
    Ok(Arc::new(over_http1(client)))
}

/// The same, and it offers HTTP/2 first.
///
/// # Errors
///
/// If the authorities cannot be read, or there are none.
pub(crate) fn client_config_with_http2(
    authorities: Option<&Path>,
) -> io::Result<Arc<ClientConfig>> {
    let mut client = over_http1(client_builder(authorities)?.with_no_client_auth());
    client.alpn_protocols.insert(0, b"h2".to_vec());
    Ok(Arc::new(client))
}

/// The same, and it shows a certificate of its own.
///
/// # Errors
///
/// If the authorities, the certificate or its key cannot be read, or do not fit together.
pub(crate) fn client_config_with_certificate(
    authorities: Option<&Path>,
    certificate: &Path,
    key: &Path,
) -> io::Result<Arc<ClientConfig>> {
    let chain = CertificateDer::pem_slice_iter(&std::fs::read(certificate)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_slice(&std::fs::read(key)?).map_err(io::Error::other)?;
    let client = client_builder(authorities)?.with_client_auth_cert(chain, key);
    Ok(Arc::new(over_http1(client.map_err(io::Error::other)?)))
}

fn client_builder(
    authorities: Option<&Path>,
) -> io::Result<ConfigBuilder<ClientConfig, WantsClientCert>> {
    let mut roots = RootCertStore::empty();
    match authorities {
        Some(path) => {
            for certificate in CertificateDer::pem_slice_iter(&std::fs::read(path)?) {
                roots.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
            }
        }
        None => {
            // A broken certificate among the system's does not spoil the others.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(io::Error::other("there is no authority to trust for TLS"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    Ok(builder.with_root_certificates(roots))
}

fn over_http1(mut client: ClientConfig) -> ClientConfig {
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    client
}
