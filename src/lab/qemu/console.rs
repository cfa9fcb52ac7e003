//! An interactive console on a node's serial port.

use crate::{Interrupt, LabError};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    termios::{OptionalActions, Termios, tcgetattr, tcsetattr},
};
use std::{
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

/// Ctrl-], as in telnet: leaves the console. All other keys go to the node.
const LEAVE: u8 = 0x1d;
/// Interval between two checks for an interrupt.
const INTERRUPT_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// Interval between two calls of `done`.
const DONE_INTERVAL: Duration = Duration::from_secs(1);

/// Reason for the end of a console session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsoleEnd {
    /// Ctrl-], an interrupt, or end of input.
    ByUser,
    /// The machine closed the port.
    Ended,
    /// The awaited state was reached.
    Reached,
}

pub struct Console<'a> {
    pub port: UnixStream,
    pub interrupt: &'a Interrupt,
}

impl Console<'_> {
    /// Relays the console until the user leaves it, an interrupt is raised, the machine ends, or
    /// `done` returns true. `done` is called every second.
    pub fn relay_console<K: Read + AsFd>(
        mut self,
        mut keyboard: Option<K>,
        out: &mut dyn Write,
        mut done: impl FnMut() -> Result<bool, LabError>,
    ) -> Result<ConsoleEnd, LabError> {
        let fault = LabError::file("read", "the console");
        self.port.set_nonblocking(true).map_err(fault)?;
        let mut last_check = Instant::now();
        while !self.interrupt.is_raised() {
            let (shown, typed) = ready(&self.port, keyboard.as_ref())
                .map_err(LabError::file("watch", "the console"))?;
            if shown && !self.show(out).map_err(LabError::file("show", "the console"))? {
                return Ok(ConsoleEnd::Ended);
            }
            if typed
                && let Some(keys) = &mut keyboard
                && !self.send(keys).map_err(LabError::file("write to", "the console"))?
            {
                return Ok(ConsoleEnd::ByUser);
            }
            if last_check.elapsed() >= DONE_INTERVAL {
                last_check = Instant::now();
                if done()? {
                    return Ok(ConsoleEnd::Reached);
                }
            }
        }
        Ok(ConsoleEnd::ByUser)
    }

    /// Returns false at the end of the stream.
    fn show(&mut self, out: &mut dyn Write) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        match self.port.read(&mut bytes) {
            Ok(0) => Ok(false),
            Ok(length) => {
                out.write_all(&bytes[..length])?;
                out.flush().map(|()| true)
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns false if the user leaves.
    fn send(&mut self, keys: &mut impl Read) -> io::Result<bool> {
        let mut bytes = [0; 256];
        let length = keys.read(&mut bytes)?;
        let typed = &bytes[..length];
        let leave_at = typed.iter().position(|key| *key == LEAVE);
        // Keys that the machine does not read are lost, as on a serial port.
        match self.port.write(&typed[..leave_at.unwrap_or(length)]) {
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::BrokenPipe
                ) => {}
            Err(error) => return Err(error),
        }
        Ok(leave_at.is_none() && length > 0)
    }
}

/// Returns whether the port and the keyboard are readable.
fn ready(port: &UnixStream, keyboard: Option<&impl AsFd>) -> io::Result<(bool, bool)> {
    let mut watched = vec![PollFd::from_borrowed_fd(port.as_fd(), PollFlags::IN)];
    watched
        .extend(keyboard.map(|keyboard| PollFd::from_borrowed_fd(keyboard.as_fd(), PollFlags::IN)));
    match poll(&mut watched, Some(&INTERRUPT_INTERVAL)) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok((false, false)),
        Err(error) => return Err(error.into()),
    }
    let mut readable = watched.iter().map(|fd| !fd.revents().is_empty());
    Ok((readable.next().unwrap_or(false), readable.next().unwrap_or(false)))
}

/// A terminal in raw mode, Ctrl-C included. Dropping it restores the former mode.
pub struct RawTerminal<'a> {
    terminal: BorrowedFd<'a>,
    before: Termios,
}

impl<'a> RawTerminal<'a> {
    pub fn of(terminal: &'a impl AsFd) -> io::Result<Self> {
        let terminal = terminal.as_fd();
        let before = tcgetattr(terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(terminal, OptionalActions::Flush, &raw)?;
        Ok(RawTerminal { terminal, before })
    }
}

impl Drop for RawTerminal<'_> {
    fn drop(&mut self) {
        // Ignore the error: the terminal may be closed.
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relay_console(
        machine: &[u8],
        typed: Option<&[u8]>,
        done: impl FnMut() -> Result<bool, LabError>,
    ) -> (ConsoleEnd, Vec<u8>, Vec<u8>) {
        let (port, mut node) = UnixStream::pair().unwrap();
        node.write_all(machine).unwrap();
        let keyboard = typed.map(|typed| {
            let (keys, mut fingers) = UnixStream::pair().unwrap();
            fingers.write_all(typed).unwrap();
            // Keep the sender open, because a keyboard has no end of input.
            (keys, fingers)
        });
        let (keys, _fingers) = keyboard.unzip();
        // Without a keyboard the console ends, unless the caller awaits a state.
        let mut shown = Vec::new();
        let interrupt = Interrupt::default();
        if keys.is_none() && machine.ends_with(b"off\n") {
            node.shutdown(std::net::Shutdown::Write).unwrap();
        }
        let end =
            Console { port, interrupt: &interrupt }.relay_console(keys, &mut shown, done).unwrap();
        let mut received = Vec::new();
        node.read_to_end(&mut received).unwrap();
        (end, shown, received)
    }

    #[test]
    fn console_input_reaches_node_until_escape_key() {
        let (end, _, received) =
            relay_console(b"login: ", Some(b"root\x03\r\x1dnot this"), || Ok(false));
        assert_eq!((end, received.as_slice()), (ConsoleEnd::ByUser, b"root\x03\r".as_slice()));
    }

    #[test]
    fn console_shows_all_output_before_it_ends() {
        let long = [vec![b'x'; 10_000], b"off\n".to_vec()].concat();
        let (end, shown, _) = relay_console(&long, None, || Ok(false));
        assert!(end == ConsoleEnd::Ended && shown == long, "{end:?}, {} bytes", shown.len());
    }

    #[test]
    fn console_wait_ends_with_state_or_interrupt() {
        let (end, shown, _) = relay_console(b"boots", None, || Ok(true));
        assert_eq!((end, shown.as_slice()), (ConsoleEnd::Reached, b"boots".as_slice()));
        let (port, _node) = UnixStream::pair().unwrap();
        let interrupt = Interrupt::default();
        interrupt.raise();
        let end = Console { port, interrupt: &interrupt }.relay_console(
            None::<UnixStream>,
            &mut Vec::new(),
            || Ok(false),
        );
        assert_eq!(end.unwrap(), ConsoleEnd::ByUser);
    }
}
