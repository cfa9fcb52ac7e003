//! What the user of a shell types. The connection is read also while the terminal is full: the end
//! of the user must not wait for a program that reads nothing.

use super::pseudo_terminal::PseudoTerminal;
use crate::link::user_connection::{UserInput, UserMessage};
use bytes::{Buf as _, BytesMut};
use meshd_proto::shell::InputNote;

/// Bytes that wait for the terminal until the connection is not read any more.
const MAX_WAITING: usize = 2 << 20;

/// The messages of a user.
pub(super) trait Messages {
    /// Returns the next message. Cancel-safe.
    fn next_message(&mut self) -> impl Future<Output = UserMessage> + Send;
}

impl Messages for UserInput {
    fn next_message(&mut self) -> impl Future<Output = UserMessage> + Send {
        self.next()
    }
}

/// Writes what the user types, until the user leaves. What waits then is dropped.
pub(super) async fn type_in(input: &mut impl Messages, terminal: &PseudoTerminal) {
    let mut waiting = BytesMut::new();
    let mut is_broken = false;
    loop {
        tokio::select! {
            message = input.next_message(), if waiting.len() < MAX_WAITING => match message {
                // `show` reports the end of a broken terminal.
                UserMessage::Bytes(_) if is_broken => {}
                UserMessage::Bytes(bytes) => waiting.extend_from_slice(&bytes),
                UserMessage::Note(InputNote::Resize { window }) => {
                    if let Err(error) = terminal.resize(window) {
                        tracing::debug!(%error, "cannot resize the terminal of a shell");
                    }
                }
                UserMessage::Note(InputNote::End) => {}
                UserMessage::Gone => return,
            },
            written = terminal.write(&waiting), if !waiting.is_empty() => match written {
                Ok(length) => waiting.advance(length),
                Err(error) => {
                    tracing::debug!(%error, "cannot write to the terminal of a shell");
                    (waiting, is_broken) = (BytesMut::new(), true);
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use meshd_proto::{shell::WindowSize, vm::MAX_PIECE};
    use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
    use std::time::Duration;
    use tokio::{sync::mpsc, time::timeout};

    /// How long a test waits for what must happen.
    const DEADLINE: Duration = Duration::from_secs(30);
    const PASTE: usize = 1_000_000;

    impl Messages for mpsc::UnboundedReceiver<UserMessage> {
        async fn next_message(&mut self) -> UserMessage {
            // The terminal takes what fits.
            tokio::task::yield_now().await;
            self.recv().await.unwrap_or(UserMessage::Gone)
        }
    }

    #[tokio::test]
    async fn user_leaves_though_the_program_has_not_read_a_paste() {
        let (terminal, program) = PseudoTerminal::open(WindowSize::default()).expect("opened");
        let mut mode = tcgetattr(&program).expect("a mode");
        mode.make_raw();
        tcsetattr(&program, OptionalActions::Now, &mode).expect("a raw terminal");
        let (send, mut input) = mpsc::unbounded_channel();
        for _ in 0..PASTE.div_ceil(MAX_PIECE) {
            let piece = Bytes::from_static(&[b'x'; MAX_PIECE]);
            send.send(UserMessage::Bytes(piece)).expect("taken");
        }
        drop(send);
        timeout(DEADLINE, type_in(&mut input, &terminal)).await.expect("it ends");
    }
}
