//! Accepting connections: limits of their number, of the time for a request's headers, and of the time for
//! which a client stops reading.

use std::future::Future;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_rustls::TlsAcceptor;

use crate::request_log::ClientAddress;
use crate::write_timeout::WriteTimeout;

/// Wait after a failed `accept`, for example without free descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Limits of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// Maximum number of open connections; further ones wait in the system's queue.
    pub(crate) count: usize,
    /// Maximum time from the first wait for a request until its headers are complete.
    pub(crate) header_time: Duration,
    /// Maximum time for which a client may stop reading a response.
    pub(crate) write_time: Duration,
}

/// Serves connections until `stop` completes, then waits until the running requests are finished.
/// The connections are those of HTTPS if there is an acceptor.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    (limits, tls): (ConnectionLimits, Option<TlsAcceptor>),
    stop: impl Future<Output = ()>,
) {
    let permits = Arc::new(Semaphore::new(
        limits.count.clamp(1, Semaphore::MAX_PERMITS),
    ));
    // Dropping `closing` makes the connections finish; `ended` completes when all of them have
    // dropped `alive`.
    let (closing, closed) = watch::channel(());
    let (alive, mut ended) = mpsc::channel::<()>(1);
    let mut stop = pin!(stop);
    loop {
        let next = async {
            let permit = Arc::clone(&permits).acquire_owned().await;
            (accepted(&listener).await, permit)
        };
        let ((stream, client), permit) = tokio::select! {
            () = &mut stop => break,
            next = next => next,
        };
        let router = router.clone().layer(Extension(ClientAddress(client)));
        let (closed, alive, tls) = (closed.clone(), alive.clone(), tls.clone());
        tokio::spawn(async move {
            let time = limits.header_time;
            let stream = WriteTimeout::new(stream, limits.write_time);
            match tls {
                None => serve_one(stream, router, time, closed).await,
                Some(tls) => {
                    let handshake = tokio::time::timeout(time, tls.accept(stream)).await;
                    // Otherwise the client is slow, or no HTTPS client of this certificate.
                    if let Ok(Ok(stream)) = handshake {
                        serve_one(stream, router, time, closed).await;
                    }
                }
            }
            drop((permit, alive));
        });
    }
    drop((listener, closing, alive));
    // Nothing is ever sent on this channel: `recv` completes when the last connection has ended.
    let _ = ended.recv().await;
}

/// The next connection, and the address of its client.
async fn accepted(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                // Disable Nagle's algorithm, so that streamed text is not delayed until the previous
                // packet is acknowledged. The call fails only if the connection is already closed;
                // a later read reports that.
                let _ = stream.set_nodelay(true);
                return (stream, client);
            }
            Err(e) if is_of_client(&e) => {}
            Err(_) => tokio::time::sleep(ACCEPT_RETRY).await,
        }
    }
}

/// Whether the client closed the connection before it was accepted.
fn is_of_client(e: &std::io::Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset
    )
}

async fn serve_one(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    header_time: Duration,
    mut closed: watch::Receiver<()>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(header_time);
    let service = TowerToHyperService::new(router);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // Errors are those of a client that left or sent no valid request.
        _ = connection.as_mut() => return,
        _ = closed.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
