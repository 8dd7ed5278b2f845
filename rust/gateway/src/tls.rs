//! Certificates and keys from PEM files, as rustls wants them.
//!
//! Cryptography is ring's: it builds with a C compiler alone and is the smaller of rustls' two. TLS 1.2 and 1.3, rustls'
//! own choice of suites. A client's session may be resumed by ticket; the tickets' key is made with the configuration, so
//! that a reload (of a client CA, say) ends what the old one admitted.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::config::{Files, WorkerProtocol};
use crate::error::{Error, FileFault};

/// ALPN's names.
pub(crate) const H2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// What clients are answered with; `None` if no certificate is set.
pub(crate) fn server(files: &Files) -> Result<Option<Arc<ServerConfig>>, Error> {
    let Some((cert, key)) = pair("tls_cert", &files.tls_cert, "tls_key", &files.tls_key)? else {
        return match &files.tls_client_ca {
            Some(_) => Err(missing("tls_cert", "a file, as tls_client_ca is set")),
            None => Ok(None),
        };
    };
    let (chain, private) = (certificates("tls_cert", cert)?, private_key("tls_key", key)?);
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring has suites for the default versions");
    let builder = match &files.tls_client_ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let roots = Arc::new(roots("tls_client_ca", ca)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
            builder.with_client_cert_verifier(verifier.build().map_err(|_| Error::File {
                key: "tls_client_ca",
                path: ca.clone(),
                source: FileFault::NoCertificate,
            })?)
        }
    };
    let mut config =
        builder.with_single_cert(chain, private).map_err(|source| file("tls_key", key, source.into()))?;
    config.alpn_protocols = vec![H2.to_vec(), HTTP1.to_vec()];
    config.ticketer = ring::Ticketer::new().map_err(|source| file("tls_key", key, source.into()))?;
    Ok(Some(Arc::new(config)))
}

/// How `https://` workers are talked to: which authorities are trusted, and who we say we are.
///
/// Without `worker_tls_ca` the system's authorities are trusted; reading them costs some milliseconds.
pub(crate) fn client(files: &Files, protocol: WorkerProtocol) -> Result<Arc<ClientConfig>, Error> {
    let roots = match &files.worker_tls_ca {
        Some(ca) => roots("worker_tls_ca", ca)?,
        None => system_roots()?,
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring has suites for the default versions")
        .with_root_certificates(roots);
    let (cert, key) = (&files.worker_tls_cert, &files.worker_tls_key);
    let mut config = match pair("worker_tls_cert", cert, "worker_tls_key", key)? {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = certificates("worker_tls_cert", cert)?;
            builder
                .with_client_auth_cert(chain, private_key("worker_tls_key", key)?)
                .map_err(|source| file("worker_tls_key", key, source.into()))?
        }
    };
    config.alpn_protocols = match protocol {
        WorkerProtocol::Http1 => vec![HTTP1.to_vec()],
        WorkerProtocol::H2 => vec![H2.to_vec(), HTTP1.to_vec()],
    };
    Ok(Arc::new(config))
}

fn missing(key: &'static str, allowed: &'static str) -> Error {
    Error::Config { key, value: "unset".into(), allowed }
}

fn file(key: &'static str, path: &Path, source: FileFault) -> Error {
    Error::File { key, path: path.to_owned(), source }
}

/// Two files that only make sense together.
fn pair<'a>(
    cert_name: &'static str,
    cert: &'a Option<std::path::PathBuf>,
    key_name: &'static str,
    key: &'a Option<std::path::PathBuf>,
) -> Result<Option<(&'a Path, &'a Path)>, Error> {
    match (cert, key) {
        (Some(cert), Some(key)) => Ok(Some((cert, key))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(missing(key_name, "a file, as its certificate is set")),
        (None, Some(_)) => Err(missing(cert_name, "a file, as its key is set")),
    }
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| file(key, path, source.into()))
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(key, path)?).collect();
    match chain {
        Ok(chain) if chain.is_empty() => Err(file(key, path, FileFault::NoCertificate)),
        Ok(chain) => Ok(chain),
        Err(source) => Err(file(key, path, FileFault::Pem(source))),
    }
}

fn private_key(key: &'static str, path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_slice(&read(key, path)?).map_err(|source| file(key, path, FileFault::Pem(source)))
}

fn roots(key: &'static str, path: &Path) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(key, path)? {
        roots.add(certificate).map_err(|source| file(key, path, source.into()))?;
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    // What cannot be read of the system's list is left out; an empty list is of no use.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(missing("worker_tls_ca", "a file, as this system has no list of authorities"));
    }
    Ok(roots)
}
