//! Writes console input to QEMU's FIFO as fast as the guest reads its UART. Input is never dropped.

use std::{io, path::Path};
use tokio::net::unix::pipe;

/// Writes console input to QEMU's FIFO, one chunk after the other.
pub struct ConsoleInput<'a> {
    path: &'a Path,
    fifo: Option<pipe::Sender>,
    input: Vec<u8>,
    written: usize,
}

impl<'a> ConsoleInput<'a> {
    /// The FIFO is opened at the first write.
    pub fn new(path: &'a Path) -> Self {
        ConsoleInput { path, fifo: None, input: Vec::new(), written: 0 }
    }

    pub fn set_input(&mut self, input: Vec<u8>) {
        (self.input, self.written) = (input, 0);
    }

    /// Returns true if all input is written.
    pub fn is_idle(&self) -> bool {
        self.written == self.input.len()
    }

    /// Waits until the FIFO has space, and writes as much as fits. Cancel-safe.
    pub async fn write(&mut self) -> io::Result<()> {
        let fifo = match &mut self.fifo {
            Some(fifo) => fifo,
            // With both ends open here, input stays in the FIFO when QEMU closes its end, and no
            // write raises SIGPIPE.
            none => none.insert(pipe::OpenOptions::new().read_write(true).open_sender(self.path)?),
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
        let path = dir.path().join("serial.in");
        let kind = rustix::fs::FileType::Fifo;
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).expect("a FIFO");
        let mut reader =
            std::fs::File::options().read(true).write(true).open(&path).expect("opened");
        let input: Vec<u8> =
            (0..INPUT).map(|index| u8::try_from(index % 251).expect("a byte")).collect();
        let reading = std::thread::spawn(move || {
            // The FIFO of a UART has 16 bytes.
            let mut received = Vec::new();
            let mut uart = [0; 16];
            while received.len() < INPUT {
                let length = std::io::Read::read(&mut reader, &mut uart).expect("read");
                received.extend_from_slice(&uart[..length]);
            }
            received
        });
        let mut writer = ConsoleInput::new(&path);
        for chunk in input.chunks(10_000) {
            writer.set_input(chunk.to_vec());
            while !writer.is_idle() {
                // Cancel some writes, as other events of a session do.
                let _ = tokio::time::timeout(Duration::from_millis(1), writer.write())
                    .await
                    .map(|io| io.expect("I/O"));
            }
        }
        assert!(reading.join().expect("it ends") == input, "complete and in order");
    }
}
