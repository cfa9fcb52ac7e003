//! Console output of a VM, and the queue of its input.
//!
//! QEMU appends all output to a file, so no output is lost while no agent runs. A file offset is an
//! offset in the whole output. The agent frees old output with FALLOC_FL_PUNCH_HOLE instead of
//! truncation, so offsets stay valid and each reader reads at its own pace.

use crate::vm::{
    lock_helpers::{locked, send_if_changed},
    vm_paths::VmPaths,
};
use rustix::{
    fd::{AsFd as _, AsRawFd as _, OwnedFd},
    fs::{FallocateFlags, SeekFrom, fallocate, inotify, seek},
};
use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::PathBuf,
    sync::{Arc, Mutex, Weak},
};
use tokio::{
    io::unix::AsyncFd,
    sync::{mpsc, watch},
};

/// Minimum scrollback in bytes. Older output is freed at twice this size.
pub const SCROLLBACK: u64 = 256 * 1024;
/// Holes start and end at page boundaries, in bytes.
const PAGE: u64 = 4096;
/// Maximum bytes of one event.
const CHUNK: u64 = 16 * 1024;
/// Length of the input queue.
const INPUT_QUEUE: usize = 64;

/// A console. Clones share it.
#[derive(Clone, Debug)]
pub struct Console {
    log: Arc<Mutex<ConsoleLog>>,
    input: mpsc::Sender<Vec<u8>>,
}

#[derive(Clone, Debug)]
pub struct ConsoleWriter(mpsc::Sender<Vec<u8>>);

impl ConsoleWriter {
    /// Queues input as soon as there is space. Returns `false` if the VM is released. Cancel-safe.
    pub async fn write(&self, bytes: Vec<u8>) -> bool {
        self.0.send(bytes).await.is_ok()
    }
}

/// Scrollback, then new output without gap or overlap.
#[derive(Debug)]
pub struct ConsoleSubscription {
    /// Output up to the subscription.
    pub before: Vec<u8>,
    pub new: ConsoleReader,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConsoleEvent {
    Bytes(Vec<u8>),
    /// The reader was too slow: this many bytes are lost.
    Lost(u64),
    Released,
}

/// Reads output from an offset. A reader does not keep the console open.
#[derive(Debug)]
pub struct ConsoleReader {
    log: Weak<Mutex<ConsoleLog>>,
    file: Option<Arc<File>>,
    scrollback: watch::Receiver<Scrollback>,
    offset: u64,
}

/// The offsets of the scrollback in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Scrollback {
    from: u64,
    to: u64,
}

#[derive(Debug)]
struct ConsoleLog {
    path: PathBuf,
    file: Option<Arc<File>>,
    scrollback: watch::Sender<Scrollback>,
}

impl Console {
    /// Returns the console of a VM and the receiver of its input.
    pub fn new(files: &VmPaths) -> (Self, mpsc::Receiver<Vec<u8>>) {
        let (input, input_queue) = mpsc::channel(INPUT_QUEUE);
        let log =
            ConsoleLog { path: files.console(), file: None, scrollback: watch::Sender::default() };
        (Console { log: Arc::new(Mutex::new(log)), input }, input_queue)
    }

    /// Returns the output in a file of a program without input.
    pub fn of_log(path: PathBuf) -> Self {
        let log = ConsoleLog { path, file: None, scrollback: watch::Sender::default() };
        Console { log: Arc::new(Mutex::new(log)), input: mpsc::channel(1).0 }
    }

    /// Reads the file size and publishes new output.
    pub fn refresh(&self) {
        let mut log = locked(&self.log);
        if let Err(error) = log.refresh()
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(file = %log.path.display(), %error, "cannot read console output");
        }
    }

    pub fn watch(&self) -> io::Result<FileWatch> {
        FileWatch::new(&*locked(&self.log).open()?)
    }

    pub fn subscribe(&self) -> ConsoleSubscription {
        self.refresh();
        // No output is freed while the lock is held.
        let log = locked(&self.log);
        let mut scrollback = log.scrollback.subscribe();
        let Scrollback { from, to } = *scrollback.borrow_and_update();
        let before = log.file.as_ref().map(|file| read(file, from, to)).unwrap_or_default();
        let new = ConsoleReader {
            log: Arc::downgrade(&self.log),
            file: log.file.clone(),
            scrollback,
            offset: to,
        };
        ConsoleSubscription { before, new }
    }

    /// Queues input. Returns `false` if the queue is full or closed.
    pub fn write(&self, bytes: Vec<u8>) -> bool {
        self.input.try_send(bytes).is_ok()
    }

    /// Returns the input queue. It does not keep the console open.
    pub fn writer(&self) -> ConsoleWriter {
        ConsoleWriter(self.input.clone())
    }
}

