//! Tests of reading overlays, including links that lead outside.

use super::{entry::MAX_FILE, *};
use meshd_config::Faults;
use rustix::fs::XattrFlags;
use std::{
    fs,
    os::unix::{fs::symlink, net::UnixListener},
};

/// One overlay `one`, with this manifest and these files below `rootfs/`.
pub(super) fn one(manifest: &str, files: &[&str]) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a temporary folder");
    let rootfs = root.path().join("one/rootfs");
    fs::create_dir_all(&rootfs).expect("made");
    fs::write(root.path().join("one/overlay.toml"), manifest).expect("written");
    for file in files {
        let path = rootfs.join(file);
        fs::create_dir_all(path.parent().expect("has one")).expect("made");
        fs::write(path, format!("content of {file}\n")).expect("written");
    }
    root
}

pub(super) fn faults(root: &tempfile::TempDir) -> Vec<String> {
    let Faults(faults) = read_overlays(root.path()).expect_err("has faults");
    let root = format!("{}/", root.path().display());
    faults
        .iter()
        .map(|fault| fault.to_string().replace(&root, "").replace("\n  hint: ", "; "))
        .collect()
}

pub(super) fn assert_reported(faults: &[String], expected: &[&str]) {
    for text in expected {
        assert!(faults.iter().any(|fault| fault.contains(text)), "{text}\nnot in\n{faults:#?}");
    }
}

#[test]
fn links_of_manifest_and_rootfs_lead_to_other_overlays_only() {
    let private = tempfile::tempdir().expect("a temporary folder");
    fs::write(private.path().join("root.key"), "secret\n").expect("written");
    let root = one("description = \"x\"\n", &[]);
    let rootfs = root.path().join("one/rootfs");
    fs::remove_dir_all(&rootfs).expect("removed");
    symlink(private.path(), &rootfs).expect("made");
    assert_reported(&faults(&root), &["one/rootfs: is a link that leaves"]);
    fs::create_dir_all(root.path().join("two/rootfs/etc")).expect("made");
    fs::write(root.path().join("two/rootfs/etc/shared"), "shared").expect("written");
    fs::write(root.path().join("two/overlay.toml"), "description = \"x\"\n").expect("written");
    fs::remove_file(&rootfs).expect("removed");
    symlink("../two/rootfs", &rootfs).expect("made");
    let overlays = read_overlays(root.path()).unwrap_or_else(|faults| panic!("{faults}"));
    let shared = SafePath::new("/etc/shared").expect("plain");
    assert!(overlays.named[&"one".parse().expect("plain")].entries.contains_key(&shared));
    let manifest = root.path().join("one/overlay.toml");
    fs::remove_file(&manifest).expect("removed");
    symlink(private.path().join("root.key"), &manifest).expect("made");
    let faults = faults(&root);
    assert_reported(&faults, &["one/overlay.toml: is a link that leaves"]);
    assert!(!faults.iter().any(|fault| fault.contains("secret")), "{faults:?}");
}

#[test]
fn manifest_and_folder_are_combined() {
    let manifest = r#"
        description = "all there is"
        packages = ["openssh"]
        modules = ["vfio", "vfio_pci"]
        [services]
        default = ["sshd"]
        [files."/etc/secretive"]
        mode = "0600"
        owner = "0:42"
        [files."/usr/bin/mesh-agent"]
        source = "agent"
        [directories."/var/empty"]
        mode = "0700"
        [links]
        "/etc/localtime" = "/usr/share/zoneinfo/UTC"
    "#;
    let root = one(manifest, &["etc/secretive", "etc/name.j2"]);
    symlink("../secretive", root.path().join("one/rootfs/etc/link")).expect("made");
    let overlays = read_overlays(root.path()).unwrap_or_else(|faults| panic!("{faults}"));
    let overlay = &overlays.named[&"one".parse().expect("plain")];
    let entry = |path: &str| &overlay.entries[&SafePath::new(path).expect("plain")];
    assert_eq!((entry("/etc/secretive").mode, entry("/etc/secretive").owner), (0o600, (0, 42)));
    assert!(matches!(entry("/etc/name").source, Source::Template { .. }));
    assert_eq!(entry(AGENT_PATH).source, Source::Agent);
    assert_eq!(entry("/etc/link").source, Source::Link("../secretive".into()));
    assert_eq!(entry("/etc/localtime").source, Source::Link("/usr/share/zoneinfo/UTC".into()));
    assert_eq!(
        (&entry("/var/empty").source, entry("/var/empty").mode),
        (&Source::Directory, 0o700)
    );
    assert_eq!(overlay.modules, ["vfio", "vfio_pci"]);
    assert_eq!(overlay.services.enabled["sshd"].0, Runlevel::Default);
}

