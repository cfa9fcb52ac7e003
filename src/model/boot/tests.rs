//! Compares scripts with golden files, and verifies that no external value becomes a command.

use super::*;
use crate::fleet::{NextBootOverride, Node, ObservedMachine, Phase};
use crate::image_kind::{AlpineParts, Blob, ImageKind, NicDrivers, PciId, RootParts, System};
use meshd_config::{Delivery, Site, Transport};
use meshd_proto::stage1::{RootMode, VeritySpec};
use meshd_types::{
    Architecture, BootSessionId, DenyList, Digest, MacAddr, ProfileName, Secret, Timestamp,
};
use proptest::prelude::*;
use serde_json::json;
use std::{collections::BTreeMap, net::Ipv4Addr, path::PathBuf};

const ENDPOINT: Endpoint = Endpoint { address: Ipv4Addr::new(10, 77, 0, 1), http_port: 8080 };
const CAPABILITY: &str = "00112233445566778899aabbccddeeff";

const SITE: &str = r#"
[site]
name = "rack-a"
[net]
interface = "br0"
[dhcp]
mode = "off"
[defaults]
profile = "discovery"
[profiles.discovery]
image = "alpine-lab"
[profiles.compute]
image = "alpine-lab"
kernel_args = ["hugepagesz=1G", "hugepages=2", "hugepagesz=2M", "hugepages=2", "quiet"]
[profiles.vfio-host]
image = "alpine-lab"
vfio = { devices = ["class:0300"] }
"#;

fn site() -> Site {
    let mut site =
        meshd_config::parse(SITE, "site.toml".as_ref()).unwrap_or_else(|faults| panic!("{faults}"));
    // A site file cannot set `panic`.
    *args_of(&mut site, "vfio-host") = vec!["panic=60".to_owned()];
    site
}

fn args_of<'s>(site: &'s mut Site, profile: &str) -> &'s mut Vec<String> {
    let name: ProfileName = profile.parse().expect("a name");
    &mut site.profiles.get_mut(&name).expect("a profile of the site").kernel_args
}

fn request() -> ScriptRequest {
    ScriptRequest::parse(
        "mac=52:54:00:12:34:56&uuid=01020304-0506-0708-090a-0b0c0d0e0f10&arch=x86_64&serial=S1",
    )
    .expect("iPXE sends this")
}

fn node(profile: Option<&str>) -> Node {
    let request = request();
    let seen = ObservedMachine::from_hardware(&request.hardware(), request.mac, &DenyList::new())
        .expect("it has a UUID");
    let mut node =
        Node::discovered(seen.basis, seen.fingerprint, seen.mac, Timestamp::from_millis(0));
    node.profile = profile.map(|name| name.parse().expect("a name"));
    node
}

fn image_kind() -> ImageKind {
    let [kernel, initramfs, packages, modloop] =
        [1, 2, 3, 4].map(|byte| Blob { digest: Digest([byte; 32]), size: 1 << 20 });
    ImageKind::Alpine(AlpineParts { kernel, initramfs, packages, modloop })
}

fn contents(site: &Site, node: &Node, architecture: Architecture) -> BootContents {
    let profile = choose(site, node, Some(SESSION)).expect("the site has it");
    let args = profile_args(site, &profile, architecture);
    let (profile, image) = (profile.name.clone(), profile.image.clone());
    BootContents {
        profile,
        image,
        architecture,
        kind: image_kind(),
        args,
        writable: None,
        root_mode: RootMode::Ram,
    }
}

const SESSION: BootSessionId = BootSessionId([7; 12]);

fn plan(site: &Site, node: &Node, architecture: Architecture) -> Result<BootPlan, Refusal> {
    plan_for(&request(), site, node, architecture)
}

fn plan_for(
    request: &ScriptRequest,
    site: &Site,
    node: &Node,
    architecture: Architecture,
) -> Result<BootPlan, Refusal> {
    let capability = &Secret::new(CAPABILITY.to_owned());
    let contents = &contents(site, node, architecture);
    decide(&PlanRequest {
        site,
        contents,
        node,
        session: SESSION,
        endpoint: ENDPOINT,
        request,
        capability,
    })
}

fn script(site: &Site, profile: Option<&str>) -> String {
    Loader::Ipxe.boot_script(&plan(site, &node(profile), Architecture::X86_64).expect("it boots"))
}

