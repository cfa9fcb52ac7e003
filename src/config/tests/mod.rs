//! Tests of `site.toml`: every kind of fault, the annotated sample, and arbitrary text.
//!
//! | module | content |
//! | --- | --- |
//! | `enroll` | tests of admission rules and ignored UUIDs |
//! | `power` | tests of BMC rules in `[power]` |
//! | `profiles` | tests of profile inheritance, list edits and groups |
//! | `programs` | tests of `[programs]` |
//! | `rules` | tests of VM rules and templates in `[vms]` |
//! | `segments` | tests of segments and reservations |
//! | `vms` | tests of VM address pools in `[vms]` |

mod enroll;
mod power;
mod profiles;
mod programs;
mod rules;
mod segments;
mod vms;

use super::*;
use meshd_types::Architecture;
use proptest::prelude::*;
use std::collections::BTreeSet;

const SAMPLE: &str = include_str!("../../../site.toml");
/// The shortest site.
const LEAST: &str = r#"
[site]
name = "a"
[net]
interface = "br0"
[dhcp]
range = "10.0.0.100-10.0.0.200"
[defaults]
profile = "d"
[profiles.d]
image = "i"
"#;

/// A site with a fault of every kind.
const FAULTY: &str = r#"[site]
name = "rack a"
ssh_keys = ["-----BEGIN OPENSSH PRIVATE KEY-----"]
[net]
interfce = "br0"
[dhcp]
mode = "authorative"
range = "10.77.0.200-10.77.0.100"
lease = "1w"
[http]
port = 8443
[agent]
heartbeat = "60s"
[[segment]]
relay = "10.88.0.1"
range = "10.88.0.1-10.88.0.9"
[[segment]]
relay = "10.88.0.1"
interface = "br1"
mode = "proxy"
[[reservation]]
mac = "01:00:5e:00:00:01"
adress = "10.88.0.77"
[enroll]
rule = [{}]
[defaults]
profile = "discvery"
[profiles.discovery]
image = "alpine-lab"
overlays = ["base", "../etc"]
kernel_args = ["init=/bin/sh"]
[profiles.lost]
extends = "nowhere"
[profiles.lost.vfio]
devices = ["class:3"]
"#;

fn read(text: &str) -> Result<Site, Faults> {
    parse(text, Path::new("site.toml"))
}

/// Returns the value of a file without faults.
fn valid<T>(result: Result<T, Faults>) -> T {
    result.unwrap_or_else(|faults| panic!("{faults}"))
}

/// Returns each fault as `line key: message`.
fn described(result: Result<Site, Faults>) -> Vec<String> {
    let faults = result.err().map_or_else(Vec::new, |faults| faults.0);
    assert!(faults.iter().all(|fault| !fault.hint.is_empty()), "{faults:#?}");
    faults
        .into_iter()
        .map(|fault| format!("{} {}: {}", fault.line, fault.key, fault.message))
        .collect()
}

/// Reads the shortest site with `more`, in which `change` is replaced.
fn edited(more: &str, change: &str, with: &str) -> Result<Site, Faults> {
    assert!(more.contains(change), "{change}");
    read(&format!("{LEAST}{}", more.replacen(change, with, 1)))
}

/// Returns the faults of the shortest site with some of its text replaced.
fn faults(change: &str, with: &str) -> Vec<String> {
    assert!(LEAST.contains(change), "{change}");
    described(read(&LEAST.replacen(change, with, 1)))
}

/// Reads the sample with a section before `[defaults]`.
fn with_section(section: &str) -> Result<Site, Faults> {
    parse(
        &SAMPLE.replacen("[defaults]", &format!("{section}\n[defaults]"), 1),
        Path::new("/etc/site.toml"),
    )
}

/// Returns the faults of a text that must have exactly one.
fn one_fault<T: std::fmt::Debug>(result: Result<T, Faults>, text: &str) -> Faults {
    let faults = result.expect_err(text);
    assert_eq!(faults.0.len(), 1, "{text}: {faults}");
    faults
}

#[test]
fn sample_site_file_is_valid() {
    let site = valid(read(SAMPLE));
    let compute = &site.profiles[&"compute".parse().expect("a name")];
    let overlays: Vec<&str> = compute.overlays.iter().map(|overlay| overlay.as_str()).collect();
    assert_eq!(overlays, ["base", "agent", "motd"], "a child's overlays come after its parent's");
    assert_eq!(site.default_profile.as_str(), "discovery");
    assert_eq!(site.blobs_dir, Path::new("/var/lib/meshd/blobs"));
    assert_eq!(site.segments[0].subnet.as_ref().map(|subnet| subnet.prefix_len), Some(24));
}