#[test]
fn manifest_faults_are_all_reported_with_line_and_hint() {
    let manifest = "packages = [\"a b\", \"ok\", \"ok\"]\ncolour = 1\n[services]\nevening = [\"x\"]\n\
        [files.\"/etc/absent\"]\nmode = \"0600\"\n[files.\"etc/x\"]\n[files.\"/etc/../x\"]\n[files.\"/etc/x\"]\nmode = 600\nowner = \"root:root\"\n";
    let expected = [
        "one/overlay.toml: description: is required; add: description = ",
        "one/overlay.toml:1: packages[0]: `a b` is not a name",
        "one/overlay.toml:1: packages[2]: `ok` is here twice",
        "one/overlay.toml:2: colour: unknown key; known here: append, description",
        "one/overlay.toml:4: services.evening: unknown key; known here: boot, conflicts, default",
        "one/overlay.toml:5: files./etc/absent: there is no file /etc/absent in rootfs/; add rootfs/etc/absent",
        "one/overlay.toml:7: files.etc/x: `etc/x` does not begin with `/`",
        "one/overlay.toml:8: files./etc/../x: `/etc/../x` has a `.`, `..`",
        "one/overlay.toml:10: files./etc/x.mode: is an integer; write a text in quotes",
        "one/overlay.toml:11: files./etc/x.owner: is not user and group number",
    ];
    assert_reported(&faults(&one(manifest, &["etc/x"])), &expected);
}

#[test]
fn overlay_with_escaping_link_or_socket_is_refused() {
    let root = one("description = \"x\"\n", &["etc/x"]);
    let rootfs = root.path().join("one/rootfs");
    symlink("/etc/shadow", rootfs.join("absolute")).expect("made");
    symlink("../../../../etc", rootfs.join("climbs")).expect("made");
    symlink("x/../../..", rootfs.join("etc/climbs")).expect("made");
    let _socket = UnixListener::bind(rootfs.join("socket")).expect("bound");
    let faults = faults(&root);
    assert_eq!(faults.len(), 4, "{faults:?}");
    assert!(
        faults[0]
            .starts_with("one/rootfs/absolute: is a link that leaves the overlay: /etc/shadow"),
        "{faults:?}"
    );
    assert!(faults.iter().any(|fault| fault.contains("socket: is neither a file")), "{faults:?}");
}

#[test]
fn overlay_file_that_meshd_writes_or_too_large_is_refused() {
    let root = one(
        "description = \"x\"\n",
        &["etc/apk/world", "etc/runlevels/boot/x", "etc/meshd/boot.json", "etc/modules-load.d/x"],
    );
    fs::write(root.path().join("one/rootfs/large"), vec![0; MAX_FILE as usize + 1])
        .expect("written");
    let faults = faults(&root);
    assert_eq!(faults.len(), 4, "{faults:?}");
    assert!(
        faults
            .iter()
            .any(|fault| fault.contains("/etc/apk/world") && fault.contains("packages = [")),
        "{faults:?}"
    );
}

