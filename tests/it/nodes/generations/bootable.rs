//! Orders and edits after which a node could not boot: refused, or named in the answer.

use super::{
    done, refused,
    reload::{edit, put, world},
};
use crate::world::{World, eventually, node::PxeNode, stderr};
use std::fs;

/// A world with an overlay `t` and a profile `t` that has it.
fn world_with(manifest: &str) -> World {
    let world = world();
    edit(
        &world,
        "[profiles.compute]",
        "[profiles.t]\nextends = \"discovery\"\noverlays = [\"t\"]\n[profiles.compute]",
    );
    fs::create_dir_all(world.path("overlays/t")).unwrap();
    put(&world, "overlays/t/overlay.toml", &format!("description = \"x\"\n{manifest}\n"));
    world
}

#[test]
fn profile_that_no_machine_can_boot_is_refused_by_check_reload_assign_and_script() {
    let mut world = world_with("remove = [\"/usr/bin/mesh-agent\"]");
    let told =
        ["overlays/t/overlay.toml:2", "profile t would not boot: no overlay brings the agent"];
    refused(&world, &["check"], &told);
    // The site was like this when meshd started.
    world.start();
    PxeNode::new(&world, 1).power_on().unwrap();
    let id = world.node()["id"].as_str().unwrap().to_owned();
    refused(&world, &["node", "assign-profile", &id, "t"], &told);
    refused(&world, &["node", "boot-once", &id, "--profile", "t"], &told);
    put(&world, "overlays/t/overlay.toml", "description = \"x\"\n");
    done(&world, &["reload"]);
    done(&world, &["node", "assign-profile", &id, "t"]);
    put(&world, "overlays/t/overlay.toml", "description = \"x\"\n[links]\n\"/bin\" = \"/x\"\n");
    refused(&world, &["reload"], &["profile t would not boot: /bin must be a folder"]);
    world.stop();
    world.start();
    let script = PxeNode::new(&world, 1).power_on().unwrap();
    assert!(script.0.contains("/bin must be a folder"), "{}", script.0);
    edit(&world, "[profiles.compute]", "[profiles.compute]\nkernel_args = [\"root=/dev/sda1\"]");
    refused(&world, &["check"], &["`root` keeps the machine from starting its overlay"]);
}

#[test]
fn node_variable_with_which_the_node_would_not_boot_is_refused() {
    let mut world = world_with(
        "[variables.n]\ntype = \"integer\"\ndefault = 1\n[variables.far]\ntype = \"bool\"\ndefault = false",
    );
    fs::create_dir_all(world.path("overlays/t/rootfs/etc")).unwrap();
    fs::write(world.path("overlays/t/rootfs/etc/x.j2"), "{{ 8 // vars.n }}\n").unwrap();
    world.start();
    PxeNode::new(&world, 1).power_on().unwrap();
    let id = world.node()["id"].as_str().unwrap().to_owned();
    refused(
        &world,
        &["node", "set", &id, "far=yes"],
        &["variable `far`", "is of type text, not bool"],
    );
    done(&world, &["node", "assign-profile", &id, "t"]);
    refused(
        &world,
        &["node", "set", &id, "n=0"],
        &["would not boot with these variables", "etc/x.j2"],
    );
    let text = stderr(&world.meshd(&["node", "set", &id, "n=0"]));
    assert_eq!(text.matches("etc/x.j2").count(), 1, "each fault once: {text}");
    refused(&world, &["node", "set", "-l", "name=none", "n=0"], &[]);
    done(&world, &["node", "set", &id, "n=2"]);
    done(&world, &["node", "unset", &id, "n"]);
}

#[test]
fn reload_that_drops_an_assigned_profile_names_its_nodes_and_doctor_counts_them() {
    let mut world = world_with("");
    world.start();
    PxeNode::new(&world, 1).power_on().unwrap();
    let id = world.node()["id"].as_str().unwrap().to_owned();
    done(&world, &["node", "assign-profile", &id, "t"]);
    let text = fs::read_to_string(world.path("site.toml")).unwrap();
    fs::write(
        world.path("site.toml"),
        text.replace("[profiles.t]\nextends = \"discovery\"\noverlays = [\"t\"]\n", ""),
    )
    .unwrap();
    // The file watcher may have been faster.
    let said = done(&world, &["reload"]);
    let warned = said.contains(&format!("({id}) would not boot: its profile `t` is gone"));
    assert!(warned || world.log_text().contains("its profile `t` is gone"), "{said}");
    eventually("doctor counts it", || {
        let output = world.meshd(&["doctor"]);
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
        if text.contains("1 node is refused at the next boot") && text.contains(&id) {
            Ok(())
        } else {
            Err(text)
        }
    });
}

#[test]
fn pipe_in_an_overlay_is_a_fault_and_hangs_neither_check_nor_reload_nor_stop() {
    let mut world = world_with("");
    world.start();
    let pipe = |path: &str| {
        fs::create_dir_all(world.path(path).parent().unwrap()).unwrap();
        assert!(
            std::process::Command::new("mkfifo").arg(world.path(path)).status().unwrap().success()
        );
    };
    pipe("overlays/t/rootfs/etc/pipe");
    refused(&world, &["overlay", "check"], &["etc/pipe: is neither a file, a folder nor a link"]);
    fs::remove_file(world.path("overlays/t/rootfs/etc/pipe")).unwrap();
    fs::remove_dir_all(world.path("overlays/t/rootfs")).unwrap();
    pipe("overlays/p/overlay.toml");
    refused(&world, &["check"], &["overlays/p/overlay.toml", "not a regular file"]);
    refused(&world, &["reload"], &["overlays/p/overlay.toml", "not a regular file"]);
    let chain = format!("{{{{ \"a\"{} }}}}", " ~ node.id".repeat(8000));
    fs::remove_dir_all(world.path("overlays/p")).unwrap();
    fs::create_dir_all(world.path("overlays/t/rootfs/etc")).unwrap();
    fs::write(world.path("overlays/t/rootfs/etc/x.j2"), chain).unwrap();
    refused(&world, &["reload"], &["more than 128 operators"]);
    assert!(world.stop().success());
}
