//! `[metrics]`: where Prometheus may ask, beside the admin socket. Without the section there is no listener.

use super::{
    MetricsListener,
    parse::or,
    reader::{Document, Table},
};
use std::net::Ipv4Addr;

/// What most sites take: 9100 to 9999 is where exporters live.
const DEFAULT_PORT: u16 = 9109;

/// Reads `[metrics]`. `Some(None)` without it; `None` when it has a fault.
pub(super) fn read(document: &Document, root: &Table<'_>) -> Option<Option<MetricsListener>> {
    let Some(metrics) = root.table("metrics") else { return (!root.has("metrics")).then_some(None) };
    let address = metrics.ipv4("address");
    if let Some(address) = &address
        && (address.is_multicast() || address.is_broadcast())
    {
        let hint = "write an address of this machine, such as 127.0.0.1";
        document.fault(address, format!("`{}` is no machine's address", address.value), hint);
        return None;
    }
    let address = or(&metrics, "address", address, Ipv4Addr::LOCALHOST);
    let port = or(&metrics, "port", metrics.port("port"), DEFAULT_PORT);
    Some(Some(MetricsListener { address: address?, port: port? }))
}

/// The boot and agent planes are open to every machine; what is told here is not for them.
pub(super) fn check_port(
    document: &Document,
    root: &Table<'_>,
    metrics: Option<MetricsListener>,
    taken: &[(&str, u16)],
) {
    let Some(listener) = metrics else { return };
    if let Some((section, port)) = taken.iter().find(|(_, port)| *port == listener.port) {
        let place = root.table("metrics").map_or_else(|| root.here(), |table| table.place("port"));
        document.fault(&place, format!("[metrics] and {section} both have port {port}"), "give them different ports");
    }
}
