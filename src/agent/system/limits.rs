//! Resource limits of programs of tasks and containers (setrlimit(2)).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Limit of open files; MPI opens one for each connected rank.
pub const OPEN_FILES: u64 = 65_536;

/// Sets limits of this process.
pub fn set(limits: &[(Resource, Option<u64>)]) -> Result<(), String> {
    limits.iter().try_for_each(|(resource, limit)| {
        set_one(*resource, *limit)
            .map_err(|error| format!("cannot set the limit {resource:?}: {error}"))
    })
}

/// Sets a limit. In a container that may not raise limits, sets the highest permitted value.
fn set_one(resource: Resource, limit: Option<u64>) -> rustix::io::Result<()> {
    let set = |limit| setrlimit(resource, Rlimit { current: limit, maximum: limit });
    match set(limit) {
        Err(rustix::io::Errno::PERM) => set(getrlimit(resource).maximum),
        done => done,
    }
}
