//! What one boot costs the central node, beside a calibration of the machine in the same run. Prints a table; asserts nothing.
//!
//! Rows with a peer (TFTP, HTTP, DHCP) need the peer's program in the same run and are not here yet.

use meshd::{
    catalog::{Catalog, read_overlays},
    config::{self, Site},
    id::{Digest, MacAddr, NodeId, Timestamp},
    overlay::{AgentBinary, ImageFacts, NodeContext, PublicOverlay, RenderInput, deliver, render_public},
    store::{Store, StoreError},
    trust::CertificateAuthority,
    wire::{BootPart, VERSION},
};
use std::{
    hint::black_box,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long one row is measured.
const SPAN: Duration = Duration::from_secs(2);
/// Runs of a row; the median counts.
const RUNS: usize = 3;

fn main() {
    println!("{:<44} {:>14}", "work", "median");
    calibrate();
    overlays();
    commits();
}

/// The median rate of some work, in times a second.
fn rate(mut work: impl FnMut()) -> f64 {
    let mut rates: Vec<f64> = (0..RUNS)
        .map(|_| {
            let (begin, mut count) = (Instant::now(), 0u32);
            while begin.elapsed() < SPAN {
                work();
                count += 1;
            }
            f64::from(count) / begin.elapsed().as_secs_f64()
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    rates[RUNS / 2]
}

fn row(what: &str, value: f64, unit: &str) {
    println!("{what:<44} {value:>14.0} {unit}");
}

fn calibrate() {
    let megabyte = vec![7u8; 1_000_000];
    row(
        "calibration: SHA-256",
        rate(|| {
            black_box(Digest::of(&megabyte));
        }),
        "MB/s",
    );
    let dir = tempfile::tempdir().expect("a folder");
    let now = Timestamp::from_millis(1_700_000_000_000);
    let authority = CertificateAuthority::load_or_create(dir.path(), "bench", now).expect("an authority");
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::default();
    let csr = params.serialize_request(&key).and_then(|request| request.pem()).expect("a request");
    let node: NodeId = "00000000".parse().expect("a node ID");
    let issue = || drop(black_box(authority.issue_node(&csr, node, now)));
    row("calibration: certificates issued (P-256)", rate(issue), "/s");
}

struct Rendering {
    site: Site,
    catalog: Catalog,
    agent: AgentBinary,
    image: ImageFacts,
}

impl Rendering {
    fn load() -> Self {
        let site = config::load(Path::new("site.toml")).expect("the sample is valid");
        let overlays = read_overlays(&site.overlays_dir).expect("the overlays that ship are valid");
        let image = ImageFacts {
            name: "alpine-lab".parse().expect("a name"),
            manifest: Digest::of(b"manifest"),
            modloop: Digest::of(b"modloop"),
        };
        // About the size of the real one, and about as hard to compress.
        let binary: Vec<u8> = (0..3_300_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        Rendering { site, catalog: Catalog::new(Vec::new(), overlays), agent: AgentBinary::new(&binary), image }
    }

    fn render(&self, number: u32) -> PublicOverlay {
        let [.., b, c, d] = number.to_be_bytes();
        let id = meshd::id::Basis::Mac(MacAddr([2, 0, 0, b, c, d])).node_id();
        let input = RenderInput {
            site: &self.site,
            profile: &self.site.profiles[&self.site.default_profile],
            overlays: self.catalog.overlays(),
            node: &NodeContext { id, name: None },
            central: [10, 77, 0, 1].into(),
            ca_pem: "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
            agent: &self.agent,
            image: &self.image,
        };
        render_public(&input).expect("the overlays that ship render")
    }
}

fn overlays() {
    let rendering = Rendering::load();
    let mut number = 0;
    let cold = rate(|| {
        number += 1;
        black_box(rendering.render(number));
    });
    row("overlay rendered cold, one core", cold, "/s");
    let public = rendering.render(0);
    let boot = BootPart {
        version: VERSION,
        node: "00000000".parse().expect("a node ID"),
        session: "000000000000000000000000".parse().expect("a session ID"),
        generation: public.digest.to_string(),
        issued_at: Timestamp::from_millis(0),
        token: None,
    };
    row("overlay delivered from cache (3.3 MB), one core", rate(|| drop(black_box(deliver(&public, &boot)))), "/s");
}

/// Durable commits with many writers, as a rack that powers on makes them.
fn commits() {
    const WRITERS: u32 = 64;
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let dir = tempfile::tempdir().expect("a folder");
    let store = Arc::new(Store::open(dir.path()).expect("a store"));
    let round = |number: u32| {
        runtime.block_on(async {
            let writers: Vec<_> =
                (0..WRITERS).map(|writer| tokio::spawn(lease(store.clone(), writer, number))).collect();
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
    row("durable lease commits, 64 writers", rounds * f64::from(WRITERS), "/s");
}

async fn lease(store: Arc<Store>, writer: u32, number: u32) {
    let [a, b, c, d] = writer.to_be_bytes();
    let lease = meshd::fleet::Lease {
        mac: MacAddr([2, 0, a, b, c, d]),
        address: [10, b, c, d].into(),
        expires_at: Timestamp::from_millis(i64::from(number)),
    };
    let put = store.commit(|tx| {
        tx.put_lease(lease);
        Ok::<_, StoreError>(())
    });
    put.await.expect("stored");
}
