//! What an operator should know, once.

use super::{bootfile::NoLoader, level::Level, request::Kind};
use crate::serve::central::PoolUse;
use meshd_model::fleet::{ConditionKind, EventKind, RelayPort};
use meshd_types::{MacAddr, VmName};
use std::{fmt, net::Ipv4Addr, sync::Arc};

/// Why a client got less than it asked for, or will soon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A firmware gets an address, but nothing to boot.
    NoLoader(NoLoader),
    /// A relay of a network that is no segment passed a request on.
    ForeignRelay(Ipv4Addr),
    /// Another server is on a segment.
    OtherServer {
        /// Which segment.
        segment: Arc<str>,
        /// Its server identifier.
        server: Ipv4Addr,
        /// A proxy for PXE clients only.
        proxy: bool,
    },
    /// A client found its address in use by another machine.
    Declined {
        /// Which segment.
        segment: Arc<str>,
        /// Which address.
        address: Ipv4Addr,
    },
    /// A packet names one client and was sent by another Ethernet address.
    Forged {
        /// The client that it names.
        mac: MacAddr,
        /// Who sent it.
        sender: MacAddr,
        /// What it asks for.
        kind: Kind,
    },
    /// A relay says that a node's card is plugged in elsewhere than when the node enrolled.
    OtherPort {
        /// The card.
        mac: MacAddr,
        /// Where it was.
        known: RelayPort,
        /// Where it is said to be now.
        seen: Option<RelayPort>,
    },
    /// What is reserved for a virtual machine is somebody else's by site.toml.
    NotKept {
        /// Which machine.
        vm: VmName,
        /// Which address.
        address: Ipv4Addr,
    },
    /// A pool reached a level.
    Pool {
        /// Which segment.
        segment: Arc<str>,
        /// Which level.
        level: Level,
        /// What its addresses are.
        usage: PoolUse,
    },
}

impl Note {
    /// For the log, which has one line for each cause and minute.
    pub fn cause(&self) -> &'static str {
        match self {
            Note::NoLoader(NoLoader::UnknownArch(_)) => "unknown architecture",
            Note::NoLoader(NoLoader::Absent { loader, .. }) => loader,
            Note::ForeignRelay(_) => "foreign relay",
            Note::OtherServer { proxy: false, .. } => "other DHCP server",
            Note::OtherServer { proxy: true, .. } => "other PXE server",
            Note::Declined { .. } => "declined",
            Note::Forged { .. } => "forged sender",
            Note::OtherPort { .. } => "other relay port",
            Note::NotKept { .. } => "not kept",
            Note::Pool { .. } => "pool",
        }
    }

    /// For the record of events, if it belongs there.
    pub fn event(&self) -> Option<EventKind> {
        match self {
            Note::NoLoader(_) | Note::ForeignRelay(_) | Note::NotKept { .. } => None,
            // Alarms, by [`Note::alarm`].
            Note::Forged { .. } | Note::OtherPort { .. } => None,
            Note::OtherServer { .. } => Some(EventKind::OtherDhcpServer),
            Note::Declined { .. } => Some(EventKind::AddressDeclined),
            Note::Pool { level: Level::Exhausted, .. } => Some(EventKind::PoolExhausted),
            Note::Pool { .. } => Some(EventKind::PoolFilling),
        }
    }
}

impl Note {
    /// The card that somebody else may speak for, and who, by what is known: an alarm.
    pub fn alarm(&self) -> Option<(MacAddr, ConditionKind, String)> {
        match self {
            Note::Forged { mac, sender, .. } => Some((*mac, ConditionKind::BootImpersonated, sender.to_string())),
            Note::OtherPort { mac, seen, .. } => {
                let port = seen.as_ref().map_or_else(|| "no relay port".to_owned(), ToString::to_string);
                Some((*mac, ConditionKind::RelayPortChanged, port))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::NoLoader(NoLoader::UnknownArch(arch)) => write!(
                f,
                "a machine with client architecture {} (DHCP option 93) asks to boot; there is no loader for it",
                arch.0
            ),
            Note::NoLoader(NoLoader::Absent { firmware, loader }) => write!(
                f,
                "a {firmware} machine asks to boot, but {loader} is not in [boot].loaders_dir; add it and restart meshd"
            ),
            Note::ForeignRelay(relay) => write!(
                f,
                "relay {relay} is on the network of no segment, so it is not answered; write [[segment]] relay = \"{relay}\""
            ),
            Note::OtherServer { segment, server, proxy: false } => {
                write!(f, "another DHCP server, {server}, answers on {segment}; stop it, or set mode = \"proxy\" there")
            }
            Note::OtherServer { segment, server, proxy: true } => {
                write!(f, "another PXE server, {server}, answers on {segment}; machines may boot from either; stop it")
            }
            Note::Declined { segment, address } => {
                write!(
                    f,
                    "{address} on {segment} is used by a machine that did not get it from meshd; take it out of range"
                )
            }
            Note::Forged { mac, sender, kind } => {
                write!(f, "{sender} sent a DHCP {kind:?} in the name of {mac}; it is ignored")
            }
            Note::OtherPort { mac, known, seen } => {
                let seen = seen.as_ref().map_or_else(|| "no port at all".to_owned(), ToString::to_string);
                write!(f, "{mac} asks from another relay port, {seen}, than it enrolled from, {known}; it is ignored")
            }
            Note::NotKept { vm, address } => write!(
                f,
                "{address} is recorded for the virtual machine {vm}, but site.toml gives it, or another one, to somebody; change site.toml, or delete {vm}"
            ),
            Note::Pool { segment, level: Level::Exhausted, usage } => {
                write!(
                    f,
                    "every one of the {} addresses of {segment} is in use; widen range or shorten lease",
                    usage.size
                )
            }
            Note::Pool { segment, usage, .. } => {
                let PoolUse { size, leased, offered, declined } = usage;
                let used = leased.saturating_add(*offered).saturating_add(*declined);
                write!(f, "{used} of the {size} addresses of {segment} are in use; widen range or shorten lease")
            }
        }
    }
}
