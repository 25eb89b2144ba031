//! Does the worker verify its receiver, and show who it is?

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsAcceptor;

use super::bench::{Bench, NEAR, SOON, UNKEYED};
use super::kit::until;

/// An authority with files of its own.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(folder: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(folder.join(format!("{name}.pem")), authority.pem()).unwrap();
        Self(authority)
    }

    /// Writes a certificate and its key.
    fn issue(&self, folder: &Path, name: &str) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        std::fs::write(folder.join(format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

/// A receiver that lets in who shows a certificate of an authority: its port, and how many it has answered.
fn receiver(folder: &Path, trusted: &str) -> (u16, Arc<AtomicUsize>) {
    let pem = |name: &str| folder.join(name);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(pem(trusted)).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(
            vec![CertificateDer::from_pem_file(pem("server.pem")).unwrap()],
            PrivateKeyDer::from_pem_file(pem("server.key")).unwrap(),
        )
        .unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let answered = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&answered);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let acceptor = TlsAcceptor::from(Arc::new(config));
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut head = [0; 4_096];
                if stream.read(&mut head).await.is_ok_and(|read| read > 0) {
                    counted.fetch_add(1, Ordering::AcqRel);
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
                    let _ = stream.shutdown().await;
                }
            }
        });
    });
    (port, answered)
}

#[test]
fn a_receiver_sees_the_workers_certificate_and_is_verified_by_its_own() {
    let mut bench = Bench::asleep();
    let folder = bench.folder.clone();
    let authority = Authority::new(&folder, "authority");
    let stranger = Authority::new(&folder, "stranger");
    authority.issue(&folder, "server");
    authority.issue(&folder, "client");
    let (port, answered) = receiver(&folder, "authority.pem");
    let kind = |name: &str, more: &str| {
        format!(
            "[effects.{name}]\nurl = \"https://localhost:{port}/in\"\n{NEAR}{SOON}{UNKEYED}failures_max = 2\n\
             [effects.{name}.tls]\n{more}"
        )
    };
    let file = |name: &str| folder.join(name).display().to_string();
    let shown = |name: &str| {
        format!(
            "certificate = \"{}\"\nkey = \"{}\"\n",
            file(&format!("{name}.pem")),
            file(&format!("{name}.key"))
        )
    };
    let trusts = format!("authorities = \"{}\"\n", file("authority.pem"));
    let trusts_another = format!("authorities = \"{}\"\n", file("stranger.pem"));
    bench.configure(&format!(
        "{}{}{}",
        kind("both", &format!("{trusts}{}", shown("client"))),
        kind("anonymous", &trusts),
        kind("wary", &format!("{trusts_another}{}", shown("client"))),
    ));
    bench.run();
    let wary = bench.stage_as("wary", None, "{}");
    let error = bench.wait_for(wary, "dead");
    assert!(error.contains("certificate"), "nothing was sent to whom it does not trust: {error}");
    let anonymous = bench.stage_as("anonymous", None, "{}");
    until("it is over", || ["dead", "unknown"].contains(&bench.state(anonymous).0.as_str()));
    assert_eq!(answered.load(Ordering::Acquire), 0, "nobody was let in");
    let both = bench.stage_as("both", None, "{}");
    bench.wait_for(both, "delivered");
    assert_eq!(answered.load(Ordering::Acquire), 1);

    // The certificate ends, and another one takes its place.
    stranger.issue(&folder, "client");
    bench.signal("HUP");
    bench.wait_for_log("certificates read again");
    let refused = bench.stage_as("both", None, "{}");
    until("it is over", || ["dead", "unknown"].contains(&bench.state(refused).0.as_str()));
    std::fs::write(folder.join("client.pem"), "broken").unwrap();
    bench.signal("HUP");
    bench.wait_for_log("certificates kept");
    authority.issue(&folder, "client");
    bench.signal("HUP");
    until("it is read", || bench.log().matches("certificates read again").count() >= 5);
    let again = bench.stage_as("both", None, "{}");
    bench.wait_for(again, "delivered");
    assert_eq!(answered.load(Ordering::Acquire), 2);
}
