//! Frames with VLAN tags in the name of a machine. The kernel ignores tags without a VLAN, however
//! many there are, and so they are as good as none. Frames of a VLAN belong to other interfaces.

use super::frames::{self, Frame};
use crate::{
    attack::boot_lan::stranger,
    world::{CENTRAL, World, dhcp, dhcp::As, eventually, node::PxeNode},
};
use meshd_types::MacAddr;
use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddrV4, TcpStream},
    time::Duration,
};

/// Tags that the kernel ignores, and tags of a VLAN.
const IGNORED: [&[u16]; 4] = [&[], &[0xe000], &[0, 0], &[0; 40]];
const OF_VLAN: [&[u16]; 3] = [&[5], &[5, 0], &[0, 5]];

/// What the stranger sends: one kind for each of its Ethernet addresses.
struct Thief<'w> {
    world: &'w World,
    central: MacAddr,
    number: u8,
}

impl Thief<'_> {
    /// Sends from another Ethernet address each time, which is returned.
    fn send(
        &mut self,
        tags: &[u16],
        ports: [u16; 2],
        from: Ipv4Addr,
        datagram: Option<&[u8]>,
    ) -> MacAddr {
        self.number += 1;
        let source = MacAddr([0x52, 0x54, 0, 0x66, 0x67, self.number]);
        let frame = Frame {
            source,
            destination: self.central,
            tags,
            from: SocketAddrV4::new(from, ports[0]),
            to: SocketAddrV4::new(CENTRAL.parse().unwrap(), ports[1]),
            datagram,
        };
        stranger(self.world).host().inside(|| frames::send([frame])).unwrap();
        source
    }

    fn wait_for_alarm(&self, source: MacAddr, what: &str) {
        eventually(&format!("an alarm names {source}: {what}"), || {
            match alarms(self.world, source) {
                0 => Err(self.world.log_text()),
                _ => Ok(()),
            }
        });
    }
}

fn alarms(world: &World, source: MacAddr) -> usize {
    let names =
        |event: &serde_json::Value| event["detail"].as_str().unwrap().contains(&source.to_string());
    world.events("boot_impersonated").iter().filter(|event| names(event)).count()
}

/// A connection of the victim to the boot API.
fn connection(victim: &PxeNode<'_>) -> TcpStream {
    let connect = || TcpStream::connect((CENTRAL, 8080)).unwrap();
    let stream = victim.host().inside(connect).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Returns true if the central node answers on a connection.
fn answers(mut stream: TcpStream) -> bool {
    let mut head = [0; 12];
    let request = format!("GET /boot.ipxe HTTP/1.1\r\nHost: {CENTRAL}\r\n\r\n");
    stream.write_all(request.as_bytes()).is_ok()
        && stream.read_exact(&mut head).is_ok()
        && &head == b"HTTP/1.1 200"
}

#[test]
fn frames_of_a_vlan_are_ignored_and_other_tags_count_as_none() {
    let world = World::new("auto");
    let victim = PxeNode::new(&world, 1);
    let address = victim.power_on().map(|_| victim.address.get().unwrap()).unwrap();
    let link = world.central.inside(|| frames::link("br0")).unwrap();
    let central = MacAddr(link.addr().unwrap());
    let mut thief = Thief { world: &world, central, number: 0 };
    let discover = dhcp::packet(victim.mac, victim.uuid, As::Ipxe, 1, &[]);
    let read = b"\0\x01undionly.kpxe\0octet\0";
    let mut ignored = Vec::new();
    for tags in OF_VLAN {
        let stream = connection(&victim);
        let port = stream.local_addr().unwrap().port();
        ignored.push(thief.send(tags, [port, 8080], address, None));
        ignored.push(thief.send(tags, [2000, 69], address, Some(read)));
        ignored.push(thief.send(tags, [68, 67], Ipv4Addr::UNSPECIFIED, Some(&discover)));
        assert!(answers(stream), "{tags:?}");
    }
    for tags in IGNORED {
        let stream = connection(&victim);
        let port = stream.local_addr().unwrap().port();
        let source = thief.send(tags, [port, 8080], address, None);
        thief.wait_for_alarm(source, &format!("TCP {tags:x?}"));
        assert!(!answers(stream), "{tags:x?}: the connection ends");
        let source = thief.send(tags, [2000, 69], address, Some(read));
        thief.wait_for_alarm(source, &format!("TFTP {tags:x?}"));
        let source = thief.send(tags, [68, 67], Ipv4Addr::UNSPECIFIED, Some(&discover));
        thief.wait_for_alarm(source, &format!("DHCP {tags:x?}"));
    }
    for source in ignored {
        assert_eq!(alarms(&world, source), 0, "{source} sent frames of a VLAN");
    }
}
