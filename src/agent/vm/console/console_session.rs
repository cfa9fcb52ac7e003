//! Connects a console to the central node: scrollback, new output, input.

use super::console_log::{Console, ConsoleEvent, ConsoleReader, ConsoleSubscription, ConsoleWriter};
use crate::call::{self, Endpoint, Socket};
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

/// Silence after which nobody is there any more; the central node pings several times in it.
const SILENCE: Duration = Duration::from_secs(90);
/// Between two pings: while input waits for the guest, nothing is read, and so the central node's pings are not answered.
const PING: Duration = Duration::from_secs(20);
/// How long input waits for the guest before the operator is told.
const STALL: Duration = Duration::from_secs(5);

/// Brings a console, until who sits there leaves, or it is over. Without one, it says that there is none.
pub async fn bring(endpoint: Endpoint, order: ConsoleOrder, console: Option<Console>) {
    let path = format!("{CONSOLE_PATH}/{}", order.console.0);
    let socket = match call::open(&endpoint.config, endpoint.tls, &path).await {
        Ok(socket) => socket,
        Err(error) => return tracing::warn!(uuid = %order.uuid, %error, "a console is not brought"),
    };
    if let Err(error) = attend(socket, &order, console).await {
        tracing::debug!(uuid = %order.uuid, %error, "a console broke off");
    }
}

async fn attend(socket: Socket, order: &ConsoleOrder, console: Option<Console>) -> Result<(), tungstenite::Error> {
    let (mut out, mut typed) = socket.split();
    let Some(console) = console else {
        return end(&mut out, format!("this node has no virtual machine {}", order.uuid)).await;
    };
    let (keyboard, ConsoleSubscription { before, new }) = (console.typist(), console.listen());
    // What it holds would keep the console from ending.
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
        told = tell(&mut out, new, is_unheard) => told,
        () = hear(&mut typed, &keyboard, &unheard) => Ok(()),
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

/// What comes. A reader that is slow holds up nothing but this: what it misses is told.
async fn tell(
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

/// What is typed, until nobody is there. A guest that does not read holds up the connection, and so the operator.
async fn hear(
    typed: &mut (impl Stream<Item = Result<Message, tungstenite::Error>> + Unpin),
    keyboard: &ConsoleWriter,
    unheard: &watch::Sender<()>,
) {
    while let Ok(Some(Ok(message))) = timeout(SILENCE, typed.next()).await {
        match message {
            Message::Binary(bytes) => {
                let mut taken = pin!(keyboard.write(bytes.to_vec()));
                // Of a machine that is released, `tell` tells.
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
