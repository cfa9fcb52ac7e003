//! Relays a VM console between node and operator. Input and output have separate flow control.

use axum::extract::ws::{Message, WebSocket};
use bytes::Bytes;
use futures_util::{
    SinkExt as _, StreamExt as _,
    stream::{SplitSink, SplitStream},
};
use meshd_central::{ConsoleFrame, NodeConsole};
use meshd_proto::vm::ConsoleNote;
use std::time::Duration;
use tokio::{
    sync::mpsc,
    time::{interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Between two pings; the node gives up after several that do not come.
const PING: Duration = Duration::from_secs(20);
/// Silence after which the node is gone.
const SILENCE: Duration = Duration::from_secs(90);
/// How long the node may take what an operator typed before leaving.
const LEAVING: Duration = Duration::from_secs(60);

/// Carries until either end hangs up.
pub(super) async fn serve(socket: WebSocket, end: NodeConsole, shutdown: &CancellationToken) {
    let (out, heard) = socket.split();
    let NodeConsole { output, input } = end;
    // It is there.
    if output.send(ConsoleFrame::Bytes(Bytes::new())).await.is_err() {
        return;
    }
    let typing = async {
        type_in(out, input).await;
        // The node hangs up when it has read all of it. Hanging up here would discard what it has not.
        std::future::pending::<()>().await;
    };
    let left = async {
        output.closed().await;
        sleep(LEAVING).await;
    };
    tokio::select! {
        () = show(heard, &output) => {}
        () = typing => {}
        () = left => {}
        () = shutdown.cancelled() => {}
    }
}

async fn show(mut heard: SplitStream<WebSocket>, output: &mpsc::Sender<ConsoleFrame>) {
    while let Ok(Some(Ok(message))) = timeout(SILENCE, heard.next()).await {
        let frame = match message {
            Message::Binary(bytes) => ConsoleFrame::Bytes(bytes),
            Message::Text(text) => match serde_json::from_str::<ConsoleNote>(&text) {
                Ok(note) => ConsoleFrame::Note(note),
                Err(_) => continue,
            },
            Message::Close(_) => return,
            Message::Ping(_) | Message::Pong(_) => continue,
        };
        // An operator who left sees nothing more, but the node may still read what was typed.
        let _ = output.send(frame).await;
    }
}

async fn type_in(mut out: SplitSink<WebSocket, Message>, mut input: mpsc::Receiver<Bytes>) {
    let mut pings = interval(PING);
    loop {
        let message = tokio::select! {
            input = input.recv() => input.map_or(Message::Close(None), Message::Binary),
            _ = pings.tick() => Message::Ping(Bytes::new()),
        };
        let is_last = matches!(message, Message::Close(_));
        if out.send(message).await.is_err() || is_last {
            return;
        }
    }
}
