//! Compares a network that the node makes with its desired state.

use super::{firewall::masquerade, settings};
use crate::system::Tree;
use meshd_proto::{NetworkSpec, Subnet};

/// A part of the desired state that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingPart {
    Bridge,
    Address,
    LinkUp,
    Forwarding,
    Masquerade,
}

/// Returns the missing parts in the order of repair: every other part needs the bridge.
pub fn missing(tree: &Tree, spec: &NetworkSpec, subnet: Subnet) -> Vec<MissingPart> {
    let folder = format!("/sys/class/net/{}", spec.bridge);
    let flags = tree.text(&format!("{folder}/flags")).unwrap_or_default();
    let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap_or(0);
    let parts = [
        (MissingPart::Bridge, tree.has(&format!("{folder}/bridge"))),
        (
            MissingPart::Address,
            settings::bridge_addresses(tree, &spec.bridge).first() == Some(&subnet.gateway()),
        ),
        (MissingPart::LinkUp, flags & 1 != 0),
        (MissingPart::Forwarding, tree.number("/proc/sys/net/ipv4/ip_forward") == Some(1u8)),
        (MissingPart::Masquerade, masquerade::is_current(spec, subnet).unwrap_or(false)),
    ];
    parts.into_iter().filter(|(_, is_present)| !is_present).map(|(part, _)| part).collect()
}

/// Describes missing parts.
pub fn list(missing: &[MissingPart]) -> String {
    missing.iter().map(|missing| missing.as_str()).collect::<Vec<_>>().join(", ")
}

impl MissingPart {
    pub fn as_str(self) -> &'static str {
        match self {
            MissingPart::Bridge => "the bridge",
            MissingPart::Address => "the address of the bridge",
            MissingPart::LinkUp => "the bridge in state up",
            MissingPart::Forwarding => "forwarding",
            MissingPart::Masquerade => "the masquerade rule",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeMachine;

    #[test]
    fn missing_parts_are_listed_in_order_of_repair() {
        let fake = FakeMachine::new("", &[]);
        let spec = NetworkSpec::private("172.30.0.0/16".parse().expect("a subnet"));
        // The masquerade rule is in the kernel, so the fake machine never has it.
        let missing = |spec: &NetworkSpec| {
            missing(&fake.tree, spec, "172.30.5.0/24".parse().expect("a subnet"))
        };
        let parts = [
            ("sys/class/net/mesh-nat0/bridge", ""),
            ("proc/net/fib_trie", "  |-- 172.30.5.1\n   /32 host LOCAL\n"),
            ("sys/class/net/mesh-nat0/flags", "0x1003\n"),
            ("proc/sys/net/ipv4/ip_forward", "1\n"),
        ];
        fake.routes(&[("mesh-nat0", [172, 30, 5, 0], [255, 255, 255, 0], [0; 4])]);
        let all = [
            MissingPart::Bridge,
            MissingPart::Address,
            MissingPart::LinkUp,
            MissingPart::Forwarding,
            MissingPart::Masquerade,
        ];
        for (present, (path, text)) in parts.into_iter().enumerate() {
            assert_eq!(missing(&spec), all[present..]);
            fake.file(path, text);
        }
        assert_eq!(missing(&spec), [MissingPart::Masquerade]);
    }
}
