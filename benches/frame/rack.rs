//! A central node in this process, with a rack of nodes that are online.

use anyhow::Context as _;
use meshd::daemon;
use meshd_central::Shared;
use meshd_image::catalog::image::{
    AlpineParts, Blob, FORMAT, ImageKind, ImageManifest, blob_path, manifest_path,
};
use meshd_model::fleet::{Fingerprint, Generation, Node, Phase, Verb};
use meshd_proto::{Facts, PciFacts};
use meshd_store::StoreError;
use meshd_types::{Architecture, Basis, Digest, MacAddr, Timestamp};
use std::{
    fs,
    net::Ipv4Addr,
    path::Path,
    time::{Duration, Instant},
};

/// PCI functions that each node tells of: a machine with eight GPUs.
const FUNCTIONS: usize = 64;

pub struct Rack {
    runtime: tokio::runtime::Runtime,
    central: Shared,
    site: String,
    dir: tempfile::TempDir,
}

impl Rack {
    /// A site in a folder of its own, and this many nodes.
    pub fn new(nodes: u32) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let (central, site) = central(dir.path(), "")?;
        let runtime = tokio::runtime::Runtime::new()?;
        let stored = central.store().commit(|tx| {
            (0..nodes).for_each(|number| tx.put_node(node(number)));
            Ok::<_, StoreError>(())
        });
        runtime.block_on(stored)?;
        Ok(Rack { runtime, central, site, dir })
    }

    /// From an edit of the one profile to the moment at which it is known what each node would
    /// boot. `edit` is new each time.
    pub fn change(&self, edit: u32) -> anyhow::Result<Duration> {
        let text = format!("{}kernel_args = [\"bench={edit}\"]\n", self.site);
        fs::write(self.dir.path().join("site.toml"), text)?;
        let begun = Instant::now();
        self.runtime.block_on(async {
            let reload = self
                .central
                .generations
                .reload(&self.central.env.own_audit_context(Verb::Reload))
                .await;
            anyhow::ensure!(reload.changed, "{:?}", reload.faults);
            self.central.generations.scan_stale().await;
            Ok(())
        })?;
        let took = begun.elapsed();
        let waits =
            |node: &Node| node.conditions.iter().any(|it| it.kind.as_str() == "reboot_required");
        let known = self
            .central
            .store()
            .read(|model| model.nodes().all(|node| node.generation.is_some() && waits(node)));
        anyhow::ensure!(known, "it is not known of every node");
        Ok(took)
    }
}

/// A central node in a folder of its own, and the text of its site, which begins with `more`.
pub fn central(dir: &Path, more: &str) -> anyhow::Result<(Shared, String)> {
    let overlays = Path::new(env!("CARGO_MANIFEST_DIR")).join("overlays");
    let site = format!(
        "{more}[site]\nname = \"bench\"\nstate_dir = \"state\"\noverlays_dir = {overlays:?}\n[net]\ninterface = \"lo\"\n\
         [dhcp]\nmode = \"proxy\"\n[agent]\nbinary = \"agent\"\n[boot]\nloaders_dir = \".\"\n\
         [defaults]\nprofile = \"discovery\"\n[profiles.discovery]\nimage = \"bench\"\noverlays = [\"base\", \"agent\"]\n"
    );
    for file in ["undionly.kpxe", "snponly.efi", "ipxe.efi"] {
        fs::write(dir.join(file), file)?;
    }
    for program in ["agent", "stage1"] {
        let bytes =
            meshd_image::catalog::agent::sample_agent(meshd_types::Architecture::X86_64, b"");
        fs::write(dir.join(program), bytes)?;
    }
    fs::write(dir.join("site.toml"), &site)?;
    write_image(&dir.join("state/blobs"))?;
    Ok((daemon::build(meshd_config::load(&dir.join("site.toml"))?)?, site))
}

fn node(number: u32) -> Node {
    let [_, b, c, d] = number.to_be_bytes();
    let mac = MacAddr([2, 0, 0, b, c, d]);
    let mut node = Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, Timestamp::EPOCH);
    let function = |at: usize| PciFacts {
        address: format!("0000:{at:02x}:00.0"),
        vendor: "10de".to_owned(),
        device: "2330".to_owned(),
        class: "0302".to_owned(),
        ..PciFacts::default()
    };
    node.facts = Some(Facts { pci: (0..FUNCTIONS).map(function).collect(), ..Facts::default() });
    node.phase = Phase::Online;
    node.central_address = Some(Ipv4Addr::LOCALHOST);
    node.booted = Some(Generation(Digest([0; 32])));
    node
}

fn write_image(blobs: &Path) -> anyhow::Result<()> {
    let blob = |fill: u8| -> anyhow::Result<Blob> {
        let bytes = vec![fill; 4096];
        let blob = Blob { digest: Digest::of(&bytes), size: bytes.len() as u64 };
        let path = blob_path(blobs, &blob.digest);
        fs::create_dir_all(path.parent().context("a blob has a folder")?)?;
        fs::write(path, bytes)?;
        Ok(blob)
    };
    let manifest = ImageManifest {
        contents: Default::default(),
        format: FORMAT,
        name: "bench".parse()?,
        arch: Architecture::X86_64,
        recipe: Digest::of(b"recipe"),
        kernel_release: "6.1.0".to_owned(),
        kernel_package: "linux=6.1".to_owned(),
        os_release: "3.23".to_owned(),
        parts: ImageKind::Alpine(AlpineParts {
            kernel: blob(1)?,
            initramfs: blob(2)?,
            packages: blob(3)?,
            modloop: blob(4)?,
        }),
        packages: Default::default(),
        built_at: Timestamp::from_millis(0),
    };
    let path = manifest_path(blobs, &manifest.name);
    fs::create_dir_all(path.parent().context("a manifest has a folder")?)?;
    Ok(fs::write(path, serde_json::to_vec(&manifest)?)?)
}
