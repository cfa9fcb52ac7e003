//! Fetches a file of known size and digest.

use super::error::BootError;
use crate::{
    clock, console,
    fetch::{self, HttpUrl, Transfer},
};
use meshd_types::Digest;
use std::{
    fs::{File, OpenOptions},
    path::Path,
    time::{Duration, Instant},
};

/// Longest interval between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// A file that servers have.
#[derive(Clone, Debug)]
pub struct FileSource {
    /// Name in messages.
    pub name: String,
    pub urls: Vec<HttpUrl>,
    pub digest: Digest,
    /// Size in bytes.
    pub size: u64,
}

/// Fetches a file into a new file, and verifies its digest. Returns it open for reading alone: with a
/// loop device whose file is open for writing, OpenRC could not mount `/` read-only at a shutdown, and
/// did not start the kernel of a warm reboot.
pub fn fetch_file(source: &FileSource, path: &Path) -> Result<File, BootError> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
    let failed = |cause| BootError::Create { path: path.display().to_string(), cause };
    let mut file = file.map_err(failed)?;
    let mut transfer = Transfer::new(source.size, source.digest);
    let mut progress = Progress::new(&source.name);
    fetch::download(&source.urls, &mut transfer, &mut file, &mut progress)?;
    console::message(format_args!(
        "{}: {} bytes in {} ms, SHA-256 {}",
        source.name,
        source.size,
        progress.begin.elapsed().as_millis(),
        source.digest.short()
    ));
    drop(file);
    File::open(path).map_err(failed)
}

/// Prints the progress of a fetch: at each tenth, and at least every few seconds.
struct Progress<'n> {
    name: &'n str,
    begin: Instant,
    printed_at: Instant,
    tenths: u64,
}

impl<'n> Progress<'n> {
    fn new(name: &'n str) -> Self {
        Progress { name, begin: Instant::now(), printed_at: Instant::now(), tenths: 0 }
    }
}

impl fetch::Observer for Progress<'_> {
    fn progress(&mut self, received: u64, size: u64) {
        let tenths = received.saturating_mul(10) / size.max(1);
        if tenths == self.tenths && self.printed_at.elapsed() < PROGRESS_INTERVAL {
            return;
        }
        self.tenths = tenths;
        self.printed_at = Instant::now();
        let mib = |bytes: u64| bytes.div_ceil(1024 * 1024);
        console::progress(format_args!("{}: {} of {} MiB", self.name, mib(received), mib(size)));
    }

    fn retry(&mut self, url: &HttpUrl, cause: &fetch::TryError, delay: Duration) {
        console::message(format_args!("fetch {url}: {cause}; retry in {} s", delay.as_secs()));
    }

    fn pause(&mut self, delay: Duration) {
        clock::pause(delay);
    }
}
