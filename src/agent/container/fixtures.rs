//! Specifications for unit tests.

use meshd_proto::container::{ContainerRestart, PublishedPort, ReplicaMount, ReplicaSpec};
use meshd_types::Digest;
use std::collections::BTreeMap;

/// Returns a web server, as its start `run`.
pub fn spec(run: u32) -> ReplicaSpec {
    ReplicaSpec {
        run,
        image: Digest([7; 32]),
        image_size: 4096,
        argv: vec!["/bin/server".to_owned(), "--quiet".to_owned()],
        env: BTreeMap::from([("PATH".to_owned(), "/bin".to_owned())]),
        working_dir: "/srv".to_owned(),
        uid: 1000,
        gid: 1001,
        cpu_millis: 500,
        memory_mib: 64,
        scratch_mib: 16,
        ports: vec![PublishedPort { node: 8080, container: 80 }],
        mounts: vec![ReplicaMount {
            volume: Digest([8; 32]),
            size: 8192,
            path: "/srv/data".to_owned(),
        }],
        restart: ContainerRestart::Always,
        health: None,
        stop_seconds: 10,
    }
}
