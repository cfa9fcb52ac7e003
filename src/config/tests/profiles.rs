//! Tests of profile inheritance, list edits and groups.

use super::*;
use crate::WarmPolicy;
use meshd_proto::stage1::RootMode;

const FAMILY: &str = r#"
[profiles.base]
image = "i"
overlays = ["base", "agent", "motd"]
kernel_args = ["quiet", "mitigations=auto", "hugepagesz=1G", "hugepages=2", "hugepagesz=2M", "hugepages=2"]
packages = ["htop", "vim"]
bundles = ["mpi"]
vars = { slots = 4, fabric = "ib0", hosts = ["a", "b"], tuned = false }
checks = { clock = "warn", memory = "off" }
thresholds = { memory_mib = 512 }
[profiles.child]
extends = "base"
overlays = ["-motd", "vfio", "base"]
kernel_args = ["-quiet", "-hugepages", "-hugepagesz", "mitigations=off", "nohz_full=1"]
packages = ["-vim", "htop"]
hugepages = { size = "1G", count = 16 }
vars = { slots = 8 }
checks = { memory = "on" }
thresholds = { memory_mib = 100, store_fail_gb = 30 }
storage = { data = ["eui.0025", "SN-0815"] }
[profiles.grandchild]
extends = "child"
hugepages = { size = "2M", count = 0 }
bundles = ["-mpi", "qemu"]
[groups.zeta]
nodes = ["00000002", "00000001"]
overlays = ["tuning"]
vars = { slots = 9 }
[groups.alpha]
nodes = ["00000001"]
"#;

fn family() -> Site {
    read(&format!("{LEAST}{FAMILY}")).unwrap_or_else(|faults| panic!("{faults}"))
}

fn profile(site: &Site, name: &str) -> Profile {
    site.profiles[&name.parse().expect("a name")].clone()
}

