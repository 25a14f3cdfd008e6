//! HTTPS.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use tercet_serve::{ServeError, ServeOptions, TlsIdentity};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto};

use crate::server::{data, start};

fn identity(certificate: &str, key: &str) -> Result<TlsIdentity, ServeError> {
    let path = |name: &str| data(&format!("tls/{name}"));
    TlsIdentity::from_pem_files(path(certificate), path(key))
}

/// A response to `GET /health` by a client that trusts the test authority.
fn health(address: &str, name: &'static str) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(data("tls/authority.pem")).unwrap();
    roots.add(authority).unwrap();
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(name).unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(address)?);
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    // The server may close without the closing message of TLS.
    match stream.read_to_end(&mut answer) {
        Err(e) if answer.is_empty() => return Err(e),
        Ok(_) | Err(_) => {}
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[test]
fn https_clients_are_served_and_others_do_not_hold_them_up() {
    let options = ServeOptions {
        slots: 1,
        connections: 2,
        header_time: Duration::from_millis(300),
        tls: Some(identity("server.pem", "server-key.pem").unwrap()),
        ..ServeOptions::default()
    };
    let server = start(options);
    for name in ["localhost", "127.0.0.1"] {
        let answer = health(&server.address, name).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.ends_with(r#"{"status":"ok"}"#), "{answer}");
    }
    // The certificate is for another name.
    assert!(health(&server.address, "other.example").is_err());
    // Clients that send nothing, or plain HTTP, hold a connection for the time of the headers.
    let _silent: Vec<TcpStream> = (0..2)
        .map(|_| TcpStream::connect(&server.address).unwrap())
        .collect();
    assert!(health(&server.address, "localhost").is_ok());
    let mut plain = TcpStream::connect(&server.address).unwrap();
    plain
        .write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    // An error is a reset connection.
    let _ = plain.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("200"));
    assert!(health(&server.address, "localhost").is_ok());
}

#[test]
fn unfit_files_are_refused() {
    for (certificate, key, expected) in [
        (
            "none.pem",
            "server-key.pem",
            "none.pem` is not a PEM file with certificates",
        ),
        ("server-key.pem", "server-key.pem", "it has none"),
        (
            "server.pem",
            "none.pem",
            "none.pem` is not a PEM file with the private key",
        ),
        (
            "server.pem",
            "server.pem",
            "is not a PEM file with the private key",
        ),
        (
            "server.pem",
            "other-key.pem",
            "private key of the certificate",
        ),
    ] {
        let refused = identity(certificate, key).unwrap_err().to_string();
        assert!(
            refused.contains(expected),
            "{certificate}, {key}: {refused}"
        );
    }
}
