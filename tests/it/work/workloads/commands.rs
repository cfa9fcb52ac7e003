//! The command line, and the real daemon.

use crate::world::{World, stderr};
use std::fs;

#[test]
fn vm_file_faults_are_all_reported_and_refused_vm_is_not_recorded() {
    let mut world = World::prepared("auto");
    let file = world.path("vm.toml");
    let faulty =
        "name = \"train 7\"\nvcpus = 0\nmemory = \"64GB\"\nsecure_boot = 1\nunits = \"some\"\n";
    fs::write(&file, faulty).unwrap();
    let create = |world: &World, more: &[&str]| {
        let file = file.display().to_string();
        world.meshd(&[&["vm", "create", "-f", &file], more].concat())
    };
    let refused = create(&world, &[]);
    let message = stderr(&refused);
    assert_eq!(refused.status.code(), Some(1), "{message}");
    for (line, key) in [(1, "name"), (2, "vcpus"), (3, "memory"), (4, "secure_boot"), (5, "units")]
    {
        assert!(
            message.contains(&format!("vm.toml:{line}")) && message.contains(key),
            "{key}: {message}"
        );
    }
    world.start();
    fs::write(&file, "name = \"train-7\"\nvcpus = 2\nmemory = \"1G\"\n").unwrap();
    let refused = create(&world, &["--start"]);
    let message = stderr(&refused);
    assert_eq!(
        (refused.status.code(), message.contains("no node is known")),
        (Some(1), true),
        "{message}"
    );
    assert_eq!(world.json(&["vm", "list", "-o", "json"]), serde_json::json!([]));
    assert_eq!(world.json(&["slot", "list", "-o", "json"]), serde_json::json!([]));
    for verb in ["start", "stop", "restart", "show"] {
        let none = world.meshd(&["vm", verb, "train-7"]);
        assert!(String::from_utf8_lossy(&none.stderr).contains("no VM"), "{verb}");
    }
    assert!(!world.meshd(&["vm", "delete", "train-7"]).status.success(), "it asks");
    world.kill();
    world.start();
    assert_eq!(world.json(&["vm", "list", "-o", "json"]), serde_json::json!([]));
}
