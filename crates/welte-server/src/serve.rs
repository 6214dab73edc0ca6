//! Listens, serves connections within limits, and ends gracefully.

use crate::app::App;
use crate::models::Models;
use crate::{Catalog, ServerOptions, router};
use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};

/// The largest head of a request, in bytes.
const LARGEST_HEAD: usize = 64 << 10;
const MOST_HEADERS: usize = 100;
/// How often to look for models that have been idle for too long.
const LOOK_FOR_IDLE: Duration = Duration::from_millis(500);

/// A server that listens.
pub struct Server {
    app: Arc<App>,
    router: Router,
    listener: TcpListener,
    shutdown: ShutdownHandle,
}

/// Asks a server to end.
#[derive(Clone, Default)]
pub struct ShutdownHandle {
    asked: Arc<Notify>,
}

impl ShutdownHandle {
    /// No new requests are accepted. Those at work may finish within the time that the options allow.
    pub fn shutdown(&self) {
        self.asked.notify_one();
    }
}

impl Server {
    /// Listens at an address. Port 0 takes any free one.
    pub async fn bind(
        models: impl Into<Catalog>,
        options: ServerOptions,
        address: impl tokio::net::ToSocketAddrs,
    ) -> std::io::Result<Server> {
        let app = Arc::new(App::new(models.into(), options).map_err(std::io::Error::other)?);
        Ok(Server {
            router: router::of_app(app.clone()),
            app,
            listener: TcpListener::bind(address).await?,
            shutdown: ShutdownHandle::default(),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The models' names, the default one first.
    pub fn model_names(&self) -> Vec<String> {
        let all = self.app.models.all();
        all.iter().map(|entry| entry.id.clone()).collect()
    }

    /// All endpoints, for requests from this process.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// A handle that asks the server to end.
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        self.shutdown.clone()
    }

    /// Serves until somebody asks it to end.
    pub async fn run(self) -> std::io::Result<()> {
        let graceful = GracefulShutdown::new();
        let unloading = tokio::spawn(unload_idle(self.app.models.clone()));
        let places = Arc::new(Semaphore::new(self.app.options.connections.max(1)));
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(self.app.options.head_timeout)
            .max_buf_size(LARGEST_HEAD)
            .max_headers(MOST_HEADERS);
        loop {
            let accepted = async {
                // Connections beyond the limit wait in the system's queue.
                let place = places.clone().acquire_owned().await;
                (place, self.listener.accept().await)
            };
            let (place, accepted) = tokio::select! {
                accepted = accepted => accepted,
                () = self.shutdown.asked.notified() => break,
            };
            let socket = match accepted {
                Ok((socket, _)) => socket,
                Err(error) => {
                    // Too many open files, for example: a short pause lets some connections end.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let _ = socket.set_nodelay(true);
            let service = TowerToHyperService::new(self.router.clone());
            let connection = http.serve_connection(TokioIo::new(socket), service);
            let connection = graceful.watch(connection);
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection ended early");
                }
                drop(place);
            });
        }
        self.app.draining.store(true, Ordering::Relaxed);
        drop(self.listener);
        let drain = self.app.options.drain;
        tracing::info!("ending; requests at work have {} s", drain.as_secs());
        if tokio::time::timeout(drain, graceful.shutdown())
            .await
            .is_err()
        {
            tracing::warn!("some requests did not end in time");
        }
        unloading.abort();
        for served in self.app.models.loaded() {
            served.engine.shutdown();
        }
        Ok(())
    }
}

/// Looks for idle models from time to time.
async fn unload_idle(models: Arc<Models>) {
    loop {
        tokio::time::sleep(LOOK_FOR_IDLE).await;
        let models = models.clone();
        // A model's thread has to end.
        let _ = tokio::task::spawn_blocking(move || models.unload_idle()).await;
    }
}

/// Serves until the process is asked to end by SIGTERM or Ctrl-C. `ready` is called once the server listens.
pub fn serve(
    models: impl Into<Catalog>,
    options: ServerOptions,
    address: &str,
    ready: impl FnOnce(&Server),
) -> std::io::Result<()> {
    // The device's threads do the work; these only pass it on.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let server = Server::bind(models, options, address).await?;
        let handle = server.shutdown_handle();
        tokio::spawn(async move {
            asked_to_end().await;
            handle.shutdown();
            // A second request is urgent.
            asked_to_end().await;
            std::process::exit(130);
        });
        ready(&server);
        server.run().await
    })
}

#[cfg(unix)]
async fn asked_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

#[cfg(not(unix))]
async fn asked_to_end() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}
