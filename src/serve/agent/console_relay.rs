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
/// Time for the node to read the operator's last input after the operator has left.
const LEAVING: Duration = Duration::from_secs(60);

/// Relays until either side closes its connection.
pub(super) async fn serve(socket: WebSocket, end: NodeConsole, shutdown: &CancellationToken) {
    let (out, incoming) = socket.split();
    let NodeConsole { output, input } = end;
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
        sleep(LEAVING).await;
    };
    tokio::select! {
        () = show(incoming, &output) => {}
        () = typing => {}
        () = left => {}
        () = shutdown.cancelled() => {}
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
