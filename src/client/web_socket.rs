//! Opens a WebSocket (RFC 6455, section 4.1) and closes it (section 7). Hyper performs the upgrade,
//! because a rejection has a body: tungstenite reads only the part of the body that arrives with
//! the head.

use crate::{ClientError, Socket, Stream};
use bytes::Bytes;
use futures_util::{Sink, SinkExt as _, Stream as MessageStream, StreamExt as _};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{
    Request, StatusCode,
    client::conn::http1,
    header::{SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY},
    http::uri::Uri,
};
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message,
        error::ProtocolError,
        handshake::derive_accept_key,
        protocol::{Role, WebSocketConfig},
    },
};

/// Maximum number of bytes read from the body of a rejection.
const MAX_REJECTION: usize = 64 * 1024;

/// Opens a WebSocket over a connection. The caller sets the headers of `IntoClientRequest` in the
/// request.
///
/// # Errors
/// The connection fails, or the server does not switch protocols: [`ClientError::Rejected`].
pub async fn upgrade(
    stream: Box<dyn Stream>,
    request: Request<()>,
    limits: WebSocketConfig,
) -> Result<Socket, ClientError> {
    let mut request = request.map(|()| Empty::<Bytes>::new());
    // A request to an origin server contains the path alone (RFC 9112, section 3.2.1).
    if let Some(path) = request.uri().path_and_query() {
        *request.uri_mut() = Uri::from(path.clone());
    }
    let expected =
        request.headers().get(SEC_WEBSOCKET_KEY).map(|key| derive_accept_key(key.as_bytes()));
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(ClientError::Connection)?;
    let mut tasks = JoinSet::new();
    tasks.spawn(connection.with_upgrades());
    let response = sender.send_request(request).await.map_err(ClientError::Connection)?;
    let status = response.status();
    if status != StatusCode::SWITCHING_PROTOCOLS {
        let body = Limited::new(response.into_body(), MAX_REJECTION).collect().await;
        return Err(ClientError::Rejected {
            status,
            body: body.map(|body| body.to_bytes()).unwrap_or_default(),
        });
    }
    let accepted =
        response.headers().get(SEC_WEBSOCKET_ACCEPT).and_then(|value| value.to_str().ok());
    if expected.is_none() || accepted != expected.as_deref() {
        let error = tungstenite::Error::Protocol(ProtocolError::SecWebSocketAcceptKeyMismatch);
        return Err(ClientError::WebSocket(Box::new(error)));
    }
    let upgraded = hyper::upgrade::on(response).await.map_err(ClientError::Connection)?;
    let stream: Box<dyn Stream> = Box::new(TokioIo::new(upgraded));
    Ok(WebSocketStream::from_raw_socket(stream, Role::Client, Some(limits)).await)
}

/// Closes a WebSocket, given as its two halves: sends the close frame, then discards incoming
/// messages until the server closes the connection. The caller limits the time.
///
/// A connection that is dropped earlier loses its last messages: the server cannot send its pong to
/// an earlier ping, which is an error before it reads on. TCP resets a connection that is dropped
/// with unread bytes, or that gets bytes afterwards (RFC 1122, section 4.2.2.13).
pub async fn close(
    out: &mut (impl Sink<Message> + Unpin),
    incoming: &mut (impl MessageStream<Item = tungstenite::Result<Message>> + Unpin),
) {
    // This send fails if the server closed first. Reading then sends the answer.
    let _ = out.send(Message::Close(None)).await;
    while let Some(Ok(_)) = incoming.next().await {}
}
