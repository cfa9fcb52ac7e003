//! The standard input of a task: bytes of an operator, at the pace at which the program reads.

use crate::link::{
    call::Endpoint,
    user_connection::{UserInput, UserMessage, connect},
};
use meshd_proto::{shell::InputNote, vm::ConsoleId};
use std::{io::ErrorKind, time::Duration};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    net::unix::pipe,
    sync::mpsc,
    time::timeout,
};

/// Time for an operator to connect the input of a task that has started.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// A request to connect the input of a task.
pub(super) type InputRequest = (Endpoint, ConsoleId);

/// Copies the input of one operator into a pipe, up to its end. A program that reads no more ends
/// the copy without an error.
///
/// # Errors
/// The input broke off: the program must not take a part for the whole.
pub(super) async fn feed(
    mut requests: mpsc::Receiver<InputRequest>,
    pipe: pipe::Sender,
) -> Result<(), String> {
    let request = timeout(CONNECT_TIMEOUT, requests.recv()).await;
    // The first connection is the only one.
    requests.close();
    let Ok(Some((endpoint, console))) = request else {
        let seconds = CONNECT_TIMEOUT.as_secs();
        return Err(format!("no operator connected the standard input within {seconds} s"));
    };
    let connected = connect(&endpoint, console).await;
    let (mut output, mut input) =
        connected.map_err(|error| format!("cannot connect the standard input: {error}"))?;
    let copied = tokio::select! {
        copied = copy(&mut input, pipe) => copied,
        error = output.keep_alive() => Err(format!("the standard input broke off: {error}")),
    };
    // The operator may be gone.
    let _ = output.end(None).await;
    copied
}

async fn copy(input: &mut UserInput, mut pipe: impl AsyncWrite + Unpin) -> Result<(), String> {
    loop {
        match input.next().await {
            UserMessage::Bytes(bytes) => match pipe.write_all(&bytes).await {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                Err(error) => return Err(format!("cannot write the standard input: {error}")),
            },
            UserMessage::Note(InputNote::End) => return Ok(()),
            UserMessage::Note(InputNote::Resize { .. }) => {}
            UserMessage::Gone => {
                return Err("the standard input broke off before its end".to_owned());
            }
        }
    }
}
