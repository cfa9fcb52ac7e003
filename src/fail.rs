//! Places where a test may end this program dead, as `kill -9` would at that very instant. In a release build they are nothing.
//!
//! `MESHD_FAIL=<place>` ends a debug build by SIGKILL when it comes by a place, `MESHD_FAIL=<place>:<n>` when it does for the n-th time.

/// Ends the program here, if a test wants it.
#[inline]
pub fn point(place: &str) {
    if here(place) {
        die();
    }
}

/// True if the program shall end at this place, once it has done what it does halfway.
#[cfg(debug_assertions)]
pub fn here(place: &str) -> bool {
    debug::comes_by(place)
}

/// True if the program shall end at this place: never.
#[cfg(not(debug_assertions))]
#[inline]
pub fn here(_place: &str) -> bool {
    false
}

/// A bound of this program, or the smaller one that a test sets by `MESHD_<NAME>` in a debug build.
pub fn bound(name: &str, bound: u64) -> u64 {
    #[cfg(debug_assertions)]
    if let Some(smaller) = std::env::var(format!("MESHD_{name}")).ok().and_then(|text| text.parse().ok()) {
        return bound.min(smaller);
    }
    let _ = name;
    bound
}

/// SIGKILL to this program: nothing of it runs any more, no destructor and no flush.
pub fn die() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}

#[cfg(debug_assertions)]
mod debug {
    use std::sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    };

    struct Armed {
        place: String,
        after: AtomicU64,
    }

    static ARMED: LazyLock<Option<Armed>> = LazyLock::new(|| {
        let text = std::env::var("MESHD_FAIL").ok()?;
        let (place, times) = text.split_once(':').unwrap_or((&text, "1"));
        let times = times.parse().expect("MESHD_FAIL is <place> or <place>:<number>");
        Some(Armed { place: place.to_owned(), after: AtomicU64::new(times) })
    });

    pub(super) fn comes_by(place: &str) -> bool {
        ARMED.as_ref().is_some_and(|armed| armed.place == place && armed.after.fetch_sub(1, Ordering::SeqCst) == 1)
    }
}
