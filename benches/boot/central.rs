//! Boots by meshd.

use crate::{Boot, DEADLINE, shape};
use anyhow::Context as _;
use meshd_lab::{Options, Power, Rack};
use std::{path::Path, time::Instant};

/// The image of Debian nodes.
const DEBIAN: &str = "debian-12";

/// What a node boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    Alpine,
    /// The root is in memory.
    DebianRam,
    /// The root is on the central node.
    DebianTethered,
}

/// The programs and images of meshd's boots.
pub struct Central {
    options: Options,
}

impl Central {
    /// Builds the images, once.
    pub fn prepare(repository: &Path) -> anyhow::Result<Self> {
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
        for system in [System::Alpine, System::DebianRam] {
            Rack::prepare(&central.options(system), &mut |word| eprintln!("{word}"))?;
        }
        Ok(central)
    }

    /// Options of a rack whose node boots a system.
    pub fn options(&self, system: System) -> Options {
        let options = self.options.clone();
        let mode = match system {
            System::Alpine => return options,
            System::DebianRam => "ram",
            System::DebianTethered => "tethered",
        };
        options
            .set("profiles.debian.image", DEBIAN)
            .set("profiles.debian.overlays", r#"["base", "agent", "ssh"]"#)
            .set("profiles.debian.root_mode", mode)
            .set("defaults.profile", "debian")
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

/// MiB that `/proc/meminfo` does not count as available. Files of a root in memory are among them.
pub fn memory_in_use(meminfo: &str) -> anyhow::Result<f64> {
    let kib = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.trim().strip_prefix(name));
        let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
        number.with_context(|| format!("no {name} in {meminfo:?}"))
    };
    Ok((kib("MemTotal:")? - kib("MemAvailable:")?) / 1024.0)
}