fn texts<T: ToString>(list: &[T]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

/// Faults of the family with some of its text replaced.
fn refused(change: &str, with: &str) -> Vec<String> {
    let faults = edited(FAMILY, change, with).err().map_or_else(Vec::new, |all| all.0);
    faults
        .into_iter()
        .map(|fault| format!("{}: {}; {}", fault.key, fault.message, fault.hint))
        .collect()
}

#[test]
fn warm_policy_is_never_unless_allowed_and_is_inherited() {
    let text = format!(
        "{LEAST}{}",
        FAMILY
            .replace("extends = \"base\"\n", "extends = \"base\"\nwarm = \"allow\"\n")
            .replace("extends = \"child\"\n", "extends = \"child\"\nwarm = \"never\"\n")
    );
    let site = valid(read(&text));
    let policies = ["base", "child", "grandchild"].map(|name| profile(&site, name).warm);
    assert_eq!(policies, [WarmPolicy::Never, WarmPolicy::Allow, WarmPolicy::Never]);
    let found = refused("image = \"i\"", "image = \"i\"\nwarm = \"always\"");
    assert!(
        found.len() == 1 && found[0].starts_with("profiles.base.warm: `always` is not known"),
        "{found:?}"
    );
}

#[test]
fn root_mode_is_inherited_and_replaced() {
    let text = format!(
        "{LEAST}{}",
        FAMILY
            .replace("extends = \"base\"\n", "extends = \"base\"\nroot_mode = \"tethered\"\n")
            .replace("extends = \"child\"\n", "extends = \"child\"\nroot_mode = \"ram\"\n")
    );
    let site = valid(read(&text));
    let modes = ["base", "child", "grandchild"].map(|name| profile(&site, name).root_mode);
    assert_eq!(modes, [RootMode::Ram, RootMode::Tethered, RootMode::Ram]);
    let found = refused("image = \"i\"", "image = \"i\"\nroot_mode = \"disk\"");
    assert!(
        found.len() == 1 && found[0].starts_with("profiles.base.root_mode: `disk` is not known"),
        "{found:?}"
    );
}

#[test]
fn profile_lists_append_to_and_remove_from_inherited_lists() {
    let site = family();
    let child = profile(&site, "child");
    assert_eq!(
        texts(&child.overlays),
        ["agent", "vfio", "base"],
        "a repeated overlay moves to its later position"
    );
    assert_eq!(texts(&child.packages), ["htop"]);
    assert_eq!(
        child.kernel_args,
        ["mitigations=off", "nohz_full=1", "hugepagesz=1G", "hugepages=16"]
    );
    assert_eq!(
        texts(&profile(&site, "base").kernel_args[2..]).join(" "),
        "hugepagesz=1G hugepages=2 hugepagesz=2M hugepages=2"
    );
    let grandchild = profile(&site, "grandchild");
    assert_eq!(
        (grandchild.kernel_args, grandchild.hugepages),
        (texts(&["mitigations=off", "nohz_full=1"]), None)
    );
    assert_eq!(texts(&grandchild.bundles), ["qemu"]);
}

#[test]
fn nearest_profile_wins_for_variables_checks_and_thresholds() {
    let child = profile(&family(), "child");
    let vars: Vec<String> =
        child.vars.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(vars, ["fabric=ib0", "hosts=a,b", "slots=8", "tuned=false"]);
    assert_eq!(
        serde_json::to_string(&child.vars[&"tuned".parse().expect("a name")]).ok().as_deref(),
        Some("false")
    );
    let stored = serde_json::to_string(&child.checks).expect("plain data");
    assert_eq!(
        stored,
        r#"{"rules":{"clock":"warn"},"thresholds":{"memory_mib":100,"store_fail_gb":30}}"#
    );
}

#[test]
fn profile_setting_records_origin_and_removal() {
    let child = profile(&family(), "child");
    let line = |setting: &Setting| {
        let removed = setting.removed_by.as_ref().map(|by| format!(" -{by}")).unwrap_or_default();
        format!("{}={} {}{removed}", setting.key, setting.value, setting.by)
    };
    let lines: Vec<String> = child.settings.iter().map(line).collect();
    for expected in [
        "image=i base",
        "overlays=base child",
        "overlays=agent base",
        "overlays=motd base -child",
        "kernel_args=quiet base -child",
        "kernel_args=mitigations=off child",
        "kernel_args=hugepages=16 child",
        "hugepages=16 x 1G child",
        "packages=htop base",
        "vars.slots=8 child",
        "vars.fabric=ib0 base",
        "checks.memory=on child",
        "checks.clock=warn base",
        "thresholds.memory_mib=100 child",
        "thresholds.store_fail_gb=30 child",
        "storage.data=SN-0815 child",
    ] {
        assert!(lines.iter().any(|line| line == expected), "{expected} in {lines:#?}");
    }
}

#[test]
fn group_lists_nodes_by_id_complete_name_and_pattern() {
    let text =
        SAMPLE.to_owned() + "\n[groups.g]\nnodes = [\"00000001\", \"gpu[01-02],db\", \"login*\"]\n";
    let site = crate::parse(&text, std::path::Path::new("site.toml"))
        .unwrap_or_else(|faults| panic!("{faults}"));
    let group = site.groups.last().expect("a group");
    let id = |text: &str| text.parse().expect("a node ID");
    for (ids, name, is_member) in [
        (vec![id("00000001")], "x", true),
        (vec![id("00000002")], "x", false),
        (vec![id("00000002"), id("00000001")], "x", true),
        (vec![id("00000002")], "gpu02", true),
        (vec![id("00000002")], "gpu03", false),
        (vec![id("00000002")], "db1", false),
        (vec![id("00000002")], "login7", true),
    ] {
        assert_eq!(group.lists(ids, Some(name)), is_member, "{name}");
    }
}

#[test]
fn groups_keep_file_order_and_their_nodes_are_sorted() {
    let groups = family().groups;
    let names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(names, ["zeta", "alpha"]);
    assert_eq!(texts(&groups[0].nodes), ["00000001", "00000002"]);
    assert_eq!((texts(&groups[0].overlays), groups[0].vars.len()), (texts(&["tuning"]), 1));
}

#[test]
fn profile_mistake_is_reported_with_position_and_hint() {
    for (change, with, fault) in [
        (
            "\"-quiet\"",
            "\"-quite\"",
            "profiles.child.kernel_args[0]: removes `quite`, which is not inherited; did you mean `quiet`?",
        ),
        (
            "\"-motd\"",
            "\"-modt\"",
            "profiles.child.overlays[0]: removes `modt`, which is not inherited; did you mean `motd`?",
        ),
        (
            "\"-motd\"",
            "\"-../x\"",
            "profiles.child.overlays[0]: `../x` is not a valid overlay name",
        ),
        (
            "\"-quiet\"",
            "\"-init=/bin/sh\"",
            "profiles.child.kernel_args[0]: `init` is set by meshd itself; remove it",
        ),
        (
            "\"-hugepages\", ",
            "",
            "profiles.child.hugepages: conflicts with the kernel argument `hugepages=2`: both reserve pages; keep one: kernel_args = [\"-hugepages\"]",
        ),
        (
            "\"1G\", count = 16",
            "\"4M\", count = 16",
            "profiles.child.hugepages.size: `4M` is not known",
        ),
        ("\"1G\", count = 16", "\"1G\"", "profiles.child.hugepages.count: is required"),
        (
            "slots = 8",
            "slots = 8.5",
            "profiles.child.vars.slots: is a float; write true, false, a whole number, a text or a list of texts",
        ),
        (
            "slots = 8",
            "Slots = 8",
            "profiles.child.vars.Slots: `Slots` is not the name of a variable",
        ),
        (
            "clock = \"warn\"",
            "clok = \"warn\"",
            "profiles.base.checks.clok: unknown key; did you mean `clock`?",
        ),
        ("clock = \"warn\"", "clock = \"no\"", "profiles.base.checks.clock: `no` is not known"),
        (
            "\"eui.0025\"",
            "\"sda\"",
            "profiles.child.storage.data[0]: `sda` is no identity of a disk",
        ),
        ("memory_mib = 512", "memory = 512", "profiles.base.thresholds.memory: unknown key"),
        (
            "[\"00000001\"]",
            "[\"00000001\", \"00000001\"]",
            "groups.alpha.nodes[1]: `00000001` is listed on line 41 already",
        ),
        (
            "[\"00000001\"]",
            "[\"gpu[a-c]\"]",
            "groups.alpha.nodes[0]: `gpu[a-c]` has `a-c`, which is no range of numbers",
        ),
        (
            "[\"00000001\"]",
            "[]\nprofile = \"base\"",
            "groups.alpha.profile: a group has no profile; give its nodes a profile",
        ),
        ("nodes = [\"00000001\"]", "", "groups.alpha.nodes: is required"),
        ("[groups.alpha]", "[groups.\"a b\"]", "groups.a b: `a b` is not a valid group name"),
        (
            "[\"tuning\"]",
            "[\"-tuning\"]",
            "groups.zeta.overlays[0]: removes `tuning`, but a group inherits nothing",
        ),
    ] {
        let found = refused(change, with);
        assert!(found.iter().any(|found| found.starts_with(fault)), "{fault}: {found:#?}");
        assert!(found.len() <= 2, "{change} -> {with}: {found:#?}");
    }
}
