//! A server that listens, and its clients over real connections.

use super::endless_model;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use welte_server::{Catalog, Server, ServerOptions, ShutdownHandle};

pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) shutdown: ShutdownHandle,
    pub(crate) done: tokio::task::JoinHandle<std::io::Result<()>>,
}

/// A server with a model whose answers do not end by themselves while a test looks.
pub(crate) async fn start(change: impl FnOnce(&mut ServerOptions)) -> Running {
    start_with(endless_model(), change).await
}

pub(crate) async fn start_with(
    models: impl Into<Catalog>,
    change: impl FnOnce(&mut ServerOptions),
) -> Running {
    let mut options = ServerOptions::default();
    change(&mut options);
    let server = Server::bind(models, options, "127.0.0.1:0").await.unwrap();
    Running {
        address: server.address().unwrap(),
        shutdown: server.shutdown_handle(),
        done: tokio::spawn(server.run()),
    }
}

impl Running {
    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends a request and returns the connection.
    pub(crate) async fn send(&self, path: &str, body: &Value) -> TcpStream {
        let mut client = self.connect().await;
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        client.write_all((head + &body).as_bytes()).await.unwrap();
        client
    }

    /// Sends a head as it is and reads everything that comes back.
    pub(crate) async fn raw(&self, head: &[u8]) -> Vec<u8> {
        let mut client = self.connect().await;
        // The server may close the connection before it has read everything.
        let _ = client.write_all(head).await;
        let mut bytes = Vec::new();
        let _ = client.read_to_end(&mut bytes).await;
        bytes
    }

    pub(crate) async fn get(&self, path: &str) -> String {
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        String::from_utf8(self.raw(head.as_bytes()).await).unwrap()
    }

    /// Waits until a figure has a value.
    pub(crate) async fn until(&self, figure: &str, value: &str) {
        let mut metrics = String::new();
        for _ in 0..12_000 {
            metrics = self.get("/metrics").await;
            let line = metrics.lines().find(|line| line.starts_with(figure));
            if line.is_some_and(|line| line.ends_with(&format!(" {value}"))) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{figure} is not {value}: {metrics}");
    }
}

pub(crate) async fn read(client: &mut TcpStream) -> String {
    let mut text = String::new();
    client.read_to_string(&mut text).await.unwrap();
    text
}

/// Whether the server has closed the connection, or does so soon.
pub(crate) async fn is_closed(client: &mut TcpStream) -> bool {
    let mut bytes = [0; 1024];
    let read = tokio::time::timeout(Duration::from_secs(10), client.read(&mut bytes));
    matches!(read.await, Ok(Ok(0) | Err(_)))
}

/// A request that generates until the context is full.
pub(crate) fn endless(stream: bool) -> Value {
    json!({
        "prompt": "Once upon a time", "n_predict": -1, "ignore_eos": true, "temperature": 1.0, "seed": 1, "stream": stream,
    })
}

pub(crate) const RUNNING: &str = "vllm:num_requests_running";
