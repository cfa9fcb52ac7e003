//! The real `meshd serve` on a site of its own, with an image of the size of a real one whose bytes
//! mean nothing.

use super::{SERVER, SERVER_INTERFACE, Server, Wire};
use anyhow::Context as _;
use meshd_image::catalog::{
    agent::sample_agent,
    image::{AlpineParts, Blob, FORMAT, ImageKind, ImageManifest, blob_path, manifest_path},
};
use meshd_types::{Architecture, Digest, Timestamp};
use serde_json::Value;
use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Output, Stdio},
};

/// Port of the boot API.
pub const HTTP_PORT: u16 = 8080;
/// Port of the agent API.
pub const AGENT_PORT: u16 = 8443;

/// Size of stage 1 in each overlay, in bytes, as packed by gzip.
const STAGE1_BYTES: usize = 500_000;

/// What differs from bench to bench.
pub struct Site {
    /// The whole `[dhcp]` table.
    pub dhcp: String,
    /// `[enroll].policy`.
    pub policy: &'static str,
    /// More tables.
    pub more: String,
    /// Size of the agent in each overlay, in bytes. The real one takes 3.3 MB.
    pub agent_bytes: usize,
    /// Sizes of kernel, initramfs, packages and modloop, in bytes.
    pub part_bytes: [usize; 4],
    /// Size of every loader, in bytes; `None` for those of Debian's.
    pub loader_bytes: Option<usize>,
    /// `RUST_LOG` of the server.
    pub log: &'static str,
}

impl Default for Site {
    /// A /16 to lease from, everyone is let in, parts as large as those of the image alpine-lab.
    fn default() -> Self {
        Site {
            dhcp: "mode = \"authoritative\"\nrange = \"10.78.16.0-10.78.255.250\"\nnetmask = \"255.255.0.0\"\nlease = \"1h\""
                .to_owned(),
            policy: "auto",
            more: String::new(),
            agent_bytes: 3_300_000,
            part_bytes: [12_600_000, 8_500_000, 6_000_000, 28_000_000],
            loader_bytes: None,
            log: "warn",
        }
    }
}

/// Digests of an image's parts: by HTTP `/blob/DIGEST/kernel`, by TFTP `blob/DIGEST/kernel`, and as
/// files `www/kernel` of the wire's folder for peers to serve.
pub struct Image {
    pub kernel: Digest,
    pub initramfs: Digest,
    pub packages: Digest,
    pub modloop: Digest,
}

impl Site {
    /// Writes site and image, and starts `meshd serve` on an empty store.
    pub fn serve(&self, wire: &Wire) -> anyhow::Result<(Server, Image)> {
        let state = wire.path("state");
        if state.exists() {
            fs::remove_dir_all(&state).context("remove the state of the run before")?;
        }
        self.write(wire).context("write the site")?;
        let image = self.write_image(wire).context("write the image")?;
        Ok((self.start(wire)?, image))
    }

    /// Starts `meshd serve` on what is there.
    pub fn start(&self, wire: &Wire) -> anyhow::Result<Server> {
        let log = File::options().create(true).append(true).open(wire.path("meshd.log"))?;
        let mut command = meshd(wire);
        command
            .arg("serve")
            .env("RUST_LOG", self.log)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let ready = || {
            meshd(wire).args(["node", "list"]).output().is_ok_and(|answer| answer.status.success())
        };
        let server = Server::start(&wire.server, &mut command, ready);
        server.with_context(|| fs::read_to_string(wire.path("meshd.log")).unwrap_or_default())
    }