#[test]
fn sample_site_file_with_all_optional_keys_is_valid_and_equals_defaults() {
    let uncomment = |line: &str| match line.strip_prefix('#') {
        Some(key) if !key.is_empty() && !key.starts_with(' ') => key.to_owned(),
        _ => line.to_owned(),
    };
    let text: Vec<String> = SAMPLE.lines().map(uncomment).collect();
    let full = valid(read(&text.join("\n")));
    let plain = valid(read(SAMPLE));
    assert_eq!((full.ssh_keys.len(), full.profiles.len()), (1, 3));
    assert_eq!(full.profiles[&"vm-host".parse().expect("a name")].vfio.len(), 4);
    let consoles = Architecture::X86_64.facts().consoles.iter().map(ToString::to_string);
    assert_eq!(
        full.boot.consoles,
        Some(consoles.collect()),
        "the default depends on the architecture"
    );
    assert_eq!(
        (
            Boot { consoles: None, netconsole_port: None, root_servers: Vec::new(), ..full.boot },
            full.blobs_dir
        ),
        (plain.boot, plain.blobs_dir)
    );
}

#[test]
fn minimal_site_file_is_valid_with_paths_relative_to_it() {
    let site = valid(parse(LEAST, Path::new("/etc/meshd/site.toml")));
    assert_eq!(site.overlays_dir, Path::new("/etc/meshd/overlays"));
    assert_eq!(site.blobs_dir, Path::new("/var/lib/meshd/blobs"));
    assert_eq!((site.http.port, site.agent.port), (8080, 8443));
    assert_eq!(site.segments[0].mode, DhcpMode::Authoritative);
}

