//! Fetches a file into an open file, with resume, retries and progress.

use super::{
    connection::{Connection, RequestError},
    retry::{NextTry, RetrySchedule},
    transfer::{Transfer, TransferError},
    url::HttpUrl,
};
use std::{
    fs::File,
    io::{self, Seek as _, SeekFrom, Write as _},
    time::{Duration, Instant},
};

/// Longest time without a byte.
const IDLE: Duration = Duration::from_secs(20);
/// Time after which a server must have sent [`MIN_RATE`], if there is another.
const FAIR: Duration = Duration::from_secs(30);
/// Minimum rate of a server in bytes per second. What it sent is kept.
const MIN_RATE: u64 = 64 * 1024;
/// Size of one read in bytes.
const PIECE: usize = 256 * 1024;

/// The file cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    #[error("fetch {url}: {cause}")]
    GaveUp { url: HttpUrl, cause: TryError },
    #[error("store the fetched file: {0}")]
    Store(#[from] io::Error),
}

/// One try failed.
#[derive(Debug, thiserror::Error)]
pub enum TryError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Transfer(#[from] TransferError),
    #[error("the connection ended after {received} of {size} bytes")]
    Truncated { received: u64, size: u64 },
    #[error("the connection failed after {received} of {size} bytes: {cause}")]
    Broken { received: u64, size: u64, cause: io::Error },
    #[error("the server sent less than {} KiB/s", MIN_RATE / 1024)]
    Slow,
}

/// What the caller of [`download`] learns and decides.
pub trait Observer {
    /// Bytes have arrived.
    fn progress(&mut self, received: u64, size: u64);
    /// A try failed; the next one begins after a delay.
    fn retry(&mut self, url: &HttpUrl, cause: &TryError, delay: Duration);
    fn pause(&mut self, delay: Duration);
}

/// Fetches a file of known size and digest from the first URL that has it. Several servers may send
/// parts of it. If those parts are not the file, nobody knows whose were wrong: from then on, each
/// server sends all of it.
pub fn download(
    urls: &[HttpUrl],
    transfer: &mut Transfer,
    file: &mut File,
    observer: &mut dyn Observer,
) -> Result<(), DownloadError> {
    let begin = Instant::now();
    let mut schedule = RetrySchedule::new(urls.len(), begin.elapsed());
    let mut sources = Sources { first: 0, are_several: false, may_be_several: true };
    loop {
        let url = &urls[schedule.current()];
        sources.begin(schedule.current(), transfer);
        let may_leave = urls.len() > 1 && sources.may_be_several;
        let outcome = receive(url, transfer, file, may_leave, observer)?;
        schedule.record_received(begin.elapsed(), transfer.received());
        let cause = match outcome {
            Ok(()) => return Ok(()),
            Err(cause) => cause,
        };
        let next = match &cause {
            TryError::Transfer(TransferError::Digest { .. }) => {
                transfer.restart();
                if sources.are_several {
                    sources.may_be_several = false;
                    NextTry::After(Duration::ZERO)
                } else {
                    schedule.record_without_file()
                }
            }
            TryError::Transfer(error) if error.is_without_file() => schedule.record_without_file(),
            _ => schedule.record_failure(begin.elapsed()),
        };
        match next {
            NextTry::GiveUp => return Err(DownloadError::GaveUp { url: url.clone(), cause }),
            NextTry::After(delay) => {
                observer.retry(url, &cause, delay);
                observer.pause(delay);
            }
        }
    }
}

/// Where the bytes of a transfer come from.
struct Sources {
    /// URL of the first byte.
    first: usize,
    /// Another URL continued it.
    are_several: bool,
    /// Another URL may continue it.
    may_be_several: bool,
}

impl Sources {
    /// A URL is asked next.
    fn begin(&mut self, url: usize, transfer: &mut Transfer) {
        if transfer.received() > 0 && url != self.first && !self.may_be_several {
            transfer.restart();
        }
        if transfer.received() == 0 {
            self.first = url;
            self.are_several = false;
        }
        self.are_several |= url != self.first;
    }
}

/// Continues a transfer with one request, and leaves a slow server if it may. The outer error is
/// that of the local file.
fn receive(
    url: &HttpUrl,
    transfer: &mut Transfer,
    file: &mut File,
    may_leave: bool,
    observer: &mut dyn Observer,
) -> io::Result<Result<(), TryError>> {
    let begin = Instant::now();
    let before = transfer.received();
    let mut connection = match Connection::get(url, transfer.received(), IDLE) {
        Ok(connection) => connection,
        Err(error) => return Ok(Err(error.into())),
    };
    if let Err(error) = transfer.accept(&connection.head) {
        return Ok(Err(error.into()));
    }
    file.seek(SeekFrom::Start(transfer.received()))?;
    let mut piece = std::mem::take(&mut connection.first);
    let mut buffer = vec![0; PIECE];
    loop {
        if let Err(error) = transfer.add(&piece) {
            return Ok(Err(error.into()));
        }
        file.write_all(&piece)?;
        observer.progress(transfer.received(), transfer.size());
        if transfer.is_complete() {
            return Ok(transfer.verify().map_err(TryError::from));
        }
        let received = transfer.received();
        let size = transfer.size();
        if may_leave && is_slow(begin.elapsed(), received - before) {
            return Ok(Err(TryError::Slow));
        }
        match connection.read(&mut buffer) {
            Ok(0) => return Ok(Err(TryError::Truncated { received, size })),
            Ok(count) => {
                piece.clear();
                piece.extend_from_slice(&buffer[..count]);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => piece.clear(),
            Err(cause) => return Ok(Err(TryError::Broken { received, size, cause })),
        }
    }
}

/// Returns true if a server sent too little in a time.
fn is_slow(time: Duration, bytes: u64) -> bool {
    time >= FAIR && bytes < MIN_RATE * time.as_secs()
}

#[cfg(test)]
#[path = "download_tests.rs"]
mod tests;
