//! Follows a log file that syslogd appends to and rotates.

use super::{INTERVAL, Paced};
use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
};
use tokio::{io::AsyncWrite, time::sleep};

const BUFFER: usize = 8 << 10;

/// Writes what the file holds and what is appended to it. A file that is absent is waited for. Ends only with an error.
pub async fn follow(path: &Path, mut to: Paced<impl AsyncWrite + Unpin>) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                sleep(INTERVAL).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        loop {
            // Asked before the read: what was written before the rotation is read before the new file is opened.
            let rotated = is_other(path, &file);
            let length = file.read(&mut buffer)?;
            if length > 0 {
                to.write(buffer.get(..length).unwrap_or_default()).await?;
            } else if rotated {
                break;
            } else {
                sleep(INTERVAL).await;
            }
        }
    }
}

/// Whether the path names another file than the open one.
fn is_other(path: &Path, open: &File) -> bool {
    match (fs::metadata(path), open.metadata()) {
        (Ok(named), Ok(open)) => (named.dev(), named.ino()) != (open.dev(), open.ino()),
        _ => true,
    }
}
