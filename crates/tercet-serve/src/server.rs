//! Listening and graceful shutdown.

use std::future::Future;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio_rustls::TlsAcceptor;

use crate::connections::{self, ConnectionLimits};
use crate::error::ServeError;
use crate::http::{AppState, router};
use crate::models::ModelRegistry;
use crate::options::ServeOptions;
use crate::tls::TlsIdentity;

/// A server with an open listening socket.
///
/// ```no_run
/// use tercet_serve::{HttpServer, ModelRegistry, ServeOptions, stop_signal};
/// let models = ModelRegistry::new();
/// let server = HttpServer::bind("127.0.0.1", 0, models, ServeOptions::default())?;
/// assert_ne!(server.address().port(), 0);
/// println!("listening on http://{}", server.address());
/// server.run(stop_signal())?;
/// # Ok::<(), tercet_serve::ServeError>(())
/// ```
pub struct HttpServer {
    listener: std::net::TcpListener,
    address: SocketAddr,
    router: Router,
    app: Arc<AppState>,
    limits: ConnectionLimits,
    /// `None` for HTTP.
    tls: Option<TlsAcceptor>,
}

impl HttpServer {
    /// Opens a listening socket on `host` and `port`. Port 0 selects a free port.
    ///
    /// # Errors
    /// [`ServeError::Io`] if the address does not belong to this machine or is in use;
    /// [`ServeError::Origin`] if an allowed origin is none.
    pub fn bind(
        host: &str,
        port: u16,
        models: ModelRegistry,
        options: ServeOptions,
    ) -> Result<HttpServer, ServeError> {
        let failed = |source| ServeError::Io {
            what: format!("cannot listen on {host}, port {port}"),
            source,
        };
        let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(failed)?.collect();
        let listener = std::net::TcpListener::bind(addresses.as_slice()).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let limits = ConnectionLimits {
            count: options.connections,
            header_time: options.header_time,
            write_time: options.write_time,
        };
        let tls = options.tls.as_ref().map(TlsIdentity::acceptor);
        let app = Arc::new(AppState::new(models, options));
        let router = router(Arc::clone(&app))?;
        Ok(HttpServer {
            listener,
            address,
            router,
            app,
            limits,
            tls,
        })
    }

    /// Address of the listening socket.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves requests until `stop` completes. Then the server accepts no new connections and
    /// finishes running requests, for at most the request deadline. A second signal (Ctrl-C,
    /// SIGTERM) ends it immediately.
    ///
    /// # Errors
    /// [`ServeError::Io`] if the system cannot create threads or the socket fails.
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
        let deadline = self.app.options.deadline;
        let sweep = self.app.models.sweep();
        // The server ends when its connections do, even if the models are unused.
        drop(self.app);
        let done = runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            let (told, mut heard) = tokio::sync::watch::channel(());
            let stop = async move {
                stop.await;
                // The receiver lives as long as the server runs.
                let _ = told.send(());
            };
            let serve = connections::serve(listener, self.router, (self.limits, self.tls), stop);
            let give_up = async {
                // An error means that the server ended without a stop request.
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
                () = serve => Ok(()),
                () = give_up => Ok(()),
                () = sweep => Ok(()),
            }
        });
        runtime.shutdown_timeout(Duration::from_secs(1));
        done.map_err(failed)
    }
}

/// Completes at the next Ctrl-C or SIGTERM. If signal handlers cannot be installed, it never
/// completes, and the signals end the process by default.
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
