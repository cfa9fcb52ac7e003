//! Warnings of the DHCP engine: their text and log cause, and the event or alarm that they become.

use super::convert::relay_port;
use meshd_dhcp::{DropReason, NoLoader, PoolUse, Warning, lease::PoolLevel};
use meshd_model::fleet::{ConditionKind, EventKind};
use meshd_types::MacAddr;
use std::net::Ipv4Addr;

/// Returns the cause in the log, which has one line for each cause and minute.
pub(super) fn cause(warning: &Warning) -> &'static str {
    match warning {
        Warning::NoLoader(NoLoader::UnknownArch { .. }) => "unknown architecture",
        Warning::NoLoader(NoLoader::Absent { loader, .. }) => loader,
        Warning::ForeignRelay { .. } => "foreign relay",
        Warning::Dropped { reason, .. } => drop_reason(*reason),
        Warning::OtherServer { proxy: false, .. } => "other DHCP server",
        Warning::OtherServer { proxy: true, .. } => "other PXE server",
        Warning::AddressInUse { .. } => "address in use",
        Warning::ManyAddressesClaimed { .. } => "many addresses claimed",
        Warning::Forged { .. } => "forged sender",
        Warning::UnknownRelay { .. } => "unknown relay",
        Warning::RelayPortMismatch { .. } => "other relay port",
        Warning::NotReserved { .. } | Warning::MachineNotReserved { .. } => "not reserved",
        Warning::Pool { .. } => "pool",
    }
}

/// Returns the name of a reason in metrics and log.
pub(super) fn drop_reason(reason: DropReason) -> &'static str {
    match reason {
        DropReason::Malformed => "malformed",
        DropReason::RateLimited => "rate_limited",
        DropReason::UnprovenSender => "unproven_sender",
        DropReason::SourcePort => "source_port",
        DropReason::NoAddress => "no_address",
        DropReason::Unfounded => "unfounded",
    }
}

/// Returns the event to record, if any.
pub(super) fn event(warning: &Warning) -> Option<EventKind> {
    match warning {
        Warning::NoLoader(_)
        | Warning::ForeignRelay { .. }
        | Warning::Dropped { .. }
        | Warning::NotReserved { .. }
        | Warning::MachineNotReserved { .. } => None,
        // `alarm` converts these warnings.
        Warning::Forged { .. }
        | Warning::UnknownRelay { .. }
        | Warning::RelayPortMismatch { .. } => None,
        Warning::OtherServer { .. } => Some(EventKind::OtherDhcpServer),
        Warning::AddressInUse { .. } | Warning::ManyAddressesClaimed { .. } => {
            Some(EventKind::AddressDeclined)
        }
        Warning::Pool { level: PoolLevel::Exhausted, .. } => Some(EventKind::PoolExhausted),
        Warning::Pool { .. } => Some(EventKind::PoolFilling),
    }
}

/// Returns the alarm to raise, if any: the impersonated NIC, the condition, and the sender or port
/// of the packet.
pub(super) fn alarm(warning: &Warning) -> Option<(MacAddr, ConditionKind, String)> {
    match warning {
        Warning::Forged { mac, sender, .. } => {
            Some((*mac, ConditionKind::BootImpersonated, sender.to_string()))
        }
        Warning::UnknownRelay { mac, sender } => {
            Some((*mac, ConditionKind::BootImpersonated, sender.to_string()))
        }
        Warning::RelayPortMismatch { mac, seen, .. } => {
            let port = seen
                .clone()
                .map_or_else(|| "no relay port".to_owned(), |seen| relay_port(seen).to_string());
            Some((*mac, ConditionKind::RelayPortChanged, port))
        }
        _ => None,
    }
}

