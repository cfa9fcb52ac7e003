//! HTTP: a kernel to 32 connections at once, by `wrk`, and boot scripts to 128 machines, against
//! nginx with sendfile.
//!
//! Each of our scripts belongs to another machine, whose boot session DHCP has opened. nginx answers
//! with one script that never changes.

mod machines;
mod nginx;
mod script_load;
mod wrk;

use crate::frame::{Contender, Goal, Image, RUNS, SERVER, Server, Site, Table, Wire, medians};
use std::{cell::OnceCell, time::Duration};

/// Where both servers listen.
const PORT: u16 = 8080;
/// Machines that ask for scripts, each by a connection of its own. No more than may load at once by
/// default: the rest would have to wait. So many that none reaches the rate of one address.
const MACHINES: u16 = 128;
/// Time of one measurement of scripts, and of the load before it.
const SCRIPTS: Duration = Duration::from_secs(5);
const WARM_UP: Duration = Duration::from_secs(3);

/// All rows of HTTP.
pub fn rows(table: &mut Table) -> anyhow::Result<()> {
    if !crate::frame::installed("wrk") {
        table.skipped("wrk");
        return Ok(());
    }
    let wire = Wire::new()?;
    kernels(&wire, table)?;
    scripts(&wire, table)
}

fn url(path: &str) -> String {
    format!("http://{SERVER}:{PORT}/{path}")
}

/// Throughput in MB/s and what it costs in CPU seconds per GB.
fn kernels(wire: &Wire, table: &mut Table) -> anyhow::Result<()> {
    let load = |server: &Server, path: &str| {
        // The first transfer makes of a file what it is worth to: not measured.
        wrk::load(wire, &["-c1", "-t1", "-d1s", &url(path)])?;
        let before = server.cpu();
        let done = wrk::load(wire, &["-c32", "-t2", "-d5s", &url(path)])?;
        Ok([done.bytes_a_second / 1e6, (server.cpu() - before).as_secs_f64() / (done.bytes / 1e9)])
    };
    let mut contenders = [
        Contender {
            name: "meshd",
            program: None,
            measure: Box::new(|| {
                let (server, image) = Site::default().serve(wire)?;
                let Image { kernel, .. } = image;
                load(&server, &format!("blob/{kernel}/kernel"))
            }),
        },
        Contender {
            name: "nginx",
            program: Some("nginx"),
            measure: Box::new(|| {
                let server = nginx::start(wire, "")?;
                load(&server, "kernel")
            }),
        },
    ];
    let [ours, peer] = medians(RUNS, &mut contenders)[..] else { unreachable!("two contenders") };
    if let (Some(ours), Some(peer)) = (ours, peer) {
        let work = "HTTP 12.6 MB kernel, 32 connections";
        table.compare(work, "MB/s", ours[0], ("nginx", peer[0]), Goal::AtLeast(1.0));
        table.compare("the same", "CPU-s/GB", ours[1], ("nginx", peer[1]), Goal::None);
    }
    Ok(())
}

fn scripts(wire: &Wire, table: &mut Table) -> anyhow::Result<()> {
    let script = OnceCell::new();
    machines::attach(wire)?;
    let load = |requests: &[_], time| wire.client.inside(|| script_load::run(requests, time))?;
    let mut contenders = [
        Contender {
            name: "meshd",
            program: None,
            measure: Box::new(|| {
                let site = Site {
                    dhcp: "mode = \"off\"".to_owned(),
                    more: machines::segment(),
                    ..Site::default()
                };
                let (_server, _) = site.serve(wire)?;
                let text = machines::power_on(wire, MACHINES)?;
                let _ = script.set(text);
                // Each machine's first script is written to the disk and rendered; that is the
                // storm's row.
                let requests = machines::requests(MACHINES);
                load(&requests, WARM_UP)?;
                Ok([load(&requests, SCRIPTS)?])
            }),
        },
        Contender {
            name: "nginx",
            program: Some("nginx"),
            measure: Box::new(|| {
                let _server = nginx::start(wire, script.get().map_or("", String::as_str))?;
                let mut requests = machines::requests(MACHINES);
                requests.iter_mut().for_each(|(_, path)| "/script".clone_into(path));
                Ok([load(&requests, SCRIPTS)?])
            }),
        },
    ];
    let [ours, peer] = medians(RUNS, &mut contenders)[..] else { unreachable!("two contenders") };
    if let (Some([ours]), Some([peer])) = (ours, peer) {
        table.compare(
            "HTTP boot script per node, 128 connections",
            "/s",
            ours,
            ("nginx", peer),
            Goal::AtLeast(0.4),
        );
    }
    Ok(())
}
