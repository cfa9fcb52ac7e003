//! Connects a console to the central node: scrollback, new output, input.

use super::console_log::{
    Console, ConsoleEvent, ConsoleReader, ConsoleSubscription, ConsoleWriter,
};
use crate::link::{
    call::Endpoint,
    user_connection::{self, UserInput, UserMessage, UserOutput},
};
use meshd_proto::vm::{ConsoleNote, ConsoleOrder};
use std::{pin::pin, time::Duration};
use tokio::{sync::watch, time::timeout};
use tokio_tungstenite::tungstenite;

/// Time after which the operator is notified that the guest does not read its input.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves a console until the operator leaves or the VM is released. Without a console, reports
/// that there is none.
pub async fn open_console(endpoint: Endpoint, order: ConsoleOrder, console: Option<Console>) {
    let (output, input) = match user_connection::connect(&endpoint, order.console).await {
        Ok(connection) => connection,
        Err(error) => return tracing::warn!(uuid = %order.uuid, %error, "cannot connect a console"),
    };
    if let Err(error) = relay_console(output, input, &order, console).await {
        tracing::debug!(uuid = %order.uuid, %error, "a console session failed");
    }
}

async fn relay_console(
    mut output: UserOutput,
    mut input: UserInput,
    order: &ConsoleOrder,
    console: Option<Console>,
) -> Result<(), tungstenite::Error> {
    let Some(console) = console else {
        let reason = format!("this node has no VM {}", order.uuid);
        output.end(input, Some(&ConsoleNote::ended(reason))).await;
        return Ok(());
    };
    let (writer, ConsoleSubscription { before, new }) = (console.writer(), console.subscribe());
    // A clone of the console would delay `ConsoleEvent::Released`.
    drop(console);
    let history = usize::try_from(order.history).unwrap_or(usize::MAX);
    output.bytes(&before[before.len().saturating_sub(history)..]).await?;
    drop(before);
    if !order.follow {
        output.end(input, None).await;
        return Ok(());
    }
    let (stalled, stalls) = watch::channel(());
    tokio::select! {
        released = send_output(&mut output, new, stalls) => released?,
        () = receive_input(&mut input, &writer, &stalled) => return Ok(()),
    }
    output.end(input, Some(&ConsoleNote::ended("the VM was released"))).await;
    Ok(())
}

/// Sends output until the VM is released. If the connection is too slow, reports the number of lost
/// bytes.
async fn send_output(
    output: &mut UserOutput,
    mut new: ConsoleReader,
    mut stalls: watch::Receiver<()>,
) -> Result<(), tungstenite::Error> {
    let mut pings = user_connection::pings();
    loop {
        tokio::select! {
            _ = pings.tick() => output.ping().await?,
            Ok(()) = stalls.changed() => output.note(&ConsoleNote::InputQueued).await?,
            event = new.next() => match event {
                ConsoleEvent::Bytes(bytes) => output.bytes(&bytes).await?,
                ConsoleEvent::Lost(bytes) => output.note(&ConsoleNote::Lost { bytes }).await?,
                ConsoleEvent::Released => return Ok(()),
            },
        }
    }
}

/// Receives input. A guest that does not read blocks the connection, and thereby the operator.
async fn receive_input(input: &mut UserInput, writer: &ConsoleWriter, stalled: &watch::Sender<()>) {
    loop {
        match input.next().await {
            UserMessage::Bytes(bytes) => {
                let mut write = pin!(writer.write(bytes.to_vec()));
                // `send_output` reports a released VM.
                if timeout(STALL_TIMEOUT, &mut write).await.is_err() {
                    stalled.send_replace(());
                    write.await;
                }
            }
            UserMessage::Note(_) => {}
            UserMessage::Gone => return,
        }
    }
}
