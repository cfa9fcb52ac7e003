//! Starts netconsole: kernel messages by UDP.

use super::command_line::argument;
use crate::{modules::ModuleLoader, network};
use std::{
    fs,
    net::{Ipv4Addr, UdpSocket},
    num::NonZeroU16,
    thread,
    time::{Duration, Instant},
};

/// Argument of the kernel: UDP port of the central node for kernel messages.
const ARGUMENT: &str = "meshd.netconsole";
const NEIGHBOURS: &str = "/proc/net/arp";
const ROUTES: &str = "/proc/net/route";
const MODULE: &str = "netconsole";
/// A port whose packets nobody reads (RFC 863).
const DISCARD_PORT: u16 = 9;
/// Time for the Ethernet address of the central node, or of the router to it.
const NEIGHBOUR_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between polls of the neighbour table.
const POLL: Duration = Duration::from_millis(100);

/// Sends kernel messages to the central node from here on, also those of a panic, if the kernel's
/// command line has a port for them. A node that cannot boots without this.
pub fn start_netconsole(
    loader: &mut ModuleLoader,
    interface: &str,
    server: Ipv4Addr,
    command_line: &str,
) -> Result<(), String> {
    let port = argument(command_line, ARGUMENT).and_then(|port| port.parse::<NonZeroU16>().ok());
    let Some(port) = port else { return Ok(()) };
    // Files may have come from other servers: the kernel looks for the central node now.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(|error| error.to_string())?;
    socket.send_to(&[], (server, DISCARD_PORT)).map_err(|error| error.to_string())?;
    let begin = Instant::now();
    let parameters = loop {
        let tables = [ROUTES, NEIGHBOURS].map(|path| fs::read_to_string(path).unwrap_or_default());
        let [routes, neighbours] = &tables;
        match network::netconsole_parameters(interface, server, port, routes, neighbours) {
            Ok(parameters) => break parameters,
            Err(error) if begin.elapsed() > NEIGHBOUR_TIMEOUT => return Err(error.to_string()),
            Err(_) => thread::park_timeout(POLL),
        }
    };
    loader.load_with(MODULE, &parameters).map_err(|error| error.to_string())
}