#[test]
fn overlay_digest_depends_on_content_but_not_on_description() {
    let read = |manifest: &str| {
        let root = one(manifest, &["etc/x"]);
        let overlays = read_overlays(root.path()).expect("no faults");
        overlays.named.values().next().expect("one overlay").digest
    };
    let plain = read("description = \"a\"\n");
    assert_eq!(plain, read("description = \"b\"\n"));
    assert_ne!(plain, read("description = \"a\"\n[files.\"/etc/x\"]\nmode = \"0600\"\n"));
    assert_ne!(plain, read("description = \"a\"\npackages = [\"p\"]\n"));
}

/// Writes this file into the overlay `one`.
pub(super) fn put(root: &tempfile::TempDir, path: &str, bytes: &[u8]) {
    let path = root.path().join("one/rootfs").join(path);
    fs::create_dir_all(path.parent().expect("has one")).expect("made");
    fs::write(path, bytes).expect("written");
}

#[test]
fn file_format_mistakes_are_reported_with_position() {
    let root = one("description = \"a\\tb\"\n\tpackages = []\n", &["etc/Motd", "etc/motd"]);
    put(&root, "etc/init.d/x", b"#!/sbin/openrc-run\r\nstart() {\r\n}\r\n");
    put(&root, "etc/conf.d/x", b"A=1\nB=2\r\n");
    put(&root, "usr/bin/marked", b"\xef\xbb\xbf#!/bin/sh\n");
    put(&root, "etc/app.yaml", b"a:\n  b: 1\n\tc: 2\n");
    put(&root, "etc/binary.j2", b"\x7fELF\0{{ node.id }}");
    put(&root, "etc/latin.j2", b"caf\xe9");
    put(&root, "etc/lines.j2", b"{{ node.id }}\nx\r\n");
    put(&root, "etc/ta\tb", b"");
    // Two gigabytes that take no room: the size is looked at before anything is read.
    let huge = fs::File::create(root.path().join("one/rootfs/huge")).expect("made");
    huge.set_len(2 << 30).expect("sparse");
    let faults = faults(&root);
    let expected = [
        "one/overlay.toml:1: description: is not one line of text; ",
        "one/rootfs/etc/motd: /etc/motd and /etc/Motd differ only by case; rename one of the two",
        "one/rootfs/etc/init.d/x:1: is a script with line ends of Windows",
        "one/rootfs/etc/conf.d/x:2: has line ends of Windows (CRLF); save it with line ends of Unix",
        "one/rootfs/usr/bin/marked:1: begins with a byte order mark",
        "one/rootfs/etc/app.yaml:3: is indented with a tab, which YAML does not allow; indent it with spaces",
        "one/rootfs/etc/binary.j2: is a template, but binary",
        "one/rootfs/etc/latin.j2: is a template, but binary",
        "one/rootfs/etc/lines.j2:2: has line ends of Windows",
        "has a control character; rename it",
        "one/rootfs/huge: is of 2147483648 bytes; a file has up to 4 MiB",
    ];
    assert_reported(&faults, &expected);
    assert_eq!(faults.len(), 11, "{faults:#?}");
}

#[test]
fn template_is_checked_when_read_including_untaken_branches() {
    let root = one("description = \"x\"\n[variables.a]\ntype = \"bool\"\ndefault = true\n", &[]);
    put(
        &root,
        "etc/a.j2",
        b"{% if vars.a %}\nfine {{ node.id }} {{ range(3) }}\n{% else %}\n{{ node.nmae }}\n{% endif %}\n",
    );
    put(&root, "etc/b.j2", b"\n{{ vars.b }}\n");
    put(&root, "etc/c.j2", b"{% if %}\n");
    put(&root, "etc/d.j2", b"{{ vars | json }}\n");
    put(&root, "etc/e.j2", b"{{ hostname }}\n");
    let faults = faults(&root);
    let expected = [
        "one/rootfs/etc/a.j2:4: `node.nmae` is undefined; templates know agent.config",
        "one/rootfs/etc/b.j2:2: `vars.b` is not declared; add to overlay.toml: [variables.b]",
        "one/rootfs/etc/c.j2:1: ",
        "one/rootfs/etc/d.j2:1: names `vars` as a whole; name each variable",
        "one/rootfs/etc/e.j2:1: `hostname` is undefined",
    ];
    assert_reported(&faults, &expected);
    assert_eq!(faults.len(), 5, "{faults:#?}");
}

