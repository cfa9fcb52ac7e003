//! Everything that any answer can name is served, whole and right: each client that there could be
//! asks the real daemon by DHCP, in each mode; what its answers name is fetched as it would fetch
//! it, then what that names, to the modloop. `root_image` does so for an image of kind `root`.

pub mod ask;
mod root_image;

use crate::world::{CENTRAL, World, eventually, node::PxeNode, tftp};
use ask::{Client, Firmware};
use meshd_dhcp::client_arch::loader_names;
use meshd_types::{Digest, MacAddr};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::Ipv4Addr,
};

/// Every value of option 93 that is registered, and some that are not.
const ARCHES: std::ops::RangeInclusive<u16> = 0..=0x29;
/// Those that must be answered in every mode: what the racks of this world boot with.
const MUST: [(u16, Client); 5] =
    [(0, Client::Pxe), (7, Client::Pxe), (9, Client::Pxe), (16, Client::Http), (0, Client::Ipxe)];
/// The address of whoever asks where another server leases.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 50);
/// What iPXE may say that it was built for.
const BUILDS: [&str; 5] = ["i386", "x86_64", "arm32", "arm64", "riscv64"];

/// A site that differs from the usual one.
struct Site {
    proxy: bool,
    boot: &'static str,
}

impl Site {
    fn start(&self) -> World {
        let mut world = World::prepared("auto");
        let text = fs::read_to_string(world.path("site.toml")).unwrap();
        let dhcp = "mode = \"authoritative\"\nrange = \"10.77.0.100-10.77.0.110\"\nlease = \"1h\"";
        assert!(text.contains(dhcp), "{text}");
        let new = match self.proxy {
            true => "mode = \"proxy\"".to_owned(),
            false => dhcp.replace("-10.77.0.110", "-10.77.0.250"),
        };
        let text =
            text.replace(dhcp, &new).replace("[boot]\n", &format!("[boot]\n{}\n", self.boot));
        fs::write(world.path("site.toml"), text).unwrap();
        // Loaders that differ, of sizes around the ends of a TFTP block.
        for (number, name) in (0u8..).zip(loaders()) {
            let bytes = vec![number; 1468 * 40 + usize::from(number)];
            fs::write(world.path("loaders").join(name), bytes).unwrap();
        }
        world.start();
        world
    }
}

fn loaders() -> BTreeSet<&'static str> {
    loader_names().chain(["undionly.kpxe", "snponly.efi", "ipxe.efi"]).collect()
}

/// What was named, and by whom first.
#[derive(Default)]
struct Names(BTreeMap<String, String>);

impl Names {
    fn add(&mut self, name: String, by: impl ToString) {
        self.0.entry(name).or_insert_with(|| by.to_string());
    }

    /// The addresses in a script, but for those in what it says to people.
    fn add_script(&mut self, text: &str, by: &str) {
        let commands =
            text.lines().filter(|line| !line.starts_with("echo") && !line.starts_with('#'));
        for word in commands.flat_map(str::split_whitespace) {
            if let Some(at) = word.find("http://").or_else(|| word.find("tftp://")) {
                self.add(word[at..].to_owned(), by);
            }
        }
    }
}

fn assert_named_files_are_served(site: &Site) {
    let world = site.start();
    let machine = PxeNode::new(&world, 1);
    machine.host().ip(&["address", "add", &format!("{ADDRESS}/24"), "dev", "eth0"]).unwrap();
    let mut names = named_by_dhcp(&world, site.proxy);
    for name in ["undionly.kpxe", "snponly.efi", "ipxe.efi"] {
        names.add(name.to_owned(), "the contract");
    }
    let entry = names
        .0
        .keys()
        .find(|name| name.ends_with("/boot.ipxe"))
        .expect("iPXE is given its script")
        .clone();
    let scripts = scripts(&machine, &entry, site.proxy);
    assert!(scripts.values().any(|script| script.contains("/overlay/")), "a boot: {scripts:?}");
    assert!(
        scripts.values().any(|script| script.contains("arch_mismatch")),
        "a refusal: {scripts:?}"
    );
    for (build, script) in &scripts {
        names.add_script(script, &format!("the script for {build}"));
    }
    // They were fetched at once: the next script of the same machine made each void.
    names.0.retain(|name, _| !name.contains("/overlay/"));
    let mut parts = BTreeSet::new();
    for (name, by) in &names.0 {
        let bytes = fetch(&machine, name, by);
        let part = name.rsplit('/').next().unwrap_or(name);
        parts.insert(part.split('?').next().unwrap_or(part).to_owned());
        match expected(&world, name) {
            Some(expected) => {
                assert!(bytes == expected, "{name}, named by {by}: not what lies on the disk")
            }
            None => assert!(!bytes.is_empty(), "{name}, named by {by}, is empty"),
        }
    }
    for part in
        ["kernel", "initramfs", "packages", "modloop", "boot.ipxe", "undionly.kpxe", "snponly.efi"]
    {
        assert!(parts.contains(part), "nobody named {part}: {parts:?}");
    }
}

