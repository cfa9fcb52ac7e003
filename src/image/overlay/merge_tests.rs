//! Tests of merging overlay layers, and of conflicts between them.

use super::{
    tests::{file, folder, from, text},
    *,
};
use meshd_types::VarValue;

const ONE: (&str, &str) = ("one/overlay.toml", "description = \"x\"\n");
const TWO: (&str, &str) = ("two/overlay.toml", "description = \"x\"\n");

/// Faults of `one`, then `two`, each on one line and without the folder.
fn faults(files: &[(&str, &str)]) -> String {
    let root = folder(files);
    let faults = from(root.path(), &["one", "two"]).render().expect_err("faults").to_string();
    faults.replace(&format!("{}/", root.path().display()), "").replace("\n  hint: ", "; ")
}

fn assert_contains(found: &str, expected: &[&str]) {
    for text in expected {
        assert!(found.contains(text), "{text}\nnot in\n{found}");
    }
}

fn origin(public: &PublicOverlay, path: &str) -> String {
    file(public, path).origin()
}

#[test]
fn last_layer_wins_and_each_file_records_its_origins() {
    let root = folder(&[
        (
            "one/overlay.toml",
            "description = \"x\"\npackages = [\"b\", \"a\"]\nservices.default = [\"s\"]\n",
        ),
        ("one/rootfs/etc/motd", "one\n"),
        ("one/rootfs/etc/one", "one\n"),
        ("one/rootfs/etc/hosts", "one"),
        ("one/rootfs/etc/gone/a", "x"),
        ("one/rootfs/etc/stays", "x"),
        (
            "two/overlay.toml",
            "description = \"x\"\npackages = [\"a\"]\nmodules = [\"m\"]\nremove = [\"/etc/gone\"]\nservices.default = [\"s\"]\n\
             sysctl = { \"vm.swappiness\" = 10, \"kernel.panic\" = \"5\" }\n[append]\n\"/etc/hosts\" = [\"two\"]\n",
        ),
        ("two/rootfs/etc/motd", "two\n"),
        (
            "three/overlay.toml",
            "description = \"x\"\nsysctl.\"vm.swappiness\" = 1\n[files.\"/etc/hosts\"]\nappend = true\n",
        ),
        ("three/rootfs/etc/hosts.j2", "{{ node.hostname }}\n"),
        ("nodes/0123abcd/overlay.toml", "description = \"x\"\n"),
        ("nodes/0123abcd/rootfs/etc/motd", "node\n"),
        ("nodes/1123abcd/overlay.toml", "description = \"x\"\n"),
        ("nodes/1123abcd/rootfs/etc/motd", "another node\n"),
    ]);
    let mut sample = from(root.path(), &["one", "two"]);
    sample.node.groups[0].overlays = vec!["three".parse().expect("plain")];
    let public = sample.render().unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(
        (text(&public, "/etc/motd").as_str(), origin(&public, "/etc/motd").as_str()),
        ("node\n", "nodes/0123abcd")
    );
    assert_eq!(origin(&public, "/etc/one"), "one");
    assert_eq!(
        text(&public, "/etc/hosts"),
        "one\ntwo\nnode-0123abcd\n",
        "each on lines of its own"
    );
    assert_eq!(origin(&public, "/etc/hosts"), "one, two, three");
    assert_eq!(
        (text(&public, "/etc/apk/world").as_str(), text(&public, "/etc/modules").as_str()),
        ("a\nb\n", "m\n")
    );
    assert_eq!(origin(&public, "/etc/apk/world"), "(meshd), one, two");
    assert_eq!(
        text(&public, "/etc/sysctl.d/50-meshd.conf"),
        "kernel.panic = 5\nvm.swappiness = 1\n"
    );
    assert_eq!(file(&public, "/etc/runlevels/default/s").kind, Kind::Link("/etc/init.d/s".into()));
    assert_eq!(origin(&public, "/etc/runlevels/default/s"), "(meshd), one, two");
    assert!(!public.files.iter().any(|file| file.path.to_string().starts_with("/etc/gone")));
    let reversed = from(root.path(), &["two"]).render();
    assert!(reversed.is_err(), "there is nothing to remove or to append to");
}

#[test]
fn overlay_named_twice_is_applied_at_its_last_position() {
    let root = folder(&[ONE, TWO, ("one/rootfs/etc/x", "one"), ("two/rootfs/etc/x", "two")]);
    let mut sample = from(root.path(), &["one", "two"]);
    assert_eq!(text(&sample.render().expect("renders"), "/etc/x"), "two");
    sample.node.groups[0].overlays = vec!["one".parse().expect("plain")];
    assert_eq!(text(&sample.render().expect("renders"), "/etc/x"), "one");
}