#[test]
fn declared_variables_services_and_parameters_are_checked() {
    let manifest = r#"
        description = "x"
        remove = ["/etc/x", "etc/y"]
        [services]
        boot = ["a"]
        default = ["a", "b"]
        conflicts = ["b"]
        [sysctl]
        "vm.swappiness" = 10
        "nothing" = 1
        "net.core.x" = true
        [files."/etc/x"]
        append = true
        mode = "0600"
        [append]
        "/etc/x" = ["twice"]
        [variables.BIG]
        type = "text"
        default = "x"
        [variables.none]
        type = "number"
        [variables.open]
        type = "text"
        [variables.wrong]
        type = "integer"
        default = "4"
        [variables.key]
        type = "text"
        secret = true
        default = "hunter2"
        [variables.role]
        type = "text"
        choices = ["server", "agent"]
        default = "sever"
    "#;
    let root = one(manifest, &["etc/x"]);
    put(&root, "etc/key.j2", b"{{ vars.key }}\n");
    let faults = faults(&root);
    let expected = [
        ":3: remove[1]: `etc/y` does not begin with `/`",
        ":3: remove: /etc/x is removed and brought by the same overlay",
        ":6: services.default[0]: `a` is in runlevel boot already",
        ":7: services.conflicts: `b` is enabled here and in conflict",
        ":10: sysctl.nothing: `nothing` is no kernel parameter",
        ":11: sysctl.net.core.x: is neither a number nor a text",
        ":13: files./etc/x.append: what is appended has the mode and owner of the file",
        ":16: append./etc/x: /etc/x is in this overlay already",
        ":17: variables.BIG: `BIG` is not the name of a variable",
        ":21: variables.none.type: `number` is not known",
        "variables.open.default: says neither what it is by default nor that it must be set",
        ":26: variables.wrong.default: is of type text, not integer; write a whole number",
        ":30: variables.key.default: a secret has no default",
        ":34: variables.role.default: cannot be `sever`; it may be server, agent",
        "one/rootfs/etc/key.j2: /etc/key uses the secret `key` and is not 0600 and root's",
    ];
    assert_reported(&faults, &expected);
    assert_eq!(faults.len(), 15, "{faults:#?}");
}

#[test]
fn broken_node_overlay_does_not_hide_the_others() {
    let root = one("description = \"x\"\n", &["etc/x"]);
    for (path, manifest) in [
        ("nodes/0123abcd", "description = \"x\"\n"),
        ("nodes/gpu-1", "description = \"x\"\n"),
        ("two", "bad = 1\n"),
    ] {
        fs::create_dir_all(root.path().join(path)).expect("made");
        fs::write(root.path().join(path).join("overlay.toml"), manifest).expect("written");
    }
    let Reading { overlays, broken, faults } = read_all(root.path());
    assert_eq!(
        overlays.all().map(|overlay| overlay.name.to_string()).collect::<Vec<_>>(),
        ["one", "nodes/0123abcd"]
    );
    assert_eq!(broken.iter().map(Layer::to_string).collect::<Vec<_>>(), ["two"]);
    let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert!(
        faults.iter().any(
            |fault| fault.contains("nodes/gpu-1") && fault.contains("name it by the node's ID")
        )
    );
    assert_eq!(faults.len(), 3, "{faults:?}");
}

