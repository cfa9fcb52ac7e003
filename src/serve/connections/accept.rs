//! The loop of a listener: accepts connections, admits them within a limit, serves each in its own
//! task, and drains them in the end.

use super::limiter::{ConnectionLimiter, ConnectionPermit, Source};
use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;

/// Pause after a failed accept. The usual cause is a lack of file descriptors; other connections
/// release theirs meanwhile.
const PAUSE: Duration = Duration::from_millis(100);

/// A listening socket.
pub(crate) trait ListeningSocket {
    type Stream;

    /// Accepts one connection. Returns it with its source.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Source)>> + Send;
}

impl ListeningSocket for TcpListener {
    type Stream = (TcpStream, SocketAddr);

    async fn accept(&self) -> io::Result<(Self::Stream, Source)> {
        let (stream, from) = TcpListener::accept(self).await?;
        Ok(((stream, from), Source::Address(from.ip())))
    }
}

/// The loop of one listener.
pub(crate) struct AcceptLoop<'a> {
    /// The API, in log lines.
    pub(crate) api: &'static str,
    pub(crate) limiter: &'a Arc<ConnectionLimiter>,
    pub(crate) shutdown: &'a CancellationToken,
    /// Time that connections have after `shutdown`. `None` if each of them has a limit of its own.
    pub(crate) drain: Option<Duration>,
}

impl AcceptLoop<'_> {
    /// Runs until `shutdown`, then closes the listener and waits for all connections. A connection
    /// without a task is closed.
    pub(crate) async fn run<L: ListeningSocket, F>(
        &self,
        listener: L,
        mut serve: impl FnMut(L::Stream, ConnectionPermit) -> Option<F>,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = self.shutdown.cancelled() => break,
                Some(ended) = connections.join_next() => {
                    self.report(ended);
                    continue;
                }
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, source)) => {
                    let entered = self.shutdown.run_until_cancelled(self.limiter.enter(source));
                    let Some(permit) = entered.await else { break };
                    if let Some(connection) = serve(stream, permit) {
                        connections.spawn(connection);
                    }
                }
                Err(error) => {
                    tracing::error!(api = self.api, %error, "cannot accept a connection; is the limit of open files too low?");
                    self.shutdown.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
                }
            }
        }
        drop(listener);
        let drained = async {
            while let Some(ended) = connections.join_next().await {
                self.report(ended);
            }
        };
        match self.drain {
            None => drained.await,
            Some(drain) => {
                if tokio::time::timeout(drain, drained).await.is_err() {
                    connections.shutdown().await;
                }
            }
        }
    }

    fn report(&self, ended: Result<(), JoinError>) {
        if let Err(error) = ended {
            tracing::error!(api = self.api, %error, "a connection panicked");
        }
    }
}