/// All clients ask; their answers name one server, and files.
fn named_by_dhcp(world: &World, proxy: bool) -> Names {
    let firmware = |(client, arch): (u8, u16)| {
        let mac = MacAddr([0x52, 0x54, 0, 1, client, u8::try_from(arch).unwrap()]);
        Firmware { arch, client: Client::ALL[usize::from(client)], mac }
    };
    let clients: Vec<_> =
        (0u8..3).flat_map(|client| ARCHES.map(move |arch| (client, arch))).map(firmware).collect();
    let answers =
        ask::walk_each(world, &clients, proxy, |one| MUST.contains(&(one.arch, one.client)));
    let mut names = Names::default();
    let mut answered = BTreeSet::new();
    for (Firmware { arch, client, .. }, answers) in answers {
        for answer in answers {
            assert!(proxy == answer.address.is_unspecified(), "{client:?} {arch}: {answer:?}");
            assert!(
                answer.servers().iter().all(|server| server == CENTRAL),
                "{client:?} {arch}: {answer:?}"
            );
            for file in answer.files() {
                answered.insert((arch, format!("{client:?}")));
                names.add(file, format!("DHCP to {client:?} with option 93 = {arch}"));
            }
        }
    }
    for (arch, client) in MUST {
        assert!(
            answered.contains(&(arch, format!("{client:?}"))),
            "{client:?} {arch} boots nothing: {answered:?}"
        );
    }
    names
}

