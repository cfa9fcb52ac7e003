//! Rules of the site that approve machines without an operator.
//!
//! Rules compare facts that firmware reports unencrypted; docs/security.md describes attacks from
//! the boot network.

use super::{record::Node, relay_port::RelayPort};
use meshd_config::{EnrollCriteria, EnrollRule};
use meshd_types::RelayIdPattern;
use std::collections::BTreeSet;

/// Returns the first rule that matches a node. `segment` is the network segment of its boot, if
/// known, and `port` the switch port that a relay reported.
pub fn matching_rule<'r>(
    rules: &'r [EnrollRule],
    node: &Node,
    segment: Option<&str>,
    port: Option<&RelayPort>,
) -> Option<&'r EnrollRule> {
    rules.iter().find(|rule| matches(&rule.criteria, node, segment, port))
}

fn matches(
    criteria: &EnrollCriteria,
    node: &Node,
    segment: Option<&str>,
    port: Option<&RelayPort>,
) -> bool {
    let print = &node.fingerprint;
    let text = |required: &Option<String>, reported: &str| {
        required.as_ref().is_none_or(|required| *required == normalise(reported))
    };
    (criteria.serials.is_empty() || criteria.serials.contains(&normalise(&print.serial)))
        && (criteria.uuids.is_empty()
            || print.uuid.is_some_and(|uuid| criteria.uuids.contains(&uuid)))
        && (criteria.nodes.is_empty() || criteria.nodes.contains(&node.id))
        && text(&criteria.manufacturer, &print.manufacturer)
        && text(&criteria.product, &print.product)
        && (criteria.mac_prefixes.is_empty()
            || criteria.mac_prefixes.iter().any(|prefix| prefix.fits(node.mac)))
        && (criteria.segments.is_empty()
            || segment.is_some_and(|segment| criteria.segments.contains(segment)))
        && is_at(&criteria.circuit_ids, port.and_then(|port| port.circuit_id.as_deref()))
        && is_at(&criteria.remote_ids, port.and_then(|port| port.remote_id.as_deref()))
}

/// Returns whether an ID of a switch port matches one of these; always if there are none.
fn is_at(required: &BTreeSet<RelayIdPattern>, id: Option<&str>) -> bool {
    required.is_empty() || id.is_some_and(|id| required.iter().any(|pattern| pattern.fits(id)))
}

fn normalise(text: &str) -> String {
    text.trim().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::node::identity::ObservedMachine;
    use meshd_config::{Site, parse};
    use meshd_types::{DenyList, Hardware, MacAddr, Timestamp};
    use std::path::Path;

    fn site(rules: &str) -> Site {
        let sample = include_str!("../../../../site.toml");
        parse(&format!("{sample}\n{rules}"), Path::new("site.toml"))
            .unwrap_or_else(|faults| panic!("{faults}"))
    }

    fn machine(serial: &str) -> Node {
        let hardware = Hardware {
            uuid: "01020304-0506-0708-090a-0b0c0d0e0f10".parse().ok(),
            manufacturer: " ACME ".to_owned(),
            product: "Blade 3".to_owned(),
            serial: serial.to_owned(),
            macs: Vec::new(),
        };
        let mac = MacAddr([0x52, 0x54, 0, 1, 2, 3]);
        let ObservedMachine { basis, fingerprint, mac, .. } =
            ObservedMachine::from_hardware(&hardware, mac, &DenyList::new()).expect("a UUID");
        Node::discovered(basis, fingerprint, mac, Timestamp::EPOCH)
    }

    #[test]
    fn rule_requires_every_criterion_and_one_element_of_a_list() {
        let node = machine("sn-7");
        let id = machine("sn-7").id;
        for (facts, lets_in) in [
            ("serials = [\"SN-6\", \" SN-7\"]", true),
            ("serials = [\"SN-6\"]", false),
            ("uuids = [\"01020304-0506-0708-090A-0B0C0D0E0F10\"]", true),
            ("uuids = [\"01020304-0506-0708-090a-0b0c0d0e0f11\"]", false),
            (&format!("nodes = [\"{id}\"]"), true),
            ("manufacturer = \"acme\"\nproduct = \"blade 3\"", true),
            ("manufacturer = \"acme\"\nproduct = \"blade\"", false),
            ("mac_prefixes = [\"52:54:00\"]", true),
            ("mac_prefixes = [\"52-54-01\", \"aa\"]", false),
            ("segments = [\"br0\"]", true),
            ("segments = [\"br0\"]\nserials = [\"SN-6\"]", false),
        ] {
            let site = site(&format!("[[enroll.rule]]\nname = \"r\"\n{facts}"));
            assert_eq!(
                matching_rule(&site.enroll.rules, &node, Some("br0"), None).is_some(),
                lets_in,
                "{facts}"
            );
        }
        let elsewhere = site("[[enroll.rule]]\nname = \"r\"\nsegments = [\"br0\"]");
        assert!(
            matching_rule(&elsewhere.enroll.rules, &node, None, None).is_none(),
            "it is not known where it is"
        );
        assert!(matching_rule(&[], &node, Some("br0"), None).is_none());
    }

    #[test]
    fn rule_requires_the_switch_port_that_the_relay_reports() {
        let behind_relay = "[[segment]]\nrelay = \"10.88.0.1\"\nrelay_mac = [\"52:54:00:12:34:56\"]\nrange = \"10.88.0.100-10.88.0.110\"\nrouter = \"10.88.0.1\"\n";
        let port = RelayPort {
            relay: Some([10, 88, 0, 1].into()),
            circuit_id: Some("657468312f37".to_owned()),
            remote_id: Some("0004000a".to_owned()),
        };
        let unnamed = RelayPort { circuit_id: None, ..port.clone() };
        for (facts, at_port, at_unnamed) in [
            ("circuit_ids = [\"eth1/7\"]", true, false),
            ("circuit_ids = [\"eth1/8\", \"eth1/?\"]", true, false),
            ("circuit_ids = [\"eth2/*\"]", false, false),
            ("remote_ids = [\"0x0004000A\"]", true, true),
            ("circuit_ids = [\"*\"]\nremote_ids = [\"0x0004000b\"]", false, false),
        ] {
            let site = site(&format!("{behind_relay}[[enroll.rule]]\nname = \"r\"\n{facts}"));
            let has_rule = |port: Option<&RelayPort>| {
                matching_rule(&site.enroll.rules, &machine(""), None, port).is_some()
            };
            let found = [Some(&port), Some(&unnamed), None].map(has_rule);
            assert_eq!(found, [at_port, at_unnamed, false], "{facts}");
        }
    }

    #[test]
    fn first_matching_rule_is_returned() {
        let rule = |name: &str, profile: &str| {
            format!(
                "[[enroll.rule]]\nname = \"{name}\"\nmac_prefixes = [\"52\"]\nprofile = \"{profile}\"\n"
            )
        };
        let site = site(&(rule("one", "compute") + &rule("two", "discovery")));
        let found = matching_rule(&site.enroll.rules, &machine(""), None, None).expect("both fit");
        assert_eq!(
            (found.name.as_str(), found.profile.as_ref().map(|name| name.as_str())),
            ("one", Some("compute"))
        );
    }
}
