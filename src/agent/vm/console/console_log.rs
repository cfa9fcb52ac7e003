//! Console output of a VM, and the queue of its input.
//!
//! QEMU itself appends every byte to a file, so nothing is lost while no agent lives, and a place in the file is a place in all that the
//! machine ever wrote. The agent frees what is old by making a hole of it: nobody truncates, so there is no moment at which something
//! could fall in between, and each listener reads at its own pace from its own place.

use crate::vm::vm_paths::VmPaths;
use rustix::{
    fd::{AsFd as _, AsRawFd as _, OwnedFd},
    fs::{FallocateFlags, SeekFrom, fallocate, inotify, seek},
};
use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};
use tokio::{
    io::unix::AsyncFd,
    sync::{mpsc, watch},
};

/// Minimum scrollback in bytes. Older output is freed at twice this size.
pub const KEPT: u64 = 256 * 1024;
/// Holes are whole pages of a file, in bytes.
const PAGE: u64 = 4096;
/// Maximum bytes of one event.
const PIECE: u64 = 16 * 1024;
/// Length of the input queue.
const TYPED: usize = 64;

/// A console. Clones share it.
#[derive(Clone, Debug)]
pub struct Console {
    log: Arc<Mutex<ConsoleLog>>,
    typed: mpsc::Sender<Vec<u8>>,
}

/// The input of a console.
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
    /// Reads new output.
    pub new: ConsoleReader,
}

/// An event of a console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConsoleEvent {
    /// Output of the guest.
    Bytes(Vec<u8>),
    /// The reader was too slow: this many bytes are lost.
    Lost(u64),
    /// The VM is released.
    Over,
}

/// A position in the output. It does not keep the console open.
#[derive(Debug)]
pub struct ConsoleReader {
    log: Weak<Mutex<ConsoleLog>>,
    file: Option<Arc<File>>,
    kept: watch::Receiver<Scrollback>,
    at: u64,
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
    kept: watch::Sender<Scrollback>,
}

impl Console {
    /// Makes the console of a VM, and the receiver of its input.
    pub fn new(files: &VmPaths) -> (Self, mpsc::Receiver<Vec<u8>>) {
        let (typed, typing) = mpsc::channel(TYPED);
        let log = ConsoleLog { path: files.console(), file: None, kept: watch::Sender::default() };
        (Console { log: Arc::new(Mutex::new(log)), typed }, typing)
    }

    /// Reads the file size and publishes new output.
    pub fn look(&self) {
        let mut log = self.lock();
        if let Err(error) = log.look()
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(file = %log.path.display(), %error, "a console is not kept");
        }
    }

    /// Watches the file for new output.
    ///
    /// # Errors
    /// The file cannot be made or watched.
    pub fn watch(&self) -> io::Result<FileWatch> {
        FileWatch::of(&*self.lock().open()?)
    }

    /// Subscribes to the output.
    pub fn listen(&self) -> ConsoleSubscription {
        self.look();
        let log = self.lock();
        let mut new =
            ConsoleReader { log: Arc::downgrade(&self.log), file: log.file.clone(), kept: log.kept.subscribe(), at: 0 };
        // As long as the lock is held, nothing is freed.
        let kept = *new.kept.borrow_and_update();
        new.at = kept.to;
        let before = log.file.as_ref().map(|file| read(file, kept.from, kept.to)).unwrap_or_default();
        ConsoleSubscription { before, new }
    }

    /// Queues input. Returns `false` if the queue is full or closed.
    pub fn write(&self, bytes: Vec<u8>) -> bool {
        self.typed.try_send(bytes).is_ok()
    }

    /// Returns the input alone, which does not keep the console open.
    pub fn writer(&self) -> ConsoleWriter {
        ConsoleWriter(self.typed.clone())
    }

    fn lock(&self) -> MutexGuard<'_, ConsoleLog> {
        locked(&self.log)
    }
}

fn locked(log: &Mutex<ConsoleLog>) -> MutexGuard<'_, ConsoleLog> {
    // It is whole after each step.
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConsoleLog {
    /// The file, which QEMU may or may not have made yet; the folder is there with the first start.
    fn open(&mut self) -> io::Result<Arc<File>> {
        if let Some(file) = &self.file {
            return Ok(file.clone());
        }
        let mut options = OpenOptions::new();
        let file = Arc::new(options.create(true).read(true).append(true).mode(0o600).open(&self.path)?);
        let from = match seek(&file, SeekFrom::Data(0)) {
            Ok(from) => from,
            // Nothing was written, or all of it is freed.
            Err(rustix::io::Errno::NXIO) => file.metadata()?.len(),
            Err(_) => 0,
        };
        self.kept.send_replace(Scrollback { from, to: from });
        Ok(self.file.insert(file).clone())
    }

    fn look(&mut self) -> io::Result<()> {
        let file = self.open()?;
        let Scrollback { mut from, to: told } = *self.kept.borrow();
        let to = file.metadata()?.len().max(told);
        let is_full = to - from >= 2 * KEPT;
        if is_full {
            from = (to - KEPT) / PAGE * PAGE;
        }
        // First told, then freed: who has read it meanwhile looks again.
        self.kept.send_if_modified(|kept| {
            let now = Scrollback { from, to };
            let is_new = *kept != now;
            *kept = now;
            is_new
        });
        if is_full {
            fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, from)?;
        }
        Ok(())
    }
}

/// Half a piece is better than none.
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
    /// Waits for the next that is new. Cancel-safe.
    pub async fn next(&mut self) -> ConsoleEvent {
        loop {
            let Scrollback { from, to } = *self.kept.borrow_and_update();
            if let lost @ 1.. = from.saturating_sub(self.at) {
                self.at = from;
                return ConsoleEvent::Lost(lost);
            }
            if self.at < to {
                let file = self.file();
                let bytes = file.map(|file| read(&file, self.at, to.min(self.at + PIECE))).unwrap_or_default();
                if self.kept.borrow().from > self.at {
                    // It was freed while it was read.
                    continue;
                }
                if bytes.is_empty() {
                    let lost = to - self.at;
                    self.at = to;
                    return ConsoleEvent::Lost(lost);
                }
                self.at += bytes.len() as u64;
                return ConsoleEvent::Bytes(bytes);
            }
            if self.kept.changed().await.is_err() {
                return ConsoleEvent::Over;
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

/// Tells of each change of a file.
#[derive(Debug)]
pub struct FileWatch(AsyncFd<OwnedFd>);

impl FileWatch {
    #[expect(
        deprecated,
        reason = "its successor is unsafe; what it asks for, an own descriptor that stays, holds here"
    )]
    fn of(file: &File) -> io::Result<Self> {
        let fd = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
        // The file itself, whatever lies under its name.
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        inotify::add_watch(&fd, path, inotify::WatchFlags::MODIFY)?;
        Ok(FileWatch(AsyncFd::new(fd)?))
    }

    /// Waits for the next. Cancel-safe.
    ///
    /// # Errors
    /// What the kernel says.
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
