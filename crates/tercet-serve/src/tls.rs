//! HTTPS: the certificate and private key of a server.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};

use crate::error::ServeError;

/// Certificate and private key of an HTTPS server.
///
/// ```
/// use tercet_serve::{ServeError, TlsIdentity};
/// let missing = TlsIdentity::from_pem_files("no-cert.pem", "no-key.pem");
/// assert!(matches!(missing, Err(ServeError::Tls { .. })));
/// ```
#[derive(Clone, Debug)]
pub struct TlsIdentity {
    config: Arc<ServerConfig>,
}

impl TlsIdentity {
    /// Reads a chain of certificates, the server's first, and its private key (PKCS #8, PKCS #1 or
    /// SEC 1) from PEM files.
    ///
    /// # Errors
    /// [`ServeError::Tls`] if a file cannot be read, the item is missing, or the key does not belong
    /// to the certificate.
    pub fn from_pem_files(
        certificates: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<TlsIdentity, ServeError> {
        let (certificates, key) = (certificates.as_ref(), key.as_ref());
        let failed = |path: &Path, expected: &'static str, reason: String| ServeError::Tls {
            path: path.to_path_buf(),
            expected,
            reason,
        };
        let of_chain = |e: String| failed(certificates, "a PEM file with certificates", e);
        let chain =
            CertificateDer::pem_file_iter(certificates).map_err(|e| of_chain(e.to_string()))?;
        let chain: Result<Vec<_>, _> = chain.collect();
        let chain = chain.map_err(|e| of_chain(e.to_string()))?;
        if chain.is_empty() {
            return Err(of_chain("it has none".into()));
        }
        let of_key =
            |e: String| failed(key, "a PEM file with the private key of the certificate", e);
        let own = PrivateKeyDer::from_pem_file(key).map_err(|e| of_key(e.to_string()))?;
        let provider = Arc::new(crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| of_key(e.to_string()))?;
        let config = config.with_no_client_auth().with_single_cert(chain, own);
        let mut config = config.map_err(|e| of_key(e.to_string()))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsIdentity {
            config: Arc::new(config),
        })
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config))
    }
}
