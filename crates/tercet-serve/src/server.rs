//! Listening, and stopping.

use std::future::Future;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::ListenerExt;

use crate::error::ServeError;
use crate::http::{App, router};
use crate::models::Models;
use crate::options::ServeOptions;

/// A server that listens.
pub struct Server {
    listener: std::net::TcpListener,
    address: SocketAddr,
    router: Router,
    deadline: Duration,
}

impl Server {
    /// Listens on `host` and `port`; port 0 takes a free one.
    ///
    /// # Errors
    /// [`ServeError::Io`] when the address is not this machine's, or taken.
    pub fn bind(
        host: &str,
        port: u16,
        models: Models,
        options: ServeOptions,
    ) -> Result<Server, ServeError> {
        let failed = |source| ServeError::Io {
            what: format!("cannot listen on {host}, port {port}"),
            source,
        };
        let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(failed)?.collect();
        let listener = std::net::TcpListener::bind(addresses.as_slice()).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let deadline = options.deadline;
        let router = router(Arc::new(App::new(models, options)));
        Ok(Server {
            listener,
            address,
            router,
            deadline,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop` is done. Then nothing new is accepted, and what is under way is finished, for at most the
    /// deadline of a request; a second signal (Ctrl-C, SIGTERM) gives it up.
    ///
    /// # Errors
    /// [`ServeError::Io`] when the system refuses threads or the socket.
    pub fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> Result<(), ServeError> {
        let failed = |source| ServeError::Io {
            what: "cannot serve".into(),
            source,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        let runtime = runtime.map_err(failed)?;
        let deadline = self.deadline;
        let done = runtime.block_on(async move {
            // A piece of a text is sent when it is there, not when the client has acknowledged the one before. A connection that
            // has closed already is told later.
            let listener = tokio::net::TcpListener::from_std(self.listener)?.tap_io(|connection| {
                let _ = connection.set_nodelay(true);
            });
            let (told, mut heard) = tokio::sync::watch::channel(());
            let stop = async move {
                stop.await;
                // The other end waits below as long as this one serves.
                let _ = told.send(());
            };
            let serve = axum::serve(listener, self.router).with_graceful_shutdown(stop);
            let give_up = async {
                // An error: serving ended by itself.
                if heard.changed().await.is_ok() {
                    tokio::select! {
                        () = tokio::time::sleep(deadline) => {}
                        () = stop_signal() => {}
                    }
                } else {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                done = serve => done,
                () = give_up => Ok(()),
            }
        });
        runtime.shutdown_timeout(Duration::from_secs(1));
        done.map_err(failed)
    }
}

/// Done at the next Ctrl-C or SIGTERM. Without the system's help with signals it never is, and the signals end the
/// process as before.
pub async fn stop_signal() {
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let ended = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let ended = std::future::pending::<()>();
    tokio::select! {
        () = interrupted => {}
        () = ended => {}
    }
}
