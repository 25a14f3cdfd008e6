//! The health check of the image: asks the server in the same container for `/health`. Exits with 0 if it answers
//! with status 200. The port is the first argument, or 8080.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(5);

fn is_healthy(port: u16) -> std::io::Result<bool> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut status = [0; 12];
    stream.read_exact(&mut status)?;
    Ok(status == *b"HTTP/1.1 200")
}

fn main() -> ExitCode {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok());
    match is_healthy(port.unwrap_or(8080)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("error: /health does not answer with status 200");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: no answer on port {}: {error}", port.unwrap_or(8080));
            ExitCode::FAILURE
        }
    }
}
