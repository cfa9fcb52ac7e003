//! The limit of open files, and the share of each API. Each connection is one file, and the default limit is 1024.

use crate::serve::{admin, agent, http};
use meshd_types::fail;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What is wanted: all connections of the boot plane of several segments, every agent's link, every TFTP transfer.
const WANTED: u64 = 65_536;
/// With fewer, a rack that powers on at once may find no free one.
const NEEDED: u64 = 8192;

/// What is kept for everything that is no connection of an API: the store, the sockets of DHCP and TFTP, images, consoles that
/// operators look at, and files that nodes fetch.
const RESERVED: u64 = 1024;

/// How many connections each API may have at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connections {
    /// Of the boot API of one segment.
    pub(super) http: usize,
    /// Of the agent API of one segment.
    pub(super) agent: usize,
    /// Of the admin socket, and as many by HTTPS.
    pub(super) admin: usize,
}

impl Connections {
    /// The parts of so many open files in a site with so many segments: together they are less than all.
    pub(super) fn of(files: u64, segments: usize) -> Self {
        let files = if fail::defends("descriptor-reserve") { files } else { u64::MAX >> 8 };
        let left = usize::try_from(files - RESERVED.min(files / 4)).unwrap_or(usize::MAX >> 8);
        let (of_segment, segments) = (left / 100, segments.max(1));
        Connections {
            http: (of_segment * 30 / segments).clamp(8, http::Limits::default().connections),
            agent: (of_segment * 60 / segments).clamp(16, agent::MAX_CONNECTIONS),
            admin: (of_segment * 4).clamp(8, admin::MAX_CONNECTIONS),
        }
    }

    /// The parts of what this process may open now.
    pub(super) fn now(segments: usize) -> Self {
        Connections::of(getrlimit(Resource::Nofile).current.unwrap_or(WANTED), segments)
    }
}

/// Raises the limit as far as it may be.
pub(super) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // A test has few of them.
    let most = fail::bound("OPEN_FILES", u64::MAX);
    let wanted = maximum.map_or(WANTED, |most| most.min(WANTED)).min(most);
    let have = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    if (have(current) < wanted || have(current) > most)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_apis_together_have_fewer_connections_than_there_are_files() {
        for files in [256, 1024, 4096, 65_536, 1 << 20] {
            for segments in [1, 2, 4, 16] {
                let Connections { http, agent, admin } = Connections::of(files, segments);
                let all = (http + agent) * segments + 2 * admin;
                // Beyond so few files for so many segments nothing can be promised.
                assert!(all < files as usize || files < 1024 && segments > 4, "{files} {segments}: {all}");
            }
        }
        let usual = Connections::of(WANTED, 1);
        assert_eq!(usual, Connections { http: 4096, agent: 32_768, admin: 128 });
    }
}
