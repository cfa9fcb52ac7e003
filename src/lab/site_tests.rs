//! Tests of the rack's site file.

use super::*;

const USER: &str = "\
[site]
name = \"rack-a\"            # ours
images_dir = \"images\"

[net]
interface = \"eno1\"

[profiles.discovery]
kernel_args = [\"quiet\"]   # keep
";

fn changed(settings: &[(&str, &str)]) -> Result<String, LabError> {
    let mut document: DocumentMut = USER.parse().expect("it is TOML");
    for (key, to) in settings {
        assign(&mut document, key, to.parse().unwrap_or_else(|_| Value::from(*to)))?;
    }
    Ok(document.to_string())
}

#[test]
fn changed_key_preserves_comments_and_other_keys() {
    let text = changed(&[("net.interface", "br0")]).expect("a key");
    assert_eq!(text, USER.replace("eno1", "br0"));
}

#[test]
fn key_in_missing_table_creates_the_table() {
    let text =
        changed(&[("boot.kernel_transport", "tftp"), ("agent.heartbeat", "\"5s\"")]).expect("keys");
    assert!(text.contains("[boot]\nkernel_transport = \"tftp\"\n"), "{text}");
    assert!(text.contains("[agent]\nheartbeat = \"5s\"\n"), "{text}");
}

#[test]
fn setting_values_are_toml_and_bare_words_are_strings() {
    let text = changed(&[("http.port", "8088"), ("profiles.discovery.kernel_args", "[\"a\"]")])
        .expect("keys");
    assert!(text.contains("port = 8088") && text.contains("kernel_args = [\"a\"]"), "{text}");
}

#[test]
fn invalid_key_is_refused() {
    assert!(changed(&[("net.", "x")]).is_err());
    assert!(changed(&[("site.name.first", "x")]).is_err());
}

#[test]
fn lab_folder_too_deep_for_sockets_is_refused() {
    let deep = PathBuf::from(format!("/{}", "d".repeat(100)));
    let error = Layout::of(&deep, None).check().expect_err("too long");
    assert!(
        error.to_string().contains("107 bytes") && error.to_string().contains("--dir"),
        "{error}"
    );
    assert!(Layout::of(Path::new("/srv/.lab"), None).check().is_ok());
}

#[test]
fn derived_site_resolves_user_folders_to_absolute_paths() {
    let dir = tempfile::tempdir().expect("a folder");
    let user = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("site.toml");
    let relative = Path::new("../../site.toml");
    for user in [user.as_path(), relative] {
        let site =
            derive(user, &Layout::of(dir.path(), None), &[], 2).expect("the sample is valid");
        assert_eq!(
            site.images_dir,
            Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("images")
        );
        assert_eq!(
            (site.segments[0].interface(), site.state_dir),
            (Some("br0"), dir.path().join("state"))
        );
    }
}

#[test]
fn derived_site_resolves_secret_files_of_user_site() {
    let dir = tempfile::tempdir().expect("a folder");
    let sample = include_str!("../../site.toml")
        .replace("#[secrets]", "[secrets]\nkey = { file = \"keys/own\" } # ours");
    let user = dir.path().join("own.toml");
    fs::write(&user, sample).expect("written");
    let rack = dir.path().join("rack");
    fs::create_dir(&rack).expect("made");
    let site = derive(&user, &Layout::of(&rack, None), &[], 1).expect("valid");
    let secrets: Vec<_> = site.secrets.into_values().map(|secret| secret.file).collect();
    assert_eq!(secrets, [dir.path().join("keys/own")]);
}

#[test]
fn derived_site_names_nodes_unless_user_site_names_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let user = dir.path().join("own.toml");
    let id = |position| Identity::at(position).node_id();
    let names = |reservations: &str| {
        fs::write(&user, format!("{reservations}\n{}", include_str!("../../site.toml")))
            .expect("written");
        let rack = dir.path().join("rack");
        fs::create_dir_all(&rack).expect("made");
        let site = derive(&user, &Layout::of(&rack, None), &[], 2)
            .unwrap_or_else(|error| panic!("{error}"));
        (1..=2)
            .map(|position| site.node_names.get(&Owner::Node(id(position))).cloned())
            .collect::<Vec<_>>()
    };
    let name = |text: &str| Some(text.to_owned());
    assert_eq!(names(""), [name("node1"), name("node2")]);
    let own = format!("reservation = [{{ node = \"{}\", name = \"head\" }}]", id(1));
    assert_eq!(names(&own), [name("head"), name("node2")], "reservations in one line");
    assert_eq!(
        names("[[reservation]]\nnode = \"0123abcd\"\nname = \"node2\""),
        [name("node1"), None]
    );
}
