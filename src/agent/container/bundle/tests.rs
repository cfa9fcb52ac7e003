//! Tests of bundles: the complete configuration, and what follows from the user.

use super::*;
use crate::container::{fixtures::spec, replica_paths::ReplicaPaths};
use meshd_types::Architecture;
use serde_json::{Value, json};
use std::path::Path;

const FOLDER: &str = "/run/meshd-containers/web.0";

fn config_of(change: impl FnOnce(&mut meshd_proto::container::ReplicaSpec)) -> Value {
    let mut spec = spec(1);
    change(&mut spec);
    let replica = "web.0".parse().expect("a replica");
    let paths = ReplicaPaths::of_folder(Path::new(FOLDER));
    config(&replica, &spec, &paths, Architecture::X86_64)
}

#[test]
fn configuration_of_a_replica_is_complete() {
    let golden: Value = serde_json::from_str(include_str!("golden.json")).expect("JSON");
    let config = config_of(|_| {});
    let text = serde_json::to_string_pretty(&config).expect("plain");
    assert!(config == golden, "golden.json differs from:\n{text}");
}

#[test]
fn user_of_the_image_has_no_capability_and_root_has_few() {
    let capabilities = |uid| config_of(|spec| spec.uid = uid)["process"]["capabilities"].clone();
    assert_eq!(capabilities(1000)["bounding"], json!([]));
    let root = capabilities(0);
    assert_eq!(root["effective"], root["bounding"]);
    let names = root["bounding"].as_array().expect("a list").clone();
    assert_eq!(names.len(), 7);
    for denied in ["CAP_SYS_ADMIN", "CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_MKNOD", "CAP_SYS_PTRACE"] {
        assert!(!names.contains(&json!(denied)), "{denied}");
    }
}

#[test]
fn program_of_a_user_has_the_rights_of_the_replica_and_a_terminal() {
    let argv = vec!["/bin/sh".to_owned()];
    let process = process(&spec(1), &argv, Some("xterm"));
    let replica = config_of(|_| {})["process"].clone();
    for key in ["user", "capabilities", "noNewPrivileges", "cwd", "oomScoreAdj"] {
        assert_eq!(process[key], replica[key], "{key}");
    }
    assert_eq!(process["env"], json!(["PATH=/bin", "TERM=xterm"]));
    assert_eq!((&process["terminal"], &process["args"]), (&json!(true), &json!(["/bin/sh"])));
}