#[test]
fn template_of_unbounded_work_is_a_fault_and_not_a_hang() {
    let root = one("description = \"x\"\n[variables.n]\ntype = \"integer\"\ndefault = 1\n", &[]);
    let templates = [
        (
            "loop",
            "{% for a in range(4096) %}{% for b in range(4096) %}{% endfor %}{% endfor %}",
            "too many steps",
        ),
        ("range", "{% for a in range(4097) %}{% endfor %}", "more than 4096"),
        (
            "filters",
            "{% for a in range(4096) %}{% for b in range(40) %}{{ range(4096)|list|sort|first }}{% endfor %}{% endfor %}",
            "too many steps",
        ),
        (
            "large",
            "{% for a in range(90) %}{% for b in range(900) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
            "more than 4194304",
        ),
        ("join", "{{ range(4096)|join('xxxxxxxxxxxxxxxx'|indent(2000, true)) }}", "a text of more"),
        ("indent", "{{ node.id|indent(9999999999, true) }}", "above 4096"),
        ("named", "{{ node.id|indent(width=9999999999) }}", "above 4096"),
        ("slice", "{{ [1]|slice(9999999999) }}", "above 4096"),
        ("format", "{{ '%999999999d'|format(1) }}", "above 999"),
        (
            "capture",
            "{% set x %}{% for a in range(4096) %}{% for b in range(9) %}{{ node.id|indent(999, true) }}{% endfor %}{% endfor %}{% endset %}",
            "more than",
        ),
    ];
    for (name, text, _) in templates {
        put(&root, &format!("etc/{name}.j2"), text.as_bytes());
    }
    let overlays = read_overlays(root.path()).unwrap_or_else(|faults| panic!("{faults}"));
    let sample =
        crate::overlay::sample::Sample::new(overlays, vec!["one".parse().expect("a name")]);
    let faults = sample.render().expect_err("has faults").to_string();
    for (name, _, why) in templates {
        let found = faults.lines().find(|line| line.contains(&format!("etc/{name}.j2")));
        assert!(found.is_some_and(|line| line.contains(why)), "{name}: {why}\nnot in\n{faults}");
    }
}

#[test]
fn mode_or_attribute_that_the_node_would_not_have_is_a_fault() {
    use std::os::unix::fs::PermissionsExt as _;
    let manifest = "description = \"x\"\n[files.\"/etc/declared\"]\nmode = \"0600\"\n[directories.\"/srv/kept\"]\n";
    let root = one(
        manifest,
        &[
            "etc/declared",
            "etc/key",
            "etc/program",
            "etc/secret.j2",
            "etc/open",
            "etc/plain",
            "private/x",
        ],
    );
    let rootfs = root.path().join("one/rootfs");
    let set = |path: &str, mode| {
        fs::set_permissions(rootfs.join(path), fs::Permissions::from_mode(mode)).expect("changed")
    };
    fs::create_dir_all(rootfs.join("srv/kept")).expect("made");
    let modes = [
        ("etc/declared", 0o600),
        ("etc/key", 0o600),
        ("etc/program", 0o4755),
        ("etc/secret.j2", 0o640),
        ("etc/open", 0o666),
        ("private", 0o700),
    ];
    modes.into_iter().for_each(|(path, mode)| set(path, mode));
    fs::set_permissions(root.path().join("one/overlay.toml"), fs::Permissions::from_mode(0o644))
        .expect("changed");
    let expected = [
        "one/rootfs/etc/key: has the mode 0600 here, and would have 0644 on the node; git keeps only the execute bit: \
         write [files.\"/etc/key\"] mode = \"0600\" in overlay.toml",
        "one/rootfs/etc/program: has the mode 4755 here, and would have 0755",
        "one/rootfs/etc/secret.j2: has the mode 0640",
        "one/rootfs/etc/open: has the mode 0666",
        "one/rootfs/private: has the mode 0700 here, and would have 0755",
    ];
    let found = faults(&root);
    assert_reported(&found, &expected);
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    // With a umask of 077 the manifest has no read bits either: the modes say nothing.
    for path in ["etc/program", "etc/open", "etc/plain"] {
        set(path, 0o600);
    }
    fs::set_permissions(root.path().join("one/overlay.toml"), fs::Permissions::from_mode(0o600))
        .expect("changed");
    assert!(read_overlays(root.path()).is_ok());
    let attribute =
        |path| rustix::fs::lsetxattr(rootfs.join(path), "user.x", b"1", XattrFlags::empty());
    if ["etc/plain", "etc"].map(attribute).iter().all(Result::is_ok) {
        assert_reported(
            &faults(&root),
            &[
                "one/rootfs/etc/plain: has the extended attribute user.x",
                "one/rootfs/etc: has the extended attribute user.x",
            ],
        );
    }
}

