//! Conversions between types of the DHCP engine and of the model and the central node. Some have the
//! same fields: the model's types are stored, and the engine is independent of meshd (ADR 33).

use meshd_central::{
    BmcClaim, DhcpChange, DhcpExchange, DhcpRecordUpdate, LeaseChange, MachineNic, NicRecord,
    SegmentHealth,
};
use meshd_dhcp as dhcp;
use meshd_model::{
    fleet::{DhcpClient, Lease, RelayPort},
    work::ReservedNic,
};
use meshd_types::MacAddr;

/// Converts a `[[reservation]]` of site.toml.
pub(super) fn reservation(reservation: &meshd_config::Reservation) -> dhcp::Reservation {
    let meshd_config::Reservation { owner, address, parent } = *reservation;
    dhcp::Reservation { owner, address, parent }
}

/// Converts changes of records.
pub(super) fn record_changes(update: DhcpRecordUpdate) -> dhcp::RecordChanges {
    let DhcpRecordUpdate { is_complete, nics, removed_leases, .. } = update;
    if is_complete {
        return dhcp::RecordChanges::All(
            nics.into_iter().filter_map(|(mac, record)| Some(nic(mac, record?))).collect(),
        );
    }
    let nics = nics.into_iter().map(|(mac, record)| {
        record.map_or(dhcp::RecordChange::NicRemoved(mac), |record| {
            dhcp::RecordChange::Nic(nic(mac, record))
        })
    });
    let removed = removed_leases
        .into_iter()
        .map(|(mac, address)| dhcp::RecordChange::LeaseRemoved { mac, address });
    dhcp::RecordChanges::Some(nics.chain(removed).collect())
}

fn nic(mac: MacAddr, record: NicRecord) -> dhcp::NicRecord {
    let NicRecord { vm, machine, reserved, used } = record;
    let used =
        used.into_iter().map(|(address, until)| dhcp::UsedAddress { address, until }).collect();
    let vm = vm.map(vm_nic);
    let machine = machine.map(machine_nic);
    dhcp::NicRecord { mac, vm, machine, reserved, used }
}

fn vm_nic(nic: ReservedNic) -> dhcp::ReservedNic {
    let ReservedNic { vm, name, mac, address } = nic;
    dhcp::ReservedNic { vm, name, mac, address }
}

fn machine_nic(machine: MachineNic) -> dhcp::MachineNic {
    let MachineNic { ids, is_approved, is_boot_nic, attachment } = machine;
    let attachment = attachment.map(|(is_local, port)| dhcp::Attachment {
        is_local,
        relay_port: port.map(known_relay_port),
    });
    dhcp::MachineNic { ids, is_approved, is_boot_nic, attachment }
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
    let dhcp::RelayPort { relay, circuit_id, remote_id } = port;
    RelayPort { relay, circuit_id, remote_id }
}

/// Converts a relay port of the model.
fn known_relay_port(port: RelayPort) -> dhcp::RelayPort {
    let RelayPort { relay, circuit_id, remote_id } = port;
    dhcp::RelayPort { relay, circuit_id, remote_id }
}

/// Converts a change for the central node to store.
pub(super) fn change(change: dhcp::Change) -> DhcpChange {
    match change {
        dhcp::Change::Exchange(exchange) => DhcpChange::Exchange(DhcpExchange {
            mac: exchange.mac,
            client: match exchange.client {
                dhcp::ClientKind::Firmware => DhcpClient::Firmware,
                dhcp::ClientKind::Ipxe => DhcpClient::Ipxe,
                dhcp::ClientKind::Other => DhcpClient::Os,
            },
            uuid: exchange.uuid,
            arch: exchange.arch,
            is_discover: exchange.is_discover,
            secs: exchange.secs,
            address: exchange.address,
            lease: exchange.lease.map(lease),
            discovered: exchange.discovered,
            relay_port: exchange.relay_port.map(relay_port),
            is_relayed: exchange.is_relayed,
            bmc: exchange.bmc.map(|bmc| {
                let dhcp::BmcClaim { product, host_name } = bmc;
                BmcClaim { product, host_name }
            }),
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
