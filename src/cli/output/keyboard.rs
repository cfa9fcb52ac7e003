//! Keys of the user's terminal, or bytes of a pipe, for a program elsewhere.

use meshd_proto::vm::MAX_PIECE;
use std::{
    io::{Read as _, stdin},
    thread,
};
use tokio::sync::{mpsc, oneshot};

/// Ctrl-], as in telnet, leaves the program. All other input goes to it.
const LEAVE: u8 = 0x1d;
/// Maximum number of queued pieces of input.
const TYPED: usize = 1024;

pub(crate) enum Input {
    Bytes(Vec<u8>),
    Leave,
}

/// Keyboard input in order, and a signal that overtakes queued input.
pub(crate) struct Keyboard {
    pub(crate) typed: mpsc::Receiver<Input>,
    /// Sent when Ctrl-] is read, even if earlier input is still queued.
    pub(crate) leaves: oneshot::Receiver<()>,
}

/// Reads the keyboard or a pipe. The thread waits for input until the program ends.
pub(crate) fn read_keyboard() -> Keyboard {
    let (send, typed) = mpsc::channel(TYPED);
    let (leave, leaves) = oneshot::channel();
    thread::spawn(move || {
        let mut bytes = vec![0; MAX_PIECE];
        while let Ok(length @ 1..) = stdin().lock().read(&mut bytes) {
            let (before, is_last) = split(&bytes[..length]);
            if !before.is_empty() && send.blocking_send(Input::Bytes(before.to_vec())).is_err() {
                return;
            }
            if is_last {
                // The program may have ended.
                let _ = leave.send(());
                let _ = send.blocking_send(Input::Leave);
                return;
            }
        }
    });
    Keyboard { typed, leaves }
}

/// Splits input at Ctrl-]. Returns true if the input contains Ctrl-].
fn split(typed: &[u8]) -> (&[u8], bool) {
    match typed.iter().position(|key| *key == LEAVE) {
        Some(at) => (&typed[..at], true),
        None => (typed, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn console_input_stops_at_escape_key() {
        assert_eq!(split(b"ls\x03\r"), (b"ls\x03\r".as_slice(), false));
        assert_eq!(split(b"ls\r\x1dnot this"), (b"ls\r".as_slice(), true));
    }
}
