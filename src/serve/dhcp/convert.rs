//! Conversions between types of the DHCP engine and of site.toml, the model and the central node.

use crate::serve::central::{DhcpSeen, DhcpStep, LeaseChange, SegmentHealth};
use meshd_config as config;
use meshd_dhcp as dhcp;
use meshd_model::{
    fleet::{DhcpExchange, Lease, RelayPort},
    work::{CardNews, ReservedNic},
};

/// Converts a segment of site.toml.
pub(super) fn segment(segment: &config::Segment) -> dhcp::Segment {
    dhcp::Segment {
        link: match &segment.link {
            config::Link::Interface(interface) => dhcp::Link::Interface(interface.clone()),
            config::Link::Relay(relay) => dhcp::Link::Relay(*relay),
        },
        address: segment.address,
        mode: match segment.mode {
            config::DhcpMode::Authoritative => dhcp::DhcpMode::Authoritative,
            config::DhcpMode::Proxy => dhcp::DhcpMode::Proxy,
            config::DhcpMode::Off => dhcp::DhcpMode::Off,
        },
        pool: segment.pool.as_ref().map(pool),
        relay_macs: segment.relay_macs.clone(),
    }
}

fn pool(pool: &config::Pool) -> dhcp::Pool {
    let config::Pool { first, last, prefix_len, lease, router, dns, ntp, domain } = pool.clone();
    dhcp::Pool { first, last, prefix_len, lease, router, dns, ntp, domain }
}

/// Converts a `[[reservation]]` of site.toml.
pub(super) fn reservation(reservation: &config::Reservation) -> dhcp::Reservation {
    let owner = match reservation.whom {
        config::Whom::Mac(mac) => dhcp::Owner::Mac(mac),
        config::Whom::Node(node) => dhcp::Owner::Node(node),
    };
    dhcp::Reservation { owner, address: reservation.address }
}

/// Converts a NIC of a virtual machine.
pub(super) fn nic(nic: ReservedNic) -> dhcp::ReservedNic {
    let ReservedNic { vm, name, mac, address } = nic;
    dhcp::ReservedNic { vm, name, mac, address }
}

/// Converts changes to the NICs of virtual machines.
pub(super) fn nic_changes(news: CardNews) -> dhcp::NicChanges {
    match news {
        CardNews::All(all) => dhcp::NicChanges::All(all.into_iter().map(nic).collect()),
        CardNews::Changed(changed) => {
            dhcp::NicChanges::Changed(changed.into_iter().map(|(mac, card)| (mac, card.map(nic))).collect())
        }
    }
}

/// Converts a stored lease.
pub(super) fn stored_lease(lease: Lease) -> dhcp::Lease {
    let Lease { mac, address, expires_at, vm } = lease;
    dhcp::Lease { mac, address, expires_at, vm }
}

fn lease(lease: dhcp::Lease) -> Lease {
    let dhcp::Lease { mac, address, expires_at, vm } = lease;
    Lease { mac, address, expires_at, vm }
}

/// Converts a relay port of the engine.
pub(super) fn relay_port(port: dhcp::RelayPort) -> RelayPort {
    let dhcp::RelayPort { circuit_id, remote_id } = port;
    RelayPort { circuit_id, remote_id }
}

/// Converts a relay port of the model.
pub(super) fn known_relay_port(port: RelayPort) -> dhcp::RelayPort {
    let RelayPort { circuit_id, remote_id } = port;
    dhcp::RelayPort { circuit_id, remote_id }
}

/// Converts a change for the central node to store.
pub(super) fn step(change: dhcp::Change) -> DhcpStep {
    match change {
        dhcp::Change::Seen(seen) => DhcpStep::Seen(DhcpSeen {
            mac: seen.mac,
            exchange: match seen.client {
                dhcp::ClientKind::Firmware => DhcpExchange::Firmware,
                dhcp::ClientKind::Ipxe => DhcpExchange::Ipxe,
                dhcp::ClientKind::Os => DhcpExchange::Os,
            },
            uuid: seen.uuid,
            arch: seen.arch,
            address: seen.address,
            lease: seen.lease.map(lease),
            discovered: seen.discovered,
            relay_port: seen.relay_port.map(relay_port),
            is_relayed: seen.is_relayed,
        }),
        dhcp::Change::Leased(leased) => DhcpStep::Leased(lease(leased)),
        dhcp::Change::Lease(dhcp::LeaseChange { before, after }) => {
            DhcpStep::Lease(LeaseChange { before: lease(before), after: after.map(lease) })
        }
    }
}

/// Converts the status of a segment.
pub(super) fn health(status: dhcp::SegmentStatus) -> SegmentHealth {
    let dhcp::SegmentStatus { name, mode, pool, other_servers } = status;
    let mode = match mode {
        dhcp::DhcpMode::Authoritative => config::DhcpMode::Authoritative,
        dhcp::DhcpMode::Proxy => config::DhcpMode::Proxy,
        dhcp::DhcpMode::Off => config::DhcpMode::Off,
    };
    SegmentHealth { name, mode, pool, other_servers }
}