/// Compares with `tests/golden/script-NAME.ipxe`; `MESHD_UPDATE_GOLDEN=1` writes it anew.
fn golden(name: &str, actual: &str) {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .join(format!("tests/golden/script-{name}.ipxe"));
    if std::env::var_os("MESHD_UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, actual).expect("the golden folder is writable");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == actual, "{} differs; it would be:\n{actual}", path.display());
}

#[test]
fn boot_scripts_match_golden_files() {
    let mut site = site();
    golden("entry", &Loader::Ipxe.entry_script(ENDPOINT));
    golden("discovery", &script(&site, None));
    golden("compute", &script(&site, Some("compute")));
    golden("vfio-host", &script(&site, Some("vfio-host")));
    site.boot.kernel_transport = Transport::Tftp;
    golden("kernel-by-tftp", &script(&site, None));
    site.boot.kernel_transport = Transport::Http;
    site.boot.delivery = Delivery::Url;
    golden("overlay-by-url", &script(&site, None));
}

fn refusals(text: &str) -> Vec<Refusal> {
    let image: meshd_types::ImageName = "alpine-lab".parse().expect("a name");
    let detail = text.to_owned();
    vec![
        Refusal::NoSession,
        Refusal::Unidentified,
        Refusal::Collision { detail: detail.clone() },
        Refusal::HeldNic {
            mac: MacAddr([0x52, 0x54, 0, 0, 0, 1]),
            node: node(None).id,
            phase: Phase::Quarantined,
        },
        Refusal::Rejected,
        Refusal::Quarantined { detail: detail.clone() },
        Refusal::ImageMissing { image: image.clone(), detail: detail.clone() },
        Refusal::ArchMismatch {
            image: image.clone(),
            built_for: Architecture::X86_64,
            machine: Architecture::Aarch64,
        },
        Refusal::NicDriverMissing { image, nic: PciId { vendor: 0x8086, device: 0x100e } },
        Refusal::RenderFailed { detail: detail.clone() },
        Refusal::Busy { seconds: u32::MAX, position: 17 },
        Refusal::RecentlyOnline { seconds: 45 },
        Refusal::Internal { detail: detail.clone() },
        Refusal::BadRequest { detail },
    ]
}

#[test]
fn refusal_scripts_match_golden_file() {
    let all: Vec<String> = refusals("the detail of it")
        .iter()
        .map(|refusal| {
            Loader::Ipxe.refusal_script(refusal, ENDPOINT, Some(node(None).id), "c0ffee00")
        })
        .collect();
    golden("refusals", &all.join("\n"));
}

#[test]
fn node_not_allowed_to_boot_is_refused() {
    let site = site();
    let mut refused = node(None);
    refused.phase = Phase::Rejected;
    assert_eq!(plan(&site, &refused, Architecture::X86_64), Err(Refusal::Rejected));
    refused.phase = Phase::Quarantined;
    assert_eq!(
        plan(&site, &refused, Architecture::X86_64),
        Err(Refusal::Quarantined { detail: String::new() })
    );
    let code = |result: Result<BootPlan, Refusal>| result.map_err(|refusal| refusal.code()).err();
    assert_eq!(code(plan(&site, &node(None), Architecture::Aarch64)), Some("arch_mismatch"));
    let gone = choose(&site, &node(Some("gone")), None).expect_err("not in the site").to_string();
    assert!(gone.contains("meshd node assign-profile"), "{gone}");
}

#[test]
fn nic_without_driver_in_a_root_image_is_refused() {
    let site = site();
    let node = node(None);
    let blob = Blob { digest: Digest([1; 32]), size: 4096 };
    let verity = VeritySpec {
        root_hash: Digest([2; 32]),
        salt: String::new(),
        hash_offset: 4096,
        block_size: 4096,
        data_blocks: 1,
    };
    let aliases = ["pci:v00008086d0000100Esv*sd*bc*sc*i*"];
    let kind = ImageKind::Root(RootParts {
        kernel: blob,
        modules: blob,
        root: blob,
        verity,
        system: System::Systemd,
        sources: BTreeMap::new(),
        nic_drivers: NicDrivers::from_aliases(aliases.into_iter(), true),
    });
    let contents = BootContents { kind, ..contents(&site, &node, Architecture::X86_64) };
    let refusal_for = |nic| {
        let planned = decide(&PlanRequest {
            site: &site,
            contents: &contents,
            node: &node,
            session: SESSION,
            endpoint: ENDPOINT,
            request: &ScriptRequest { nic, ..request() },
            capability: &Secret::new(CAPABILITY.to_owned()),
        });
        planned.err().map(|refusal| refusal.message())
    };
    let nic = |vendor, device| Some(PciId { vendor, device });
    assert_eq!((refusal_for(None), refusal_for(nic(0x8086, 0x100e))), (None, None));
    let message = refusal_for(nic(0x10ec, 0x8139)).expect("refused");
    assert!(message.starts_with("image alpine-lab has no driver for NIC 10ec:8139 "), "{message}");

    // Without a loader, the facts of the node name its NIC.
    let mut known = node.clone();
    let facts = json!({
        "pci": [{ "address": "0000:00:03.0", "vendor": "10ec", "device": "8139", "class": "0200" }],
        "nics": [{ "name": "eth0", "mac": node.mac, "carrier": true, "function": "0000:00:03.0" }],
    });
    known.facts = Some(serde_json::from_value(facts).expect("facts"));
    let asked = ScriptRequest::of_node(&known).nic;
    assert_eq!((asked, ScriptRequest::of_node(&node).nic), (nic(0x10ec, 0x8139), None));
}

#[test]
fn unsafe_kernel_argument_of_profile_is_refused() {
    let long = ["a", "b", "c", "d"].map(|key| format!("{key}={}", "y".repeat(500)));
    for args in [
        vec!["init=/bin/sh"],
        vec!["a b"],
        vec!["x=${uuid}"],
        vec!["--name"],
        long.each_ref().map(String::as_str).into(),
    ] {
        let mut site = site();
        *args_of(&mut site, "compute") = args.iter().map(ToString::to_string).collect();
        let refused = plan(&site, &node(Some("compute")), Architecture::X86_64);
        assert!(matches!(refused, Err(Refusal::RenderFailed { .. })), "{args:?}: {refused:?}");
    }
}

#[test]
fn profile_kernel_argument_replaces_default_except_repeatable_keys() {
    let site = site();
    let args = |name: &str, arch| {
        profile_args(&site, &site.profiles[&name.parse::<ProfileName>().expect("a name")], arch)
    };
    assert_eq!(
        args("compute", Architecture::X86_64).join(" "),
        "panic=10 console=tty0 console=ttyS0,115200 hugepagesz=1G hugepages=2 hugepagesz=2M hugepages=2 quiet"
    );
    assert_eq!(
        args("vfio-host", Architecture::X86_64).join(" "),
        "intel_iommu=on iommu=pt console=tty0 console=ttyS0,115200 panic=60"
    );
    assert_eq!(
        args("vfio-host", Architecture::Aarch64).join(" "),
        "iommu.passthrough=0 console=tty0 console=ttyAMA0,115200 panic=60"
    );
}

#[test]
fn smmu_passthrough_on_arm_is_refused() {
    let mut site = site();
    let node = node(Some("vfio-host"));
    let request = ScriptRequest { arch: Some(Architecture::Aarch64), ..request() };
    let planned = |site: &Site| plan_for(&request, site, &node, Architecture::Aarch64);
    assert!(
        planned(&site).is_ok_and(|plan| plan
            .public
            .args
            .iter()
            .any(|arg| arg == "iommu.passthrough=0"))
    );
    *args_of(&mut site, "vfio-host") = vec!["iommu.passthrough=1".to_owned()];
    let refused = planned(&site).expect_err("refused");
    assert!(
        matches!(&refused, Refusal::RenderFailed { detail } if detail.contains("iommu.passthrough=1")),
        "{refused:?}"
    );
}

#[test]
fn public_part_of_plan_is_the_same_for_two_boots() {
    for delivery in [Delivery::Initrd, Delivery::Url] {
        let mut site = site();
        site.boot.delivery = delivery;
        let node = node(None);
        let first = plan(&site, &node, Architecture::X86_64).expect("it boots");
        let contents = contents(&site, &node, Architecture::X86_64);
        let second = decide(&PlanRequest {
            site: &site,
            contents: &contents,
            node: &node,
            session: BootSessionId([8; 12]),
            endpoint: ENDPOINT,
            request: &request(),
            capability: &Secret::new("another".to_owned()),
        });
        let second = second.expect("it boots");
        assert_eq!(first.public, second.public);
        assert!(first.secret != second.secret);
        let text = format!("{:?}", first.public);
        assert!(!text.contains(CAPABILITY) && !text.contains(&SESSION.to_string()), "{text}");
    }
}

#[test]
fn command_line_up_to_the_limit_of_its_architecture_boots() {
    let node = node(Some("compute"));
    let mut site = site();
    let request = ScriptRequest { arch: None, ..request() };
    for architecture in Architecture::ALL {
        // On UEFI, iPXE puts the name of the kernel's image before the line.
        let limit = architecture.facts().max_command_line - "kernel ".len();
        let line_length = |site: &Site| {
            let plan = plan_for(&request, site, &node, architecture).expect("it boots");
            let script = Loader::Ipxe.boot_script(&plan);
            let line = script
                .lines()
                .find_map(|line| line.strip_prefix("kernel --name kernel "))
                .expect("a kernel");
            line.trim_end_matches(" || goto failed")
                .split_once(' ')
                .expect("a URL, then words")
                .1
                .len()
        };
        *args_of(&mut site, "compute") = Vec::new();
        let mut rest = limit - line_length(&site);
        while rest > 0 {
            // Words of at most 500 characters, each with a blank before it.
            let word = rest.min(500) - 1;
            let word = if rest - word - 1 == 1 { word - 1 } else { word };
            args_of(&mut site, "compute").push("y".repeat(word));
            rest -= word + 1;
        }
        assert_eq!(line_length(&site), limit);
        args_of(&mut site, "compute")[0].push('y');
        let refused = plan_for(&request, &site, &node, architecture).map(drop);
        assert!(
            matches!(refused, Err(Refusal::RenderFailed { detail }) if detail.contains("longer than"))
        );
    }
}

#[test]
fn next_boot_override_applies_to_its_session_only() {
    let site = site();
    let other = BootSessionId([8; 12]);
    let mut node = node(Some("compute"));
    node.boot_override = Some(NextBootOverride {
        profile: "vfio-host".parse().ok(),
        kernel_args: ["panic=1", "debug"].map(str::to_owned).into(),
        set_at: Timestamp::from_millis(0),
        used_by: None,
    });
    let booted = |node: &Node, session| {
        let profile = choose(&site, node, session).expect("the site has it");
        format!("{} {}", profile.name, profile.kernel_args.join(" "))
    };
    for session in [None, Some(SESSION), Some(other)] {
        assert_eq!(booted(&node, session), "vfio-host panic=1 debug");
    }
    node.boot_override.as_mut().expect("set").used_by = Some(SESSION);
    assert_eq!(booted(&node, Some(SESSION)), "vfio-host panic=1 debug");
    for session in [None, Some(other)] {
        assert!(booted(&node, session).starts_with("compute hugepagesz"), "{session:?}");
    }
    node.boot_override.as_mut().expect("set").used_by = None;
    node.boot_override.as_mut().expect("set").profile = "gone".parse().ok();
    let gone = choose(&site, &node, None).expect_err("not in the site").to_string();
    assert!(gone.contains("boot-once") && gone.contains("--clear"), "{gone}");
}

#[test]
fn capability_is_in_one_script_line_and_not_in_debug_output() {
    for delivery in [Delivery::Initrd, Delivery::Url] {
        let mut site = site();
        site.boot.delivery = delivery;
        assert_eq!(script(&site, None).lines().filter(|line| line.contains(CAPABILITY)).count(), 1);
        let plan = plan(&site, &node(None), Architecture::X86_64).expect("it boots");
        assert!(!format!("{plan:?}").contains(CAPABILITY));
    }
}

/// What iPXE would make of a script: commands of words, as its `split_command` and `parse_command`
/// do.
fn commands(script: &str) -> Vec<Vec<&str>> {
    let mut commands = Vec::new();
    for line in script.split('\n') {
        let words = line.split_whitespace().take_while(|word| !word.starts_with('#'));
        let words: Vec<&str> = words.collect();
        commands
            .extend(words.split(|word| matches!(*word, "||" | "&&" | ";")).map(<[&str]>::to_vec));
    }
    commands.retain(|command| !command.is_empty());
    commands
}

proptest! {
    #[test]
    fn hostile_refusal_detail_adds_no_script_command(text in "\\PC{0,300}|[ \n\r\t|&;#$\\{}'\"\\\\a]{0,80}", correlation in ".{0,40}") {
        let verbs = |script: &str| commands(script).iter().map(|command| command[0].to_owned()).collect::<Vec<_>>();
        for (plain, hostile) in refusals("plain").iter().zip(refusals(&text)) {
            let plain = Loader::Ipxe.refusal_script(plain, ENDPOINT, None, "c0ffee");
            let hostile = Loader::Ipxe.refusal_script(&hostile, ENDPOINT, None, &correlation);
            prop_assert_eq!(plain.lines().count(), hostile.lines().count());
            prop_assert_eq!(verbs(&plain), verbs(&hostile));
            prop_assert!(!hostile.contains(['"', '\'', '\\', '$', '\r', '\t']));
        }
    }

    #[test]
    fn kernel_argument_is_unchanged_or_refused(arg in "\\PC{0,40}|[-a-z=,|&;#$\\{}'\" \n]{0,20}") {
        let mut site = site();
        *args_of(&mut site, "discovery") = vec![arg.clone()];
        if let Ok(plan) = plan(&site, &node(None), Architecture::X86_64) {
            let script = Loader::Ipxe.boot_script(&plan);
            prop_assert_eq!(commands(&script).len(), commands(&self::script(&self::site(), None)).len());
            let kernel = script.lines().find(|line| line.starts_with("kernel ")).expect("there is one");
            let kernel: Vec<&str> = kernel.split(' ').collect();
            prop_assert!(kernel.contains(&arg.as_str()));
        }
    }
}
