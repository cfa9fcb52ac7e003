//! Signals that end this program.

use std::{fs, process};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Exit code of a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// Calls a function at the first Ctrl-C, SIGTERM or SIGHUP, which then do not end this program.
pub(in crate::cli) fn on_end_signal(act: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    listen(act, false)
}

/// The same, and the second signal ends this program.
pub(in crate::cli) fn on_first_end_signal(
    act: impl FnOnce() + Send + 'static,
) -> anyhow::Result<()> {
    listen(act, true)
}

fn listen(act: impl FnOnce() + Send + 'static, second_ends: bool) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = {
        let _inside = runtime.enter();
        EndSignals::new()?
    };
    std::thread::spawn(move || {
        runtime.block_on(signals.next());
        act();
        if second_ends {
            runtime.block_on(signals.next());
            process::exit(INTERRUPTED);
        }
    });
    Ok(())
}

struct EndSignals {
    int: Signal,
    term: Signal,
    /// `None` if this program outlives its terminal.
    hup: Option<Signal>,
}

impl EndSignals {
    fn new() -> anyhow::Result<Self> {
        let hup = (!ignores_hangup()).then(|| signal(SignalKind::hangup())).transpose()?;
        let int = signal(SignalKind::interrupt())?;
        let term = signal(SignalKind::terminate())?;
        Ok(EndSignals { int, term, hup })
    }

    async fn next(&mut self) {
        let hangup = async {
            match &mut self.hup {
                Some(hup) => hup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! { _ = self.int.recv() => {}, _ = self.term.recv() => {}, _ = hangup => {} }
    }
}

/// Returns whether this program was started to outlive its terminal, as `nohup` does.
fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // The lowest bit is signal 1, SIGHUP.
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 != 0)
}
