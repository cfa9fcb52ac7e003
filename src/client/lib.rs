//! HTTP/1.1 and WebSocket client over a Unix socket or TLS. The command line and the agent use it.
//!
//! | module | content |
//! | --- | --- |
//! | this file | sends requests, opens WebSockets |
//! | `endpoint` | the address of a server |
//! | `connection` | connects to a server |
//! | `body` | the body of a response |
//! | `pinned` | accepts servers by the fingerprints of their certificates |
//! | `error` | errors of a call |
//! | `web_socket` | opens and closes WebSockets |
//!
//! Each call opens a new connection. The path of a request is the HTTP request target. The caller
//! sets all headers.

mod body;
mod connection;
mod endpoint;
mod error;
mod pinned;
mod web_socket;
#[cfg(test)]
mod tests;

pub use body::{ResponseBody, collect};
pub use connection::Stream;
pub use endpoint::Endpoint;
pub use error::{CallStage, ClientError};
pub use pinned::pinned_config;
pub use web_socket::{close, upgrade};

use hyper::{Request, Response, body::Body, client::conn::http1};
use hyper_util::rt::TokioIo;
use std::{error::Error, time::Duration};
use tokio::{task::JoinSet, time::timeout};
use tokio_tungstenite::{WebSocketStream, tungstenite::protocol::WebSocketConfig};

/// A WebSocket (RFC 6455) to the server.
pub type Socket = WebSocketStream<Box<dyn Stream>>;

/// Time limits of a call.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Time limit for TCP and TLS together.
    pub connect: Duration,
    /// Time limit from the request to the first byte of the response.
    pub response: Duration,
}

/// A client of one server.
#[derive(Clone, Debug)]
pub struct Client {
    pub endpoint: Endpoint,
    pub timeouts: Timeouts,
}

impl Client {
    fn timed_out(&self, stage: CallStage) -> ClientError {
        ClientError::Timeout { server: self.endpoint.clone(), stage }
    }

    async fn connect(&self) -> Result<Box<dyn Stream>, ClientError> {
        let connected = timeout(self.timeouts.connect, self.endpoint.connect()).await;
        connected.map_err(|_| self.timed_out(CallStage::Connect))?
    }

    /// Sends a request. Returns a response of any status as a success, before its body has arrived.
    ///
    /// # Errors
    /// The server cannot be reached, or does not start a response within the time limit.
    pub async fn send<B>(&self, request: Request<B>) -> Result<Response<ResponseBody>, ClientError>
    where
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        let stream = self.connect().await?;
        let exchange = async {
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            // The task of the connection ends with the response body, because dropping a `JoinSet`
            // aborts its tasks.
            let mut tasks = JoinSet::new();
            tasks.spawn(connection);
            let response = sender.send_request(request).await?;
            Ok(response.map(|body| ResponseBody { body, _connection: tasks }))
        };
        let exchanged = timeout(self.timeouts.response, exchange).await;
        exchanged.map_err(|_| self.timed_out(CallStage::Response))?.map_err(ClientError::Connection)
    }

    /// Opens a WebSocket.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send), or [`ClientError::Rejected`] if the server does not
    /// switch protocols.
    pub async fn web_socket(
        &self,
        request: Request<()>,
        limits: WebSocketConfig,
    ) -> Result<Socket, ClientError> {
        let stream = self.connect().await?;
        let opened =
            timeout(self.timeouts.response, web_socket::upgrade(stream, request, limits)).await;
        opened.map_err(|_| self.timed_out(CallStage::Response))?
    }
}
