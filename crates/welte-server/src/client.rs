//! The client of a request.

tokio::task_local! {
    static CLIENT: Client;
}

/// Who asks: requests with the same key, address and program are of one client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Client(pub(crate) u64);

impl Client {
    /// The client of the request that this task handles.
    pub(crate) fn current() -> Client {
        CLIENT.try_with(|client| *client).unwrap_or_default()
    }

    /// Handles a request of the client.
    pub(crate) async fn scope<F: Future>(self, request: F) -> F::Output {
        CLIENT.scope(self, request).await
    }
}
