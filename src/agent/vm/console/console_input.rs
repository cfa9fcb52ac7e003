//! Writes console input to QEMU's FIFO as fast as the guest reads. Input is never dropped.

use std::{io, path::Path};
use tokio::net::unix::pipe;

/// Writes console input to QEMU's FIFO, one piece after the other. QEMU reads as the guest empties its UART; the rest waits.
pub struct ConsoleInput<'a> {
    place: &'a Path,
    fifo: Option<pipe::Sender>,
    input: Vec<u8>,
    written: usize,
}

impl<'a> ConsoleInput<'a> {
    /// Opens nothing yet.
    pub fn new(place: &'a Path) -> Self {
        ConsoleInput { place, fifo: None, input: Vec::new(), written: 0 }
    }

    /// Takes the next piece.
    pub fn take(&mut self, input: Vec<u8>) {
        (self.input, self.written) = (input, 0);
    }

    /// Whether it has room for the next piece.
    pub fn is_idle(&self) -> bool {
        self.written == self.input.len()
    }

    /// Waits until the FIFO has room, and writes what fits. Cancel-safe.
    ///
    /// # Errors
    /// When there is no FIFO, or it cannot be written.
    pub async fn write(&mut self) -> io::Result<()> {
        let fifo = match &mut self.fifo {
            Some(fifo) => fifo,
            // With both ends open here, input stays in the FIFO whatever QEMU does, and nothing raises SIGPIPE.
            none => none.insert(pipe::OpenOptions::new().read_write(true).open_sender(self.place)?),
        };
        fifo.writable().await?;
        match fifo.try_write(&self.input[self.written..]) {
            Ok(length) => self.written += length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if self.is_idle() {
            (self.input, self.written) = (Vec::new(), 0);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn console_input_larger_than_fifo_arrives_complete_at_a_slow_reader() {
        const INPUT: usize = 1 << 20;
        let dir = tempfile::tempdir().expect("a folder");
        let place = dir.path().join("serial.in");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, &place, kind, mode, 0).expect("a FIFO");
        let mut reader = std::fs::File::options().read(true).write(true).open(&place).expect("opened");
        let input: Vec<u8> = (0..INPUT).map(|index| u8::try_from(index % 251).expect("a byte")).collect();
        let reading = std::thread::spawn(move || {
            // As many bytes as a UART holds.
            let (mut heard, mut uart) = (Vec::new(), [0; 16]);
            while heard.len() < INPUT {
                let length = std::io::Read::read(&mut reader, &mut uart).expect("read");
                heard.extend_from_slice(&uart[..length]);
            }
            heard
        });
        let mut keyboard = ConsoleInput::new(&place);
        for piece in input.chunks(10_000) {
            keyboard.take(piece.to_vec());
            while !keyboard.is_idle() {
                // Another event of the session ends the wait now and then.
                let _ =
                    tokio::time::timeout(Duration::from_millis(1), keyboard.write()).await.map(|io| io.expect("I/O"));
            }
        }
        assert!(reading.join().expect("it ends") == input, "it is complete and in order");
    }
}