/// What iPXE of each build is told, after its own DHCP and the entry script. Its overlay is fetched
/// here.
fn scripts(machine: &PxeNode<'_>, entry: &str, proxy: bool) -> BTreeMap<&'static str, String> {
    let ipxe = Firmware { arch: 7, client: Client::Ipxe, mac: machine.mac };
    let answers = machine.host().inside(|| ask::walk(&[ipxe], proxy, |_| true)).unwrap();
    let address = answers[0].1.last().expect("iPXE is answered").address;
    if proxy {
        machine.host().inside(|| ask::take(ipxe, ADDRESS)).unwrap();
    } else {
        machine.host().ip(&["address", "add", &format!("{address}/24"), "dev", "eth0"]).unwrap();
        machine.address.set(Some(address));
    }
    let entry = machine.get(entry).unwrap().text();
    let asks = entry
        .split_whitespace()
        .find(|word| word.contains("/boot/script?"))
        .expect("it asks for a script");
    let mac = machine.mac.to_string();
    let uuid = machine.uuid.to_string();
    let mut scripts = BTreeMap::new();
    for build in BUILDS {
        // Each boot begins with DHCP.
        let dhcp = || {
            if proxy { ask::take(ipxe, ADDRESS) } else { drop(ask::walk(&[ipxe], proxy, |_| true)) }
        };
        machine.host().inside(dhcp).unwrap();
        let known = [
            ("${netX/mac}", mac.as_str()),
            ("${uuid}", &uuid),
            ("${buildarch}", build),
            ("${manufacturer:hexhyp}", "51-45-4d-55"),
            ("${product:hexhyp}", "50-43"),
            ("${serial:hexhyp}", "53-4e"),
            ("${smbios/2.7.0:hexhyp}", "42-31"),
            ("${netX/busid:hexhyp}", "01-80-86-10-0e"),
        ];
        let url =
            known.into_iter().fold(asks.to_owned(), |url, (name, value)| url.replace(name, value));
        assert!(!url.contains("${"), "a setting that this test does not know: {url}");
        let answer = eventually("its address is known", || {
            let answer = machine.get(&url).unwrap();
            // This test asks faster than a machine may.
            if answer.status == 429 {
                return Err(answer.text());
            }
            if answer.text().contains("no_session") {
                // As the refusal says, the machine does DHCP again: the exchange before may have
                // come before meshd had recorded the fetch of the overlay.
                machine.host().inside(dhcp).unwrap();
                return Err(answer.text());
            }
            Ok(answer)
        });
        assert!(
            answer.status == 200 && answer.text().starts_with("#!ipxe"),
            "{url}: {}",
            answer.text()
        );
        let mut named = Names::default();
        named.add_script(&answer.text(), build);
        for overlay in named.0.keys().filter(|name| name.contains("/overlay/")) {
            let bytes = fetch(machine, overlay, build);
            // Both forms are gzip, and hold the agent.
            assert!(
                bytes.starts_with(&[0x1f, 0x8b]) && bytes.len() > 1000,
                "{overlay}: {} bytes",
                bytes.len()
            );
        }
        scripts.insert(build, answer.text());
    }
    scripts
}

/// Fetches as a client would: its size first, then all of it.
fn fetch(machine: &PxeNode<'_>, name: &str, by: &str) -> Vec<u8> {
    if !name.starts_with("http://") {
        let name = name.strip_prefix(&format!("tftp://{CENTRAL}/")).unwrap_or(name);
        let server = CENTRAL.parse().unwrap();
        let from = machine.address.get();
        let size = machine.host().inside(|| tftp::size(server, name, from)).unwrap();
        let size = size.unwrap_or_else(|error| panic!("tsize of {name}, named by {by}: {error}"));
        let bytes =
            machine.tftp(name).unwrap_or_else(|error| panic!("{name}, named by {by}: {error}"));
        assert_eq!(size, bytes.len(), "tsize of {name}");
        return bytes;
    }
    let head = machine.head(name).unwrap();
    let answer = machine.get(name).unwrap();
    assert_eq!((head.status, answer.status), (200, 200), "{name}, named by {by}");
    assert_eq!(
        answer.header("content-length"),
        Some(answer.body.len().to_string().as_str()),
        "{name}"
    );
    // The length of what is made for one request is not known before.
    let made = ["/boot/script", "/overlay/"].iter().any(|route| name.contains(route));
    assert!(
        made || head.header("content-length") == answer.header("content-length"),
        "HEAD of {name}: {}",
        head.head
    );
    answer.body
}

/// What a file must be, by the disk of the central node; `None` for what is made when it is asked
/// for.
fn expected(world: &World, name: &str) -> Option<Vec<u8>> {
    let read = |path: &str| {
        fs::read(world.path(path)).unwrap_or_else(|error| panic!("{name}: {path}: {error}"))
    };
    if let Some((_, rest)) = name.split_once("blob/") {
        let digest = rest.split('/').next().unwrap();
        let bytes = read(&format!("state/blobs/sha256/{digest}"));
        assert_eq!(Digest::of(&bytes).to_string(), digest);
        return Some(bytes);
    }
    let file = name.rsplit('/').next().unwrap_or(name);
    loaders().contains(file).then(|| read(&format!("loaders/{file}")))
}

#[test]
fn named_files_are_served_in_authoritative_mode() {
    assert_named_files_are_served(&Site { proxy: false, boot: "" });
}

#[test]
fn named_files_are_served_in_proxy_mode() {
    assert_named_files_are_served(&Site { proxy: true, boot: "" });
}

#[test]
fn named_files_are_served_with_tftp_transport() {
    assert_named_files_are_served(&Site { proxy: false, boot: "kernel_transport = \"tftp\"" });
}

#[test]
fn named_files_are_served_with_url_delivery() {
    assert_named_files_are_served(&Site { proxy: true, boot: "delivery = \"url\"" });
}
