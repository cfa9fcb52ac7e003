//! `meshd doctor`: runs checks for problems that keep machines from booting, and prints one line
//! for each.
//!
//! The command checks files, disk and clock, and requests the other results from the running meshd.
//! Without a running meshd, the command checks the interfaces and ports that meshd needs. With
//! `--server`, it only requests results: local files are not those of the server.

use crate::cli::{
    Context, Failure,
    output::print::{Output, bytes, now, wrapped},
    overlay, wait,
};
use crate::daemon::REQUIRED_LOADERS;
use clap::Args;
use meshd_api::{Finding, Status, StatusView, routes as api};
use meshd_config::Site;
use meshd_image::catalog::{image, load_agent};
use meshd_serve::admin::doctor::interfaces;
use meshd_types::{ImageName, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// Minimum free space in bytes. With less space, the store will soon fail to write.
const DISK_FAULT: u64 = 256 << 20;
/// Free space in bytes below which the command warns, because the next image may not fit.
const DISK_WARNING: u64 = 2 << 30;
/// Permitted time by which the clock is behind the newest file. A file server's clock or a copied
/// tree may cause a difference.
const CLOCK_SLACK: Duration = Duration::from_secs(60 * 60);
/// Files that time services create after the clock is synchronised.
const SYNCHRONISED: [&str; 3] =
    ["/run/systemd/timesync/synchronized", "/run/chrony/chronyd.pid", "/run/ntpd.pid"];

/// Exit code 1 when something fails; warnings are no failure.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    output: Output,
}

impl Doctor {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let findings =
            if context.is_remote() { remote_findings(context)? } else { local_findings(context)? };
        self.output.print(&findings, |findings| table(findings))?;
        let failed = findings.iter().filter(|finding| finding.status == Status::Fail).count();
        match failed {
            0 => Ok(()),
            1 => Err(Failure::new(
                "1 check failed",
                "follow the hint below it, then repeat the command",
            )),
            _ => Err(Failure::new(
                format!("{failed} checks failed"),
                "follow the hint below each, then repeat the command",
            )),
        }
    }
}

/// Returns the findings of a central node on another machine. Local files are not its files and are
/// not checked.
fn remote_findings(context: &Context) -> Result<Vec<Finding>, Failure> {
    let (status, found) = running(context)?;
    let runs = format!("{} runs as process {}, site {}", status.version, status.pid, status.site);
    let mut findings = vec![Finding::ok("meshd", runs)];
    findings.extend(found);
    Ok(findings)
}

/// Returns the findings of the local meshd and of its files. A faulty site file is a fault of the
/// next reload.
fn local_findings(context: &Context) -> Result<Vec<Finding>, Failure> {
    let running = running(context);
    let site = match context.site() {
        Ok(site) => Some(site),
        // `--socket` names a meshd, so a site file is not required.
        Err(_) if context.socket.is_some() && context.next_reload().is_none() => None,
        Err(failure) if running.is_err() => return Err(failure),
        Err(_) => None,
    };
    let mut findings = Vec::new();
    match &site {
        Some(site) => {
            findings.push(Finding::ok("site", format!("{} is valid", site.file.display())))
        }
        None => findings.extend(context.next_reload()),
    }
    match (running, &site) {
        (Ok((status, found)), _) => {
            findings.push(Finding::ok(
                "meshd",
                format!("{} runs as process {}", status.version, status.pid),
            ));
            findings.extend(found);
        }
        (Err(why), None) => return Err(why),
        (Err(why), Some(site)) => {
            let next = format!("start it: meshd serve --site {}", site.file.display());
            findings.push(Finding::fail("meshd", why.sentence(), next));
            findings.extend(interfaces(site));
            findings.push(ports(site));
        }
    }
    if let Some(site) = &site {
        findings.extend([loaders(site), agent(site), overlays(site)]);
        findings.extend(images(site));
        findings.extend([disk(site), clock(site)]);
    }
    Ok(findings)
}

/// Requests status and findings from the running meshd.
fn running(context: &Context) -> Result<(StatusView, Vec<Finding>), Failure> {
    let client = context.client()?;
    wait(async {
        let status = client.get(api::GET_STATUS.path([])).await?;
        Ok((status, client.get(api::LIST_FINDINGS.path([])).await?))
    })
}

fn table(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.check.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for finding in findings {
        let word = match finding.status {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Fail => "FAIL",
        };
        let head = format!("{word:<4}  {:<width$}  ", finding.check);
        let found = wrapped(&finding.found, head.chars().count());
        out += &format!("{head}{}\n", found.trim());
        if !finding.next.is_empty() {
            out += &wrapped(&format!("-> {}", finding.next), 6);
        }
    }
    out
}

/// Checks for ports of meshd that another program uses.
fn ports(site: &Site) -> Finding {
    let udp = listening(&["/proc/net/udp", "/proc/net/udp6"]);
    let tcp = listening(&["/proc/net/tcp", "/proc/net/tcp6"]);
    let metrics = site.metrics.map(|metrics| ("TCP", metrics.port));
    let required = [("UDP", 67), ("UDP", 69), ("TCP", site.http.port), ("TCP", site.agent.port)];
    let taken: Vec<String> = required
        .into_iter()
        .chain(metrics)
        .filter(
            |(protocol, port)| {
                if *protocol == "UDP" { udp.contains(port) } else { tcp.contains(port) }
            },
        )
        .map(|(protocol, port)| format!("{protocol} {port}"))
        .collect();
    if taken.is_empty() {
        return Finding::ok("ports", "all ports of meshd are free");
    }
    let next = "stop the program that `ss -lnp` shows, or change the port in site.toml";
    Finding::fail("ports", format!("taken by another program: {}", taken.join(", ")), next)
}

