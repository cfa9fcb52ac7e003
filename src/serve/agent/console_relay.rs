//! Relays a console between node and user: of a VM, of a shell, or the input of a task. Input and output have separate flow control.

use axum::extract::ws::{Message, WebSocket};
use bytes::Bytes;
use futures_util::{
    SinkExt as _, StreamExt as _,
    stream::{SplitSink, SplitStream},
};
use meshd_central::{ConsoleFrame, ConsoleInput, NodeConsole};
use meshd_proto::vm::ConsoleNote;
use std::time::Duration;
use tokio::{
    sync::mpsc,
    time::{interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Interval between two pings. The node closes the connection after several missing pings.
const PING: Duration = Duration::from_secs(20);
/// Silence after which the node counts as gone.
const SILENCE: Duration = Duration::from_secs(90);

/// Relays until either side closes its connection. Input that is queued when the user leaves is
/// dropped after the time of the console.
pub(super) async fn serve(socket: WebSocket, end: NodeConsole, shutdown: &CancellationToken) {
    let (out, incoming) = socket.split();
    let NodeConsole { output, input, linger } = end;
    // An empty frame reports to the operator that the console is connected.
    if output.send(ConsoleFrame::Bytes(Bytes::new())).await.is_err() {
        return;
    }
    let typing = async {
        type_in(out, input).await;
        // The node closes the connection after it has read all input. Closing it here would discard
        // unread input.
        std::future::pending::<()>().await;
    };
    let left = async {
        output.closed().await;
        if !linger.is_zero() {
            sleep(linger).await;
        }
    };
    let relayed = async {
        tokio::select! {
            () = show(incoming, &output) => {}
            () = typing => {}
        }
    };
    tokio::select! {
        // No key goes to the node of a shell whose user has left.
        biased;
        () = left => {}
        () = shutdown.cancelled() => {}
        () = relayed => {}
    }
}

async fn show(mut incoming: SplitStream<WebSocket>, output: &mpsc::Sender<ConsoleFrame>) {
    while let Ok(Some(Ok(message))) = timeout(SILENCE, incoming.next()).await {
        let frame = match message {
            Message::Binary(bytes) => ConsoleFrame::Bytes(bytes),
            Message::Text(text) => match serde_json::from_str::<ConsoleNote>(&text) {
                Ok(note) => ConsoleFrame::Note(note),
                Err(_) => continue,
            },
            Message::Close(_) => return,
            Message::Ping(_) | Message::Pong(_) => continue,
        };
        // After the operator has left, output is discarded, but the node may still read earlier
        // input.
        let _ = output.send(frame).await;
    }
}

async fn type_in(mut out: SplitSink<WebSocket, Message>, mut input: mpsc::Receiver<ConsoleInput>) {
    let mut pings = interval(PING);
    loop {
        let message = tokio::select! {
            input = input.recv() => match input {
                None => Message::Close(None),
                Some(ConsoleInput::Bytes(bytes)) => Message::Binary(bytes),
                Some(ConsoleInput::Note(note)) => {
                    Message::Text(serde_json::to_string(&note).unwrap_or_default().into())
                }
            },
            _ = pings.tick() => Message::Ping(Bytes::new()),
        };
        let is_last = matches!(message, Message::Close(_));
        if out.send(message).await.is_err() || is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{Router, extract::WebSocketUpgrade, routing::get};
    use hyper_util::{rt::TokioIo, service::TowerToHyperService};
    use std::sync::{Arc, Mutex};
    use tokio::{io::duplex, sync::oneshot};
    use tokio_tungstenite::client_async;

    /// How long a test waits for what must happen.
    const DEADLINE: Duration = Duration::from_secs(30);

    /// A node whose program reads nothing holds up the input; that of a user who lost the
    /// permission must not run later.
    #[tokio::test]
    async fn input_that_waits_is_dropped_when_the_user_of_a_shell_leaves() {
        let ((output, shown), (typed, input)) = (mpsc::channel(1), mpsc::channel(64));
        let end = NodeConsole { output, input, linger: Duration::ZERO };
        let (tell, relayed) = oneshot::channel();
        let once = Arc::new(Mutex::new(Some((end, tell))));
        let route = get(async move |upgrade: WebSocketUpgrade| {
            let (end, tell) = once.lock().expect("not poisoned").take().expect("once");
            upgrade.on_upgrade(async move |socket| {
                serve(socket, end, &CancellationToken::new()).await;
                let _ = tell.send(());
            })
        });
        let (near, far) = duplex(4096);
        let router = TowerToHyperService::new(Router::new().route("/", route));
        let serving =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(far), router);
        tokio::spawn(serving.with_upgrades());
        let (_node, _) = client_async("ws://x/", near).await.expect("upgraded");
        for _ in 0..64 {
            let keys = Bytes::from_static(&[b'x'; 1024]);
            typed.send(ConsoleInput::Bytes(keys)).await.expect("taken");
        }
        drop(shown);
        timeout(DEADLINE, relayed).await.expect("it ends").expect("told");
        assert!(typed.is_closed(), "the queue is dropped");
    }
}
