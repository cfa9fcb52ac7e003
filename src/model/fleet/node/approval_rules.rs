//! Rules of the site that approve machines without an operator.
//!
//! A rule is as strong as the facts that it asks for. All of them are told by firmware before anything is encrypted; what that is
//! worth against somebody on the boot network stands in docs/security.md.

use super::record::Node;
use meshd_config::{EnrollRule, Facts};

/// Returns the first rule that matches a node. `segment` is the network segment of its boot, if known.
pub fn matching_rule<'r>(rules: &'r [EnrollRule], node: &Node, segment: Option<&str>) -> Option<&'r EnrollRule> {
    rules.iter().find(|rule| fits(&rule.facts, node, segment))
}

fn fits(facts: &Facts, node: &Node, segment: Option<&str>) -> bool {
    let print = &node.fingerprint;
    let text = |wanted: &Option<String>, shown: &str| wanted.as_ref().is_none_or(|wanted| *wanted == tidy(shown));
    let any = |empty: bool, found: bool| empty || found;
    any(facts.serials.is_empty(), facts.serials.contains(&tidy(&print.serial)))
        && any(facts.uuids.is_empty(), print.uuid.is_some_and(|uuid| facts.uuids.contains(&uuid)))
        && any(facts.nodes.is_empty(), facts.nodes.contains(&node.id))
        && text(&facts.manufacturer, &print.manufacturer)
        && text(&facts.product, &print.product)
        && any(facts.mac_prefixes.is_empty(), facts.mac_prefixes.iter().any(|prefix| prefix.fits(node.mac)))
        && any(facts.segments.is_empty(), segment.is_some_and(|segment| facts.segments.contains(segment)))
}

fn tidy(text: &str) -> String {
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
        parse(&format!("{sample}\n{rules}"), Path::new("site.toml")).unwrap_or_else(|faults| panic!("{faults}"))
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
            ObservedMachine::of(&hardware, mac, &DenyList::new()).expect("a UUID");
        Node::discovered(basis, fingerprint, mac, Timestamp::EPOCH)
    }

    #[test]
    fn all_that_a_rule_asks_for_has_to_fit_and_of_a_list_any_one() {
        let (node, id) = (machine("sn-7"), machine("sn-7").id);
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
            assert_eq!(matching_rule(&site.enroll.rules, &node, Some("br0")).is_some(), lets_in, "{facts}");
        }
        let elsewhere = site("[[enroll.rule]]\nname = \"r\"\nsegments = [\"br0\"]");
        assert!(matching_rule(&elsewhere.enroll.rules, &node, None).is_none(), "it is not known where it is");
        assert!(matching_rule(&[], &node, Some("br0")).is_none());
    }

    #[test]
    fn of_several_rules_the_first_counts() {
        let rule = |name: &str, profile: &str| {
            format!("[[enroll.rule]]\nname = \"{name}\"\nmac_prefixes = [\"52\"]\nprofile = \"{profile}\"\n")
        };
        let site = site(&(rule("one", "compute") + &rule("two", "discovery")));
        let found = matching_rule(&site.enroll.rules, &machine(""), None).expect("both fit");
        assert_eq!((found.name.as_str(), found.profile.as_ref().map(|name| name.as_str())), ("one", Some("compute")));
    }
}
