//! Starts `tercet serve` in tests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::tercet;

/// A server process, which ends with the test.
pub(crate) struct Serving {
    child: Child,
    address: String,
}

/// Starts a server and waits until it prints its address.
pub(crate) fn serving(args: &[&str]) -> Serving {
    serving_by(tercet(args))
}

/// Starts the server of a command, such as one with environment variables.
pub(crate) fn serving_by(mut command: Command) -> Serving {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    // Driver messages may come first.
    let mut said = lines.map(Result::unwrap);
    let found = said.find_map(|l| Some(l.split_once("http://")?.1.to_string()));
    let address = found.expect("the address of the server");
    Serving { child, address }
}

impl Serving {
    /// Host and port.
    pub(crate) fn address(&self) -> &str {
        self.address.trim()
    }

    /// JSON response to a POST request.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        let (status, body) = self.try_post(path, body);
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Status and body of the response to a POST request.
    pub(crate) fn try_post(&self, path: &str, body: &Value) -> (u16, String) {
        let (body, mut answer) = (body.to_string(), String::new());
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: application/json\r\n"
        );
        // The server may answer before it has read all.
        let _ = write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len());
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        (status.unwrap(), body.to_string())
    }
}

#[cfg(unix)]
impl Serving {
    /// Sends SIGTERM and waits until the server has stopped.
    #[allow(dead_code, reason = "not all test programs stop a server")]
    pub(crate) fn terminate(mut self) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        assert!(sent.success());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
