//! DHCP with real clients, a real relay, and real servers that should not be there.

use crate::{
    boot::sessions::rig::Rig,
    work::workloads::{ask, create, host},
    world::{
        CENTRAL, World,
        dhcp::{As, client, obtain, packet, parse},
        eventually,
        program::Program,
    },
};
use meshd_lab::Namespace;
use meshd_model::fleet::Lease;
use meshd_store::StoreError;
use meshd_types::{MacAddr, SystemUuid};
use std::{fs, net::UdpSocket};

/// BusyBox's client, as Alpine has it. It hears unicasts before it has an address, unless it is
/// told to ask for broadcasts.
fn udhcpc(world: &World, inside: &Namespace, more: &[&str]) -> Program {
    let args = [&["-f", "-i", "eth0", "-s", "/bin/true", "-t", "60", "-T", "1"], more].concat();
    Program::start(world, inside, "udhcpc", &args)
}

/// Appends to the site, which must not run yet.
fn write_more(world: &World, more: &str) {
    let text = fs::read_to_string(world.path("site.toml")).unwrap();
    fs::write(world.path("site.toml"), format!("{text}{more}")).unwrap();
}

const LEASE: &str = "lease of ";

/// A machine with an address of the range that meshd did not lease: first one that the kernel
/// knows, then a silent one.
#[test]
fn address_of_machine_without_lease_is_not_leased_to_another() {
    let mut world = World::prepared("auto");
    for address in ["10.77.0.108/24", "10.77.0.109/24"] {
        world.nodes.ip(&["address", "add", address, "dev", "eth0"]).unwrap();
    }
    let spoken = world
        .nodes
        .inside(|| UdpSocket::bind("10.77.0.108:0")?.send_to(&[0], (CENTRAL, 9)))
        .unwrap();
    spoken.unwrap();
    eventually("the kernel knows the machine", || {
        let table = world
            .central
            .inside(|| fs::read_to_string("/proc/thread-self/net/arp"))
            .unwrap()
            .unwrap();
        if table.contains("10.77.0.108") { Ok(()) } else { Err(table) }
    });
    world.start();
    let mac = MacAddr([0x52, 0x54, 0, 0, 9, 1]);
    let host = world.host(mac);
    let socket = host.inside(client).unwrap();
    let ask = |kind, wanted: [u8; 4]| {
        let mut request = packet(mac, SystemUuid([9; 16]), As::Os, kind, &[(50, wanted.to_vec())]);
        // A late answer to an earlier request is not taken for this one's.
        request[4..8].copy_from_slice(&[kind, wanted[3], 9, 1]);
        eventually("an answer", || {
            socket.send_to(&request, ("255.255.255.255", 67)).map_err(|error| error.to_string())?;
            let mut buffer = [0; 2048];
            let length = socket.recv(&mut buffer).map_err(|error| error.to_string())?;
            if buffer[4..8] == request[4..8] {
                Ok(parse(&buffer[..length]))
            } else {
                Err("another one".to_owned())
            }
        })
    };
    let offer = ask(1, [10, 77, 0, 108]);
    assert!(offer.kind == 2 && offer.address.octets() != [10, 77, 0, 108], "{}", offer.address);
    assert_eq!(ask(3, [10, 77, 0, 108]).kind, 6, "a NAK");
    let offer = ask(1, [10, 77, 0, 109]);
    assert_eq!((offer.kind, offer.address.octets()), (2, [10, 77, 0, 109]), "nobody was asked yet");
    let detail = eventually("the silent machine answers ARP", || {
        let events = world.events("address_declined");
        let detail = events.first().and_then(|event| event["detail"].as_str().map(str::to_owned));
        detail.ok_or_else(|| world.log_text())
    });
    assert!(detail.contains("10.77.0.109 on br0 is used by "), "{detail}");
    assert_eq!(ask(3, [10, 77, 0, 109]).kind, 6, "a NAK");
}