    fn write(&self, wire: &Wire) -> anyhow::Result<()> {
        let overlays = Path::new(env!("CARGO_MANIFEST_DIR")).join("overlays");
        let Site { dhcp, policy, more, .. } = self;
        let text = format!(
            "[site]\nname = \"bench\"\nstate_dir = \"state\"\nimages_dir = \"images\"\noverlays_dir = {overlays:?}\n\
             [net]\ninterface = \"{SERVER_INTERFACE}\"\naddress = \"{SERVER}\"\n[dhcp]\n{dhcp}\n\
             [http]\nport = {HTTP_PORT}\n[agent]\nport = {AGENT_PORT}\nbinary = \"agent\"\n\
             [admin]\nsocket = \"admin.sock\"\n[enroll]\npolicy = \"{policy}\"\n[boot]\nloaders_dir = \"loaders\"\n\
             [defaults]\nprofile = \"discovery\"\n\
             [profiles.discovery]\nimage = \"bench\"\noverlays = [\"base\", \"agent\"]\n{more}\n"
        );
        fs::write(wire.path("site.toml"), text)?;
        fs::write(
            wire.path("agent"),
            sample_agent(Architecture::X86_64, &noise(self.agent_bytes, 9)),
        )?;
        let stage1 = sample_agent(Architecture::X86_64, &noise(STAGE1_BYTES, 7));
        fs::write(wire.path("stage1"), stage1)?;
        fs::create_dir_all(wire.path("loaders"))?;
        // As large as Debian's.
        for (loader, size) in
            [("undionly.kpxe", 72_000), ("snponly.efi", 250_000), ("ipxe.efi", 1_050_000)]
        {
            let size = self.loader_bytes.unwrap_or(size);
            fs::write(wire.path("loaders").join(loader), noise(size, 8))?;
        }
        Ok(())
    }

    fn write_image(&self, wire: &Wire) -> anyhow::Result<Image> {
        let blobs = wire.path("state/blobs");
        let www = wire.path("www");
        fs::create_dir_all(&www)?;
        let names = ["kernel", "initramfs", "packages", "modloop"];
        let mut made = Vec::new();
        for ((name, size), seed) in names.into_iter().zip(self.part_bytes).zip(1..) {
            let bytes = noise(size, seed);
            let blob = Blob { digest: Digest::of(&bytes), size: size as u64 };
            let path = blob_path(&blobs, &blob.digest);
            fs::create_dir_all(path.parent().context("a blob has a folder")?)?;
            fs::write(www.join(name), &bytes)?;
            fs::write(path, bytes)?;
            made.push(blob);
        }
        let [kernel, initramfs, packages, modloop] =
            made.try_into().map_err(|_| anyhow::anyhow!("four parts"))?;
        let image = Image {
            kernel: kernel.digest,
            initramfs: initramfs.digest,
            packages: packages.digest,
            modloop: modloop.digest,
        };
        let manifest = ImageManifest {
            format: FORMAT,
            name: "bench".parse()?,
            arch: Architecture::X86_64,
            recipe: Digest::of(b"recipe"),
            kernel_release: "6.1.0".to_owned(),
            kernel_package: "linux=6.1".to_owned(),
            os_release: "3.23".to_owned(),
            parts: ImageKind::Alpine(AlpineParts { kernel, initramfs, packages, modloop }),
            packages: PACKAGES.iter().map(|name| ((*name).to_owned(), "1-r0".to_owned())).collect(),
            built_at: Timestamp::from_millis(0),
            contents: Default::default(),
        };
        let path = manifest_path(&blobs, &manifest.name);
        fs::create_dir_all(path.parent().context("a manifest has a folder")?)?;
        fs::write(path, serde_json::to_vec(&manifest)?)?;
        Ok(image)
    }
}

/// The program under trial, on the wire's site.
fn meshd(wire: &Wire) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
    command.arg("--site").arg(wire.path("site.toml")).stdin(Stdio::null());
    command
}

impl Wire {
    /// Runs a verb of the command line against the server.
    pub fn meshd(&self, args: &[&str]) -> anyhow::Result<Output> {
        let output = meshd(self).args(args).output()?;
        anyhow::ensure!(
            output.status.success(),
            "meshd {args:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(output)
    }

    /// Runs a verb that prints JSON.
    pub fn json(&self, args: &[&str]) -> anyhow::Result<Value> {
        Ok(serde_json::from_slice(&self.meshd(args)?.stdout)?)
    }
}

/// Bytes that no compressor makes smaller, always the same ones for a seed (xorshift64*, Vigna
/// 2014).
fn noise(size: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        bytes.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

/// What the overlays that ship ask for; the image says that it has them.
const PACKAGES: [&str; 8] = [
    "alpine-base",
    "alpine-baselayout",
    "busybox",
    "openrc",
    "busybox-openrc",
    "busybox-mdev-openrc",
    "kmod",
    "ifupdown-ng",
];
