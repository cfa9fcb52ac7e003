//! Health findings of the running central node, with hints.
//!
//! `meshd doctor` requests these findings, and adds its findings about files, disk and clock.
//!
//! | module | content |
//! | --- | --- |
//! | `machines` | findings about boots and nodes |
//! | `warm_reboots` | nodes that boot through their firmware although a warm reboot was ordered |

mod machines;
mod warm_reboots;

use crate::bind::{self, BindError};
use meshd_api::Finding;
use meshd_builder::ListOwner;
use meshd_central::{Central, FoundBmc, OtherServer, Reload, SegmentHealth, ServiceHealth};
use meshd_config::{DhcpMode, Segment, Site};
use meshd_types::Timestamp;
use std::{
    net::{Ipv4Addr, UdpSocket},
    time::Duration,
};

/// Usage of an address pool that causes a warning, in percent.
const POOL_WARNING: u32 = 80;
/// Time for which a finding reports another DHCP server after its last packet.
const OTHERS_REMEMBERED: Duration = Duration::from_secs(60 * 60);
/// Maximum number of machines or servers that one finding names. A finding about machines counts
/// the rest.
const NAMED: usize = 8;

/// Returns all findings of the central node.
pub(crate) fn findings(central: &Central) -> Vec<Finding> {
    let now = central.now();
    let mut findings = interfaces(&central.site());
    findings.extend(boot_lan(&central.lan_faults()));
    findings.extend(central.boot.services().into_iter().map(service));
    let segments = central.boot.segments();
    findings.extend(segments.iter().flat_map(|segment| segment_findings(segment, now)));
    findings.extend(central.nodes.read(|fleet| machines::findings(fleet, is_own_address)));
    findings.push(central.nodes.read(machines::slow_boots));
    let site = central.site();
    findings.extend(central.nodes.read(|fleet| warm_reboots::findings(fleet, &site, now)));
    findings.extend(reload(&central.generations.last_reload()));
    findings.push(shared_blobs(&central.site()));
    if central.series.is_failing() {
        findings.push(Finding::warn(
            "time series",
            "the last minute could not be stored: it is in memory, of nodes for this hour only",
            "free space on the disk of state_dir, and read the log of meshd",
        ));
    }
    findings.extend(unpaired_bmcs(&central.boot.unpaired_bmcs()));
    let waiting = central.enrolment.pending_count();
    if waiting > 0 {
        let next = "list them with `meshd node list`, then run `meshd node approve NODE`";
        findings.push(Finding::warn(
            "approval",
            format!("{waiting} agents wait for approval"),
            next,
        ));
    }
    findings
}

