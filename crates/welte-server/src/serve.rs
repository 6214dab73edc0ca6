//! Listens, serves connections within limits, and ends gracefully.

use crate::app::App;
use crate::connections::{Connections, Kind, LastPart, Limits, Place, Socket};
use crate::error::{Api, Failure};
use crate::middleware::Peer;
use crate::models::Models;
use crate::{Catalog, ServerOptions};
use crate::{health, router};
use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use hyper::service::{HttpService, Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// The largest head of a request, in bytes.
const LARGEST_HEAD: usize = 64 << 10;
const MOST_HEADERS: usize = 100;
/// How long the head of a request to `/health` may take when all other connections are in use.
const SPARE_HEAD_TIMEOUT: Duration = Duration::from_secs(5);
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
        if let Some(events) = &options.kv_events {
            events.start().await?;
        }
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
        let options = &self.app.options;
        let unloading = tokio::spawn(unload_idle(self.app.models.clone()));
        let connections = Arc::new(Connections::new(Limits {
            all: options.connections.max(1),
            per_address: options.connections_per_address.max(1),
        }));
        loop {
            tokio::select! {
                accepted = self.listener.accept() => self.take(&connections, accepted).await,
                () = self.shutdown.asked.notified() => break,
            }
        }
        self.app.draining.store(true, Ordering::Relaxed);
        connections.drain();
        tracing::info!(
            "ending; requests at work have {} s",
            options.drain.as_secs()
        );
        let mut background = self.app.background.subscribe();
        let mut drained = pin!(tokio::time::timeout(options.drain, async {
            let _ = background.wait_for(BTreeSet::is_empty).await;
            connections.drained().await;
        }));
        // New connections are told that the server is about to end.
        let in_time = loop {
            tokio::select! {
                accepted = self.listener.accept() => self.take(&connections, accepted).await,
                in_time = &mut drained => break in_time,
            }
        };
        if in_time.is_err() {
            tracing::warn!("some requests did not end in time");
        }
        drop(self.listener);
        unloading.abort();
        for served in self.app.models.loaded() {
            served.engine.shutdown();
        }
        Ok(())
    }

    /// Serves a new connection, if there is a place for it.
    async fn take(
        &self,
        connections: &Arc<Connections>,
        accepted: std::io::Result<(TcpStream, SocketAddr)>,
    ) {
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Too many open files, for example.
                tracing::warn!(%error, "a connection could not be accepted");
                if !connections.close_idle() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                return;
            }
        };
        let Some(place) = connections.admit(peer.ip()) else {
            return;
        };
        let _ = stream.set_nodelay(true);
        let head_timeout = self.app.options.head_timeout;
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new())
            .max_buf_size(LARGEST_HEAD)
            .max_headers(MOST_HEADERS);
        match place.kind {
            Kind::Full => http.header_read_timeout(head_timeout),
            Kind::Spare => http
                .header_read_timeout(head_timeout.min(SPARE_HEAD_TIMEOUT))
                .keep_alive(false),
        };
        let service = answering(
            self.app.clone(),
            self.router.clone(),
            place.clone(),
            peer.ip(),
        );
        let socket = TokioIo::new(Socket::new(stream, place.clone()));
        let connection = http.serve_connection(socket, service).with_upgrades();
        tokio::spawn(async move {
            let mut connection = pin!(connection);
            let mut finishing = false;
            loop {
                tokio::select! {
                    ended = connection.as_mut() => {
                        if let Err(error) = ended {
                            tracing::debug!(%error, "a connection ended early");
                        }
                        return;
                    }
                    () = place.orders.close.notified() => return,
                    () = place.orders.finish.notified(), if !finishing => {
                        finishing = true;
                        connection.as_mut().graceful_shutdown();
                    }
                }
            }
        });
    }
}

/// What answers the requests of a connection.
fn answering(
    app: Arc<App>,
    router: Router,
    place: Arc<Place>,
    peer: IpAddr,
) -> impl HttpService<Incoming, ResBody = Body, Error = Infallible, Future: Send> {
    let router = TowerToHyperService::new(router);
    service_fn(move |mut request: Request<Incoming>| {
        // A client that waits for an answer from the model has left when it closes its half of the connection.
        let in_flight = place.begin(*request.method() != Method::POST);
        request.extensions_mut().insert(Peer(peer));
        // What becomes a websocket is in use as long as that lasts.
        request.extensions_mut().insert(place.clone());
        let (app, router, kind) = (app.clone(), router.clone(), place.kind);
        async move {
            let path = request.uri().path();
            let response = if kind == Kind::Spare && path != health::PATH && !app.is_draining() {
                full(&app).response(Api::of(path))
            } else {
                router.call(request).await?
            };
            Ok(response.map(|body| {
                Body::new(LastPart {
                    body,
                    _in_flight: in_flight,
                })
            }))
        }
    })
}

/// The answer to a connection beyond the limits.
fn full(app: &App) -> Failure {
    let options = &app.options;
    let message = format!(
        "all connections are in use: {} in all and {} of one address are allowed; try again later, or raise \
         --connections and --connections-per-address",
        options.connections, options.connections_per_address
    );
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, message)
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

/// Serves until the process is asked to end by SIGTERM, SIGHUP or Ctrl-C. `ready` is called once the server listens.
pub fn serve(
    models: impl Into<Catalog>,
    options: ServerOptions,
    address: &str,
    ready: impl FnOnce(&Server),
) -> std::io::Result<()> {
    // The device's threads do the work; these only pass it on.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build()?;
    let served = runtime.block_on(async {
        let server = Server::bind(models, options, address).await?;
        let handle = server.shutdown_handle();
        let mut signals = Signals::new()?;
        tokio::spawn(async move {
            signals.next().await;
            handle.shutdown();
            // A second request is urgent. A terminal that closes sends SIGHUP more than once.
            while signals.next().await == Signal::HungUp {}
            std::process::exit(130);
        });
        ready(&server);
        server.run().await
    });
    // Calls of tools that nobody waits for any more do not keep the process.
    runtime.shutdown_timeout(ENDING);
    served
}

/// How long work on other threads may go on once everything has been answered.
const ENDING: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Signal {
    Ended,
    HungUp,
}

/// The signals that ask a server to end.
#[cfg(unix)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    /// `None`: `nohup` or a like program wants it ignored, or the system does not tell.
    hang_up: Option<tokio::signal::unix::Signal>,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let handled = !ignores_hang_up(&status);
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            hang_up: handled.then(|| signal(SignalKind::hangup())).transpose()?,
        })
    }

    async fn next(&mut self) -> Signal {
        let hang_up = async {
            match &mut self.hang_up {
                Some(hang_up) => hang_up.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => Signal::Ended,
            _ = tokio::signal::ctrl_c() => Signal::Ended,
            _ = hang_up => Signal::HungUp,
        }
    }
}

/// Whether a process ignores SIGHUP, by its `/proc/self/status`. True if that does not say.
#[cfg(unix)]
fn ignores_hang_up(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Signal 1 is the lowest bit.
    mask.is_none_or(|mask| mask & 1 == 1)
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals)
    }

    async fn next(&mut self) -> Signal {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
        Signal::Ended
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_stay_ignored() {
        assert!(ignores_hang_up("Name:\tx\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hang_up("SigIgn:\t0000000000001000\nSigCgt:\t1\n"));
        assert!(ignores_hang_up(""));
    }
}