/// Returns the local ports of listening sockets in tables of the kernel.
fn listening(tables: &[&str]) -> BTreeSet<u16> {
    /// TCP_LISTEN and TCP_CLOSE. The kernel shows an unconnected UDP socket as TCP_CLOSE.
    const WAITING: [&str; 2] = ["0A", "07"];
    let text: String =
        tables.iter().filter_map(|table| std::fs::read_to_string(table).ok()).collect();
    let port = |line: &str| {
        let mut fields = line.split_whitespace();
        let local = fields.nth(1)?;
        let state = fields.nth(1)?;
        let (_, port) = local.rsplit_once(':')?;
        WAITING.contains(&state).then(|| u16::from_str_radix(port, 16).ok()).flatten()
    };
    text.lines().filter_map(port).collect()
}

fn loaders(site: &Site) -> Finding {
    let dir = &site.boot.loaders_dir;
    let is_missing = |name: &&str| !dir.join(name).is_file();
    let missing: Vec<&str> = REQUIRED_LOADERS.into_iter().filter(is_missing).collect();
    let next = "install Debian's package ipxe, or set [boot].loaders_dir";
    if !missing.is_empty() {
        let found = format!("{} lacks {}", dir.display(), missing.join(", "));
        return Finding::fail("loaders", found, next);
    }
    let others: BTreeSet<&str> =
        meshd_dhcp::client_arch::loader_names().filter(is_missing).collect();
    let others: Vec<&str> = others.into_iter().collect();
    let rest = match others.as_slice() {
        [] => "for every firmware".to_owned(),
        some => format!("for BIOS and x86-64; not there: {}", some.join(", ")),
    };
    Finding::ok("loaders", format!("in {}, {rest}", dir.display()))
}

fn agent(site: &Site) -> Finding {
    match load_agent(site) {
        Ok(agent) => {
            let size = bytes(agent.bytes.len() as u64);
            Finding::ok(
                "agent",
                format!("{}, {size}, {} for {}", agent.path.display(), agent.build, agent.arch),
            )
        }
        Err(error) => Finding::fail_of("agent", &error),
    }
}

fn overlays(site: &Site) -> Finding {
    let faults = overlay::faults(site);
    match faults.first() {
        None => {
            Finding::ok("overlays", format!("all {} profiles can be rendered", site.profiles.len()))
        }
        Some(first) => {
            let found = format!("{} faults; the first: {}", faults.len(), first.message);
            Finding::fail("overlays", found, "`meshd check` shows all of them with file and line")
        }
    }
}

/// Returns one finding for each image that a profile uses.
fn images(site: &Site) -> Vec<Finding> {
    let mut users: BTreeMap<&ImageName, Vec<&str>> = BTreeMap::new();
    for profile in site.profiles.values() {
        users.entry(&profile.image).or_default().push(profile.name.as_str());
    }
    let finding = |(name, profiles): (&ImageName, Vec<&str>)| {
        let check = format!("image {name}");
        match image::load_image(&site.blobs_dir, name) {
            Ok(_) => Finding::ok(check, format!("built and verified; for {}", profiles.join(", "))),
            Err(error) => {
                Finding::fail(check, error.to_string(), format!("meshd image build {name}"))
            }
        }
    };
    users.into_iter().map(finding).collect()
}

fn disk(site: &Site) -> Finding {
    // Before the first start, the folder does not exist. The check then applies to the disk of its
    // closest existing ancestor.
    let folder =
        site.state_dir.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let found = match rustix::fs::statvfs(folder) {
        Ok(found) => found,
        Err(error) => {
            let text = format!("cannot look at {}: {error}", folder.display());
            return Finding::warn("disk", text, "check [site].state_dir");
        }
    };
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let text = format!("{} free at {}", bytes(free), folder.display());
    match free {
        0..DISK_FAULT => {
            Finding::fail("disk", text, "free space: meshd accepts no change that it cannot write")
        }
        DISK_FAULT..DISK_WARNING => Finding::warn("disk", text, "free space before the next image"),
        _ => Finding::ok("disk", text),
    }
}

/// Checks the clock. Nodes set their clocks to the time of this machine, and certificates contain
/// that time.
fn clock(site: &Site) -> Finding {
    let now = now();
    let images =
        site.profiles.values().map(|profile| image::manifest_path(&site.blobs_dir, &profile.image));
    let files: Vec<PathBuf> =
        images.chain([site.file.clone(), site.state_dir.join(meshd_backup::AUTHORITY)]).collect();
    let newest = files.iter().filter_map(|file| modified_at(file)).max();
    if let Some(newest) = newest.filter(|newest| newest.since(now) > CLOCK_SLACK) {
        let found = format!("the clock shows {now}, but files were written at {newest}");
        return Finding::fail("clock", found, "set the clock: nodes follow it, and TLS needs it");
    }
    if SYNCHRONISED.iter().any(|mark| Path::new(mark).exists()) {
        return Finding::ok("clock", format!("{now}, kept by a time service"));
    }
    let next = "run chrony or systemd-timesyncd: nodes follow this clock";
    Finding::warn("clock", format!("{now}; no time service runs"), next)
}

fn modified_at(file: &Path) -> Option<Timestamp> {
    let modified = std::fs::metadata(file).ok()?.modified().ok()?;
    let since = modified.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(Timestamp::from_millis(i64::try_from(since.as_millis()).ok()?))
}
