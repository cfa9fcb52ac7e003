//! Sends the stored output of a replica to a user, and follows it.

use crate::{
    link::{
        call::Endpoint,
        user_connection::{self, UserInput, UserMessage, UserOutput},
    },
    vm::{Console, ConsoleEvent, ConsoleReader, ConsoleSubscription},
};
use meshd_proto::{container::LogsOrder, vm::ConsoleNote};
use std::{
    convert::Infallible,
    future::pending,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::interval;
use tokio_tungstenite::tungstenite;

/// How often a session looks whether the log still exists.
const LOOK: Duration = Duration::from_secs(1);

/// Serves an order to its end. `log` is the file; `None` if the node does not have the replica.
pub(super) async fn run(endpoint: Endpoint, order: LogsOrder, log: Option<PathBuf>) {
    let (output, input) = match user_connection::connect(&endpoint, order.console).await {
        Ok(connection) => connection,
        Err(error) => {
            return tracing::warn!(replica = %order.replica, %error, "cannot connect a log");
        }
    };
    if let Err(error) = serve(output, input, &order, log).await {
        tracing::debug!(replica = %order.replica, %error, "a session of a log failed");
    }
}

async fn serve(
    mut output: UserOutput,
    mut input: UserInput,
    order: &LogsOrder,
    log: Option<PathBuf>,
) -> Result<(), tungstenite::Error> {
    let Some(log) = log.filter(|log| log.exists()) else {
        let reason = format!("this node has no log of {}", order.replica);
        output.end(input, Some(&ConsoleNote::ended(reason))).await;
        return Ok(());
    };
    let console = Console::of_log(log.clone());
    let ConsoleSubscription { before, mut new } = console.subscribe();
    output.bytes(&before).await?;
    drop(before);
    if !order.follow {
        output.end(input, None).await;
        return Ok(());
    }
    tokio::select! {
        released = send(&mut output, &mut new) => released?,
        never = refresh(console, &log) => match never {},
        () = until_gone(&mut input) => return Ok(()),
    }
    output.end(input, Some(&ConsoleNote::ended("the replica was removed from this node"))).await;
    Ok(())
}

/// Sends output until the log is removed.
async fn send(output: &mut UserOutput, new: &mut ConsoleReader) -> Result<(), tungstenite::Error> {
    let mut pings = user_connection::pings();
    loop {
        tokio::select! {
            _ = pings.tick() => output.ping().await?,
            event = new.next() => match event {
                ConsoleEvent::Bytes(bytes) => output.bytes(&bytes).await?,
                // The connection is slower than the program; the user sees the gap as it is.
                ConsoleEvent::Lost(bytes) => {
                    output.bytes(format!("\n[{bytes} bytes are lost]\n").as_bytes()).await?;
                }
                ConsoleEvent::Released => return Ok(()),
            },
        }
    }
}

/// Publishes new output until the log is removed. `send` then ends, after the last output.
async fn refresh(console: Console, log: &Path) -> Infallible {
    publish(&console, log).await;
    drop(console);
    pending().await
}

async fn publish(console: &Console, log: &Path) {
    let Ok(watch) = console.watch() else { return };
    let mut looks = interval(LOOK);
    while log.exists() {
        tokio::select! {
            changed = watch.changed() => if changed.is_err() { return },
            _ = looks.tick() => {}
        }
        console.refresh();
    }
    // Output that came after the last look.
    console.refresh();
}

async fn until_gone(input: &mut UserInput) {
    while input.next().await != UserMessage::Gone {}
}
