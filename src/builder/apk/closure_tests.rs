//! Tests of dependency resolution.

use super::{
    closure::{MissingPackage, closure},
    index::{Record, parse},
};

const SUM: &str = "Q12jmj7l5rSw0yVb/vlWAYkK/YBwk=";

/// `name version D:.. p:.. i:.. k:..`, one package a line.
fn records(text: &str) -> Vec<Record> {
    let mut index = String::new();
    for line in text.lines() {
        let (head, rest) = line.split_once('|').unwrap_or((line, ""));
        let (name, version) = head.trim().split_once(' ').unwrap();
        index += &format!("C:{SUM}\nP:{name}\nV:{version}\nA:x86_64\nS:1\n");
        index.extend(
            rest.split('|')
                .map(|field| format!("{}\n", field.trim()))
                .filter(|field| field != "\n"),
        );
        index += "\n";
    }
    parse(&index).unwrap()
}

fn resolve(text: &str, install: &[&str]) -> Result<Vec<String>, Vec<MissingPackage>> {
    let records = records(text);
    let install: Vec<String> = install.iter().map(|&word| word.to_owned()).collect();
    let show = |record: &&Record| format!("{} {}", record.name, record.version);
    closure(&records, &install).map(|found| found.iter().map(show).collect())
}

#[test]
fn closure_follows_names_libraries_and_commands() {
    let mirror = "a 1 | D:so:libb.so.1 cmd:c\nb 2 | p:so:libb.so.1=1.2 | D:d>=2\nc 3 | p:cmd:c=3\nd 1\nd 2\nz 9";
    assert_eq!(resolve(mirror, &["a"]).unwrap(), ["a 1", "b 2", "c 3", "d 2"]);
}

#[test]
fn newest_package_of_all_repositories_is_chosen_unless_pinned() {
    let mirror = "a 1.9\na 1.10\na 1.2";
    assert_eq!(resolve(mirror, &["a"]).unwrap(), ["a 1.10"]);
    assert_eq!(resolve(mirror, &["a<1.10"]).unwrap(), ["a 1.9"]);
    assert_eq!(resolve(mirror, &["a~1.2"]).unwrap(), ["a 1.2"]);
}

#[test]
fn missing_packages_are_all_reported_with_their_dependent() {
    let missing =
        resolve("a 1 | D:gone so:libx.so.1\nb 1 | D:a>2", &["a", "b", "nope"]).unwrap_err();
    let text: Vec<String> = missing.iter().map(MissingPackage::to_string).collect();
    assert_eq!(text.len(), 4, "{text:?}");
    for expected in [
        "`gone`, which a needs",
        "`so:libx.so.1`, which a needs",
        "`a>2`, which b needs",
        "`nope`, which the recipe",
    ] {
        assert!(
            text.iter().any(|line| line.contains(expected)),
            "{expected} is missing from {text:?}"
        );
    }
}

#[test]
fn provider_is_chosen_by_name_or_priority_or_reported_undecided() {
    let shells = "base 1 | D:/bin/sh\ndash 1 | p:/bin/sh | k:60\nbusybox 1 | p:/bin/sh | k:100";
    assert_eq!(resolve(shells, &["base"]).unwrap(), ["base 1", "busybox 1"]);
    assert_eq!(resolve(shells, &["base", "dash"]).unwrap(), ["base 1", "dash 1"]);
    let mailers = "base 1 | D:smtp\npostfix 1 | p:smtp\nexim 1 | p:smtp";
    let missing = resolve(mailers, &["base"]).unwrap_err();
    assert!(
        matches!(&missing[..], [MissingPackage::Undecided { providers, .. }] if providers == &["exim", "postfix"]),
        "{missing:?}"
    );
    assert_eq!(resolve(mailers, &["base", "exim"]).unwrap(), ["base 1", "exim 1"]);
}

#[test]
fn install_if_package_is_added_when_all_its_conditions_are_met() {
    let mirror = "dhcpcd 10\nopenrc 1\ndhcpcd-openrc 10 | i:openrc dhcpcd=10 | D:late\ndhcpcd-doc 10 | i:docs dhcpcd=10\nlate 1";
    assert_eq!(resolve(mirror, &["dhcpcd"]).unwrap(), ["dhcpcd 10"]);
    let with = resolve(mirror, &["dhcpcd", "openrc"]).unwrap();
    assert_eq!(with, ["dhcpcd 10", "dhcpcd-openrc 10", "late 1", "openrc 1"]);
}

#[test]
fn conflicting_packages_are_refused() {
    let missing = resolve("a 1 | D:!b\nb 1", &["a", "b"]).unwrap_err();
    assert_eq!(missing, [MissingPackage::Conflict { package: "a".into(), with: "b".into() }]);
    assert!(resolve("a 1 | D:!b<1\nb 1", &["a", "b"]).is_ok());
}

#[test]
fn dependency_cycle_terminates() {
    assert_eq!(resolve("a 1 | D:b\nb 1 | D:a", &["a"]).unwrap(), ["a 1", "b 1"]);
}
