//! The process that serves the root as long as the node runs. Stage 1 starts it before anything of
//! the root runs, and it uses nothing of the root: program, memory and messages are its own.
//!
//! | what | why |
//! | --- | --- |
//! | its name begins with `@` | systemd ends no such process at shutdown ("Root Storage Daemons") |
//! | memory locked, OOM score -1000 | it must answer when the node has no memory left |
//! | another session | no signal of a terminal reaches it |
//!
//! The root is read-only: the kernel writes nothing to it when it needs memory, so the process may
//! wait for memory itself.

use super::{
    super::ioctl::lock_memory,
    failover::{BOOT_PATIENCE, PATIENCE},
    nbd_device, nbd_server,
    root_reader::{RootReader, Servers},
};
use crate::{
    clock,
    config::{BLOCK, RootImage},
    fetch::{RangeClient, RangeError},
};
use meshd_proto::stage1::TETHER_PROCESS;
use std::{
    fmt::Display,
    fs::{self, File, OpenOptions},
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    process::{Command, Stdio},
    time::{Duration, Instant},
};

const READY: &str = "ready";
/// Maximum length of the line that says why it does not start, in bytes.
const MAX_LINE: u64 = 1024;

/// The root cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum TetherError {
    #[error("start the process that serves the root: {0}")]
    Start(io::Error),
    #[error("read the hash tree of the root: {0}")]
    Tree(String),
    #[error("make {device}: {0}", device = nbd_device::DEVICE)]
    Device(io::Error),
}

/// A root that is served.
pub struct Tether {
    /// Path of the block device.
    pub device: &'static str,
    /// Process that serves it.
    pub process: u32,
    /// The process reads its end when the first program of the OS replaces stage 1.
    status: UnixStream,
}

impl Tether {
    /// Returns why a read failed, if one did.
    pub fn failure(&self) -> Option<String> {
        let mut bytes = Vec::new();
        self.status.set_nonblocking(true).ok()?;
        // It ends with `WouldBlock`, after all that was written.
        let _ = (&self.status).take(MAX_LINE).read_to_end(&mut bytes);
        Some(String::from_utf8_lossy(&bytes).lines().next()?.to_owned())
    }
}

/// Starts the process, and makes the block device of the root.
pub fn start(image: &RootImage) -> Result<Tether, TetherError> {
    let (kernel, server) = UnixStream::pair().map_err(TetherError::Start)?;
    let (status, of_process) = UnixStream::pair().map_err(TetherError::Start)?;
    let child = Command::new("/proc/self/exe")
        .arg0(TETHER_PROCESS)
        .stdin(OwnedFd::from(server))
        .stdout(OwnedFd::from(of_process))
        .stderr(Stdio::null())
        .spawn()
        .map_err(TetherError::Start)?;
    let mut line = String::new();
    let mut reader = BufReader::new((&status).take(MAX_LINE));
    reader.read_line(&mut line).map_err(TetherError::Start)?;
    match line.trim_end() {
        READY => {}
        "" => return Err(TetherError::Tree("the process ended".to_owned())),
        cause => return Err(TetherError::Tree(cause.to_owned())),
    }
    nbd_device::connect(kernel.as_fd(), image.size, BLOCK).map_err(TetherError::Device)?;
    Ok(Tether { device: nbd_device::DEVICE, process: child.id(), status })
}

/// Makes this process outlive signals of terminals and a lack of memory.
fn protect() -> io::Result<()> {
    rustix::process::setsid()?;
    fs::write("/proc/self/oom_score_adj", "-1000")?;
    lock_memory()
}

/// Serves the root to the socket that is the standard input, until the kernel ends it.
pub fn serve(image: &RootImage) -> io::Result<()> {
    let log = KernelLog::open();
    let mut stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let status = UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?);
    status.set_nonblocking(true)?;
    if let Err(error) = protect() {
        writeln!(&status, "protect the process: {error}")?;
        return Err(error);
    }
    let servers = HttpServers {
        client: RangeClient::new(image.urls.clone(), image.size),
        begin: Instant::now(),
        log: &log,
        status: &status,
    };
    let mut root = match RootReader::open(image, servers) {
        Ok(root) => root,
        Err(error) => {
            writeln!(&status, "{error}")?;
            return Ok(());
        }
    };
    writeln!(&status, "{READY}")?;
    let outcome = nbd_server::answer(&mut stream, &mut root, &mut |cause| {
        log.write(cause);
        // Stage 1 reads it; after the boot, the stream is closed.
        let _ = writeln!(&status, "{cause}");
    });
    if let Err(error) = &outcome {
        log.write(error);
    }
    outcome
}

/// The kernel's log, from where the journal of the OS reads it. It is opened before `/dev` moves
/// into the root.
struct KernelLog(Option<File>);

impl KernelLog {
    fn open() -> Self {
        KernelLog(OpenOptions::new().write(true).open("/dev/kmsg").ok())
    }

    /// A log that cannot be written is no reason to stop.
    fn write(&self, text: impl Display) {
        if let Some(mut file) = self.0.as_ref() {
            let _ = file.write_all(format!("<4>meshd-root: {text}\n").as_bytes());
        }
    }
}

struct HttpServers<'a> {
    client: RangeClient,
    begin: Instant,
    log: &'a KernelLog,
    status: &'a UnixStream,
}

impl Servers for HttpServers<'_> {
    type Error = RangeError;

    fn fetch(&mut self, server: usize, from: u64, length: u64) -> Result<Vec<u8>, RangeError> {
        self.client.fetch(server, from, length)
    }

    fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    fn pause(&mut self, delay: Duration) {
        clock::pause(delay);
    }

    /// Stage 1 closes the stream when it ends.
    fn patience(&self) -> Duration {
        let mut status = self.status;
        if matches!(status.read(&mut [0]), Ok(0)) { PATIENCE } else { BOOT_PATIENCE }
    }

    fn failed(&mut self, server: usize, cause: &str, delay: Duration) {
        let url = self.client.url(server);
        let next = if delay.is_zero() { String::new() } else { format!("; next in {delay:?}") };
        self.log.write(format_args!("fetch {url}: {cause}{next}"));
    }

    fn recovered(&mut self, server: usize) {
        self.log.write(format_args!("{} answers", self.client.url(server)));
    }
}
