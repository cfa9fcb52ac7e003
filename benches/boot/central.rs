//! Boots by meshd.

use crate::{Boot, DEADLINE, shape};
use anyhow::Context as _;
use meshd_lab::{Options, Power, Rack};
use std::{path::Path, time::Instant};

/// The root image of Alpine nodes, and the image of Debian nodes.
const ALPINE_ROOT: &str = "alpine-root";
const DEBIAN: &str = "debian-12";
const DEBIAN_MPI: &str = "debian-12-hpc";
/// The profiles of the two roles.
const VM_HOST: &str = "vm-host";
const MPI_NODE: &str = "mpi-node";

/// What a node boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Packages are installed at boot.
    Alpine,
    /// A root image, in memory.
    AlpineRam,
    /// A root image, on the central node.
    AlpineTethered,
    /// The root is in memory.
    DebianRam,
    /// The root is on the central node.
    DebianTethered,
}

impl System {
    /// Returns the name of its contender.
    pub fn name(self) -> &'static str {
        match self {
            System::Alpine => "meshd, Alpine",
            System::AlpineRam => "meshd, Alpine root, ram",
            System::AlpineTethered => "meshd, Alpine root, tethered",
            System::DebianRam => "meshd, Debian, ram",
            System::DebianTethered => "meshd, Debian, tethered",
        }
    }
}

/// How a node gets its new role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reboot {
    /// By its firmware.
    Cold,
    /// By kexec.
    Warm,
}

/// The programs and images of meshd's boots.
pub struct Central {
    options: Options,
}

impl Central {
    /// Builds the images, once.
    pub fn prepare(repository: &Path, systems: &[System]) -> anyhow::Result<Self> {
        let program = repository.join("target/release/meshd");
        let agent = repository.join("target/agent/x86_64/mesh-agent");
        anyhow::ensure!(
            program.is_file() && agent.is_file(),
            "there is no target/release/meshd, or no target/agent/x86_64/mesh-agent: make build"
        );
        let dir = repository.join(".lab/bench-boot");
        let mut options = Options::new(dir, repository.join("site.toml"), program);
        options =
            options.set("agent.binary", &agent.display().to_string()).set("enroll.policy", "auto");
        options.nodes = 1;
        options.powered = false;
        options.shape = shape();
        options.blobs = Some(repository.join(".lab/blobs"));
        let central = Central { options };
        for system in systems {
            Rack::prepare(&central.options(*system), &mut |word| eprintln!("{word}"))?;
            Rack::prepare(&central.roles(*system), &mut |word| eprintln!("{word}"))?;
        }
        Ok(central)
    }

