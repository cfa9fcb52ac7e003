//! Signals that end this program.

use std::fs;
use tokio::signal::unix::{SignalKind, signal};

/// Calls a function at the first Ctrl-C, SIGTERM or SIGHUP, which then do not end this program.
pub(in crate::cli) fn on_end_signal(act: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut int, mut term, mut hup) = {
        let _inside = runtime.enter();
        let hup = (!ignores_hangup()).then(|| signal(SignalKind::hangup())).transpose()?;
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, hup)
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            let hangup = async {
                match &mut hup {
                    Some(hup) => hup.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! { _ = int.recv() => {}, _ = term.recv() => {}, _ = hangup => {} }
        });
        act();
    });
    Ok(())
}

/// Returns whether this program was started to outlive its terminal, as `nohup` does.
fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // The lowest bit is signal 1, SIGHUP.
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 != 0)
}
