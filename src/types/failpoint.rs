//! Failpoints: debug builds let tests stop the program at a failpoint, disable a defence, or record
//! messages.
//!
//! - `MESHD_FAIL=<failpoint>` ends a debug build by SIGKILL at a failpoint,
//!   `MESHD_FAIL=<failpoint>:<n>` when it reaches it for the n-th time.
//! - `MESHD_DISABLED_DEFENCES=<name>,<name>` disables defences in a debug build. `make test-attack`
//!   uses it to prove that an attack test fails without its defence.
//! - `MESHD_RECORD=<file>` appends each message between agent and central node to a file.
//!   `make record-compat` uses it.

use std::time::Duration;

/// Ends the program if `MESHD_FAIL` names this failpoint.
#[inline]
pub fn point(name: &str) {
    if is_reached(name) {
        die();
    }
}

/// Returns true if `MESHD_FAIL` names this failpoint. The caller then leaves an operation
/// incomplete and calls [`die`].
#[cfg(debug_assertions)]
pub fn is_reached(name: &str) -> bool {
    debug::is_reached(name)
}

/// Returns false, because release builds have no failpoints.
#[cfg(not(debug_assertions))]
#[inline]
pub fn is_reached(_name: &str) -> bool {
    false
}

/// Returns `bound`. In a debug build, a test can set a smaller bound by `MESHD_<NAME>`.
pub fn bound(name: &str, bound: u64) -> u64 {
    #[cfg(debug_assertions)]
    if let Some(smaller) =
        std::env::var(format!("MESHD_{name}")).ok().and_then(|text| text.parse().ok())
    {
        return bound.min(smaller);
    }
    let _ = name;
    bound
}

/// Returns `time`. In a debug build, a test can set another time by `MESHD_<NAME>`, in seconds: a
/// test whose attack ends with this time needs no clock to see that meshd did not wait for it.
pub fn time(name: &str, time: Duration) -> Duration {
    #[cfg(debug_assertions)]
    if let Some(seconds) =
        std::env::var(format!("MESHD_{name}")).ok().and_then(|text| text.parse().ok())
    {
        return Duration::from_secs(seconds);
    }
    let _ = name;
    time
}

/// Returns true if the named defence is enabled; always true in a release build.
/// `tests/attack/defences` lists all names with their tests.
#[inline]
pub fn defends(name: &str) -> bool {
    #[cfg(debug_assertions)]
    return debug::defends(name);
    #[cfg(not(debug_assertions))]
    {
        let _ = name;
        true
    }
}

/// Appends a message to the file that `MESHD_RECORD` names. Release builds record nothing, because
/// messages contain secrets.
pub fn record(sender: &str, message: &[u8]) {
    #[cfg(debug_assertions)]
    debug::record(sender, message);
    #[cfg(not(debug_assertions))]
    let _ = (sender, message);
}

/// Kills this process by SIGKILL, without destructors and without flushing files.
pub fn die() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}

#[cfg(debug_assertions)]
mod debug {
    use std::{
        io::Write as _,
        sync::{
            LazyLock,
            atomic::{AtomicU64, Ordering},
        },
    };

    struct Armed {
        name: String,
        after: AtomicU64,
    }

    static ARMED: LazyLock<Option<Armed>> = LazyLock::new(|| {
        let text = std::env::var("MESHD_FAIL").ok()?;
        let (name, times) = text.split_once(':').unwrap_or((&text, "1"));
        let times = times.parse().expect("MESHD_FAIL is <failpoint> or <failpoint>:<number>");
        Some(Armed { name: name.to_owned(), after: AtomicU64::new(times) })
    });

    static DISABLED: LazyLock<Vec<String>> = LazyLock::new(|| {
        let text = std::env::var("MESHD_DISABLED_DEFENCES").unwrap_or_default();
        text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
    });

    pub(super) fn defends(name: &str) -> bool {
        DISABLED.is_empty() || !DISABLED.iter().any(|disabled| disabled == name)
    }

    pub(super) fn record(sender: &str, message: &[u8]) {
        let Some(path) = std::env::var_os("MESHD_RECORD") else { return };
        let line = [sender.as_bytes(), b" ", message, b"\n"].concat();
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| file.write_all(&line))
            .expect("MESHD_RECORD names a file that can be written");
    }

    pub(super) fn is_reached(name: &str) -> bool {
        ARMED.as_ref().is_some_and(|armed| {
            armed.name == name && armed.after.fetch_sub(1, Ordering::SeqCst) == 1
        })
    }
}
