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

/// Copies the input of one operator into a pipe, and closes the pipe at the end of the input. A
/// program that reads no more ends the copy without an error.
///
/// # Errors
/// The input broke off. The pipe stays open: the program would take a part for the whole.
pub(super) async fn feed(
    mut requests: mpsc::Receiver<InputRequest>,
    pipe: &mut Option<pipe::Sender>,
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
    let Some(open) = pipe else { return Ok(()) };
    let copied = tokio::select! {
        copied = copy(&mut input, open) => copied,
        error = output.keep_alive() => Err(format!("the standard input broke off: {error}")),
    };
    if copied.is_ok() {
        *pipe = None;
    }
    output.end(input, None).await;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{self, Read as _},
        os::fd::OwnedFd,
    };

    #[tokio::test]
    async fn input_that_broke_off_leaves_its_pipe_open() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        rustix::io::ioctl_fionbio(&reader, true).expect("set");
        let sender = pipe::Sender::from_owned_fd(OwnedFd::from(writer)).expect("a pipe");
        let mut pipe = Some(sender);
        let (requests, of_task) = mpsc::channel::<InputRequest>(1);
        drop(requests);
        feed(of_task, &mut pipe).await.expect_err("nobody connects");
        let read = reader.read(&mut [0]).expect_err("it has no end").kind();
        assert_eq!(read, ErrorKind::WouldBlock);
        drop(pipe);
        assert_eq!(reader.read(&mut [0]).expect("its end"), 0);
    }
}
