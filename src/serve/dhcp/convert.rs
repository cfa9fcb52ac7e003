//! Conversions between types of the DHCP engine and of the model and the central node.

use meshd_central::{DhcpChange, DhcpObservation, LeaseChange, SegmentHealth};
use meshd_dhcp as dhcp;
use meshd_model::{
    fleet::{DhcpExchange, Lease, RelayPort},
    work::{NicChanges, ReservedNic},
};

/// Converts a `[[reservation]]` of site.toml.
pub(super) fn reservation(reservation: &meshd_config::Reservation) -> dhcp::Reservation {
    let meshd_config::Reservation { owner, address, parent } = *reservation;
    dhcp::Reservation { owner, address, parent }
}

/// Converts a NIC of a VM.
pub(super) fn nic(nic: ReservedNic) -> dhcp::ReservedNic {
    let ReservedNic { vm, name, mac, address } = nic;
    dhcp::ReservedNic { vm, name, mac, address }
}

/// Converts changes to the NICs of VMs.
pub(super) fn nic_changes(changes: NicChanges) -> dhcp::NicChanges {
    match changes {
        NicChanges::All(all) => dhcp::NicChanges::All(all.into_iter().map(nic).collect()),
        NicChanges::Changed(changed) => {
            dhcp::NicChanges::Changed(changed.into_iter().map(|(mac, reserved)| (mac, reserved.map(nic))).collect())
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
pub(super) fn change(change: dhcp::Change) -> DhcpChange {
    match change {
        dhcp::Change::Exchange(exchange) => DhcpChange::Exchange(DhcpObservation {
            mac: exchange.mac,
            exchange: match exchange.client {
                dhcp::ClientKind::Firmware => DhcpExchange::Firmware,
                dhcp::ClientKind::Ipxe => DhcpExchange::Ipxe,
                dhcp::ClientKind::Other => DhcpExchange::Os,
            },
            uuid: exchange.uuid,
            arch: exchange.arch,
            address: exchange.address,
            lease: exchange.lease.map(lease),
            discovered: exchange.discovered,
            relay_port: exchange.relay_port.map(relay_port),
            is_relayed: exchange.is_relayed,
        }),
        dhcp::Change::LeaseGranted(leased) => DhcpChange::LeaseGranted(lease(leased)),
        dhcp::Change::LeaseChanged(dhcp::LeaseChange { before, after }) => {
            DhcpChange::LeaseChanged(LeaseChange { before: lease(before), after: after.map(lease) })
        }
    }
}

/// Converts the status of a segment.
pub(super) fn health(status: dhcp::SegmentStatus) -> SegmentHealth {
    let dhcp::SegmentStatus { name, mode, pool, other_servers } = status;
    SegmentHealth { name, mode, pool, other_servers }
}
