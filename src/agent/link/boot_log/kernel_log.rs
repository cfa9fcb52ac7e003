//! Reads kernel messages from `/dev/kmsg`, one record per read:
//! `priority,sequence,microseconds,flags;text`, then lines of properties that begin with a space
//! (Linux, Documentation/ABI/testing/dev-kmsg).

use super::{INTERVAL, PacedWriter};
use rustix::{fs::OFlags, io::Errno};
use std::{fs::OpenOptions, io, io::Read as _, os::unix::fs::OpenOptionsExt as _, path::Path};
use tokio::time::sleep;

/// Precedes the capability in a URL.
const OVERLAY: &str = "/overlay/";
/// Size of the read buffer: the kernel fails if a record does not fit.
const MAX_RECORD: usize = 8 << 10;

/// Writes each message as a line, starting with the kernel's buffer. Ends only with an error.
pub async fn forward(path: &Path, mut to: PacedWriter) -> io::Result<()> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let mut buffer = vec![0; MAX_RECORD];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => {
                if let Some(line) = line(&buffer[..length]) {
                    to.write(line.as_bytes()).await?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(INTERVAL).await,
            // The kernel overwrote the next record; the following read returns the oldest one.
            Err(error) if error.raw_os_error() == Some(Errno::PIPE.raw_os_error()) => {
                to.write(b"(kernel messages were overwritten before they were read)\n").await?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Formats a record like `dmesg`; `None` for an invalid record.
pub fn line(record: &[u8]) -> Option<String> {
    let record = String::from_utf8_lossy(record);
    let (head, text) = record.split_once(';')?;
    let micros: u64 = head.split(',').nth(2)?.parse().ok()?;
    let text = without_capability(text.lines().next().unwrap_or_default());
    Some(format!("[{:5}.{:06}] {text}\n", micros / 1_000_000, micros % 1_000_000))
}

/// Removes the capability from the URL of the overlay. With `delivery = "url"` the kernel logs the
/// URL with its command line.
fn without_capability(text: &str) -> String {
    let mut parts = text.split(OVERLAY);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |shown, part| {
        let end = part.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(part.len());
        shown + OVERLAY + "..." + part.get(end..).unwrap_or_default()
    })
}
