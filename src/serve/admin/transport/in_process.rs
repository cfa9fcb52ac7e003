//! WebSockets of the admin API for the web UI in this process: a connection in memory between the
//! API and its client.

use super::connection::AdminConnection;
use axum::{
    Router,
    http::{Extensions, Request, StatusCode},
};
use hyper::body::Incoming;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use meshd_api::ErrorView;
use meshd_client::ClientError;
use meshd_ui::{OpenSocket, Opening};
use std::sync::Arc;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

/// Size of the buffer in each direction, in bytes.
const BUFFER: usize = 64 * 1024;
/// Maximum size of a message that the web UI reads, in bytes.
const MAX_MESSAGE: usize = 1 << 20;

/// Opens WebSockets of an API. `tasks` tracks the connections.
pub(crate) fn opener(api: Router, tasks: TaskTracker) -> OpenSocket {
    Arc::new(move |request, origin| open(api.clone(), &tasks, request, origin))
}

fn open(api: Router, tasks: &TaskTracker, request: Request<()>, mut origin: Extensions) -> Opening {
    // The WebSocket outlives the request of the page, so it must not keep the permit of that
    // connection.
    origin.remove::<AdminConnection>();
    let (near, far) = tokio::io::duplex(BUFFER);
    let router = api.map_request(move |mut request: Request<Incoming>| {
        let own = std::mem::replace(request.extensions_mut(), origin.clone());
        // The upgrade must be the upgrade of this connection, not that of the page.
        request.extensions_mut().extend(own);
        request
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(far), TowerToHyperService::new(router))
        .with_upgrades();
    // The task ends when the client drops its side.
    tasks.spawn(async move { drop(connection.await) });
    Box::pin(async move {
        let limits = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE))
            .max_frame_size(Some(MAX_MESSAGE));
        meshd_client::upgrade(Box::new(near), request, limits).await.map_err(|error| match error {
            ClientError::Rejected { status, body } => {
                let view = serde_json::from_slice(&body)
                    .unwrap_or_else(|_| failure(&format!("status {status}")));
                (status, view)
            }
            error => (StatusCode::BAD_GATEWAY, failure(&error.to_string())),
        })
    })
}

fn failure(message: &str) -> ErrorView {
    let code = "no_socket".to_owned();
    let hint = "look at the log of meshd".to_owned();
    ErrorView { code, message: message.to_owned(), hint, correlation_id: String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{
        Extension,
        extract::ws::WebSocketUpgrade,
        response::{IntoResponse as _, Response},
        routing::get,
    };
    use futures_util::{SinkExt as _, StreamExt as _};
    use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest as _};

    /// Origin of a request.
    #[derive(Clone)]
    struct Office(&'static str);

    async fn echo(
        Extension(Office(office)): Extension<Office>,
        upgrade: WebSocketUpgrade,
    ) -> Response {
        if office != "ours" {
            return (StatusCode::NOT_FOUND, axum::Json(failure("no such office"))).into_response();
        }
        upgrade.on_upgrade(async |mut socket| {
            while let Some(Ok(message)) = socket.next().await {
                if socket.send(message).await.is_err() {
                    return;
                }
            }
        })
    }

    async fn opened(
        office: &'static str,
        tasks: &TaskTracker,
    ) -> Result<meshd_client::Socket, meshd_ui::SocketRefusal> {
        let opener = opener(Router::new().route("/v1/echo", get(echo)), tasks.clone());
        let mut origin = Extensions::new();
        origin.insert(Office(office));
        opener("ws://meshd/v1/echo".into_client_request().expect("a request"), origin).await
    }

    #[tokio::test]
    async fn websocket_carries_messages_and_connection_ends_when_dropped() {
        let tasks = TaskTracker::new();
        let mut socket = opened("ours", &tasks).await.expect("opened");
        socket.send(Message::Binary("ls\r".into())).await.expect("sent");
        assert_eq!(
            socket.next().await.expect("a message").expect("read"),
            Message::Binary("ls\r".into())
        );
        drop(socket);
        tasks.close();
        tasks.wait().await;
    }

    #[tokio::test]
    async fn websocket_refusal_has_api_status_and_error() {
        let (status, view) = opened("another", &TaskTracker::new()).await.expect_err("refused");
        assert_eq!((status, view.message.as_str()), (StatusCode::NOT_FOUND, "no such office"));
    }
}