/// Returns the text for log, events and alarms.
pub(super) fn text(warning: &Warning) -> String {
    match warning {
        Warning::NoLoader(NoLoader::UnknownArch { class, arch: Some(arch) }) => format!(
            "a {} machine with client architecture {} (DHCP option 93) asks to boot; there is no loader for it",
            class.name(),
            arch.0
        ),
        Warning::NoLoader(NoLoader::UnknownArch { class, arch: None }) => format!(
            "a {} machine asks to boot without its architecture (DHCP option 93); it gets no loader",
            class.name()
        ),
        Warning::NoLoader(NoLoader::Absent { firmware, loader }) => format!(
            "a {firmware} machine asks to boot, but {loader} is not in [boot].loaders_dir; add it and restart meshd"
        ),
        Warning::ForeignRelay { relay, selected: None } => {
            format!(
                "relay {relay} belongs to no segment and gets no answer; add [[segment]] relay = \"{relay}\""
            )
        }
        Warning::ForeignRelay { relay, selected: Some(network) } => format!(
            "relay {relay} selects the network of {network} (DHCP option 82 or 118), which belongs to no segment; add [[segment]] relay = \"{network}\""
        ),
        Warning::Dropped { reason, mac, source } => describe_drop(*reason, *mac, *source),
        Warning::OtherServer { segment, server, proxy: false } => {
            format!(
                "another DHCP server, {server}, answers on {segment}; stop it, or set mode = \"proxy\" there"
            )
        }
        Warning::OtherServer { segment, server, proxy: true } => {
            format!(
                "another PXE server, {server}, answers on {segment}; machines may boot from either; stop it"
            )
        }
        Warning::AddressInUse { segment, address, by } => {
            let user = by.map_or_else(|| "a machine".to_owned(), |by| by.to_string());
            format!(
                "{address} on {segment} is used by {user}, which did not get it from meshd; take it out of range"
            )
        }
        Warning::ManyAddressesClaimed { segment, by } => format!(
            "{by} claims several addresses on {segment} that it did not get from meshd (ARP); it is ignored; find the machine with this MAC address, or take its addresses out of range"
        ),
        Warning::Forged { mac, sender, kind } => {
            format!(
                "{sender} sent a DHCP {kind:?} in the name of {mac}; it is ignored; if {mac} is a virtual interface of that machine, set parent in its [[reservation]]"
            )
        }
        Warning::UnknownRelay { mac, sender } => format!(
            "{sender} relayed a DHCP request of {mac}, and is no relay of its segment; it is ignored; if it is a relay, add redundant_relays = [\"{sender}\"] to the [[segment]], else find that machine"
        ),
        Warning::RelayPortMismatch { mac, known, seen } => {
            let seen = seen
                .clone()
                .map_or_else(|| "no port at all".to_owned(), |seen| relay_port(seen).to_string());
            let known = relay_port(known.clone());
            format!(
                "{mac} asks from another relay port, {seen}, than it enrolled from, {known}; it is ignored"
            )
        }
        Warning::NotReserved { vm, address } => format!(
            "{address} is recorded for the VM {vm}, but site.toml reserves the address for another NIC, or another address for the NIC; change site.toml, or delete {vm}"
        ),
        Warning::MachineNotReserved { mac, address } => format!(
            "{address} is recorded for the expected machine {mac}, but another record has the address, or site.toml reserves it or another one for the machine; change that record or site.toml: the address is reserved when the other one gives it up"
        ),
        Warning::Pool { segment, level: PoolLevel::Exhausted, usage } => {
            format!(
                "every one of the {} addresses of {segment} is in use; widen range or shorten lease",
                usage.size
            )
        }
        Warning::Pool { segment, usage, .. } => {
            let PoolUse { size, leased, offered, declined } = usage;
            let used = leased.saturating_add(*offered).saturating_add(*declined);
            format!(
                "{used} of the {size} addresses of {segment} are in use; widen range or shorten lease"
            )
        }
    }
}

fn describe_drop(reason: DropReason, mac: Option<MacAddr>, source: Ipv4Addr) -> String {
    let what = match reason {
        DropReason::Malformed => "it is no DHCP request of a client",
        DropReason::RateLimited => "its sender exceeds the rate limit",
        DropReason::UnprovenSender => "its sender is not proven to be the client",
        DropReason::SourcePort => {
            "clients send from port 68 and relays from port 67, or from the port that option 82 names"
        }
        DropReason::NoAddress => "it names no address",
        DropReason::Unfounded => {
            "it gives up an address that is in use, or that its machine did not lease lately"
        }
    };
    let client = mac.map(|mac| format!(" in the name of {mac}")).unwrap_or_default();
    format!("a DHCP packet from {source}{client} is ignored: {what}")
}
