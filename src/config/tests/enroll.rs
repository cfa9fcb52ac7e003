//! Tests of admission rules and ignored UUIDs.

use super::*;

const RULES: &str = r#"
[identity]
deny_uuids = ["03000200-0400-0500-0006-00070008000a", "03000200-0400-0500-0006-00070008000A", "x"]
[[enroll.rule]]
name = "a"
serials = ["S1", "Default String"]
mac_prefixes = ["52:54", "5", "52:54:00:00:00:00:00"]
segments = ["br1"]
profile = "e"
[[enroll.rule]]
name = "a"
serials = []
serial = "S1"
nodes = ["nobody"]
[[enroll.rule]]
name = "Every one"
profile = "d"
"#;

#[test]
fn enrolment_rule_faults_are_all_reported_with_lines() {
    let faults = read(&format!("{LEAST}{RULES}")).expect_err("full of faults");
    insta::assert_snapshot!(faults.to_string(), @r#"
    site.toml:14: identity.deny_uuids[1]: `03000200-0400-0500-0006-00070008000a` is listed on line 14 already
      hint: remove one of the two
    site.toml:14: identity.deny_uuids[2]: `x` is not a UUID
      hint: write it as 01020304-0506-0708-090a-0b0c0d0e0f10
    site.toml:17: enroll.rule[0].serials[1]: `Default String` is a placeholder of firmware, not a serial number
      hint: many machines have it; use another criterion
    site.toml:18: enroll.rule[0].mac_prefixes[1]: `5` is not a MAC address prefix
      hint: write whole octets: "52:54:00"
    site.toml:18: enroll.rule[0].mac_prefixes[2]: `52:54:00:00:00:00:00` is not a MAC address prefix
      hint: write whole octets: "52:54:00"
    site.toml:19: enroll.rule[0].segments[0]: there is no segment `br1`
      hint: did you mean `br0`?
    site.toml:20: enroll.rule[0].profile: there is no profile `e`
      hint: did you mean `d`?
    site.toml:22: enroll.rule[1].name: the rule on line 16 has the name `a` too
      hint: rename one of them
    site.toml:23: enroll.rule[1].serials: is empty, so no machine matches
      hint: list values, or remove the key
    site.toml:24: enroll.rule[1].serial: unknown key
      hint: did you mean `serials`?
    site.toml:25: enroll.rule[1].nodes[0]: `nobody` is not a node ID
      hint: it is 8 characters of 0-9 and a-z without i, l, o, u (see `meshd node list`)
    site.toml:26: enroll.rule[2]: would approve every machine
      hint: write at least one of serials, uuids, nodes, manufacturer, product, mac_prefixes, segments, circuit_ids, remote_ids; to approve every machine, write policy = "auto"
    site.toml:27: enroll.rule[2].name: `Every one` is not a valid rule name
      hint: use 1 to 63 of a-z, 0-9, `-`, `_` and `.`, beginning with a letter or digit
    "#);
}

#[test]
fn switch_ports_need_a_relay_and_are_text_or_hexadecimal() {
    let rule = "[[enroll.rule]]\nname = \"a\"\ncircuit_ids = [\"eth1/*\", \"0x0004000A\"]\n";
    let relay = "[[segment]]\nrelay = \"10.88.0.1\"\nrelay_mac = [\"52:54:00:12:34:56\"]\nrange = \"10.88.0.100-10.88.0.110\"\nrouter = \"10.88.0.1\"\n";
    let site = valid(read(&format!("{LEAST}{relay}{rule}")));
    let ids = &site.enroll.rules[0].criteria.circuit_ids;
    assert_eq!(ids.iter().map(ToString::to_string).collect::<Vec<_>>(), ["0x0004000a", "eth1/*"]);
    assert!(described(read(&format!("{LEAST}{rule}")))[0].contains("no segment is behind a relay"));
    let unproven = relay.replace("relay_mac = [\"52:54:00:12:34:56\"]\n", "");
    let faults = described(read(&format!("{LEAST}{unproven}{rule}")));
    assert!(faults[0].contains("circuit_ids") && faults[0].contains("no relay_mac"), "{faults:?}");
    for (right, wrong, message) in [
        ("52:54:00:12:34:56", "10.88.0.1", "relay_mac[0]: `10.88.0.1` is not a MAC address"),
        ("[\"52:54:00:12:34:56\"]", "\"52:54:00:12:34:56\"", "relay_mac: "),
    ] {
        let faults = described(read(&format!("{LEAST}{}{rule}", relay.replace(right, wrong))));
        assert!(faults.len() == 1 && faults[0].contains(message), "one cause: {faults:?}");
    }
    let wrong = rule.replace("eth1/*", "0x4 7");
    let faults = described(read(&format!("{LEAST}{relay}{wrong}")));
    assert!(faults[0].contains("circuit_ids[0]: `0x4 7` is no ID of a switch port"), "{faults:?}");
    let empty = "[[enroll.rule]]\nname = \"a\"\nremote_ids = []\n";
    let faults = described(read(&format!("{LEAST}{relay}{empty}")));
    assert!(faults[0].contains("is empty, so no machine matches"), "{faults:?}");
}

#[test]
fn enrolment_rule_criteria_are_normalized() {
    let rule = "[[enroll.rule]]\nname = \"rack-a\"\nserials = [\" SN-1 \"]\nmanufacturer = \"ACME\"\nsegments = [\"br0\"]\nprofile = \"d\"\n";
    let deny = "[identity]\ndeny_uuids = [\"03000200-0400-0500-0006-00070008000a\"]";
    let site = valid(read(&format!("{LEAST}{rule}{deny}")));
    let [rule] = site.enroll.rules.as_slice() else { panic!("one rule") };
    assert_eq!(rule.criteria.serials.iter().map(String::as_str).collect::<Vec<_>>(), ["sn-1"]);
    assert_eq!(
        (rule.criteria.manufacturer.as_deref(), rule.criteria.product.as_deref()),
        (Some("acme"), None)
    );
    assert_eq!(rule.profile.as_ref().map(|name| name.as_str()), Some("d"));
    assert_eq!(site.identity.deny.len(), 1);
}

#[test]
fn enrolment_rule_gives_names_and_labels() {
    let rule = "[[enroll.rule]]\nname = \"gpu\"\nmac_prefixes = [\"52:54\"]\nlabels = [\"rack=a\", \"feed=1\"]\nnode_name = \"gpu{rack}-{n:03}\"\n";
    let site = valid(read(&format!("{LEAST}{rule}")));
    let [found] = site.enroll.rules.as_slice() else { panic!("one rule") };
    assert_eq!(found.labels.len(), 2);
    assert_eq!(
        found.node_name.as_ref().map(ToString::to_string).as_deref(),
        Some("gpu{rack}-{n:03}")
    );
    let wrong = rule.replace("feed=1", "rack=b").replace("{n:03}", "");
    let wrong = wrong.replace("\"rack=a\"", "\"rack=a\", \"Rack\"");
    let faults = read(&format!("{LEAST}{wrong}")).expect_err("three faults").to_string();
    for fault in ["`Rack` is not a label", "`rack=b` occurs twice", "exactly one number"] {
        assert!(faults.contains(fault), "{fault}: {faults}");
    }
}

#[test]
fn enrolment_rule_on_unidentifiable_segment_is_refused() {
    let proxy = LEAST.replace("range = \"10.0.0.100-10.0.0.200\"", "mode = \"proxy\"");
    let rule = "[[enroll.rule]]\nname = \"r\"\nsegments = [\"br0\"]\n";
    assert!(read(&format!("{proxy}{rule}")).is_ok(), "every machine of the site is there");
    let second = "[[segment]]\ninterface = \"br1\"\nmode = \"authoritative\"\nrange = \"10.9.0.10-10.9.0.20\"\n";
    let faults = read(&format!("{proxy}{second}{rule}")).expect_err("two segments");
    assert!(faults.to_string().contains("cannot identify machines there"), "{faults}");
    assert!(read(&format!("{proxy}{second}{}", rule.replace("br0", "br1"))).is_ok());
}
