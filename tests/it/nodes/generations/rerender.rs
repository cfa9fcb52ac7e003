//! What an edit renders anew: the nodes that have what was edited, and nobody else.

use super::reload::{edit, put, world};
use crate::boot::sessions::rig::{ENDPOINT, Machine, Rig, ordered};
use meshd_model::fleet::{Stage, Verb};
use meshd_types::{Basis, NodeId};

/// Renderings so far: for scripts, and to know what nodes would boot.
async fn counted(rig: &Rig, nodes: &[NodeId]) -> [u64; 2] {
    rig.central.generations.scan_stale().await;
    for id in nodes {
        rig.central.generations.render(&rig.node(*id), ENDPOINT).await.unwrap();
    }
    [rig.central.generations.render_count(), rig.central.generations.drift_render_count()]
}

#[tokio::test]
async fn overlay_edit_rerenders_only_nodes_that_use_the_overlay() {
    let world = world();
    let rig = Rig::new(&world);
    let mut plain = Machine::new(&rig, 1);
    let mut grouped = Machine::new(&rig, 2);
    let nodes = [plain.uuid, grouped.uuid].map(|uuid| Basis::Uuid(uuid).node_id());
    let group = format!(
        "[groups.pair]\nnodes = [\"{}\"]\noverlays = [\"motd\"]\n[profiles.compute]",
        nodes[1]
    );
    edit(&world, "[profiles.compute]", &group);
    assert!(rig.central.generations.reload(&ordered(Verb::Reload)).await.changed);
    plain.boot(Stage::Overlay).await;
    grouped.boot(Stage::Overlay).await;
    assert_eq!([plain.id(), grouped.id()], nodes);
    rig.central.generations.run_background_work().await;
    // The first reload finds out what each of them would boot.
    put(&world, "overlays/kvm-host/rootfs/etc/unrelated", "w");
    assert!(rig.central.generations.reload(&ordered(Verb::Reload)).await.changed);
    let mut before = counted(&rig, &nodes).await;
    for (path, text, anew) in [
        ("overlays/kvm-host/rootfs/etc/unrelated", "x", 0),
        ("overlays/motd/rootfs/etc/motd.j2", "hello {{ node.id }}\n", 1),
        ("overlays/base/rootfs/etc/related", "x", 2),
        ("overlays/base/rootfs/etc/related", "y", 2),
    ] {
        put(&world, path, text);
        let reload = rig.central.generations.reload(&ordered(Verb::Reload)).await;
        assert!(reload.changed && reload.faults.is_empty(), "{path}: {reload:?}");
        let now = counted(&rig, &nodes).await;
        assert_eq!(
            now,
            before.map(|count| count + anew),
            "{path}: renderings for boots, and to know"
        );
        before = now;
    }
    let own = world.path("overlays/nodes").join(nodes[0].to_string());
    std::fs::create_dir_all(own.join("rootfs/etc")).unwrap();
    std::fs::write(own.join("rootfs/etc/own"), "x").unwrap();
    std::fs::write(own.join("overlay.toml"), "description = \"x\"\n").unwrap();
    assert!(rig.central.generations.reload(&ordered(Verb::Reload)).await.changed);
    assert_eq!(
        counted(&rig, &nodes).await,
        before.map(|count| count + 1),
        "an overlay of one node"
    );
    // And what was known before is not rendered again.
    std::fs::remove_dir_all(own).unwrap();
    assert!(rig.central.generations.reload(&ordered(Verb::Reload)).await.changed);
    assert_eq!(counted(&rig, &nodes).await, before.map(|count| count + 1));
}
