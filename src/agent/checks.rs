//! Is this node fit for work? A list of small functions; `mesh-agent doctor` prints them, the central node is sent them at
//! each connection. Only a failure keeps a node from being online.

use super::facts::{self, Tree};
use crate::{
    id::{DenyList, Timestamp},
    wire::{AgentConfig, BootPart, Check, CheckStatus},
};

/// Below this much available memory a node is called tight, in KiB.
const TIGHT_KIB: u64 = 64 * 1024;

/// What a check may look at.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The node's file system.
    pub tree: &'a Tree,
    /// What the overlay says.
    pub config: &'a AgentConfig,
    /// What the overlay says of this boot.
    pub boot: &'a BootPart,
    /// This node's clock.
    pub now: Timestamp,
}

type CheckFn = fn(&Context<'_>) -> Check;

/// Every check, in the order in which it runs. A new one is a function and a line here.
const ALL: [CheckFn; 4] = [services, identity, clock, memory];

/// Runs every check.
pub fn run(context: &Context<'_>) -> Vec<Check> {
    ALL.iter().map(|check| check(context)).collect()
}

/// Counts failures and warnings.
pub fn tally(checks: &[Check]) -> (usize, usize) {
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    (count(CheckStatus::Fail), count(CheckStatus::Warn))
}

fn verdict(name: &str, status: CheckStatus, detail: impl Into<String>, remediation: &str) -> Check {
    Check { name: name.into(), status, detail: detail.into(), remediation: remediation.into() }
}

/// Every service that the profile wants is started; OpenRC keeps a link for each one that is.
fn services(context: &Context<'_>) -> Check {
    const NAME: &str = "services";
    let wanted = &context.config.services;
    if wanted.is_empty() {
        return verdict(NAME, CheckStatus::Skip, "the profile asks for none", "");
    }
    let safe = |name: &str| !name.is_empty() && !name.contains('/') && !name.starts_with('.');
    let runs = |name: &&String| safe(name) && context.tree.has(&format!("/run/openrc/started/{name}"));
    let missing: Vec<&str> = wanted.iter().filter(|name| !runs(name)).map(String::as_str).collect();
    if missing.is_empty() {
        return verdict(NAME, CheckStatus::Pass, format!("{} started", wanted.len()), "");
    }
    let detail = format!("not started: {}", missing.join(", "));
    verdict(NAME, CheckStatus::Fail, detail, "see `rc-status` and the service's log on the node")
}

/// This machine is the one that the overlay was made for.
fn identity(context: &Context<'_>) -> Check {
    const NAME: &str = "identity";
    let expected = context.config.node;
    let basis = facts::hardware(context.tree).basis(&DenyList::new());
    let remediation = "compare `mesh-agent id` with `meshd node show`; a UUID that the site lists as untrustworthy or a \
                       second network card explains it";
    match basis {
        Some(basis) if basis.node_id() == expected => verdict(NAME, CheckStatus::Pass, basis.to_string(), ""),
        Some(basis) => {
            let detail = format!("the overlay says {expected}, this machine says {} ({basis})", basis.node_id());
            verdict(NAME, CheckStatus::Warn, detail, remediation)
        }
        None => verdict(NAME, CheckStatus::Warn, "this machine shows nothing that identifies it", remediation),
    }
}

/// The clock was stepped to at least the time at which the overlay was delivered.
fn clock(context: &Context<'_>) -> Check {
    const NAME: &str = "clock";
    let issued_at = context.boot.issued_at;
    if context.now >= issued_at {
        return verdict(NAME, CheckStatus::Pass, "not before the overlay's delivery", "");
    }
    let detail = format!("{} is before the overlay's delivery at {issued_at}", context.now);
    verdict(NAME, CheckStatus::Fail, detail, "set [dhcp].ntp, or replace the machine's clock battery")
}

/// The node runs from memory: when that is used up, it stops.
fn memory(context: &Context<'_>) -> Check {
    const NAME: &str = "memory";
    let memory = facts::memory(context.tree);
    if memory.total_kib == 0 {
        return verdict(NAME, CheckStatus::Warn, "/proc/meminfo is not readable", "is /proc mounted?");
    }
    let (available, total) = (memory.available_kib / 1024, memory.total_kib / 1024);
    let detail = format!("{available} of {total} MiB available");
    if memory.available_kib < TIGHT_KIB {
        return verdict(NAME, CheckStatus::Warn, detail, "look for large files in tmpfs: `du -xsh /*`");
    }
    verdict(NAME, CheckStatus::Pass, detail, "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::BootSessionId;
    use std::{fs, net::Ipv4Addr};

    fn config(services: &[&str]) -> AgentConfig {
        AgentConfig {
            version: 1,
            node: "00000001".parse().expect("a node ID"),
            central: Ipv4Addr::LOCALHOST,
            port: 1,
            ca_file: "/etc/meshd/ca.pem".into(),
            heartbeat_s: 30,
            profile: "discovery".into(),
            services: services.iter().map(|name| (*name).to_owned()).collect(),
            checks: Default::default(),
        }
    }

    fn boot() -> BootPart {
        let (node, session) = (config(&[]).node, BootSessionId([1; 12]));
        let issued_at = Timestamp::from_millis(1000);
        BootPart { version: 1, node, session, generation: String::new(), issued_at, token: None }
    }

    fn status(name: &str, tree: &Tree, config: &AgentConfig, now: i64) -> (CheckStatus, String) {
        let context = Context { tree, config, boot: &boot(), now: Timestamp::from_millis(now) };
        let check = run(&context).into_iter().find(|check| check.name == name).expect("there");
        assert_eq!(check.remediation.is_empty(), matches!(check.status, CheckStatus::Pass | CheckStatus::Skip));
        (check.status, check.detail)
    }

    #[test]
    fn a_service_that_openrc_has_not_started_is_a_failure() {
        let dir = tempfile::tempdir().expect("a folder");
        let tree = Tree::new(dir.path());
        fs::create_dir_all(dir.path().join("run/openrc/started")).expect("made");
        // OpenRC's links point to /etc/init.d, which does not exist below this root: the link alone counts.
        std::os::unix::fs::symlink("/nowhere/sshd", dir.path().join("run/openrc/started/sshd")).expect("linked");
        assert_eq!(status("services", &tree, &config(&[]), 1).0, CheckStatus::Skip);
        assert_eq!(status("services", &tree, &config(&["sshd"]), 1).0, CheckStatus::Pass);
        let (verdict, detail) = status("services", &tree, &config(&["sshd", "libvirtd", "../started"]), 1);
        assert_eq!((verdict, detail.as_str()), (CheckStatus::Fail, "not started: libvirtd, ../started"));
    }

    #[test]
    fn another_identity_is_a_warning_and_an_early_clock_a_failure() {
        let dir = tempfile::tempdir().expect("a folder");
        let tree = Tree::new(dir.path());
        assert_eq!(status("identity", &tree, &config(&[]), 1).0, CheckStatus::Warn);
        fs::create_dir_all(dir.path().join("sys/class/dmi/id")).expect("made");
        let uuid = "01020304-0506-0708-090a-0b0c0d0e0f10";
        fs::write(dir.path().join("sys/class/dmi/id/product_uuid"), uuid).expect("written");
        let (verdict, detail) = status("identity", &tree, &config(&[]), 1);
        assert!(verdict == CheckStatus::Warn && detail.contains(uuid), "{detail}");
        let ours = AgentConfig {
            node: format!("uuid:{uuid}").parse::<crate::id::Basis>().expect("basis").node_id(),
            ..config(&[])
        };
        assert_eq!(status("identity", &tree, &ours, 1).0, CheckStatus::Pass);
        assert_eq!(status("clock", &tree, &ours, 999).0, CheckStatus::Fail);
        assert_eq!(status("clock", &tree, &ours, 1000).0, CheckStatus::Pass);
    }

    #[test]
    fn little_memory_is_a_warning() {
        let dir = tempfile::tempdir().expect("a folder");
        let tree = Tree::new(dir.path());
        fs::create_dir_all(dir.path().join("proc")).expect("made");
        for (available, expected) in [(65_535, CheckStatus::Warn), (65_536, CheckStatus::Pass)] {
            let text = format!("MemTotal: 1000000 kB\nMemAvailable: {available} kB\n");
            fs::write(dir.path().join("proc/meminfo"), text).expect("written");
            assert_eq!(status("memory", &tree, &config(&[]), 1).0, expected);
        }
    }
}
