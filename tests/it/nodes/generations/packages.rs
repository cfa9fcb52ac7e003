//! IM-4: a package that a profile needs and its image does not have is refused at reload, assign
//! and promote, not at boot.

use super::{
    done, refused,
    reload::{edit, world},
    retention::image_without,
};
use crate::world::node::PxeNode;

#[test]
fn im4_profile_with_a_package_that_its_image_lacks_is_not_reloaded() {
    let mut world = world();
    world.start();
    edit(&world, "[profiles.compute]", "[profiles.compute]\npackages = [\"k3s\"]");
    let told = ["profile compute", "image small", "package k3s"];
    refused(&world, &["reload"], &told);
    edit(&world, "\"k3s\"", "\"kmod\"");
    done(&world, &["reload"]);
    // The site file was wrong when meshd started: nothing was compared with it then.
    world.stop();
    edit(&world, "\"kmod\"", "\"k3s\"");
    world.start();
    PxeNode::new(&world, 1).power_on().unwrap();
    let id = world.node()["id"].as_str().unwrap().to_owned();
    refused(&world, &["node", "assign-profile", &id, "compute"], &told);
    refused(&world, &["node", "boot-once", &id, "--profile", "compute"], &told);
    assert_eq!(world.node()["profile"], "discovery", "no changes");
}

#[test]
fn im4_image_version_that_lacks_a_package_is_not_promoted() {
    let world = world();
    let whole = image_without(&world, 1, "");
    let lacking = image_without(&world, 2, "alpine-base");
    let told = ["image small", "profile discovery", "package alpine-base"];
    // The second one is current: a build gave it to nodes.
    done(&world, &["image", "rollback", "small"]);
    refused(&world, &["image", "promote", "small", &lacking.version().to_string()], &told);
    refused(&world, &["image", "rollback", "small"], &told);
    let images = world.json(&["image", "list", "-o", "json"]);
    assert!(images.to_string().contains(&whole.version().to_string()), "{images}");
    done(&world, &["image", "promote", "small", &whole.version().to_string()]);
}
