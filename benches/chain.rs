//! What one boot costs the central node, beside a calibration of the machine in the same run.
//! Prints a table; asserts nothing.
//!
//! Rows with a peer (TFTP, HTTP, DHCP) are in `benches/peers/`, whole boots in `benches/storm/`.

#[allow(dead_code, unused_imports, reason = "each bench uses its part of the frame")]
mod frame;

use frame::{Goal, RUNS, Rack, Table, calibrate, placements, rate};
use meshd_config::Site;
use meshd_image::{
    catalog::{Catalog, read_overlays},
    overlay::{
        ImageFacts, NodeContext, NodePrograms, PublicOverlay, RenderInput, deliver, render_public,
    },
};
use meshd_model::image_kind::ImageKindName;
use meshd_proto::{BootPart, VERSION};
use meshd_store::{Store, StoreError};
use meshd_trust::CertificateAuthority;
use meshd_types::{Digest, MacAddr, NodeId, Timestamp};
use std::{hint::black_box, path::Path, sync::Arc};

fn main() -> anyhow::Result<()> {
    let mut table = Table::new();
    calibrate(&mut table)?;
    certificates(&mut table);
    overlays(&mut table);
    commits(&mut table);
    changes(&mut table)?;
    placements(&mut table)?;
    table.finish("chain");
    Ok(())
}

fn certificates(table: &mut Table) {
    let dir = tempfile::tempdir().expect("a folder");
    let now = Timestamp::from_millis(1_700_000_000_000);
    let authority =
        CertificateAuthority::load_or_create(dir.path(), "bench", now).expect("an authority");
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::default();
    let csr = params.serialize_request(&key).and_then(|request| request.pem()).expect("a request");
    let node: NodeId = "00000000".parse().expect("a node ID");
    let issued = rate(|| drop(black_box(authority.issue_node(&csr, node, now))));
    table.alone("certificates issued, one core", "/s", issued, Goal::None);
}

struct Rendering {
    site: Site,
    catalog: Catalog,
    programs: NodePrograms,
    image: ImageFacts,
}

impl Rendering {
    fn load() -> Self {
        let site = meshd_config::load(Path::new("site.toml")).expect("the sample is valid");
        let overlays = read_overlays(&site.overlays_dir).expect("the overlays that ship are valid");
        let name = "alpine-lab".parse().expect("a name");
        let image = ImageFacts::placeholder(name, ImageKindName::Alpine, Digest::of(b"image"));
        // About the size of the real one, and about as hard to compress.
        let binary: Vec<u8> =
            (0..3_300_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        Rendering {
            site,
            catalog: Catalog::new(Vec::new(), overlays),
            programs: NodePrograms::new(binary.into(), None),
            image,
        }
    }

    fn render(&self, number: u32) -> PublicOverlay {
        let [.., b, c, d] = number.to_be_bytes();
        let id = meshd_types::Basis::Mac(MacAddr([2, 0, 0, b, c, d])).node_id();
        let input = RenderInput {
            site: &self.site,
            profile: &self.site.profiles[&self.site.default_profile],
            overlays: self.catalog.overlays(),
            node: &NodeContext::new(id, None),
            central: [10, 77, 0, 1].into(),
            programs: &self.programs,
            image: &self.image,
        };
        render_public(&input).expect("the overlays that ship render")
    }
}

fn overlays(table: &mut Table) {
    let rendering = Rendering::load();
    let mut number = 0;
    let cold = rate(|| {
        number += 1;
        black_box(rendering.render(number));
    });
    table.alone("overlay rendered cold, one core", "/s", cold, Goal::AtLeast(2000.0));
    let public = rendering.render(0);
    let boot = BootPart {
        version: VERSION,
        node: "00000000".parse().expect("a node ID"),
        session: "000000000000000000000000".parse().expect("a session ID"),
        generation: public.digest.to_string(),
        issued_at: Timestamp::from_millis(0),
        roots_pem: None,
        http_port: 8080,
        token: None,
    };
    let delivered = rate(|| drop(black_box(deliver(&public, &boot, &[]))));
    table.alone("overlay (3.3 MB) from cache, one core", "/s", delivered, Goal::AtLeast(20_000.0));
}

/// A profile is edited: until it is known of each node what it would boot, and on the disk.
fn changes(table: &mut Table) -> anyhow::Result<()> {
    const NODES: u32 = 10_000;
    let rack = Rack::new(NODES)?;
    let mut took = (0..RUNS)
        .map(|run| rack.change(u32::try_from(run)?))
        .collect::<anyhow::Result<Vec<_>>>()?;
    took.sort_unstable();
    table.alone(
        "profile change known for 10,000 nodes",
        "s",
        took[RUNS / 2].as_secs_f64(),
        Goal::AtMost(5.0),
    );
    Ok(())
}

/// Durable commits with many writers, as a rack that powers on makes them.
fn commits(table: &mut Table) {
    const WRITERS: u32 = 64;
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let dir = tempfile::tempdir().expect("a folder");
    let store = Arc::new(Store::open(dir.path()).expect("a store"));
    let round = |number: u32| {
        runtime.block_on(async {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| tokio::spawn(lease(store.clone(), writer, number)))
                .collect();
            for writer in writers {
                writer.await.expect("no panic");
            }
        });
    };
    let mut number = 0;
    let rounds = rate(|| {
        number += 1;
        round(number);
    });
    table.alone("durable lease commits, 64 writers", "/s", rounds * f64::from(WRITERS), Goal::None);
}

async fn lease(store: Arc<Store>, writer: u32, number: u32) {
    let [a, b, c, d] = writer.to_be_bytes();
    let lease = meshd_model::fleet::Lease {
        mac: MacAddr([2, 0, a, b, c, d]),
        address: [10, b, c, d].into(),
        expires_at: Timestamp::from_millis(i64::from(number)),
        vm: None,
    };
    let put = store.commit(|tx| {
        tx.put_lease(lease);
        Ok::<_, StoreError>(())
    });
    put.await.expect("stored");
}
