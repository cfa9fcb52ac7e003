//! Tests that secrets occur only in the overlay of one boot, and that changes are detected.

use super::{
    tests::{boot_part, file, folder, from, gunzip, text},
    *,
};
use crate::catalog::Secrets;
use meshd_types::{Secret, VarValue};

const MANIFEST: &str = r#"description = "x"
[variables.key]
type = "text"
secret = true
[variables.plain]
type = "text"
default = "seen"
[files."/etc/key"]
mode = "0600"
"#;
const VALUE: &str = "correct-horse-battery";

fn overlays() -> tempfile::TempDir {
    folder(&[
        ("one/overlay.toml", MANIFEST),
        ("one/rootfs/etc/key.j2", "# {{ vars.plain }} by {{ node.id }}\nkey={{ vars.key }}\n"),
        ("two/overlay.toml", "description = \"x\"\n[append]\n\"/etc/key\" = [\"more\"]\n"),
    ])
}

fn secrets() -> Secrets {
    Secrets::from([("key".parse().expect("a name"), Secret::new(VALUE.to_owned()))])
}

#[test]
fn secret_is_delivered_only_to_an_admitted_node() {
    let root = overlays();
    let public =
        from(root.path(), &["one", "two"]).render().unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(
        text(&public, "/etc/key"),
        "# seen by 0123abcd\nkey=[secret key]\nmore\n",
        "placeholders replace secrets"
    );
    let holds = |bytes: &[u8]| String::from_utf8_lossy(&gunzip(bytes)).contains(VALUE);
    assert!(!holds(&public.to_targz()));
    assert!(!format!("{public:?}").contains(VALUE));
    let made: Vec<Delivered> =
        public.secrets.iter().map(|file| file.make(&secrets()).expect("renders")).collect();
    assert!(!format!("{made:?}").contains(VALUE));
    assert_eq!(made[0].content.expose(), &format!("# seen by 0123abcd\nkey={VALUE}\nmore\n"));
    let archive = deliver_targz(&public, &boot_part(), &made).concat();
    let files = read_targz(&archive).expect("an archive");
    let key = files.iter().find(|file| file.path.to_string() == "/etc/key").expect("delivered");
    assert_eq!((key.mode, key.owner), (0o600, (0, 0)));
    assert!(
        !holds(&deliver_targz(&public, &boot_part(), &[]).concat()),
        "the node is not approved"
    );
    assert!(
        !text(&public, "/etc/meshd/manifest.sha256").contains("/etc/key"),
        "a digest would let people guess"
    );
}

#[test]
fn changed_secret_makes_another_generation() {
    let root = overlays();
    let mut sample = from(root.path(), &["one"]);
    let before = sample.render().expect("renders");
    let again = sample.render().expect("renders");
    assert_eq!(
        (before.digest, file(&before, "/etc/key").digest),
        (again.digest, file(&again, "/etc/key").digest)
    );
    for mark in sample.overlays.secret_marks.values_mut() {
        *mark = Digest::of(b"another secret");
    }
    let after = sample.render().expect("renders");
    assert_ne!(before.digest, after.digest);
    assert_eq!(before.to_targz(), after.to_targz(), "the public part is unchanged");
}

#[test]
fn missing_public_or_readable_secret_is_a_fault() {
    let root = overlays();
    let mut sample = from(root.path(), &["one"]);
    sample.overlays.secret_marks.clear();
    let found = sample.render().expect_err("missing").to_string();
    assert!(
        found
            .contains("one/overlay.toml:2: variable `key` is a secret that the site does not have"),
        "{found}"
    );
    assert!(found.contains("[secrets]: key = { file = \"/path\" }"), "{found}");
    let mut sample = from(root.path(), &["one"]);
    sample.overlays.secret_users =
        [("key".parse().expect("a name"), ["two".parse().expect("a name")].into())].into();
    let found = sample.render().expect_err("of another overlay").to_string();
    assert!(
        found.contains("one/overlay.toml:2: variable `key` is a secret of other overlays"),
        "{found}"
    );
    let mut sample = from(root.path(), &["one"]);
    sample.node.vars = [("key".parse().expect("a name"), VarValue::Text(VALUE.into()))].into();
    let found = sample.render().expect_err("shown").to_string();
    assert!(
        found.contains("is a secret and set where everybody reads it") && !found.contains(VALUE),
        "{found}"
    );
    let open = folder(&[
        ("one/overlay.toml", "description = \"x\"\n"),
        ("one/rootfs/etc/key", "public\n"),
        (
            "two/overlay.toml",
            "description = \"x\"\n[variables.key]\ntype = \"text\"\nsecret = true\n[files.\"/etc/key\"]\nappend = true\n",
        ),
        ("two/rootfs/etc/key.j2", "{{ vars.key }}\n"),
    ]);
    let found = from(open.path(), &["one", "two"]).render().expect_err("readable").to_string();
    assert!(
        found.contains(
            "adds the secret `key` to /etc/key, which is not 0600 and root's in overlay one"
        ),
        "{found}"
    );
}

#[test]
fn stored_rendering_is_rebuilt_with_its_own_secrets() {
    let root = overlays();
    let sample = from(root.path(), &["one"]);
    let then = sample.render().expect("renders");
    let more = root.path().join("two");
    std::fs::create_dir_all(more.join("rootfs/etc")).expect("made");
    let manifest = "description = \"x\"\n[variables.key]\ntype = \"text\"\nsecret = true\n[files.\"/etc/more\"]\nmode = \"0600\"\n";
    std::fs::write(more.join("overlay.toml"), manifest).expect("written");
    std::fs::write(more.join("rootfs/etc/more.j2"), "{{ vars.key }}\n").expect("written");
    let now = from(root.path(), &["one", "two"]).render().expect("renders");
    assert_eq!((then.secrets.len(), now.secrets.len()), (1, 2));
    let contents: std::collections::BTreeMap<Digest, Vec<u8>> =
        then.contents().map(|(digest, bytes)| (digest, bytes.to_vec())).collect();
    let content =
        |digest: &Digest| contents.get(digest).cloned().map(bytes::Bytes::from).ok_or(*digest);
    let again = PublicOverlay::restore(&then.listing(), &sample.programs, Some(&now), content)
        .expect("all is there");
    assert_eq!(again.digest, then.digest);
    let made =
        again.secrets.iter().map(|file| file.make(&secrets()).expect("renders").path.to_string());
    assert_eq!(made.collect::<Vec<_>>(), ["/etc/key"]);
}

#[test]
fn template_error_caused_by_a_secret_does_not_reveal_it() {
    let root = folder(&[
        (
            "one/overlay.toml",
            "description = \"x\"\n[variables.key]\ntype = \"text\"\nsecret = true\n[files.\"/etc/key\"]\nmode = \"0600\"\n",
        ),
        // The template renders with the placeholder and fails with the secret.
        (
            "one/rootfs/etc/key.j2",
            "\n{% if vars.key[0] != '[' %}{{ {}[vars.key].gone }}{% endif %}\n",
        ),
    ]);
    let public = from(root.path(), &["one"]).render().unwrap_or_else(|faults| panic!("{faults}"));
    let fault = public.secrets[0].make(&secrets()).expect_err("it fails").to_string();
    assert!(
        fault.contains("one/rootfs/etc/key.j2:2: cannot be rendered with the value"),
        "{fault}"
    );
    assert!(!fault.contains(VALUE), "{fault}");
}