#[test]
fn dhcp_clients_of_one_nic_share_a_lease_and_reservation_applies() {
    let mut world = World::prepared("auto");
    write_more(&world, "[[reservation]]\nmac = \"52:54:00:00:00:77\"\naddress = \"10.77.0.20\"\n");
    world.start();
    let address = udhcpc(&world, &world.nodes, &["-q"]).says(LEASE, 1);
    assert!(address.starts_with("10.77.0.1"), "{address}");
    assert_eq!(
        udhcpc(&world, &world.nodes, &["-q", "-B", "-C", "-V", "other"]).says(LEASE, 1),
        address
    );
    let leases = world.path("dhclient.leases");
    let leases = leases.to_str().unwrap();
    let args = ["-4", "-1", "-d", "-v", "-lf", leases, "--no-pid", "-sf", "/bin/true", "eth0"];
    assert_eq!(
        Program::start(&world, &world.nodes, "dhclient", &args).says("bound to ", 1),
        address
    );
    world.nodes.ip(&["link", "set", "eth0", "down"]).unwrap();
    world.nodes.ip(&["link", "set", "eth0", "address", "52:54:00:00:00:77", "up"]).unwrap();
    assert_eq!(udhcpc(&world, &world.nodes, &["-q"]).says(LEASE, 1), "10.77.0.20");
    leases_are_listed(&world, &address);
}

/// Two leases: the one of the range, and the reserved one.
fn leases_are_listed(world: &World, address: &str) {
    let leases = world.json(&["dhcp", "leases", "-o", "json"]);
    let addresses: Vec<_> =
        leases.as_array().unwrap().iter().map(|lease| lease["address"].as_str().unwrap()).collect();
    assert_eq!(addresses, ["10.77.0.20", address], "{leases}");
    assert!(
        leases
            .as_array()
            .unwrap()
            .iter()
            .all(|lease| lease["state"] == "active" && lease["node"].is_null())
    );
    let found = world.json(&["dhcp", "leases", "00:00:77", "-o", "json"]);
    assert_eq!(
        (found.as_array().unwrap().len(), &found[0]["address"]),
        (1, &"10.77.0.20".into()),
        "{found}"
    );
    eventually("the lease is counted", || {
        let segments = world.json(&["dhcp", "show", "-o", "json"]);
        let is_counted = segments[0]["leased"] == 1 && segments[0]["mode"] == "authoritative";
        if is_counted && segments[0]["range"][0] == "10.77.0.100" {
            Ok(())
        } else {
            Err(segments.to_string())
        }
    });
}