#[test]
fn site_file_faults_are_all_reported_with_lines() {
    let faults = read(FAULTY).expect_err("full of faults");
    insta::assert_snapshot!(faults.to_string(), @r#"
    site.toml:2: site.name: `rack a` is not a valid name
      hint: use 1 to 63 letters, digits, `-` and `.`
    site.toml:3: site.ssh_keys[0]: is a private key
      hint: write the public one, and make a new pair if this file was shared
    site.toml:4: net.interface: is required
      hint: name it as `ip link` does: interface = "br0"
    site.toml:5: net.interfce: unknown key
      hint: did you mean `interface`?
    site.toml:7: dhcp.mode: `authorative` is not known
      hint: did you mean `authoritative`?
    site.toml:8: dhcp.range: ends before it begins: 10.77.0.100 is below 10.77.0.200
      hint: swap the two
    site.toml:9: dhcp.lease: `1w` is not a duration
      hint: write a whole number and a unit: "30s", "15m", "1h", "7d"
    site.toml:11: http.port: [http] and [agent] both have port 8443
      hint: give them different ports
    site.toml:12: agent: a node that speaks every 1m would be offline after 1m
      hint: make offline_after at least 2m
    site.toml:16: segment[0].range: holds 10.88.0.1, the address of the relay
      hint: leave it out
    site.toml:18: segment[1].relay: conflicts with an interface
      hint: a segment has an interface or a relay: remove one
    site.toml:21: reservation[0]: reserves neither an address nor a name
      hint: write address = "10.77.0.20"
    site.toml:22: reservation[0].mac: `01:00:5e:00:00:01` is a multicast address
      hint: write mac = "52:54:00:00:00:01", or node = the node ID that `meshd node list` shows
    site.toml:23: reservation[0].adress: unknown key
      hint: did you mean `address`?
    site.toml:25: enroll.rule[0]: would approve every machine
      hint: write at least one of serials, uuids, nodes, manufacturer, product, mac_prefixes, segments, circuit_ids, remote_ids; to approve every machine, write policy = "auto"
    site.toml:25: enroll.rule[0].name: is required
      hint: write name = "rack-a": events and the audit log name the rule that approved a machine
    site.toml:27: defaults.profile: there is no profile `discvery`
      hint: did you mean `discovery`?
    site.toml:30: profiles.discovery.overlays[1]: `../etc` is not a valid overlay name
      hint: use 1 to 63 of a-z, 0-9, `-`, `_` and `.`, beginning with a letter or digit
    site.toml:31: profiles.discovery.kernel_args[0]: `init` is set by meshd itself
      hint: remove it
    site.toml:33: profiles.lost.extends: there is no profile `nowhere`
      hint: known here: discovery, lost
    site.toml:35: profiles.lost.vfio.devices[0]: `class:3` selects no PCI device
      hint: write class:0300, vendor:10de, device:8086:100e or address:0000:01:00.0
    "#);
}

#[test]
fn site_keys_that_contradict_each_other_are_refused() {
    let range = "\"10.0.0.100-10.0.0.200\"";
    for (change, with, fault) in [
        (
            range,
            "\"10.0.0.100-10.0.1.20\"",
            "7 dhcp.range: 10.0.1.20 is not in 10.0.0.0/24, where 10.0.0.100 is",
        ),
        (
            range,
            "\"10.0.0.0-10.0.0.9\"",
            "7 dhcp.range: holds the network or the broadcast address of 10.0.0.0/24",
        ),
        (range, "\"10.0.0.0-10.9.0.0\"", "7 dhcp.range: holds 589825 addresses"),
        (
            range,
            "\"10.0.0.1-10.0.0.9\"\nrouter = \"10.0.0.9\"",
            "7 dhcp.range: holds 10.0.0.9, the address of the router",
        ),
        (
            range,
            "\"10.0.0.1-10.0.0.9\"\nrouter = \"10.0.1.1\"",
            "8 dhcp.router: 10.0.1.1 is not in 10.0.0.0/24",
        ),
        (
            range,
            "\"10.0.0.1-10.0.0.9\"\nnetmask = \"255.0.255.0\"",
            "8 dhcp.netmask: `255.0.255.0` is not a netmask of a rack",
        ),
        (
            "\"br0\"",
            "\"br0\"\naddress = \"10.0.0.150\"",
            "8 dhcp.range: holds 10.0.0.150, the address of meshd",
        ),
        (
            "\"br0\"",
            "\"br0\"\naddress = \"10.9.0.1\"",
            "6 net.address: 10.9.0.1 is not in 10.0.0.0/24",
        ),
        ("range = \"10.0.0.100-10.0.0.200\"", "", "6 dhcp.range: is required"),
        (
            "[defaults]",
            "[http]\nport = 8443\n[defaults]",
            "9 http.port: [http] and [agent] both have port 8443",
        ),
        (
            "image = \"i\"",
            "",
            "10 profiles.d: neither this profile nor one that it extends names an image",
        ),
        ("image = \"i\"", "extends = \"d\"", "11 profiles.d.extends: extends itself: d -> d"),
        ("profile = \"d\"", "", "8 defaults.profile: is required"),
        ("profile = \"d\"", "profile = \"e\"", "9 defaults.profile: there is no profile `e`"),
    ] {
        assert!(
            faults(change, with).iter().any(|found| found == fault),
            "{fault}: {:#?}",
            faults(change, with)
        );
    }
}

#[test]
fn servers_of_roots_are_addresses_with_ports() {
    let servers = |list: &str| {
        let section = format!("[boot]\nroot_servers = {list}\n[defaults]");
        read(&LEAST.replacen("[defaults]", &section, 1))
    };
    let texts: Vec<String> = (1..=8).map(|last| format!("10.77.0.{last}:8080")).collect();
    let site = servers(&format!("{texts:?}")).expect("valid");
    assert!(site.boot.root_servers.iter().map(ToString::to_string).eq(texts));
    let nine: Vec<String> = (1..=9).map(|last| format!("10.77.0.{last}:8080")).collect();
    for (list, fault) in [
        ("[\"mirror:80\"]", "boot.root_servers[0]: `mirror:80` is not an IPv4 address with a port"),
        ("[\"10.77.0.2\"]", "boot.root_servers[0]: `10.77.0.2` is not"),
        ("[\"10.77.0.2:0\"]", "boot.root_servers[0]: `10.77.0.2:0` is not"),
        ("[\"[::1]:80\"]", "boot.root_servers[0]: `[::1]:80` is not"),
        (&format!("{nine:?}"), "boot.root_servers: "),
    ] {
        let faults = servers(list).expect_err(list).to_string();
        assert!(faults.contains(fault), "{list}: {faults}");
    }
}

#[test]
fn profile_cycle_is_reported_for_its_members_only() {
    let circle = "extends = \"a\"\n[profiles.a]\nextends = \"b\"\n[profiles.b]\nextends = \"a\"";
    let found = faults("image = \"i\"", circle);
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].contains("a -> b -> a") && found[1].contains("b -> a -> b"), "{found:#?}");
}

#[test]
fn proxy_segment_needs_no_range_and_has_no_subnet() {
    let text = LEAST.replace("range = \"10.0.0.100-10.0.0.200\"", "mode = \"proxy\"");
    let site = valid(read(&text));
    assert_eq!((site.segments[0].mode, &site.segments[0].subnet), (DhcpMode::Proxy, &None));
}

#[test]
fn repeated_overlay_moves_to_its_later_position() {
    let text = "image = \"i\"\noverlays = [\"a\", \"b\"]\n[profiles.e]\nextends = \"d\"\noverlays = [\"a\"]";
    let site = valid(read(&LEAST.replace("image = \"i\"", text)));
    let overlays: Vec<&str> =
        site.profiles.values().nth(1).expect("e").overlays.iter().map(|one| one.as_str()).collect();
    assert_eq!(overlays, ["b", "a"]);
}

#[test]
fn section_reserved_for_later_release_is_refused() {
    let found = faults("[defaults]", "[store]\n[defaults]");
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(
        found[0].starts_with("8 ") && found[0].ends_with("reserved for a later release"),
        "{found:?}"
    );
}

