//! The terminal of a shell. Its size, signals of keys and line editing are those of the kernel.

use meshd_proto::shell::WindowSize;
use rustix::{
    fs::{OFlags, fcntl_setfl},
    io::Errno,
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};
use tokio::net::unix::pipe::{Receiver, Sender};

/// The agent's side of a terminal. For the runtime it is a pipe in each direction.
pub struct PseudoTerminal {
    output: Receiver,
    input: Sender,
}

impl PseudoTerminal {
    /// Opens a terminal. Returns the agent's side, and the side of the shell.
    pub fn open(window: WindowSize) -> io::Result<(Self, OwnedFd)> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let own = openpt(flags)?;
        grantpt(&own)?;
        unlockpt(&own)?;
        // By the open descriptor: the node may have another file system at /dev/pts.
        let other = ioctl_tiocgptpeer(&own, flags)?;
        resize(&own, window)?;
        fcntl_setfl(&own, OFlags::NONBLOCK)?;
        let output = Receiver::from_owned_fd_unchecked(own.try_clone()?)?;
        let input = Sender::from_owned_fd_unchecked(own)?;
        Ok((PseudoTerminal { output, input }, other))
    }

    pub fn resize(&self, window: WindowSize) -> io::Result<()> {
        resize(&self.input, window)
    }

    /// Reads output; 0 if no process has the terminal. Cancel-safe.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.output.readable().await?;
            match self.output.try_read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if Errno::from_io_error(&error) == Some(Errno::IO) => return Ok(0),
                read => return read,
            }
        }
    }

    /// Writes a part of the input. Waits while the terminal is full. Cancel-safe.
    pub async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            self.input.writable().await?;
            match self.input.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return written,
            }
        }
    }
}

fn resize(terminal: impl AsFd, window: WindowSize) -> io::Result<()> {
    let ws_row = window.rows();
    let ws_col = window.columns();
    Ok(tcsetwinsize(terminal, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 })?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::termios::tcgetwinsize;

    #[tokio::test]
    async fn terminal_has_its_size_and_ends_with_its_last_process() {
        let (terminal, other) = PseudoTerminal::open(WindowSize::new(40, 100)).expect("opened");
        terminal.resize(WindowSize::new(50, 120)).expect("resized");
        let size = tcgetwinsize(&other).expect("a size");
        assert_eq!((size.ws_row, size.ws_col), (50, 120));
        assert_eq!(terminal.write(b"a\r").await.expect("written"), 2);
        let mut line = [0; 16];
        let length = rustix::io::read(&other, &mut line).expect("read");
        assert_eq!(&line[..length], b"a\n", "the kernel edits lines");
        drop(other);
        let mut shown = Vec::new();
        loop {
            match terminal.read(&mut line).await.expect("read") {
                0 => break,
                length => shown.extend_from_slice(&line[..length]),
            }
        }
        assert_eq!(shown, b"a\r\n", "the echo, then the end");
    }
}
