//! How many nodes a render looks at.

use super::*;
use crate::{Central, Shared, SystemClock, SystemEntropy};
use meshd_image::catalog::{
    Catalog, Image,
    image::{AlpineParts, Blob, Contents, FORMAT, ImageKind, ImageManifest},
    read_overlays,
};
use meshd_model::fleet::{Fingerprint, Phase};
use meshd_store::{NODE_READS, Store, StoreError};
use meshd_trust::CertificateAuthority;
use meshd_types::{Architecture, Basis, MacAddr, Timestamp};
use std::{collections::BTreeMap, path::Path};

/// Nodes of the rack; none but the members of one group may be looked at.
const NODES: u16 = 2000;
const MEMBERS: u16 = 5;

fn machine(number: u16) -> Node {
    let [high, low] = number.to_be_bytes();
    let mac = MacAddr([2, 0, 0, 0, high, low]);
    let node = Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, Timestamp::EPOCH);
    Node { phase: Phase::Approved, central_address: Some([10, 77, 0, 1].into()), ..node }
}

fn image() -> Image {
    let blob = Blob { digest: Digest::of(b""), size: 0 };
    let manifest = ImageManifest {
        format: FORMAT,
        name: "alpine-lab".parse().expect("a name"),
        arch: Architecture::X86_64,
        recipe: Digest::of(b"recipe"),
        kernel_release: "6.1".into(),
        kernel_package: "linux=6.1".into(),
        os_release: "3.23.0".into(),
        parts: ImageKind::Alpine(AlpineParts {
            kernel: blob,
            initramfs: blob,
            modloop: blob,
            packages: blob,
        }),
        packages: BTreeMap::new(),
        contents: Contents::default(),
        built_at: Timestamp::EPOCH,
    };
    Image::from_parts(manifest, BTreeMap::from([(blob.digest, bytes::Bytes::new())]))
}

async fn rack(folder: &Path) -> Shared {
    let ids: Vec<String> =
        (0..MEMBERS).map(|number| format!("{:?}", machine(number).id.to_string())).collect();
    let text = include_str!("../../../site.toml");
    let text = format!("{text}\n[groups.pair]\nnodes = [{}]\n", ids.join(", "));
    let site = meshd_config::parse(&text, Path::new("site.toml"))
        .unwrap_or_else(|faults| panic!("{faults}"));
    let shipped = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../overlays"));
    let overlays = read_overlays(shipped).unwrap_or_else(|faults| panic!("{faults}"));
    let authority =
        CertificateAuthority::load_or_create(&folder.join("ca"), "rack-a", Timestamp::EPOCH);
    let central = Central::new(crate::Parts {
        commit: "unknown",
        site: Arc::new(site),
        catalog: Catalog::new(vec![image()], overlays),
        loaders: BTreeMap::new(),
        agent_binary: bytes::Bytes::new(),
        store: Store::open(&folder.join("store")).expect("a new store"),
        authority: authority.expect("a new authority"),
        clock: Box::new(SystemClock),
        entropy: Box::new(SystemEntropy),
        lan: Box::new(crate::NoLan),
    });
    let stored = central.store().commit(|tx| {
        (0..NODES).for_each(|number| tx.put_node(machine(number)));
        Ok::<_, StoreError>(())
    });
    stored.await.expect("stored");
    central
}

/// How many nodes were looked at meanwhile. The runtime of a test has one thread, and rendering
/// asks the store on it.
async fn looked_at<T>(work: impl Future<Output = T>) -> usize {
    let before = NODE_READS.get();
    work.await;
    NODE_READS.get() - before
}

#[tokio::test]
async fn rendering_a_node_reads_only_nodes_of_its_groups() {
    let folder = tempfile::tempdir().expect("a folder");
    let central = rack(folder.path()).await;
    let endpoint = central.env.endpoint([10, 77, 0, 1].into());
    let all = central.store().read(|model| model.nodes().count());
    assert!(all == usize::from(NODES) && NODE_READS.get() >= all, "it counts");
    let member = machine(0);
    let in_group = looked_at(async {
        central.generations.render(&member, endpoint).await.expect("it renders")
    })
    .await;
    assert_eq!(in_group, usize::from(MEMBERS));
    let other = machine(NODES - 1);
    let alone = looked_at(async {
        central.generations.render(&other, endpoint).await.expect("it renders")
    })
    .await;
    assert_eq!(alone, 0);
    let known =
        looked_at(async { central.generations.scan(vec![other.id]).await.expect("stored") }).await;
    assert!(known <= 4, "finding out what one node would boot looks at that one, {known} times");
}
