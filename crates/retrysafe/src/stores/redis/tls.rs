//! How is a connection encrypted?
//!
//! With rustls, and verified by the server's name: there is no mode without verification.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::error::ConnectError;

/// What a connection trusts: the certificates of a file, or the system's.
pub(super) fn trusting(roots: Option<&Path>) -> Result<Arc<ClientConfig>, ConnectError> {
    let mut trusted = RootCertStore::empty();
    match roots {
        Some(file) => {
            let wrong = |error| ConnectError::new("sslrootcert cannot be read").because(error);
            for certificate in CertificateDer::pem_file_iter(file).map_err(wrong)? {
                trusted.add(certificate.map_err(wrong)?).map_err(|error| {
                    ConnectError::new("sslrootcert holds no usable certificate").because(error)
                })?;
            }
        }
        None => {
            trusted.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| ConnectError::new("TLS cannot be set up").because(error))?
        .with_root_certificates(trusted)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// An encrypted connection to the server of this name.
pub(super) async fn encrypted(
    config: Arc<ClientConfig>,
    host: &str,
    socket: TcpStream,
) -> Result<TlsStream<TcpStream>, ConnectError> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| ConnectError::new("the host's name is not understood").because(error))?;
    let connector = tokio_rustls::TlsConnector::from(config);
    connector.connect(name, socket).await.map_err(|error| {
        // A certificate that does not verify is bad data, and stays so.
        let is_for_good = error.kind() == std::io::ErrorKind::InvalidData;
        let what = "the connection cannot be encrypted";
        let told = if is_for_good { ConnectError::new(what) } else { ConnectError::passing(what) };
        told.because(error)
    })
}
