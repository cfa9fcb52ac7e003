//! What a node with Alpine and OpenRC needs. Its first program is mesh-init, or stage 1 for a root
//! image; the central node adds both.

use super::requirements::Requirements;

pub(super) const REQUIREMENTS: Requirements = Requirements {
    init_packages: &["alpine-base", "openrc"],
    needed: &[
        ("/etc/init.d/mesh-agent", true),
        ("/etc/meshd/agent.json", false),
        ("/etc/network/interfaces", false),
        ("/usr/share/meshd/udhcpc", true),
    ],
    absent_hint: "begin the list with overlays = [\"base\", \"agent\"], or extend a profile that has both",
    // init starts OpenRC, and OpenRC the agent and the boot interface.
    needed_lines: &[
        ("/etc/inittab", "openrc sysinit"),
        ("/etc/inittab", "openrc boot"),
        ("/etc/inittab", "openrc default"),
        ("/etc/network/interfaces", "/etc/network/interfaces.d"),
    ],
    folders: &[
        "bin",
        "etc",
        "etc/apk",
        "etc/init.d",
        "etc/meshd",
        "etc/network",
        "home",
        "lib",
        "lib/modules",
        "media",
        "mnt",
        "opt",
        "opt/bundles",
        "root",
        "sbin",
        "tmp",
        "usr",
        "usr/bin",
        "usr/lib",
        "usr/local",
        "usr/local/bin",
        "usr/sbin",
        "usr/share",
        "var",
        "var/lib",
    ],
    mounted: &["dev", "proc", "run", "sys"],
    package_links: &[
        ("var/lock", "run/lock"),
        ("var/run", "run"),
        ("var/spool/cron/crontabs", "etc/crontabs"),
        ("var/spool/mail", "var/mail"),
        ("etc/mtab", "proc/mounts"),
    ],
    programs: &["bin/busybox", "bin/sh", "sbin/apk", "sbin/init", "sbin/openrc", "sbin/openrc-run"],
    accounts: &["etc/passwd", "etc/shadow"],
};