#[test]
fn conflicting_overlays_are_reported() {
    let found = faults(&[
        (
            "one/overlay.toml",
            "description = \"x\"\n[files.\"/etc/x\"]\nmode = \"0600\"\n[directories.\"/srv\"]\nmode = \"0700\"\n",
        ),
        ("one/rootfs/etc/x", ""),
        ("one/rootfs/etc/y", ""),
        ("one/rootfs/etc/Case", ""),
        (
            "two/overlay.toml",
            "description = \"x\"\n[files.\"/etc/x\"]\nmode = \"0640\"\nowner = \"0:42\"\n[directories.\"/srv\"]\n",
        ),
        ("two/rootfs/etc/x", ""),
        ("two/rootfs/etc/y/z", ""),
        ("two/rootfs/etc/case", ""),
    ]);
    let expected = [
        "two/overlay.toml:2: /etc/x is a file 0640 0:42 in overlay two, and a file 0600 0:0 in overlay one; give both",
        "two/overlay.toml:5: /srv is a folder 0755 0:0 in overlay two, and a folder 0700 0:0 in overlay one",
        "/etc/y is a file or link in overlay one, but a folder in overlay two; rename one of them",
        "two/rootfs/etc/case: /etc/case of overlay two and /etc/Case of overlay one differ only by case",
    ];
    assert_contains(&found, &expected);
    assert_eq!(found.lines().count(), 4, "{found}");
    let meant = "description = \"x\"\n[files.\"/etc/x\"]\nmode = \"0600\"\nreplace = true\n";
    let root = folder(&[
        ONE,
        ("one/rootfs/etc/x", "one"),
        ("two/overlay.toml", meant),
        ("two/rootfs/etc/x", "two"),
    ]);
    let public = from(root.path(), &["one", "two"]).render().expect("the later one means it");
    assert_eq!((file(&public, "/etc/x").mode, text(&public, "/etc/x").as_str()), (0o600, "two"));
}

#[test]
fn conflicting_services_are_reported_with_lines() {
    let one = (
        "one/overlay.toml",
        "description = \"x\"\n[services]\nboot = [\"clock\"]\ndefault = [\"sshd\", \"old\"]\n",
    );
    let two = "description = \"x\"\n[services]\ndefault = [\"clock\", \"dropbear\"]\nconflicts = [\"sshd\"]\nremove = [\"absent\"]\n";
    let found = faults(&[one, ("two/overlay.toml", two)]);
    let expected = [
        "two/overlay.toml:3: enables `clock` in runlevel default, but overlay one enables it in boot; a service starts once",
        "two/overlay.toml:4: overlay two cannot run beside service `sshd` of overlay one; use one of the two",
        "two/overlay.toml:5: removes service `absent`, which no overlay before two enables; take it out",
    ];
    assert_contains(&found, &expected);
    assert_eq!(found.lines().count(), 3, "{found}");
    let moved =
        "description = \"x\"\n[services]\ndefault = [\"clock\"]\nremove = [\"clock\", \"old\"]\n";
    let root = folder(&[one, ("two/overlay.toml", moved)]);
    let public =
        from(root.path(), &["one", "two"]).render().unwrap_or_else(|faults| panic!("{faults}"));
    let services: Vec<String> = public.files.iter().map(|file| file.path.to_string()).collect();
    let services: Vec<&str> =
        services.iter().filter_map(|path| path.strip_prefix("/etc/runlevels/")).collect();
    assert_eq!(
        services,
        ["default/clock", "default/sshd"],
        "taken out of one runlevel and put into another"
    );
}

#[test]
fn setting_without_effect_is_a_fault_with_line() {
    let found = faults(&[
        ("one/overlay.toml", "description = \"x\"\n[directories.\"/srv\"]\n"),
        (
            "two/overlay.toml",
            "description = \"x\"\nremove = [\"/etc/absent\"]\n[append]\n\"/etc/hosts\" = [\"a\"]\n\"/srv\" = [\"b\"]\n",
        ),
    ]);
    let expected = [
        "two/overlay.toml:2: removes /etc/absent, which no overlay before two brings",
        "two/overlay.toml:4: appends to /etc/hosts, which no overlay before two writes",
        "two/overlay.toml:5: appends to /srv, which is a folder 0755 0:0 in overlay one",
    ];
    assert_contains(&found, &expected);
    let root = folder(&[ONE]);
    let mut sample = from(root.path(), &["one", "onee"]);
    sample.profile.packages.push("bad name".into());
    sample.node.groups[0].overlays = vec!["zzz".parse().expect("plain")];
    let found = sample.render().expect_err("three faults").to_string();
    assert!(
        found.contains(
            "site.toml: profile compute: there is no overlay `onee`\n  hint: did you mean `one`?"
        ),
        "{found}"
    );
    assert!(found.contains("group pair: there is no overlay `zzz`"), "{found}");
    assert!(found.contains("profile compute: `bad name` is not a package name"), "{found}");
}

const VARIABLES: &str = r#"description = "x"
[variables.slots]
type = "integer"
required = true
[variables.role]
type = "text"
default = "agent"
choices = ["agent", "server"]
[variables.names]
type = "list"
required = false
"#;

