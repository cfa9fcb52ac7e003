//! What a node with systemd needs. Its first program is stage 1, which the central node adds.

use super::requirements::Requirements;

pub(super) const REQUIREMENTS: Requirements = Requirements {
    init_packages: &[],
    needed: &[("/etc/systemd/system/mesh-agent.service", false), ("/etc/meshd/agent.json", false)],
    needed_lines: &[],
    absent_hint: "begin the list with overlays = [\"base\", \"agent\"], or extend a profile that has both",
    folders: &["boot", "etc", "etc/meshd", "etc/systemd", "home", "opt", "root", "usr", "var"],
    mounted: &["dev", "proc", "run", "sys"],
    package_links: &[("var/lock", "run/lock"), ("var/run", "run"), ("etc/mtab", "proc/mounts")],
    programs: &["sbin/init", "usr/sbin/init", "usr/lib/systemd/systemd"],
    accounts: &["etc/passwd", "etc/shadow"],
};
