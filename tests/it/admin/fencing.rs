//! To fence a node is to say that its machine is off: a slip of the hand must not do it.

use crate::world::{World, node::PxeNode, stderr};

#[test]
fn fence_requires_the_node_name_as_confirmation() {
    let world = World::new("approve");
    PxeNode::new(&world, 1).power_on().unwrap();
    let node = world.node();
    let id = node["id"].as_str().unwrap();
    let name = node["name"].as_str().unwrap();
    let stderr_of = |args: &[&str]| {
        let output = world.meshd(&[&["node", "fence", id], args].concat());
        assert!(!output.status.success());
        stderr(&output)
    };
    assert!(stderr_of(&[]).contains("use --confirm NAME"), "there is no terminal here");
    let wrong = stderr_of(&["--confirm", "another"]);
    assert!(wrong.contains("`confirm` is not its name"), "{wrong}");
    // Meshd has just started, so nobody has been silent for long enough.
    let message = stderr_of(&["--confirm", name]);
    assert!(message.contains("its last message was"), "{message}");
}