#[test]
fn empty_folder_of_rootfs_is_on_the_node() {
    let root = one("description = \"x\"\n[directories.\"/srv/declared\"]\nmode = \"0750\"\n", &[]);
    for folder in ["etc", "srv/declared", "var/lib/x", "var/tmp"] {
        fs::create_dir_all(root.path().join("one/rootfs").join(folder)).expect("made");
    }
    let overlays = read_overlays(root.path()).unwrap_or_else(|faults| panic!("{faults}"));
    let overlay = &overlays.named[&"one".parse().expect("plain")];
    let folders: Vec<_> =
        overlay.entries.iter().map(|(path, entry)| (path.to_string(), entry.mode)).collect();
    let expected =
        [("/etc", 0o755), ("/srv/declared", 0o750), ("/var/lib/x", 0o755), ("/var/tmp", 0o1777)];
    assert_eq!(folders, expected.map(|(path, mode)| (path.to_owned(), mode)));
    assert!(overlay.entries.values().all(|entry| entry.source == Source::Directory));
}

#[test]
fn rootfs_that_is_a_file_is_a_fault() {
    let root = one("description = \"x\"\n", &[]);
    fs::remove_dir(root.path().join("one/rootfs")).expect("removed");
    assert!(read_overlays(root.path()).is_ok(), "an overlay may have packages only");
    fs::write(root.path().join("one/rootfs"), "x").expect("written");
    assert_reported(&faults(&root), &["one/rootfs: is not a folder"]);
}

#[test]
fn overlay_for_two_systems_has_files_and_units_of_each() {
    let manifest = "description = \"x\"\nsystems = [\"alpine\", \"systemd\"]\n[systemd]\n\
        units = [\"x.service\"]\nmasked = [\"y.timer\"]\npackages = [\"z\"]\n";
    let root = one(manifest, &["etc/both"]);
    for system in System::ALL {
        let folder = root.path().join("one").join(system.rootfs()).join("etc");
        fs::create_dir_all(&folder).expect("made");
        fs::write(folder.join(system.as_str()), "x").expect("written");
    }
    let overlays = read_overlays(root.path()).unwrap_or_else(|faults| panic!("{faults}"));
    let overlay = &overlays.named[&"one".parse().expect("plain")];
    for system in System::ALL {
        let paths: Vec<String> =
            overlay.entries_for(system).map(|(path, _)| path.to_string()).collect();
        let own = format!("/etc/{system}");
        let mut expected = vec!["/etc/both".to_owned(), own];
        expected.sort();
        assert_eq!(paths, expected);
    }
    let Units { enabled, masked, packages } = &overlay.units;
    assert!(enabled.contains_key("x.service") && masked.contains_key("y.timer"));
    assert_eq!(packages.iter().collect::<Vec<_>>(), ["z"]);
}

#[test]
fn faults_of_systems_are_reported() {
    let manifest =
        "description = \"x\"\nsystems = [\"alpine\", \"plan9\"]\n[systemd]\nunits = [\"x\"]\n";
    let root = one(manifest, &["etc/both"]);
    let only = root.path().join("one/rootfs.alpine/etc");
    fs::create_dir_all(&only).expect("made");
    fs::write(only.join("both"), "x").expect("written");
    let expected = [
        "one/overlay.toml:2: systems[1]: `plan9` is not a system",
        "one/overlay.toml:4: systemd.units[0]: `x` is not a unit; write it with its kind",
        "one/rootfs.alpine/etc/both: brings /etc/both in rootfs/etc/both, too",
    ];
    assert_reported(&faults(&root), &expected);
    let root = one("description = \"x\"\n[systemd]\nunits = [\"x.service\"]\n", &[]);
    assert_reported(&faults(&root), &["has files or units for systemd, which `systems` does not"]);
}