impl ConsoleLog {
    /// Opens the file, and makes it if QEMU has not. The folder exists after the first start.
    fn open(&mut self) -> io::Result<Arc<File>> {
        if let Some(file) = &self.file {
            return Ok(file.clone());
        }
        let mut options = OpenOptions::new();
        let file =
            Arc::new(options.create(true).read(true).append(true).mode(0o600).open(&self.path)?);
        let from = match seek(&file, SeekFrom::Data(0)) {
            Ok(from) => from,
            // The file is empty, or all output is freed.
            Err(rustix::io::Errno::NXIO) => file.metadata()?.len(),
            Err(_) => 0,
        };
        self.scrollback.send_replace(Scrollback { from, to: from });
        Ok(self.file.insert(file).clone())
    }

    fn refresh(&mut self) -> io::Result<()> {
        let file = self.open()?;
        let Scrollback { mut from, to: last } = *self.scrollback.borrow();
        let to = file.metadata()?.len().max(last);
        let is_full = to - from >= 2 * SCROLLBACK;
        if is_full {
            from = (to - SCROLLBACK) / PAGE * PAGE;
        }
        // Publish the new offset before the output is freed: readers verify their offset after each
        // read.
        send_if_changed(&self.scrollback, Scrollback { from, to });
        if is_full {
            fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, from)?;
        }
        Ok(())
    }
}

/// Reads output. Returns less after an error.
fn read(file: &File, from: u64, to: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(to.saturating_sub(from)).unwrap_or(0)];
    let mut length = 0;
    while let Ok(more @ 1..) = file.read_at(&mut bytes[length..], from + length as u64) {
        length += more;
    }
    bytes.truncate(length);
    bytes
}

impl ConsoleReader {
    /// Waits for the next event. Cancel-safe.
    pub async fn next(&mut self) -> ConsoleEvent {
        loop {
            let Scrollback { from, to } = *self.scrollback.borrow_and_update();
            if let lost @ 1.. = from.saturating_sub(self.offset) {
                self.offset = from;
                return ConsoleEvent::Lost(lost);
            }
            if self.offset < to {
                let file = self.file();
                let bytes = file
                    .map(|file| read(&file, self.offset, to.min(self.offset + CHUNK)))
                    .unwrap_or_default();
                if self.scrollback.borrow().from > self.offset {
                    // The output was freed during the read.
                    continue;
                }
                if bytes.is_empty() {
                    let lost = to - self.offset;
                    self.offset = to;
                    return ConsoleEvent::Lost(lost);
                }
                self.offset += bytes.len() as u64;
                return ConsoleEvent::Bytes(bytes);
            }
            if self.scrollback.changed().await.is_err() {
                return ConsoleEvent::Released;
            }
        }
    }

    fn file(&mut self) -> Option<Arc<File>> {
        if self.file.is_none() {
            self.file = self.log.upgrade().and_then(|log| locked(&log).file.clone());
        }
        self.file.clone()
    }
}

/// Watches a file for changes (inotify(7)).
#[derive(Debug)]
pub struct FileWatch(AsyncFd<OwnedFd>);

impl FileWatch {
    #[expect(
        deprecated,
        reason = "the replacement is unsafe; its precondition holds: the value owns the descriptor and never replaces it"
    )]
    fn new(file: &File) -> io::Result<Self> {
        let fd = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
        // Watch the open file, not its name.
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        inotify::add_watch(&fd, path, inotify::WatchFlags::MODIFY)?;
        Ok(FileWatch(AsyncFd::new(fd)?))
    }

    /// Waits for the next change. Cancel-safe.
    pub async fn changed(&self) -> io::Result<()> {
        let mut events = [0; 4096];
        loop {
            let mut ready = self.0.readable().await?;
            match rustix::io::read(ready.get_inner(), &mut events) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
#[path = "tests/console.rs"]
mod tests;
