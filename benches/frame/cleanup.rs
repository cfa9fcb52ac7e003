//! Nothing stays behind: not after a panic (values are dropped), not after Ctrl-C (what was made is
//! written down here and swept), not after `kill -9` (the next bench finds namespaces whose maker
//! is gone).

use anyhow::Context as _;
use meshd_lab::{Namespace, ProcessId};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};
use tokio::signal::unix::{SignalKind, signal};

/// Every namespace of a bench begins so; then comes the process ID of its maker.
const PREFIX: &str = "meshbench-";

/// What exists at this moment.
#[derive(Default)]
pub struct Made {
    pub processes: Vec<ProcessId>,
    pub namespaces: Vec<Namespace>,
    pub folders: Vec<PathBuf>,
}

static MADE: Mutex<Made> =
    Mutex::new(Made { processes: Vec::new(), namespaces: Vec::new(), folders: Vec::new() });

/// Locks the list. Make things while you hold it, and write them down before you let go.
pub fn made() -> MutexGuard<'static, Made> {
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A name for a namespace that says who made it.
pub fn namespace(suffix: &str) -> Namespace {
    Namespace::with_name(Path::new("ip"), format!("{PREFIX}{}-{suffix}", std::process::id()))
}

/// Call it first: checks for root, removes what a killed bench left, and sees to signals from now
/// on.
pub fn begin() -> anyhow::Result<()> {
    anyhow::ensure!(
        rustix::process::geteuid().is_root(),
        "benchmarks against peers make network namespaces: run them as root (`make bench` uses sudo)"
    );
    sweep_strangers();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("a runtime for signals")?;
    let (mut interrupt, mut terminate) = runtime
        .block_on(async {
            Ok::<_, std::io::Error>((
                signal(SignalKind::interrupt())?,
                signal(SignalKind::terminate())?,
            ))
        })
        .context("watch for signals")?;
    thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        // The lock is kept to the end, so that nothing new is made meanwhile.
        let mut made = made();
        made.sweep();
        eprintln!("bench: interrupted; everything it started is stopped and removed");
        std::process::exit(130);
    });
    Ok(())
}

impl Made {
    fn sweep(&mut self) {
        for process in self.processes.drain(..) {
            // What is left in a namespace is killed below.
            let _ = process.kill("a process of the bench");
        }
        self.namespaces.drain(..).for_each(|namespace| remove(&namespace));
        for folder in self.folders.drain(..) {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Kills everything inside, then removes the name.
pub fn remove(namespace: &Namespace) {
    kill_inside(namespace);
    if let Err(error) = namespace.delete() {
        eprintln!("bench: {} is not removed: {error}", namespace.name());
    }
}

/// Ends every process in a namespace; it is ours alone.
pub fn kill_inside(namespace: &Namespace) {
    for process in namespace.processes().into_iter().filter_map(ProcessId::of) {
        if let Err(error) = process.kill("a process of the bench") {
            eprintln!("bench: {error}");
        }
    }
}

/// Namespaces of benches that no longer run.
fn sweep_strangers() {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
        let maker =
            name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if maker.is_some_and(|pid| ProcessId::of(pid).is_none()) {
            remove(&Namespace::with_name(Path::new("ip"), name));
        }
    }
}
