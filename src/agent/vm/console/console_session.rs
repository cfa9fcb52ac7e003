//! Connects a console to the central node: scrollback, new output, input.

use super::console_log::{
    Console, ConsoleEvent, ConsoleReader, ConsoleSubscription, ConsoleWriter,
};
use crate::link::call::{self, Endpoint, Socket};
use futures_util::{SinkExt as _, Stream, StreamExt as _, stream::SplitSink};
use meshd_proto::{
    CONSOLE_PATH,
    vm::{ConsoleNote, ConsoleOrder, MAX_PIECE},
};
use std::{pin::pin, time::Duration};
use tokio::{
    sync::watch,
    time::{interval, timeout},
};
use tokio_tungstenite::tungstenite::{self, Message};

/// Timeout without a message of the central node, which pings more often.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(90);
/// Ping interval. While input waits for the guest, the session does not answer the pings of the
/// central node.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// Time after which the operator is notified that the guest does not read its input.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves a console until the operator leaves or the VM is released. Without a console, reports
/// that there is none.
pub async fn open_console(endpoint: Endpoint, order: ConsoleOrder, console: Option<Console>) {
    let path = format!("{CONSOLE_PATH}/{}", order.console.0);
    let socket = match call::open(&endpoint, &path).await {
        Ok(socket) => socket,
        Err(error) => return tracing::warn!(uuid = %order.uuid, %error, "cannot connect a console"),
    };
    if let Err(error) = relay_console(socket, &order, console).await {
        tracing::debug!(uuid = %order.uuid, %error, "a console session failed");
    }
}

async fn relay_console(
    socket: Socket,
    order: &ConsoleOrder,
    console: Option<Console>,
) -> Result<(), tungstenite::Error> {
    let (mut output, mut input) = socket.split();
    let Some(console) = console else {
        return close(&mut output, format!("this node has no VM {}", order.uuid)).await;
    };
    let (writer, ConsoleSubscription { before, new }) = (console.writer(), console.subscribe());
    // A clone of the console would delay `ConsoleEvent::Released`.
    drop(console);
    let history = usize::try_from(order.history).unwrap_or(usize::MAX);
    send_bytes(&mut output, &before[before.len().saturating_sub(history)..]).await?;
    drop(before);
    if !order.follow {
        return output.send(Message::Close(None)).await;
    }
    let (stalled, stalls) = watch::channel(());
    tokio::select! {
        result = send_output(&mut output, new, stalls) => result,
        () = receive_input(&mut input, &writer, &stalled) => Ok(()),
    }
}

type Output = SplitSink<Socket, Message>;

async fn close(output: &mut Output, reason: String) -> Result<(), tungstenite::Error> {
    send_note(output, &ConsoleNote::ended(reason)).await?;
    output.send(Message::Close(None)).await
}

async fn send_note(output: &mut Output, note: &ConsoleNote) -> Result<(), tungstenite::Error> {
    let text = serde_json::to_string(note).unwrap_or_default();
    output.send(Message::Text(text.into())).await
}

async fn send_bytes(output: &mut Output, bytes: &[u8]) -> Result<(), tungstenite::Error> {
    for chunk in bytes.chunks(MAX_PIECE) {
        output.send(Message::Binary(chunk.to_vec().into())).await?;
    }
    Ok(())
}

/// Sends output. If the connection is too slow, reports the number of lost bytes.
async fn send_output(
    output: &mut Output,
    mut new: ConsoleReader,
    mut stalls: watch::Receiver<()>,
) -> Result<(), tungstenite::Error> {
    let mut pings = interval(PING_INTERVAL);
    loop {
        tokio::select! {
            _ = pings.tick() => output.send(Message::Ping(Vec::new().into())).await?,
            Ok(()) = stalls.changed() => send_note(output, &ConsoleNote::InputQueued).await?,
            event = new.next() => match event {
                ConsoleEvent::Bytes(bytes) => send_bytes(output, &bytes).await?,
                ConsoleEvent::Lost(bytes) => send_note(output, &ConsoleNote::Lost { bytes }).await?,
                ConsoleEvent::Released => return close(output, "the VM was released".to_owned()).await,
            },
        }
    }
}

/// Receives input. A guest that does not read blocks the connection, and thereby the operator.
async fn receive_input(
    input: &mut (impl Stream<Item = Result<Message, tungstenite::Error>> + Unpin),
    writer: &ConsoleWriter,
    stalled: &watch::Sender<()>,
) {
    while let Ok(Some(Ok(message))) = timeout(RECEIVE_TIMEOUT, input.next()).await {
        match message {
            Message::Binary(bytes) => {
                let mut write = pin!(writer.write(bytes.to_vec()));
                // `send_output` reports a released VM.
                if timeout(STALL_TIMEOUT, &mut write).await.is_err() {
                    stalled.send_replace(());
                    write.await;
                }
            }
            Message::Close(_) => return,
            _ => {}
        }
    }
}
