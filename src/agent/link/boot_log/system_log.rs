//! Follows a log file that syslogd appends to and rotates.

use super::{INTERVAL, PacedWriter};
use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
};
use tokio::time::sleep;

const BUFFER: usize = 8 << 10;

/// Writes the content of the file and each appended line. Waits for a missing file. Ends only with
/// an error.
pub async fn forward(path: &Path, mut to: PacedWriter) -> io::Result<()> {
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
            // Check before the read, so that the read includes the last lines before the rotation.
            let is_rotated = is_replaced(path, &file);
            let length = file.read(&mut buffer)?;
            if length > 0 {
                to.write(&buffer[..length]).await?;
            } else if is_rotated {
                break;
            } else {
                sleep(INTERVAL).await;
            }
        }
    }
}

/// Returns true if the path is not the open file.
fn is_replaced(path: &Path, open: &File) -> bool {
    match (fs::metadata(path), open.metadata()) {
        (Ok(current), Ok(open)) => (current.dev(), current.ino()) != (open.dev(), open.ino()),
        _ => true,
    }
}
