//! `[metrics]`: the optional listener for Prometheus.

use crate::{
    MetricsListener,
    reader::{Document, Table, or},
};
use std::net::Ipv4Addr;

/// Prometheus exporters conventionally use ports 9100 to 9999.
const DEFAULT_PORT: u16 = 9109;

/// Reads `[metrics]`: `Some(None)` if absent, `None` on a fault. The ports of boot and agent API
/// are open to every machine, so metrics have another port.
pub(crate) fn read(
    document: &Document,
    root: &Table<'_>,
    taken: &[(&str, u16)],
) -> Option<Option<MetricsListener>> {
    let Some(metrics) = root.table("metrics") else {
        return (!root.has("metrics")).then_some(None);
    };
    let address = metrics.ipv4("address");
    if let Some(address) = &address
        && (address.is_multicast() || address.is_broadcast())
    {
        let hint = "write an address of this machine, such as 127.0.0.1";
        document.fault(address, format!("`{}` is not a host address", address.value), hint);
        return None;
    }
    let address = or(&metrics, "address", address, Ipv4Addr::LOCALHOST);
    let port = or(&metrics, "port", metrics.port("port"), DEFAULT_PORT);
    if let Some((section, port)) = taken.iter().find(|(_, taken)| port == Some(*taken)) {
        let message = format!("[metrics] and {section} both have port {port}");
        document.fault(&metrics.position("port"), message, "give them different ports");
    }
    Some(Some(MetricsListener { address: address?, port: port? }))
}