#[test]
fn vm_nic_gets_its_pool_address_without_boot_file_until_deleted() {
    let mut world = World::prepared("auto");
    write_more(&world, "[[vms.pool]]\nbridge = \"br0\"\nrange = \"10.77.0.210-10.77.0.219\"\n");
    // The record of one, on a node that is not there any more; and a lease of one that is gone.
    let stale = [10, 77, 0, 219].into();
    let (node, vm) = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let rig = Rig::new(&world);
        let node = host(&rig, 1).await.id();
        let vm = create(&rig, ask(9, "[[nic]]\nbridge = \"br0\""), None).await.unwrap();
        let lease = |address| Lease {
            mac: MacAddr([2, 0, 0, 0, 0, 9]),
            address,
            expires_at: rig.central.now().after(std::time::Duration::from_secs(86_400)),
            vm: Some(SystemUuid([9; 16])),
        };
        let put = rig.central.store().commit(|tx| {
            tx.put_lease(lease(stale));
            Ok::<_, StoreError>(())
        });
        put.await.unwrap();
        (node, vm)
    });
    world.start();
    let mac = vm.spec().nics[0].mac;
    world.nodes.ip(&["link", "set", "eth0", "down"]).unwrap();
    world.nodes.ip(&["link", "set", "eth0", "address", &mac.to_string(), "up"]).unwrap();
    let granted = world.nodes.inside(|| obtain(mac, vm.uuid(), As::Firmware(7))).unwrap();
    assert_eq!(
        (granted.address.to_string().as_str(), granted.file.as_str()),
        ("10.77.0.210", ""),
        "nothing to boot"
    );
    assert_eq!(udhcpc(&world, &world.nodes, &["-q"]).says(LEASE, 1), "10.77.0.210");
    let leases = world.path("vm.leases");
    let args = [
        "-4",
        "-1",
        "-d",
        "-v",
        "-lf",
        leases.to_str().unwrap(),
        "--no-pid",
        "-sf",
        "/bin/true",
        "eth0",
    ];
    assert_eq!(
        Program::start(&world, &world.nodes, "dhclient", &args).says("bound to ", 1),
        "10.77.0.210"
    );
    let kept = fs::read_to_string(&leases).unwrap();
    assert!(kept.contains("option host-name \"vm-9\""), "{kept}");
    let of_card = |event: &serde_json::Value| {
        event["detail"].as_str().is_some_and(|text| text.contains(&mac.to_string()))
    };
    assert!(!world.events("boot_started").iter().any(of_card), "it is no node");
    assert_eq!(
        world.json(&["vm", "show", "vm-9", "-o", "json"])["nics"][0]["address"],
        "10.77.0.210"
    );

    for args in [
        &["vm", "delete", "vm-9", "--yes"][..],
        &["node", "remove", &node.to_string(), "--force", "--yes"],
    ] {
        let done = world.meshd(args);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    assert_eq!(world.json(&["vm", "list", "-o", "json"]), serde_json::json!([]));
    let next = udhcpc(&world, &world.nodes, &["-q", "-r", "10.77.0.210"]).says(LEASE, 1);
    assert!(next.starts_with("10.77.0.1"), "what it had is not its own any more: {next}");
    world.stop();
    let left: Vec<_> =
        Rig::new(&world).central.store().read(|model| model.leases().cloned().collect());
    assert!(
        left.iter().all(|lease: &Lease| lease.vm.is_none() && lease.address != stale),
        "{left:?}"
    );
}

/// A third namespace behind the second one, which is a router: 10.88.0.0/24. Goes with the world's,
/// or when dropped.
pub(super) struct Behind(Namespace);

