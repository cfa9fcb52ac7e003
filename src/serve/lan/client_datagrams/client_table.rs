//! The machine of each TFTP client.

use meshd_central::Shared;
use meshd_types::{MacAddr, failpoint};
use std::{
    collections::HashMap,
    net::SocketAddrV4,
    time::{Duration, Instant},
};

/// Maximum number of clients whose machine is remembered: of all machines, and of one Ethernet
/// source (a router has many clients).
const MAX_CLIENTS: usize = 16_384;
const MAX_CLIENTS_OF_SOURCE: usize = 8192;
/// Time after the last datagram of a client, after which another machine may have its address and
/// port.
const CLIENT_LIFETIME: Duration = Duration::from_secs(10);
/// Minimum interval between two removals of expired clients.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The machine of each client: that of its last request.
pub(super) struct ClientTable {
    central: Shared,
    machines: HashMap<SocketAddrV4, ClientMachine>,
    /// Number of clients of each Ethernet source.
    counts: HashMap<MacAddr, usize>,
    next_sweep: Instant,
}

/// The machine of a client.
struct ClientMachine {
    mac: MacAddr,
    /// Time of the last datagram.
    last: Instant,
}

impl ClientTable {
    pub(super) fn new(central: Shared) -> Self {
        ClientTable {
            central,
            machines: HashMap::new(),
            counts: HashMap::new(),
            next_sweep: Instant::now(),
        }
    }

    /// Returns true if a datagram comes from the machine of its client. Reports others.
    pub(super) fn is_genuine(
        &mut self,
        now: Instant,
        client: SocketAddrV4,
        source: MacAddr,
        is_request: bool,
    ) -> bool {
        let known =
            self.machines.get_mut(&client).filter(|known| now - known.last < CLIENT_LIFETIME);
        let earlier = match known {
            Some(known) if known.mac == source && !is_request => {
                known.last = now;
                return true;
            }
            known => known.map(|known| known.mac),
        };
        let is_genuine = self.central.admits_datagram(*client.ip(), source, earlier);
        if is_genuine && is_request {
            self.record(now, client, source);
        }
        is_genuine || !failpoint::defends("tftp-source")
    }

    fn record(&mut self, now: Instant, client: SocketAddrV4, mac: MacAddr) {
        self.remove(client);
        if !self.has_room(mac) && now >= self.next_sweep {
            self.next_sweep = now + SWEEP_INTERVAL;
            let is_expired = |known: &ClientMachine| now - known.last >= CLIENT_LIFETIME;
            let expired = self.machines.iter().filter(|(_, known)| is_expired(known));
            let expired: Vec<SocketAddrV4> = expired.map(|(client, _)| *client).collect();
            expired.into_iter().for_each(|client| self.remove(client));
        }
        if self.has_room(mac) {
            *self.counts.entry(mac).or_default() += 1;
            self.machines.insert(client, ClientMachine { mac, last: now });
        }
    }

    fn has_room(&self, mac: MacAddr) -> bool {
        let of_source = self.counts.get(&mac).copied().unwrap_or_default();
        self.machines.len() < MAX_CLIENTS && of_source < MAX_CLIENTS_OF_SOURCE
    }

    fn remove(&mut self, client: SocketAddrV4) {
        let Some(ClientMachine { mac, .. }) = self.machines.remove(&client) else { return };
        if let Some(count) = self.counts.get_mut(&mac) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.counts.remove(&mac);
            }
        }
    }
}
