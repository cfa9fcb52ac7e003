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

/// Ctrl-], as in telnet: leaves the console. Everything else is the node's.
const LEAVE: u8 = 0x1d;
/// Between two looks at an interrupt.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// Between two looks at what somebody waits for.
const ASK: Duration = Duration::from_secs(1);

/// How it came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// By Ctrl-], an interrupt, or the end of what is typed.
    ByUser,
    /// The machine is gone.
    Ended,
    /// What was waited for is there.
    Reached,
}

pub struct Console<'a> {
    /// The serial port.
    pub port: UnixStream,
    /// Ends it.
    pub interrupt: &'a Interrupt,
}

impl Console<'_> {
    /// Sits at the console until it is left: by the keyboard if there is one, by an interrupt, because the machine is gone, or
    /// because `done` says so, which is asked every second.
    pub fn relay_console<K: Read + AsFd>(
        mut self,
        mut keyboard: Option<K>,
        out: &mut dyn Write,
        mut done: impl FnMut() -> Result<bool, LabError>,
    ) -> Result<Left, LabError> {
        let fault = LabError::file("read", "the console");
        self.port.set_nonblocking(true).map_err(fault)?;
        let mut asked = Instant::now();
        while !self.interrupt.is_raised() {
            let (shown, typed) =
                ready(&self.port, keyboard.as_ref()).map_err(LabError::file("watch", "the console"))?;
            if shown && !self.show(out).map_err(LabError::file("show", "the console"))? {
                return Ok(Left::Ended);
            }
            if typed
                && let Some(keys) = &mut keyboard
                && !self.send(keys).map_err(LabError::file("write to", "the console"))?
            {
                return Ok(Left::ByUser);
            }
            if asked.elapsed() >= ASK {
                asked = Instant::now();
                if done()? {
                    return Ok(Left::Reached);
                }
            }
        }
        Ok(Left::ByUser)
    }

    /// False at the end.
    fn show(&mut self, out: &mut dyn Write) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        match self.port.read(&mut bytes) {
            Ok(0) => Ok(false),
            Ok(length) => {
                out.write_all(&bytes[..length])?;
                out.flush().map(|()| true)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// False if the user leaves.
    fn send(&mut self, keys: &mut impl Read) -> io::Result<bool> {
        let mut bytes = [0; 256];
        let length = keys.read(&mut bytes)?;
        let typed = &bytes[..length];
        let leaves = typed.iter().position(|key| *key == LEAVE);
        // A machine that reads nothing loses keys, as a serial port does.
        match self.port.write(&typed[..leaves.unwrap_or(length)]) {
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::BrokenPipe) => {}
            Err(error) => return Err(error),
        }
        Ok(leaves.is_none() && length > 0)
    }
}

/// Whether there is something to show, and something typed.
fn ready(port: &UnixStream, keyboard: Option<&impl AsFd>) -> io::Result<(bool, bool)> {
    let mut watched = vec![PollFd::from_borrowed_fd(port.as_fd(), PollFlags::IN)];
    watched.extend(keyboard.map(|keyboard| PollFd::from_borrowed_fd(keyboard.as_fd(), PollFlags::IN)));
    match poll(&mut watched, Some(&LOOK)) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok((false, false)),
        Err(error) => return Err(error.into()),
    }
    let mut any = watched.iter().map(|one| !one.revents().is_empty());
    Ok((any.next().unwrap_or(false), any.next().unwrap_or(false)))
}

/// A terminal that gives every key as it is typed, Ctrl-C too; as it was before when dropped.
pub struct Raw<'a> {
    terminal: BorrowedFd<'a>,
    before: Termios,
}

impl<'a> Raw<'a> {
    /// Of this terminal.
    pub fn of(terminal: &'a impl AsFd) -> io::Result<Self> {
        let terminal = terminal.as_fd();
        let before = tcgetattr(terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(terminal, OptionalActions::Flush, &raw)?;
        Ok(Raw { terminal, before })
    }
}

impl Drop for Raw<'_> {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing any more.
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
    ) -> (Left, Vec<u8>, Vec<u8>) {
        let (port, mut node) = UnixStream::pair().unwrap();
        node.write_all(machine).unwrap();
        let keyboard = typed.map(|typed| {
            let (keys, mut fingers) = UnixStream::pair().unwrap();
            fingers.write_all(typed).unwrap();
            // The other end stays open: a keyboard does not end.
            (keys, fingers)
        });
        let (keys, _fingers) = keyboard.unzip();
        // A machine that nobody types at ends by itself, unless something is waited for.
        let mut shown = Vec::new();
        let interrupt = Interrupt::default();
        if keys.is_none() && machine.ends_with(b"off\n") {
            node.shutdown(std::net::Shutdown::Write).unwrap();
        }
        let left = Console { port, interrupt: &interrupt }.relay_console(keys, &mut shown, done).unwrap();
        let mut heard = Vec::new();
        node.read_to_end(&mut heard).unwrap();
        (left, shown, heard)
    }

    #[test]
    fn console_input_reaches_the_node_until_the_user_leaves() {
        let (left, _, heard) = relay_console(b"login: ", Some(b"root\x03\r\x1dnot this"), || Ok(false));
        assert_eq!((left, heard.as_slice()), (Left::ByUser, b"root\x03\r".as_slice()));
    }

    #[test]
    fn everything_that_a_machine_wrote_is_shown_before_its_end() {
        let long = [vec![b'x'; 10_000], b"off\n".to_vec()].concat();
        let (left, shown, _) = relay_console(&long, None, || Ok(false));
        assert!(left == Left::Ended && shown == long, "{left:?}, {} bytes", shown.len());
    }

    #[test]
    fn wait_ends_with_the_state_or_an_interrupt() {
        let (left, shown, _) = relay_console(b"boots", None, || Ok(true));
        assert_eq!((left, shown.as_slice()), (Left::Reached, b"boots".as_slice()));
        let (port, _node) = UnixStream::pair().unwrap();
        let interrupt = Interrupt::default();
        interrupt.raise();
        let left =
            Console { port, interrupt: &interrupt }.relay_console(None::<UnixStream>, &mut Vec::new(), || Ok(false));
        assert_eq!(left.unwrap(), Left::ByUser);
    }
}
