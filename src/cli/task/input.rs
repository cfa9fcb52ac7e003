//! Standard input of the command as that of a task.

use crate::cli::{Failure, client::AdminClient};
use futures_util::{SinkExt as _, StreamExt as _};
use meshd_api::routes as api;
use meshd_proto::{shell::InputNote, vm::MAX_PIECE};
use meshd_types::TaskId;
use std::{
    convert::Infallible,
    future::pending,
    io::{self, ErrorKind, Read as _, stdin},
    pin::pin,
    thread,
};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;

/// Maximum number of pieces that wait for the task.
const QUEUED: usize = 4;

/// Passes standard input on until its end, at the pace of the task. The end of the task, or the
/// loss of the connection, ends the transfer; the result of the task then tells why.
///
/// # Errors
/// Standard input cannot be read, or the task does not take it.
pub(super) async fn send_input(client: &AdminClient, task: TaskId) -> Result<Infallible, Failure> {
    let socket = client.socket(api::OPEN_TASK_INPUT.path([&task]).as_str()).await?;
    let (mut out, mut incoming) = socket.split();
    let mut input = read_input();
    let sent = async {
        while let Some(piece) = input.recv().await {
            let piece = piece.map_err(|error| {
                Failure::new(format!("cannot read standard input: {error}"), "run the task again")
            })?;
            if out.send(Message::Binary(piece.into())).await.is_err() {
                return Ok(());
            }
        }
        let end = serde_json::to_string(&InputNote::End).unwrap_or_default();
        // An error means that the task has ended.
        let _ = out.send(Message::Text(end.into())).await;
        Ok::<_, Failure>(())
    };
    let closed = async { while let Some(Ok(_)) = incoming.next().await {} };
    let mut closed = pin!(closed);
    tokio::select! {
        sent = sent => {
            sent?;
            // The server answers pings of the node as long as somebody reads.
            closed.await;
        }
        () = &mut closed => {}
    }
    pending().await
}

/// Reads standard input in a thread, which waits for input until the command ends.
fn read_input() -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (send, pieces) = mpsc::channel(QUEUED);
    thread::spawn(move || {
        let mut bytes = vec![0; MAX_PIECE];
        loop {
            let piece = match stdin().lock().read(&mut bytes) {
                Ok(0) => return,
                Ok(length) => Ok(bytes[..length].to_vec()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let is_last = piece.is_err();
            if send.blocking_send(piece).is_err() || is_last {
                return;
            }
        }
    });
    pieces
}
