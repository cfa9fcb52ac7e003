//! Follows the journal of systemd from the start of the boot, without messages of the kernel.

use super::PacedWriter;
use std::{
    io::{self, Error},
    process::Stdio,
};
use tokio::{io::AsyncReadExt as _, process::Command};

const JOURNALCTL: &str = "journalctl";
const ARGUMENTS: [&str; 9] = [
    "--boot",
    "--follow",
    "--lines=all",
    "--output=short",
    "--no-pager",
    "--quiet",
    // Matches of one field are alternatives: all but the kernel and the audit log.
    "_TRANSPORT=journal",
    "_TRANSPORT=stdout",
    "_TRANSPORT=syslog",
];
const BUFFER: usize = 8 << 10;

/// Writes each line of the journal. Ends only with an error.
pub async fn forward(mut to: PacedWriter) -> io::Result<()> {
    let mut command = Command::new(JOURNALCTL);
    command.args(ARGUMENTS).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.kill_on_drop(true).spawn()?;
    let mut lines = child.stdout.take().ok_or_else(|| Error::other("journalctl has no output"))?;
    let mut buffer = vec![0; BUFFER];
    loop {
        match lines.read(&mut buffer).await? {
            0 => return Err(Error::other(format!("journalctl ended: {}", child.wait().await?))),
            length => to.write(&buffer[..length]).await?,
        }
    }
}