impl Behind {
    pub(super) fn new(world: &World) -> Self {
        let behind = Behind(world.nodes.derived("behind"));
        behind.0.create().unwrap();
        let router = &world.nodes;
        router
            .ip(&[
                "link",
                "add",
                "down0",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                behind.0.name(),
            ])
            .unwrap();
        router.ip(&["address", "add", "10.88.0.1/24", "dev", "down0"]).unwrap();
        router.ip(&["address", "add", "10.77.0.9/24", "dev", "eth0"]).unwrap();
        router.ip(&["link", "set", "down0", "up"]).unwrap();
        behind.0.ip(&["link", "set", "eth0", "up"]).unwrap();
        router.inside(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1")).unwrap().unwrap();
        world.central.ip(&["route", "add", "10.88.0.0/24", "via", "10.77.0.9"]).unwrap();
        behind
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        let _ = self.0.delete();
    }
}

/// The lease of a client by a relay, and its renewal without one. An error if the client gives the
/// lease up: udhcpc cannot bind the socket of a renewal now and then, and begins anew.
fn lease_and_renewal(world: &World, behind: &Behind) -> Result<(String, String), String> {
    // It adds option 82, and drops answers that do not bring it back.
    let args = ["-4", "-d", "--no-pid", "-a", "-iu", "eth0", "-id", "down0", "10.77.0.1"];
    let relay = Program::start(world, &world.nodes, "dhcrelay", &args);
    let client = udhcpc(world, &behind.0, &[]);
    let address = client.says(LEASE, 1);
    drop(relay);
    behind.0.ip(&["address", "replace", &format!("{address}/24"), "dev", "eth0"]).unwrap();
    behind.0.ip(&["route", "replace", "default", "via", "10.88.0.1"]).unwrap();
    // Whenever it gives up on the unicast, as after a lost packet, it is told to try again.
    let mut tries = 0;
    let renewed = eventually("udhcpc ends the renewal", || {
        let log_text = client.log_text();
        if log_text.matches("broadcasting renew").count() >= tries {
            client.signal(rustix::process::Signal::USR1);
            tries += 1;
        }
        let (_, after) = log_text.split_once(LEASE).expect("it has a lease");
        let is_over = ["broadcasting discover", "lease lost"].iter().any(|it| after.contains(it));
        match after.split_once(LEASE) {
            Some((_, second)) => Ok(Some(second.to_owned())),
            None if is_over => Ok(None),
            None => Err(log_text),
        }
    });
    renewed.map(|renewed| (address, renewed)).ok_or_else(|| client.log_text())
}

#[test]
fn relayed_client_gets_segment_address_and_renews_without_relay() {
    let mut world = World::prepared("auto");
    write_more(
        &world,
        "[[segment]]\nrelay = \"10.88.0.1\"\nrange = \"10.88.0.100-10.88.0.110\"\nrouter = \"10.88.0.1\"\n",
    );
    let behind = Behind::new(&world);
    world.start();
    eventually("udhcpc renews", || {
        let (address, renewed) = lease_and_renewal(&world, &behind)?;
        assert!(address.starts_with("10.88.0.1"), "{address}");
        assert!(renewed.starts_with(&address), "by unicast: nothing else gets through");
        Ok(())
    });
    assert!(
        udhcpc(&world, &world.nodes, &["-q"]).says(LEASE, 1).starts_with("10.77.0.1"),
        "the near network is served too"
    );
}

/// dnsmasq beside the nodes, with the keys that matter.
pub fn dnsmasq(world: &World, more: &[&str]) -> Program {
    world.nodes.ip(&["address", "add", "10.77.0.9/24", "dev", "eth0"]).unwrap();
    let leases = format!("--dhcp-leasefile={}", world.path("dnsmasq.leases").display());
    let own = [
        "--no-daemon",
        "--conf-file=/dev/null",
        "--port=0",
        "--interface=eth0",
        // Otherwise it offers an address three seconds later.
        "--no-ping",
        "--user=root",
        "--pid-file",
        &leases,
    ];
    let server = Program::start(world, &world.nodes, "dnsmasq", &[&own[..], more].concat());
    server.says("DHCP,", 1);
    server
}

fn other_server(world: &World) -> String {
    eventually("another server is reported", || {
        let events = world.events("other_dhcp_server");
        let detail = events.first().and_then(|event| event["detail"].as_str().map(str::to_owned));
        detail.ok_or_else(|| world.log_text())
    })
}

#[test]
fn other_dhcp_server_is_reported_before_any_answer() {
    let mut world = World::prepared("auto");
    let _server = dnsmasq(&world, &["--dhcp-range=10.77.0.150,10.77.0.160,1h"]);
    world.start();
    let detail = other_server(&world);
    assert!(detail.contains("another DHCP server, 10.77.0.9, answers on br0"), "{detail}");
    assert_eq!(world.events("boot_started").len(), 0);
    assert_eq!(world.events("other_dhcp_server").len(), 1, "once");
    eventually("it is shown", || {
        let shown = String::from_utf8(world.meshd(&["dhcp", "show"]).stdout).unwrap();
        if shown.contains("10.77.0.9 (DHCP, ") { Ok(()) } else { Err(shown) }
    });
}

#[test]
fn other_pxe_server_is_reported_in_proxy_mode() {
    let mut world = World::prepared("auto");
    let text = fs::read_to_string(world.path("site.toml")).unwrap();
    fs::write(world.path("site.toml"), text.replace("\"authoritative\"", "\"proxy\"")).unwrap();
    let _server =
        dnsmasq(&world, &["--dhcp-range=10.77.0.0,proxy", "--pxe-service=BC_EFI,other,other.efi"]);
    world.start();
    let detail = other_server(&world);
    assert!(detail.contains("another PXE server, 10.77.0.9, answers on br0"), "{detail}");
}
