//! A machine's DHCP client behind a relay, written from RFC 2131, RFC 3046 and RFC 4578 alone.

use crate::{
    fabric::{Fabric, RELAY},
    fault::Fault,
    tally::Tally,
};
use meshd_types::{MacAddr, SystemUuid};
use std::{net::Ipv4Addr, time::Duration};

/// Message types of option 53.
pub const DISCOVER: u8 = 1;
pub const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const ACK: u8 = 5;

/// Who asks, and with how much patience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum As {
    /// PXE firmware: four tries, 4 to 32 seconds (PXE specification 2.1, 3.2.1).
    Firmware,
    /// iPXE: 1 to 10 seconds, then its script asks again.
    Ipxe,
    /// udhcpc: every 3 seconds.
    Os,
}

impl As {
    fn patience(self) -> &'static [u64] {
        match self {
            As::Firmware => &[4, 8, 16, 32],
            As::Ipxe => &[1, 2, 4, 8, 10],
            As::Os => &[3; 20],
        }
    }
}

pub struct Client<'a> {
    pub mac: MacAddr,
    pub uuid: SystemUuid,
    pub fabric: &'a Fabric,
    pub tally: &'a Tally,
    /// Differs for each exchange of the whole storm.
    pub xid: u32,
}

/// What was granted, and after how many tries.
pub struct Lease {
    pub address: Ipv4Addr,
    pub tries: u32,
}

impl Client<'_> {
    /// DISCOVER to ACK.
    pub async fn obtain(&self, who: As) -> Result<Lease, Fault> {
        for (tries, seconds) in (1..).zip(who.patience()) {
            let patience = Duration::from_secs(*seconds);
            let Some(offer) = self.ask(who, DISCOVER, &[], patience).await? else { continue };
            let address = Ipv4Addr::new(offer[16], offer[17], offer[18], offer[19]);
            let server =
                option(&offer, 54).ok_or(Fault::Dhcp("an offer without server identifier"))?;
            let chosen = [(50, address.octets().to_vec()), (54, server.to_vec())];
            let Some(ack) = self.ask(who, REQUEST, &chosen, patience).await? else { continue };
            // Refused: a client begins anew (RFC 2131, 3.1).
            if option(&ack, 53) != Some(&[ACK]) || ack[16..20] != address.octets() {
                self.tally.repeated("DHCP request refused", 1);
                continue;
            }
            return Ok(Lease { address, tries });
        }
        Err(Fault::Dhcp("no answer"))
    }

    async fn ask(
        &self,
        who: As,
        kind: u8,
        more: &[(u8, Vec<u8>)],
        patience: Duration,
    ) -> Result<Option<Vec<u8>>, Fault> {
        let answer = self.fabric.ask(&self.packet(who, kind, more), patience).await?;
        Ok(answer.filter(|answer| answer.len() > 240))
    }

    fn packet(&self, who: As, kind: u8, more: &[(u8, Vec<u8>)]) -> Vec<u8> {
        let mut packet = vec![0; 236];
        // BOOTREQUEST, Ethernet, one hop.
        packet[..4].copy_from_slice(&[1, 1, 6, 1]);
        packet[4..8].copy_from_slice(&self.xid.to_be_bytes());
        packet[24..28].copy_from_slice(&RELAY.octets());
        packet[28..34].copy_from_slice(&self.mac.0);
        packet.extend([99, 130, 83, 99]);
        let mut put = |code: u8, data: &[u8]| {
            packet.extend([code, u8::try_from(data.len()).unwrap_or(u8::MAX)]);
            packet.extend(data);
        };
        put(53, &[kind]);
        match who {
            As::Firmware => {
                put(60, b"PXEClient:Arch:00007:UNDI:003016");
                put(93, &[0, 7]);
                put(94, &[1, 3, 16]);
                put(97, &self.uuid.to_option97());
            }
            As::Ipxe => {
                put(60, b"PXEClient:Arch:00007:UNDI:003010");
                put(77, b"iPXE");
                put(93, &[0, 7]);
                put(97, &self.uuid.to_option97());
            }
            As::Os => put(60, b"udhcp 1.37.0"),
        }
        for (code, data) in more {
            put(*code, data);
        }
        // The relay's own: agent circuit ID.
        put(82, b"\x01\x04eth0");
        packet.push(255);
        packet
    }
}

/// The data of an option.
pub fn option(packet: &[u8], wanted: u8) -> Option<&[u8]> {
    let mut rest = packet.get(240..)?;
    loop {
        match rest {
            [0, more @ ..] => rest = more,
            [255, ..] | [] | [_] => return None,
            [code, length, more @ ..] => {
                let length = usize::from(*length);
                if *code == wanted {
                    return more.get(..length);
                }
                rest = more.get(length..)?;
            }
        }
    }
}
