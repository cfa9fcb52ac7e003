//! What a guest writes to its serial port: kept, the newest of it, in two files that outlive the agent, and given to who listens;
//! and what they type, given to the guest.

use super::folder::Files;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{broadcast, mpsc};

/// A file that has so much is put aside for the next, in bytes: so much at least is kept of what was written last, and both
/// together never have more than four times as much.
pub const HALF: u64 = 256 * 1024;
/// Most pieces that a slow listener may be behind before it loses some.
const BEHIND: usize = 256;
/// Most pieces of typing that wait for the guest.
const TYPED: usize = 64;

/// A console; clones are the same one.
#[derive(Clone, Debug)]
pub struct Console {
    log: Arc<Mutex<Log>>,
    typed: mpsc::Sender<Vec<u8>>,
}

/// A keyboard of a console.
#[derive(Clone, Debug)]
pub struct Typist(mpsc::Sender<Vec<u8>>);

impl Typist {
    /// As [`Console::write`].
    pub fn write(&self, bytes: Vec<u8>) -> bool {
        self.0.try_send(bytes).is_ok()
    }
}

/// What a listener gets: all that is kept, then everything new, with nothing lost or twice in between.
#[derive(Debug)]
pub struct Listening {
    /// What was kept.
    pub before: Vec<u8>,
    /// What comes. It lags for who is too slow.
    pub new: broadcast::Receiver<Vec<u8>>,
}

#[derive(Debug)]
struct Log {
    newer: PathBuf,
    older: PathBuf,
    file: Option<File>,
    length: u64,
    listeners: broadcast::Sender<Vec<u8>>,
}

impl Console {
    /// Of one machine, and the other end of what is typed.
    pub fn new(files: &Files) -> (Self, mpsc::Receiver<Vec<u8>>) {
        let (typed, typing) = mpsc::channel(TYPED);
        let log = Log {
            newer: files.console(),
            older: files.console_before(),
            file: None,
            length: 0,
            listeners: broadcast::Sender::new(BEHIND),
        };
        (Console { log: Arc::new(Mutex::new(log)), typed }, typing)
    }

    /// Keeps what the guest wrote, and tells it.
    pub fn wrote(&self, bytes: &[u8]) {
        let mut log = self.lock();
        if let Err(error) = log.keep(bytes) {
            tracing::warn!(file = %log.newer.display(), %error, "a console is not kept");
        }
        // Nobody may be listening.
        let _ = log.listeners.send(bytes.to_vec());
    }

    /// Begins to listen.
    pub fn listen(&self) -> Listening {
        let log = self.lock();
        let mut before = read(&log.older);
        before.extend(read(&log.newer));
        Listening { before, new: log.listeners.subscribe() }
    }

    /// Types to the guest; `false` where too much waits already, or nobody is there.
    pub fn write(&self, bytes: Vec<u8>) -> bool {
        self.typed.try_send(bytes).is_ok()
    }

    /// The keyboard alone: it does not keep the console from ending for those who listen.
    pub fn typist(&self) -> Typist {
        Typist(self.typed.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        // What is kept is whole after each step.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    fn keep(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.length >= HALF {
            self.file = None;
            fs::rename(&self.newer, &self.older)?;
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.newer)?;
                self.length = file.seek(SeekFrom::End(0))?;
                self.file.insert(file)
            }
        };
        // One piece alone may not burst it.
        let most = usize::try_from(HALF).unwrap_or(usize::MAX);
        let piece = &bytes[bytes.len().saturating_sub(most)..];
        file.write_all(piece)?;
        self.length += piece.len() as u64;
        Ok(())
    }
}

fn read(path: &PathBuf) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        // Half a file is better than none.
        let _ = file.take(2 * HALF).read_to_end(&mut bytes);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn console(dir: &std::path::Path) -> (Console, mpsc::Receiver<Vec<u8>>) {
        let files = Files::new(dir, "11223344-5566-7788-99aa-bbccddeeff00".parse().expect("a UUID"));
        files.make().expect("made");
        Console::new(&files)
    }

    #[test]
    fn a_listener_gets_what_was_and_what_comes_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let (one, mut typing) = console(dir.path());
        one.wrote(b"before ");
        let mut listening = one.listen();
        one.wrote(b"after");
        assert_eq!(listening.before, b"before ");
        assert_eq!(listening.new.try_recv(), Ok(b"after".to_vec()));
        assert!(listening.new.try_recv().is_err());
        assert!(one.write(b"ls\n".to_vec()));
        assert_eq!(typing.try_recv(), Ok(b"ls\n".to_vec()));
    }

    #[test]
    fn a_guest_that_talks_without_end_fills_nothing_and_its_last_words_are_kept() {
        let dir = tempfile::tempdir().expect("a folder");
        let (one, _typing) = console(dir.path());
        let piece = vec![b'x'; 60_000];
        for _ in 0..50 {
            one.wrote(&piece);
        }
        one.wrote(&vec![b'y'; 3 << 20]);
        one.wrote(b"the end");
        let before = one.listen().before;
        assert!(before.len() as u64 >= HALF && before.len() as u64 <= 3 * HALF, "{}", before.len());
        assert!(before.ends_with(b"the end"));
        assert!(dir.path().read_dir().expect("a folder").count() == 1);
    }

    #[test]
    fn a_later_agent_finds_what_an_earlier_one_kept() {
        let dir = tempfile::tempdir().expect("a folder");
        let (one, _typing) = console(dir.path());
        one.wrote(b"first ");
        drop(one);
        let (two, _typing) = console(dir.path());
        two.wrote(b"second");
        assert_eq!(two.listen().before, b"first second");
    }
}