/// Reports BMCs that lease addresses, and whose machine is unknown.
fn unpaired_bmcs(found: &[FoundBmc]) -> Option<Finding> {
    let words = |bmc: &FoundBmc| format!("{} ({}, {})", bmc.mac, bmc.claim, bmc.address);
    let named = found.iter().take(NAMED).map(words).collect::<Vec<_>>().join(", ");
    let more = found.len().saturating_sub(NAMED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    let count = match found.len() {
        0 => return None,
        1 => "1 BMC has a lease and no machine".to_owned(),
        count => format!("{count} BMCs have a lease and no machine"),
    };
    let next = "compare each with its label, then import its machine with bmc_mac; `meshd dhcp leases` lists all";
    Some(Finding::warn("BMCs", format!("{count}: {named}{rest}"), next))
}

/// Reports why clients on the boot LAN are not fully checked.
fn boot_lan(faults: &[String]) -> Vec<Finding> {
    let next = "run meshd with CAP_NET_RAW and CAP_NET_ADMIN, as docs/service/meshd.service does";
    if faults.is_empty() {
        return vec![Finding::ok(
            "boot LAN",
            "connections are observed, and addresses of boots are bound to their NICs",
        )];
    }
    faults.iter().map(|fault| Finding::warn("boot LAN", fault.clone(), next)).collect()
}

/// Reports another site of the same name that shares the folder of blobs.
fn shared_blobs(site: &Site) -> Finding {
    let check = "shared blobs";
    let name = &site.name;
    let blobs_dir = site.blobs_dir.display();
    match ListOwner::read(&site.state_dir, name)
        .map(|owner| owner.list_of_namesake(&site.blobs_dir))
    {
        Ok(None) => Finding::ok(check, format!("no other site named {name} uses {blobs_dir}")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Finding::ok(check, "this site has no lists there yet")
        }
        Ok(Some(list)) => {
            let found = format!("another site named {name} uses {blobs_dir}: {}", list.display());
            Finding::warn(
                check,
                found,
                "set another [site].name, or remove that list if its site is gone",
            )
        }
        Err(error) => {
            let found = format!("the ID of this site cannot be read: {error}");
            Finding::warn(check, found, "check the permissions of [site].state_dir")
        }
    }
}

/// Reports faults of the last reload, and edited settings that need a restart.
fn reload(last: &Reload) -> Vec<Finding> {
    let mut findings = Vec::new();
    match last.faults.first() {
        None => findings.push(Finding::ok("reload", "the last configuration read is in effect")),
        Some(first) => {
            let count = last.faults.len();
            let file = first.file.display();
            let found = format!(
                "refused, the last valid one is in use: {count} faults, the first: {file}: {}",
                first.message
            );
            // Machines boot from the last valid configuration; a restart would fail.
            findings.push(Finding::warn(
                "reload",
                found,
                "`meshd reload` shows all of them with file and line",
            ));
        }
    }
    if !last.restart.is_empty() {
        let found = format!("changed but not in effect: {}", last.restart.join(", "));
        findings.push(Finding::warn("restart", found, "restart `meshd serve`; nodes keep running"));
    }
    findings
}

/// Checks the interface of each segment: existence, the server address of the nodes, and link
/// state.
pub fn interfaces(site: &Site) -> Vec<Finding> {
    let segments = site.segments.iter().filter_map(|segment| Some((segment.interface()?, segment)));
    segments.map(|(name, segment)| interface(name, segment)).collect()
}

fn interface(name: &str, segment: &Segment) -> Finding {
    let check = format!("interface {name}");
    let first = match bind::first_address(name) {
        Ok(first) => first,
        Err(error @ (BindError::NoSuchInterface { .. } | BindError::NoAddress { .. })) => {
            return Finding::fail_of(check, &error);
        }
        Err(error) => return Finding::warn(check, error.to_string(), "run the command as root"),
    };
    let address = segment.address.unwrap_or(first);
    if !is_own_address(address) {
        let found = format!(
            "nodes use the server address {address}, which this machine does not have; {name} has {first}"
        );
        return Finding::fail(
            check,
            found,
            "correct `address` beside the interface in site.toml, then restart meshd",
        );
    }
    let carrier =
        std::fs::read_to_string(format!("/sys/class/net/{name}/carrier")).unwrap_or_default();
    if carrier.trim() == "0" {
        let found = format!("nodes use the server address {address}; the interface has no link");
        return Finding::warn(check, found, "check the cable and the switch port");
    }
    Finding::ok(check, format!("nodes use the server address {address}"))
}

/// Returns true for an address of this host. Binding port 0 shows it; no packet is sent.
fn is_own_address(address: Ipv4Addr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

fn service(health: ServiceHealth) -> Finding {
    let ServiceHealth { service, interface, fault } = health;
    let check = format!("{service} on {interface}");
    match fault {
        None => Finding::ok(check, "answers"),
        Some(fault) => {
            let next =
                "check `ip address` and meshd's log; restart meshd if the interface is correct";
            Finding::fail(check, format!("machines cannot use it: {fault}"), next)
        }
    }
}

fn segment_findings(segment: &SegmentHealth, now: Timestamp) -> Vec<Finding> {
    let mode = format!("DHCP is {}", segment.mode.as_str());
    let mut findings = vec![Finding::ok(format!("segment {}", segment.name), mode)];
    findings.extend(pool(segment));
    let recent = |other: &&OtherServer| now.distance(other.last) <= OTHERS_REMEMBERED;
    let others: Vec<&OtherServer> = segment.other_servers.iter().filter(recent).collect();
    findings.extend(other_servers(segment, &others));
    findings
}

fn pool(segment: &SegmentHealth) -> Option<Finding> {
    let pool = segment.pool;
    if pool.size == 0 {
        return None;
    }
    let taken = pool.leased.saturating_add(pool.offered).saturating_add(pool.declined);
    let check = format!("pool {}", segment.name);
    let mut found = format!("{taken} of {} addresses are taken", pool.size);
    if pool.declined > 0 {
        found += &format!(", {} of them by machines that meshd does not know", pool.declined);
    }
    let next = "widen [dhcp].range, or shorten [dhcp].lease";
    Some(match () {
        () if taken >= pool.size => Finding::fail(check, found, next),
        () if u64::from(taken) * 100 >= u64::from(pool.size) * u64::from(POOL_WARNING) => {
            Finding::warn(check, found, next)
        }
        () => Finding::ok(check, found),
    })
}

fn other_servers(segment: &SegmentHealth, others: &[&OtherServer]) -> Option<Finding> {
    let check = format!("other servers {}", segment.name);
    let list = |others: &[&OtherServer]| {
        let addresses: Vec<String> =
            others.iter().take(NAMED).map(|other| other.address.to_string()).collect();
        addresses.join(", ")
    };
    let (proxies, leasing): (Vec<&OtherServer>, Vec<&OtherServer>) =
        others.iter().partition(|other| other.proxy);
    match segment.mode {
        DhcpMode::Off => None,
        _ if !proxies.is_empty() => {
            let found = format!("other PXE servers answer there: {}", list(&proxies));
            Some(Finding::warn(
                check,
                found,
                "disable PXE on the other servers; machines boot from the fastest one",
            ))
        }
        DhcpMode::Authoritative if !leasing.is_empty() => {
            let found = format!("other DHCP servers answer there: {}", list(&leasing));
            let next = "two leasing servers give machines conflicting answers: stop one, or set [dhcp].mode = \"proxy\"";
            Some(Finding::fail(check, found, next))
        }
        DhcpMode::Proxy if leasing.is_empty() => {
            let next = "power a machine on and ask again; without one, set [dhcp].mode = \"authoritative\"";
            Some(Finding::warn(check, "no DHCP server that leases addresses answered", next))
        }
        DhcpMode::Authoritative => Some(Finding::ok(check, "none answered")),
        DhcpMode::Proxy => {
            Some(Finding::ok(check, format!("addresses come from {}", list(&leasing))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_api::Status;
    use meshd_central::PoolUse;
    use std::net::Ipv4Addr;

    fn segment(mode: DhcpMode, leased: u32, others: &[(u8, bool)]) -> SegmentHealth {
        let now = Timestamp::from_millis(0);
        let other = |(host, proxy): &(u8, bool)| OtherServer {
            address: Ipv4Addr::new(10, 77, 0, *host),
            proxy: *proxy,
            last: now,
        };
        SegmentHealth {
            name: "br0".to_owned(),
            mode,
            pool: PoolUse { size: 10, leased, ..PoolUse::default() },
            other_servers: others.iter().map(other).collect(),
        }
    }

    fn worst(segment: &SegmentHealth, after: u64) -> Status {
        let now = Timestamp::from_millis(0).after(Duration::from_secs(after));
        let findings = segment_findings(segment, now);
        for finding in &findings {
            assert_eq!(
                finding.next.is_empty(),
                finding.status == Status::Ok,
                "{finding:?}: what to do, if anything"
            );
        }
        findings.iter().map(|finding| finding.status).max().expect("something was found")
    }

    #[test]
    fn pool_warns_before_it_is_full() {
        for (leased, status) in
            [(0, Status::Ok), (7, Status::Ok), (8, Status::Warn), (10, Status::Fail)]
        {
            assert_eq!(
                worst(&segment(DhcpMode::Authoritative, leased, &[]), 0),
                status,
                "{leased} of 10"
            );
        }
    }

    #[test]
    fn other_dhcp_server_is_judged_by_the_segment_mode() {
        use DhcpMode::*;
        for (mode, others, status) in [
            (Authoritative, &[(2, false)][..], Status::Fail),
            (Authoritative, &[(2, true)], Status::Warn),
            (Proxy, &[(2, false)], Status::Ok),
            (Proxy, &[], Status::Warn),
            (Proxy, &[(2, false), (3, true)], Status::Warn),
        ] {
            assert_eq!(worst(&segment(mode, 0, others), 0), status, "{mode:?} {others:?}");
        }
        let gone = segment(Authoritative, 0, &[(2, false)]);
        assert_eq!(worst(&gone, 3601), Status::Ok, "it was turned off an hour ago");
    }
}
