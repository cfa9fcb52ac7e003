//! Other DHCP servers on a segment, found by their packets.

use super::Engine;
use crate::{
    effect::{Effect, OtherServer},
    packet::ServerMessage,
};
use meshd_types::Timestamp;
use std::time::Duration;

/// Most other servers of a segment. The one that was silent longest is removed first.
const MAX_SERVERS: usize = 16;
/// When a silent server is forgotten: after three probes.
const REMEMBERED: Duration = Duration::from_secs(15 * 60);

/// The other servers of one segment, ordered by their last packet.
#[derive(Debug, Default)]
pub(crate) struct OtherServers(Vec<OtherServer>);

impl OtherServers {
    /// Records a packet of a server. Returns true for a new server.
    pub(crate) fn record(&mut self, server: OtherServer) -> bool {
        let known = self.0.iter().position(|other| other.address == server.address);
        if let Some(index) = known {
            self.0.remove(index);
        } else if self.0.len() >= MAX_SERVERS {
            self.0.remove(0);
        }
        self.0.push(server);
        known.is_none()
    }

    /// Returns the servers that sent a packet lately, and forgets all others.
    pub(crate) fn recent(&mut self, now: Timestamp) -> Vec<OtherServer> {
        self.0.retain(|server| now.distance(server.last) < REMEMBERED);
        self.0.clone()
    }
}

impl Engine {
    /// Handles a packet of a server on the segment of this interface. Returns a warning about
    /// another server.
    pub fn handle_server_packet(
        &mut self,
        now: Timestamp,
        packet: &[u8],
        interface_index: usize,
    ) -> Option<Effect> {
        let other = ServerMessage::parse(packet)?;
        if self.own_addresses.contains(&other.server) {
            return None;
        }
        let index = self.segment_of_interface.get(interface_index).copied().flatten()?;
        self.segments
            .get_mut(index)?
            .record_other_server(OtherServer {
                address: other.server,
                proxy: other.proxy,
                last: now,
            })
            .map(Effect::Warn)
    }
}