#[test]
fn reserved_section_is_suggested_by_no_hint() {
    let shown = read(&LEAST.replacen("[defaults]", "[quite_other]\n[defaults]", 1)).unwrap_err();
    let text = shown.to_string();
    assert!(text.contains("known here: admin") && !text.contains("store"), "{text}");
}

#[test]
fn admin_https_exists_only_if_configured() {
    let listener = |section: &str| {
        with_section(&format!("[admin.https]\n{section}")).map(|site| site.admin.https)
    };
    let own = |port, files, boot_network| {
        Some(AdminHttps { address: [10, 20, 0, 5].into(), port, files, boot_network })
    };
    assert_eq!(listener("address = \"10.20.0.5\"").expect("valid"), own(8444, None, false));
    let files = Some(("/c.pem".into(), "/c.key".into()));
    let brought = "address = \"10.20.0.5\"\nport = 1\nboot_network = true\ncertificate = \"/c.pem\"\nkey = \"/c.key\"";
    assert_eq!(listener(brought).expect("valid"), own(1, files, true));
    let taken = "address = \"10.20.0.5\"\nport = 8443";
    let half = "address = \"10.20.0.5\"\nkey = \"/c.key\"";
    for wrong in ["", "address = \"0.0.0.0\"", "address = \"255.255.255.255\"", taken, half] {
        one_fault(listener(wrong), wrong);
    }
    let user = |name: &str| {
        with_section(&format!("[process]\nuser = \"{name}\"")).map(|site| site.process.user)
    };
    assert_eq!(user("meshd").expect("valid").as_deref(), Some("meshd"));
    for wrong in ["", "-x", "a:b", "a b", &"x".repeat(33)] {
        one_fault(user(wrong), wrong);
    }
}

#[test]
fn prometheus_listener_exists_only_if_configured() {
    let listener = |section: &str| with_section(section).map(|site| site.metrics);
    assert_eq!(listener("").expect("valid"), None);
    let default = MetricsListener { address: [127, 0, 0, 1].into(), port: 9109 };
    assert_eq!(listener("[metrics]").expect("valid"), Some(default));
    let other = MetricsListener { address: [10, 1, 2, 3].into(), port: 9999 };
    assert_eq!(
        listener("[metrics]\naddress = \"10.1.2.3\"\nport = 9999").expect("valid"),
        Some(other)
    );
    for wrong in
        ["port = 8080", "port = 0", "address = \"255.255.255.255\"", "adress = \"127.0.0.1\""]
    {
        one_fault(listener(&format!("[metrics]\n{wrong}")), wrong);
    }
}

#[test]
fn secret_is_read_by_name_and_file_and_refused_inline() {
    let site = |section: &str| with_section(&format!("[secrets]\n{section}"));
    let secrets = site(
        "munge_key = { file = \"keys/munge\" }\nk = { file = \"/k\", overlays = [\"slurm\"] }",
    );
    let secrets = secrets.expect("valid").secrets;
    let source = |name: &str| secrets.get(&name.parse().expect("a name")).cloned();
    assert_eq!(
        source("munge_key"),
        Some(SecretSource { file: "/etc/keys/munge".into(), overlays: None })
    );
    let only = BTreeSet::from(["slurm".parse().expect("a name")]);
    assert_eq!(source("k"), Some(SecretSource { file: "/k".into(), overlays: Some(only) }));
    for wrong in [
        "a = \"hunter2\"",
        "a = { file = \"/x\", overlays = [\"A b\"] }",
        "A = { file = \"/x\" }",
        "a = {}",
        "a = { file = \"/x\", value = \"y\" }",
    ] {
        let faults = one_fault(site(wrong), wrong);
        assert!(!faults.to_string().contains("hunter2"), "{faults}");
    }
}

#[test]
fn missing_site_file_names_the_option() {
    let faults = load(Path::new("/nonexistent/site.toml")).expect_err("not there");
    assert!(faults.to_string().contains("--site FILE"), "{faults}");
    assert_eq!(find(Some(Path::new("x.toml"))), Ok("x.toml".into()));
}

proptest! {
    #[test]
    fn any_text_yields_a_site_or_faults_without_panic(
        line in 0usize..90, junk in "\\PC{0,30}|[a-z_]{1,9} = (\"\\PC{0,20}\"|[0-9-]{1,20}|\\[\\]|\\{\\})|\\[{1,2}[a-z.]{1,12}\\]{1,2}",
    ) {
        let mut lines: Vec<&str> = SAMPLE.lines().collect();
        let line = line % lines.len();
        lines[line] = &junk;
        if let Err(faults) = read(&lines.join("\n")) {
            prop_assert!(!faults.0.is_empty());
        }
        let _ = read(&junk);
    }
}
