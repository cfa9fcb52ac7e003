//! The limit of open files: each connection is one, and Linux gives a program 1024 unless it asks.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What is wanted: all connections of the boot plane of several segments, every agent's link, every TFTP transfer.
const WANTED: u64 = 65_536;
/// With fewer, a rack that powers on at once may find no free one.
const NEEDED: u64 = 8192;

/// Raises the limit as far as it may be.
pub(super) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(WANTED, |most| most.min(WANTED));
    let have = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    if have(current) < wanted
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
    {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    let limit = have(getrlimit(Resource::Nofile).current);
    if limit < NEEDED {
        tracing::warn!(
            limit,
            needed = NEEDED,
            "few files may be open: raise LimitNOFILE, or machines are kept waiting"
        );
    }
}
