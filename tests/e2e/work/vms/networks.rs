//! The networks of the guests: the private network of the node, and the bridge of the site.

use super::{
    NODE, gpu,
    guest::{DEADLINE, HELLO},
    private_net::{self, ADDRESS, ANSWERED, Server},
    tried,
};
use crate::racks::{OrEnd, SOON, until_written};
use meshd_lab::{Rack, Wait};
use std::{fs, net::Ipv4Addr, path::Path, process::Command};

/// Reached by way of the boot LAN's router.
const BEYOND: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);

/// A server on this side, beyond the boot LAN, which no guest of the private network reaches, and
/// the digest of a CD that asks it.
pub fn start_server(rack: &Rack, dir: &Path) -> (Server, String) {
    let add =
        || Command::new("ip").args(["addr", "add", &format!("{BEYOND}/32"), "dev", "lo"]).status();
    let added = rack.namespace().inside(add).or_end();
    assert!(added.expect("ip").success());
    let server = rack.namespace().inside(|| Server::start(BEYOND)).or_end();
    let cd = private_net::cd(dir, BEYOND);
    let digest =
        rack.run_cli(&["volume", "add", cd.to_str().expect("plain")]).or_end().trim().to_owned();
    (server, digest)
}

/// Runs a machine that boots that CD and has one card; `more` are keys and tables of its file.
pub fn run_client(
    rack: &Rack,
    dir: &Path,
    name: &str,
    cd: &str,
    card: &str,
    (keys, tables): (&str, &str),
) {
    let text = format!(
        "name = \"{name}\"\nvcpus = 1\nmemory = \"64M\"\n{keys}\n\
         [[volume]]\nname = \"cd\"\nformat = \"iso\"\ndigest = \"{cd}\"\n[[nic]]\n{card}\n{tables}"
    );
    let toml = dir.join(format!("{name}.toml"));
    fs::write(&toml, text).expect("written");
    rack.run_cli(&["vm", "create", "--start", "-f", toml.to_str().expect("plain")]).or_end();
}

/// On the bridge of overlay `bridge` meshd itself answers a machine, with the address of its
/// record, and everyone sees that one. It has a slot with its disk, too: an image is written there,
/// and when the machine is deleted nothing of it is left.
pub fn check_site_bridge_and_slot(
    rack: &Rack,
    dir: &Path,
    server: &Server,
    cd: &str,
    image: &str,
) -> Ipv4Addr {
    let slot = format!("{}/{}", rack.id(NODE), gpu(rack));
    rack.run_cli(&["slot", "approve", &slot, "--disk", "LAB-DISK"]).or_end();
    let [a, b, c, _] = rack.site().segments[0].address.expect("the lab's site names it").octets();
    let address = Ipv4Addr::new(a, b, c, 251);
    let disk = format!(
        "[[volume]]\nname = \"own\"\nformat = \"raw\"\ndisk = \"slot\"\ndigest = \"{image}\"\n"
    );
    run_client(
        rack,
        dir,
        "site",
        cd,
        &format!("bridge = \"br0\"\naddress = \"{address}\""),
        ("units = 1", &disk),
    );
    let wanted = (address, format!("/first?ip={address}"));
    let requests = |_: &Rack| {
        let requests = server.requests();
        Ok(Wait::some(requests.contains(&wanted).then_some(()), format!("{requests:?}")))
    };
    rack.wait(DEADLINE, "a machine on the site's network asks", requests).or_end();
    let on_disk = || fs::read(rack.disk_file(NODE)).expect("a disk");
    assert_eq!(on_disk()[0x100..0x100 + HELLO.len()], *HELLO.as_bytes(), "the image is on it");
    rack.run_cli(&["vm", "delete", "site", "--yes", "--wait"]).or_end();
    assert!(on_disk().iter().all(|byte| *byte == 0), "nothing is left on it");
    let is_free = |rack: &Rack| {
        let slots = rack.query(&["slot", "list"])?;
        Ok(Wait::some((slots[0]["state"] == "available").then_some(()), slots.to_string()))
    };
    rack.wait(SOON, "its slot can be given again", is_free).or_end();
    address
}

/// The private network works, is mended once when it does not, and the guest reaches beyond it
/// before and after.
pub fn check_private_network(rack: &Rack, server: &Server, other: Ipv4Addr) {
    let node = rack.query(&["node", "show", &rack.id(NODE).to_string()]).or_end();
    let own = node["address"].as_str().expect("it has one").to_owned();
    let query = |path: &str| (own.parse().expect("an address"), format!("/{path}?ip={ADDRESS}"));
    let asks = |since: usize, path: &str| {
        let is_there = |_: &Rack| {
            let requests = server.requests();
            let is = requests.iter().skip(since).any(|one| *one == query(path));
            Ok(Wait::some(is.then_some(()), format!("{requests:?}")))
        };
        rack.wait(DEADLINE, "the guest asks beyond the node", is_there).or_end();
    };
    asks(0, "first");
    // The server has the question before the guest has written its answer to the console, and then
    // the trial stops the agent for a while.
    rack.wait(DEADLINE, "the guest writes that it was answered", |rack| {
        let log = rack.run_cli(&["vm", "logs", "net"]);
        let is = log.as_ref().is_ok_and(|log| log.contains(ANSWERED));
        Ok(Wait::some(is.then_some(()), format!("{log:?}")))
    })
    .or_end();
    let serial = until_written(rack, NODE, "TRIAL-MENDED", DEADLINE);
    assert!(!serial.contains("TRIAL-FORGET"), "the rule was not there");
    assert!(tried(&serial, "TRIAL-NAT").contains("status=PASS"), "{}", tried(&serial, "TRIAL-NAT"));
    let drift = tried(&serial, "TRIAL-DRIFT").replace("\\s", " ");
    assert!(
        drift.contains("status=FAIL")
            && drift.contains("the address of the bridge, the masquerade rule"),
        "{drift}"
    );
    let mended = tried(&serial, "TRIAL-MENDED");
    let words: Vec<&str> = mended.split(' ').collect();
    // Once when it was made, once after the drift; the bridge is the one that it was.
    assert!(words[0] == "2" && words[3] == words[4], "{mended}");
    asks(server.requests().len(), "again");
    assert!(
        server.requests().iter().all(|(who, _)| *who == query("").0 || *who == other),
        "nobody shows another address: {:?}",
        server.requests()
    );
}
