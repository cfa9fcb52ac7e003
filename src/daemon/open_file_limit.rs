//! The limit of open files, and the share of each API. Each connection is one file, and the default
//! limit is 1024.

use meshd_serve::{admin, agent, http};
use meshd_types::failpoint;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Desired limit: all connections of the boot API of several segments, all agent links, and all
/// TFTP transfers.
const WANTED: u64 = 65_536;
/// Minimum without a warning. With fewer files, some machines may get no connection when a rack
/// powers on at once.
const NEEDED: u64 = 8192;

/// Files reserved for other purposes than API connections: the store, the sockets of DHCP and TFTP,
/// images, open consoles, and volumes that nodes download.
const RESERVED: u64 = 1024;

/// Maximum number of connections of each API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connections {
    /// Maximum for the boot API of one segment.
    pub(super) http: usize,
    /// Maximum for the agent API of one segment.
    pub(super) agent: usize,
    /// Maximum for the admin socket, and for HTTPS as well.
    pub(super) admin: usize,
}

impl Connections {
    /// Divides a number of open files among the APIs of a site. The sum is less than `files`.
    pub(super) fn of(files: u64, segments: usize) -> Self {
        let files = if failpoint::defends("descriptor-reserve") { files } else { u64::MAX >> 8 };
        let left = usize::try_from(files - RESERVED.min(files / 4)).unwrap_or(usize::MAX >> 8);
        let of_segment = left / 100;
        let segments = segments.max(1);
        Connections {
            http: (of_segment * 30 / segments).clamp(8, http::Limits::default().connections),
            agent: (of_segment * 60 / segments).clamp(16, agent::MAX_CONNECTIONS),
            admin: (of_segment * 4).clamp(8, admin::MAX_CONNECTIONS),
        }
    }

    /// Divides the current limit of this process.
    pub(super) fn now(segments: usize) -> Self {
        Connections::of(getrlimit(Resource::Nofile).current.unwrap_or(WANTED), segments)
    }
}

/// Raises the soft limit up to [`WANTED`], within the hard limit.
pub(super) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Tests lower the limit.
    let most = failpoint::bound("OPEN_FILES", u64::MAX);
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
            "the limit of open files is low: raise LimitNOFILE, or machines wait"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_limits_stay_below_file_limit() {
        for files in [256, 1024, 4096, 65_536, 1 << 20] {
            for segments in [1, 2, 4, 16] {
                let Connections { http, agent, admin } = Connections::of(files, segments);
                let all = (http + agent) * segments + 2 * admin;
                // With so few files for so many segments, the minimums of the APIs may exceed the
                // limit.
                assert!(
                    all < files as usize || files < 1024 && segments > 4,
                    "{files} {segments}: {all}"
                );
            }
        }
        let usual = Connections::of(WANTED, 1);
        assert_eq!(usual, Connections { http: 4096, agent: 32_768, admin: 128 });
    }
}
