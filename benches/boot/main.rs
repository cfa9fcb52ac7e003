//! Power-on to online: meshd beside stock Alpine netboot from dnsmasq and nginx,
//! `cargo bench --bench boot -- [--rounds N]`.
//!
//! Both boot the same kernel, modules and packages in the same VM on the same wire, in turns; the
//! median counts. Stock is what Alpine's wiki describes: its own initramfs as mkinitfs makes it,
//! packages, modloop and apkovl by HTTP, its default services. It is online when its last service
//! has called nginx; meshd's node is online when its agent has enrolled, its link is up and its
//! checks have passed, by the central node's own record.

#[allow(dead_code, unused_imports, reason = "each bench uses its part of the frame")]
#[path = "../frame/mod.rs"]
mod frame;
mod stock;

use anyhow::Context as _;
use frame::{Contender, Goal, Table};
use meshd_lab::{Options, Power, Rack};
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// From power-on to online, under emulation on a busy machine.
const DEADLINE: Duration = Duration::from_secs(6 * 60);
/// What a boot may take of stock's time.
const GOAL: f64 = 0.7;

fn main() -> anyhow::Result<()> {
    let rounds = rounds(std::env::args().skip(1).filter(|argument| argument != "--bench"))?;
    frame::begin()?;
    let bench = Bench::prepare()?;
    let mut contenders = [
        Contender { name: "meshd", program: None, measure: Box::new(|| bench.meshd()) },
        Contender {
            name: "stock Alpine",
            program: Some("dnsmasq"),
            measure: Box::new(|| bench.stock()),
        },
    ];
    let medians = frame::medians(rounds, &mut contenders);
    drop(contenders);
    let mut table = Table::new();
    if let [Some([ours]), Some([stock])] = medians[..] {
        table.compare(
            "power-on to online",
            "s",
            ours,
            ("dnsmasq+nginx", stock),
            Goal::AtMost(GOAL),
        );
    }
    table.finish("boot");
    Ok(())
}

fn rounds(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<usize> {
    match (arguments.next().as_deref(), arguments.next()) {
        (None, _) => Ok(frame::RUNS),
        (Some("--rounds"), Some(count)) => count.parse().context("--rounds takes a number"),
        _ => anyhow::bail!("usage: cargo bench --bench boot -- [--rounds N]"),
    }
}

/// What both need: the programs and the two images.
struct Bench {
    options: Options,
    stock: stock::Files,
}

impl Bench {
    /// Builds both images, once: the second takes kernel, modules and packages of the first.
    fn prepare() -> anyhow::Result<Self> {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
        let dir = repository.join(".lab/bench-boot");
        let blobs = repository.join(".lab/blobs");
        let program = repository.join("target/release/meshd");
        let agent = repository.join("target/agent/x86_64/mesh-agent");
        anyhow::ensure!(
            program.is_file() && agent.is_file(),
            "there is no target/release/meshd, or no target/agent/x86_64/mesh-agent: make build"
        );
        let mut options = Options::new(dir, repository.join("site.toml"), program);
        options =
            options.set("agent.binary", &agent.display().to_string()).set("enroll.policy", "auto");
        options.nodes = 1;
        options.powered = false;
        options.blobs = Some(blobs.clone());
        Rack::prepare(&options, &mut |word| eprintln!("{word}"))?;
        let stock = stock::Files::prepare(
            repository,
            &blobs,
            &PathBuf::from(repository).join(".lab/bench-stock"),
        )?;
        Ok(Bench { options, stock })
    }

    /// One boot by meshd, in seconds.
    fn meshd(&self) -> anyhow::Result<[f64; 1]> {
        let mut rack = Rack::up(&self.options, &mut |_| {})?;
        let begun = Instant::now();
        rack.power(1, Power::On)?;
        let online = rack.wait_node(1, DEADLINE, "online", |node| node["phase"] == "online");
        let took = begun.elapsed().as_secs_f64();
        online.with_context(|| rack.log_ends(20))?;
        let id = rack.id(1).to_string();
        eprintln!("meshd: {took:.1} s\n{}", rack.run_cli(&["node", "timeline", &id])?);
        rack.down()?;
        Ok([took])
    }

    /// One boot by dnsmasq and nginx, in seconds.
    fn stock(&self) -> anyhow::Result<[f64; 1]> {
        let mut rack = Rack::up(&self.options, &mut |_| {})?;
        // Only its wire and its machine are wanted.
        rack.stop_central()?;
        let server = self.stock.serve(&rack)?;
        let begun = Instant::now();
        rack.power(1, Power::On)?;
        let online = server.until_online(&rack, DEADLINE);
        let took = begun.elapsed().as_secs_f64();
        online.with_context(|| rack.log_ends(20))?;
        eprintln!("stock: {took:.1} s");
        drop(server);
        rack.down()?;
        Ok([took])
    }
}