#[test]
fn variable_is_checked_against_its_declaration_with_line() {
    let template = "{{ vars.slots + 1 }} {{ vars.role }} {{ vars.names | length }}\n";
    let root = folder(&[("one/overlay.toml", VARIABLES), ("one/rootfs/etc/x.j2", template)]);
    let rendered = |vars: &[(&str, VarValue)]| {
        let mut sample = from(root.path(), &["one"]);
        sample.node.vars = vars
            .iter()
            .map(|(name, value)| (name.parse().expect("a name"), value.clone()))
            .collect();
        sample.render().map(|public| text(&public, "/etc/x")).map_err(|faults| faults.to_string())
    };
    let slots = ("slots", VarValue::Integer(3));
    let role = |role: &str| ("role", VarValue::Text(role.into()));
    assert_eq!(rendered(&[slots.clone(), role("server")]).as_deref(), Ok("4 server 0\n"));
    let names = ("names", VarValue::List(vec!["a".into(), "b".into()]));
    let other = ("declared_by_nobody", VarValue::Bool(true));
    assert_eq!(rendered(&[slots.clone(), names, other]).as_deref(), Ok("4 agent 2\n"));
    for (vars, expected) in [
        (
            vec![],
            "overlay.toml:2: variable `slots` is required and not set (profile compute)\n  hint: set it for",
        ),
        (
            vec![("slots", VarValue::Text("3".into()))],
            "overlay.toml:2: variable `slots` is of type text, not integer",
        ),
        (
            vec![slots, role("x")],
            "overlay.toml:5: variable `role` cannot be `x` (profile compute)\n  hint: it may be agent",
        ),
    ] {
        let found = rendered(&vars).expect_err(expected);
        assert_contains(&found, &[expected]);
        assert_eq!(found.matches("hint").count(), 1, "one cause, one fault: {found}");
    }
}

#[test]
fn template_lists_members_of_the_groups_of_its_node() {
    let template = "{% for member in groups.pair.members -%}\n{{ member.address }} {{ member.hostname }} {{ member.id }} {{ member.threads }} {{ member.memory_mib }}\n{% endfor -%}\n";
    let root = folder(&[
        ONE,
        ("one/rootfs/etc/hosts.j2", template),
        TWO,
        ("two/rootfs/x.j2", "{{ groups.other.members }}"),
    ]);
    let public = from(root.path(), &["one"]).render().unwrap_or_else(|faults| panic!("{faults}"));
    let hosts =
        "10.77.0.101 node-0123abcd 0123abcd 8 32000\n10.77.0.102 node-1123abcd 1123abcd 8 32000\n";
    assert_eq!(text(&public, "/etc/hosts"), hosts);
    let found = from(root.path(), &["two"]).render().expect_err("no such group").to_string();
    assert!(found.contains("two/rootfs/x.j2:1: `groups.other"), "{found}");
}

#[test]
fn used_digest_changes_only_with_overlays_and_secrets_of_the_node() {
    let secret = "description = \"x\"\n[variables.key]\ntype = \"text\"\nsecret = true\n";
    let files = [
        ONE,
        TWO,
        ("other/overlay.toml", secret),
        ("nodes/0123abcd/overlay.toml", "description = \"x\"\n"),
    ];
    let root = folder(&files);
    let digest = |names: &[&str], groups: &[&str]| {
        let mut sample = from(root.path(), names);
        sample.node.groups[0].overlays =
            groups.iter().map(|name| name.parse().expect("plain")).collect();
        used_digest(&sample.profile, &sample.node, &sample.overlays)
    };
    let edit = |path: &str, text: &str| {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().expect("below the root")).expect("made");
        std::fs::write(path, text).expect("written");
    };
    let first = digest(&["one"], &[]);
    assert_eq!(digest(&["one"], &[]), first);
    edit("two/rootfs/etc/x", "x");
    edit("nodes/1123abcd/overlay.toml", "description = \"x\"\n");
    assert_eq!(digest(&["one"], &[]), first, "overlays of others");
    let all = [
        digest(&["two"], &[]),
        digest(&["one", "two"], &[]),
        digest(&["two", "one"], &[]),
        digest(&["one"], &["two"]),
    ];
    assert!(all.iter().all(|one| *one != first) && all[1] != all[2], "{all:?}");
    assert_eq!(all[1], all[3], "named by the profile or by a group");
    edit("nodes/0123abcd/rootfs/etc/own", "x");
    assert_ne!(digest(&["one"], &[]), first, "its own overlay");

    let mut sample = from(root.path(), &["one"]);
    let with_mark = |sample: &mut sample::Sample, mark: &[u8]| {
        sample.overlays.secret_marks.insert("key".parse().expect("a name"), Digest::of(mark));
        used_digest(&sample.profile, &sample.node, &sample.overlays)
    };
    assert_eq!(
        with_mark(&mut sample, b"old"),
        with_mark(&mut sample, b"new"),
        "a secret of an overlay that the node does not use"
    );
    let mut sample = from(root.path(), &["one", "other"]);
    assert_ne!(with_mark(&mut sample, b"old"), with_mark(&mut sample, b"new"));
}