    /// Options of a rack whose node boots a system.
    pub fn options(&self, system: System) -> Options {
        let options = self.options.clone();
        let (profile, image, mode) = match system {
            System::Alpine => return options,
            System::AlpineRam => ("discovery", ALPINE_ROOT, "ram"),
            System::AlpineTethered => ("discovery", ALPINE_ROOT, "tethered"),
            System::DebianRam => ("debian", DEBIAN, "ram"),
            System::DebianTethered => ("debian", DEBIAN, "tethered"),
        };
        let options = match profile {
            "debian" => options.set("profiles.debian.overlays", r#"["base", "agent", "ssh"]"#),
            _ => options,
        };
        options
            .set(&format!("profiles.{profile}.image"), image)
            .set(&format!("profiles.{profile}.root_mode"), mode)
            .set("defaults.profile", profile)
    }

    /// Options of a rack whose node is a host of VMs, and may become a node of MPI tasks.
    fn roles(&self, system: System) -> Options {
        let (base, parts) = match system {
            // Bundles need an image of kind alpine.
            System::Alpine | System::AlpineRam | System::AlpineTethered => {
                let bundles =
                    [(VM_HOST, "bundles", r#"["qemu"]"#), (MPI_NODE, "bundles", r#"["mpi"]"#)];
                ("discovery", bundles.to_vec())
            }
            System::DebianRam | System::DebianTethered => {
                ("debian", vec![(MPI_NODE, "image", DEBIAN_MPI)])
            }
        };
        let common =
            [VM_HOST, MPI_NODE].map(|role| [(role, "extends", base), (role, "warm", "allow")]);
        let keys = common.into_iter().flatten().chain(parts);
        let keys = keys.chain([(VM_HOST, "overlays", r#"["kvm-host"]"#)]);
        let options = self.options(system).set("defaults.profile", VM_HOST);
        keys.fold(options, |options, (role, key, value)| {
            options.set(&format!("profiles.{role}.{key}"), value)
        })
    }

    /// A node that is a host of VMs becomes a node of MPI tasks, and a host of VMs again. Returns
    /// the seconds of each change, from the order to online with the new profile.
    pub fn change_roles(&self, system: System, reboot: Reboot) -> anyhow::Result<[f64; 2]> {
        let mut rack = Rack::up(&self.roles(system), &mut |_| {})?;
        rack.power(1, Power::On)?;
        let online = rack.wait_node(1, DEADLINE, "online", |node| node["phase"] == "online");
        online.with_context(|| rack.log_ends(20))?;
        let to_mpi = change_role(&rack, MPI_NODE, reboot)?;
        let to_vms = change_role(&rack, VM_HOST, reboot)?;
        eprintln!("meshd, {system:?}, {reboot:?}: {to_mpi:.1} s to MPI, {to_vms:.1} s to VMs");
        rack.down()?;
        Ok([to_mpi, to_vms])
    }

    /// One boot.
    pub fn boot(&self, system: System) -> anyhow::Result<Boot> {
        let mut rack = Rack::up(&self.options(system), &mut |_| {})?;
        let begun = Instant::now();
        rack.power(1, Power::On)?;
        let online = rack.wait_node(1, DEADLINE, "online", |node| node["phase"] == "online");
        let took = begun.elapsed().as_secs_f64();
        online.with_context(|| rack.log_ends(20))?;
        let id = rack.id(1).to_string();
        let exec = ["node", "exec", "--user", "root", &id, "--", "/bin/cat", "/proc/meminfo"];
        let used = memory_in_use(&rack.run_cli(&exec)?)?;
        let timeline = rack.run_cli(&["node", "timeline", &id])?;
        eprintln!("meshd, {system:?}: {took:.1} s, {used:.0} MiB in use\n{timeline}");
        rack.down()?;
        Ok([took, used])
    }
}

/// Assigns a profile and reboots the node. Returns the seconds until it is online with it.
fn change_role(rack: &Rack, profile: &str, reboot: Reboot) -> anyhow::Result<f64> {
    let id = rack.id(1).to_string();
    let former = rack.node(1)?.context("the node is known")?["boot"]["session"].clone();
    let order: &[&str] = match reboot {
        Reboot::Cold => &["node", "reboot", "--yes", &id],
        Reboot::Warm => &["node", "reboot", "--warm", "--yes", &id],
    };
    rack.run_cli(&["node", "assign-profile", &id, profile])?;
    let begun = Instant::now();
    rack.run_cli(order)?;
    let changed = rack.wait_node(1, DEADLINE, "online in another boot", |node| {
        node["phase"] == "online" && node["boot"]["session"] != former
    });
    let took = begun.elapsed().as_secs_f64();
    let node = changed.with_context(|| rack.log_ends(20))?;
    // A warm boot has no stage before the script.
    let is_warm = node["boot"]["stages"][0]["stage"] == "script";
    anyhow::ensure!(is_warm == (reboot == Reboot::Warm), "not {reboot:?}: {node}");
    Ok(took)
}

/// MiB that `/proc/meminfo` does not count as available. Files of a root in memory are among them.
pub fn memory_in_use(meminfo: &str) -> anyhow::Result<f64> {
    let kib = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.trim().strip_prefix(name));
        let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
        number.with_context(|| format!("no {name} in {meminfo:?}"))
    };
    Ok((kib("MemTotal:")? - kib("MemAvailable:")?) / 1024.0)
}
