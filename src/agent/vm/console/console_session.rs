//! Connects a console to the central node: scrollback, new output, input.

use super::console_log::{Console, ConsoleEvent, ConsoleReader, ConsoleSubscription, ConsoleWriter};
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

/// Silence after which the session ends; the central node pings several times meanwhile.
const SILENCE: Duration = Duration::from_secs(90);
/// Ping interval. While input waits for the guest, the session does not answer the central node's pings.
const PING: Duration = Duration::from_secs(20);
/// Time after which the operator is told that the guest does not read its input.
const STALL: Duration = Duration::from_secs(5);

/// Serves a console until the operator leaves or the VM is released. Without a console, reports that there is none.
pub async fn open_console(endpoint: Endpoint, order: ConsoleOrder, console: Option<Console>) {
    let path = format!("{CONSOLE_PATH}/{}", order.console.0);
    let socket = match call::open(&endpoint, &path).await {
        Ok(socket) => socket,
        Err(error) => return tracing::warn!(uuid = %order.uuid, %error, "a console is not brought"),
    };
    if let Err(error) = relay_console(socket, &order, console).await {
        tracing::debug!(uuid = %order.uuid, %error, "a console broke off");
    }
}

async fn relay_console(
    socket: Socket,
    order: &ConsoleOrder,
    console: Option<Console>,
) -> Result<(), tungstenite::Error> {
    let (mut out, mut typed) = socket.split();
    let Some(console) = console else {
        return end(&mut out, format!("this node has no virtual machine {}", order.uuid)).await;
    };
    let (input, ConsoleSubscription { before, new }) = (console.writer(), console.listen());
    // The input would keep the console open.
    drop(console);
    let kept = usize::try_from(order.history).unwrap_or(usize::MAX);
    for piece in before[before.len().saturating_sub(kept)..].chunks(MAX_PIECE) {
        out.send(Message::Binary(piece.to_vec().into())).await?;
    }
    drop(before);
    if !order.follow {
        return out.send(Message::Close(None)).await;
    }
    let (unheard, is_unheard) = watch::channel(());
    tokio::select! {
        told = send_output(&mut out, new, is_unheard) => told,
        () = receive_input(&mut typed, &input, &unheard) => Ok(()),
    }
}

type Out = SplitSink<Socket, Message>;

async fn end(out: &mut Out, reason: String) -> Result<(), tungstenite::Error> {
    note(out, &ConsoleNote::Ended { reason }).await?;
    out.send(Message::Close(None)).await
}

async fn note(out: &mut Out, note: &ConsoleNote) -> Result<(), tungstenite::Error> {
    let text = serde_json::to_string(note).unwrap_or_default();
    out.send(Message::Text(text.into())).await
}

/// Sends output. A slow reader loses output and is told how much.
async fn send_output(
    out: &mut Out,
    mut new: ConsoleReader,
    mut unheard: watch::Receiver<()>,
) -> Result<(), tungstenite::Error> {
    let mut pings = interval(PING);
    loop {
        tokio::select! {
            _ = pings.tick() => out.send(Message::Ping(Vec::new().into())).await?,
            Ok(()) = unheard.changed() => note(out, &ConsoleNote::Unheard).await?,
            heard = new.next() => match heard {
                ConsoleEvent::Bytes(bytes) => {
                    for piece in bytes.chunks(MAX_PIECE) {
                        out.send(Message::Binary(piece.to_vec().into())).await?;
                    }
                }
                ConsoleEvent::Lost(bytes) => note(out, &ConsoleNote::Lost { bytes }).await?,
                ConsoleEvent::Over => return end(out, "the virtual machine was released".to_owned()).await,
            },
        }
    }
}

/// Receives input. A guest that does not read blocks the connection and thereby the operator.
async fn receive_input(
    typed: &mut (impl Stream<Item = Result<Message, tungstenite::Error>> + Unpin),
    input: &ConsoleWriter,
    unheard: &watch::Sender<()>,
) {
    while let Ok(Some(Ok(message))) = timeout(SILENCE, typed.next()).await {
        match message {
            Message::Binary(bytes) => {
                let mut taken = pin!(input.write(bytes.to_vec()));
                // `send_output` reports a released VM.
                if timeout(STALL, &mut taken).await.is_err() {
                    unheard.send_replace(());
                    taken.await;
                }
            }
            Message::Close(_) => return,
            _ => {}
        }
    }
}
