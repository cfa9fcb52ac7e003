//! Images of umoci: layers that hide files of others, archives and registries. docker-registry and
//! skopeo, two more programs that are not ours, keep and copy them.

use super::{RootSite, in_mounted, run, tree};
use crate::kit::registry::Registry;
use serde_json::json;
use std::{fs, path::Path, process::Command};

/// Writes a layout with the small system and a layer that hides a part of it. Its tag is `v1`.
fn write_layout(site: &RootSite) -> String {
    let (folder, added) = (site.path("tree"), site.path("added"));
    tree::write(&folder);
    for (path, text) in [("etc/removed", "a"), ("usr/share/old/file", "b"), ("etc/kept", "old")] {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    fs::create_dir(&added).unwrap();
    fs::write(added.join("new"), "of the upper layer").unwrap();
    let layout = site.path("layout").display().to_string();
    let image = format!("{layout}:v1");
    let umoci = |args: &[&str]| run(Command::new("umoci").args(args));
    umoci(&["init", "--layout", &layout]);
    umoci(&["new", "--image", &image]);
    umoci(&["insert", "--image", &image, folder.to_str().unwrap(), "/"]);
    umoci(&["insert", "--image", &image, "--opaque", added.to_str().unwrap(), "/usr/share/old"]);
    umoci(&["insert", "--image", &image, "--whiteout", "/etc/removed"]);
    umoci(&["insert", "--image", &image, added.join("new").to_str().unwrap(), "/etc/kept"]);
    umoci(&["config", "--image", &image, "--architecture", "amd64", "--os", "linux"]);
    layout
}

/// Copies an image by skopeo, with the settings of a home folder.
fn copy(home: &Path, from: &str, to: &str) {
    let mut skopeo = Command::new("skopeo");
    skopeo.args(["copy", "--quiet", "--all", "--insecure-policy", from, to]).env("HOME", home);
    run(&mut skopeo);
}

#[test]
fn layers_of_a_layout_and_of_its_archive_give_one_root() {
    let site = RootSite::new();
    let layout = write_layout(&site);
    site.recipe("layout", &format!("oci = \"{layout}:v1\""));
    let built = site.build("layout");
    let seen = "cd \"$1\"; find etc usr/share/old | LC_ALL=C sort; cat etc/kept usr/share/old/new
                getfattr --only-values -n user.note etc/two*; getcap usr/bin/copy";
    let seen = in_mounted(&site.blob(&built.root.digest), seen);
    let expected = "etc\netc/kept\netc/os-release\netc/shadow\netc/two\nlines\nusr/share/old\n\
        usr/share/old/new\nof the upper layerof the upper layerfirst\nsecond\n\
        usr/bin/copy cap_dac_override,cap_fowner=ep\n";
    assert_eq!(seen, expected);
    let archive = site.path("image.tar").display().to_string();
    copy(&site.path(""), &format!("oci:{layout}:v1"), &format!("oci-archive:{archive}:v1"));
    for source in [archive.clone(), format!("{archive}:v1")] {
        site.recipe("archive", &format!("oci = \"{source}\""));
        assert_eq!(site.build("archive").root.digest, built.root.digest);
    }
    let refused = site.refusal(&format!("oci = \"{archive}:v2\""));
    assert!(refused.contains("copy the OCI image") && refused.contains("v2"), "{refused}");
}

#[test]
fn image_of_a_registry_is_built_by_its_digest_and_architecture() {
    let site = RootSite::new();
    let layout = write_layout(&site);
    site.recipe("layout", &format!("oci = \"{layout}:v1\""));
    let expected = site.build("layout").root.digest;
    let mut arm = Command::new("umoci");
    arm.args(["config", "--image", &format!("{layout}:v1"), "--tag", "arm"]);
    run(arm.args(["--architecture", "arm64", "--os", "linux"]));
    let registry = Registry::start(&site.path("registry"));
    let digests = [("amd64", "v1"), ("arm64", "arm")].map(|(architecture, tag)| {
        (architecture, registry.push(&format!("oci:{layout}:{tag}"), &format!("root:{tag}")))
    });
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let manifests = digests.each_ref().map(|(architecture, digest)| {
        let size = fs::metadata(registry.blob(digest)).unwrap().len();
        let platform = json!({ "architecture": architecture, "os": "linux" });
        json!({ "mediaType": kind, "digest": digest, "size": size, "platform": platform })
    });
    let kind = "application/vnd.oci.image.index.v1+json";
    let index = json!({ "schemaVersion": 2, "mediaType": kind, "manifests": manifests });
    fs::write(site.path("index"), index.to_string()).unwrap();
    let url = format!("http://{}/v2/root/manifests/all", registry.address);
    run(Command::new("curl")
        .args(["--silent", "--fail", "--request", "PUT", "--header"])
        .arg(format!("Content-Type: {kind}"))
        .arg("--data-binary")
        .arg(format!("@{}", site.path("index").display()))
        .arg(url));
    let sum = run(Command::new("sha256sum").arg(site.path("index")));
    let all = format!("sha256:{}", sum.split(' ').next().unwrap());
    let [(_, amd64), (_, arm64)] = &digests;

    let source = |digest: &str| format!("oci = \"docker://{}/root@{digest}\"", registry.address);
    let build = |digest: &str| {
        site.recipe("registry", &source(digest));
        let mut command = site.command("registry");
        command.env("HOME", registry.home());
        command
    };
    for digest in [amd64, &all] {
        run(&mut build(digest));
        assert_eq!(site.parts("registry").root.digest, expected, "{digest}");
    }
    // Without settings of this user, a registry has to use TLS.
    let refused = site.refused(build(&all).env("HOME", site.path("")).arg("--refresh"));
    assert!(refused.contains("server gave HTTP response to HTTPS client"), "{refused}");
    let refused = site.refused(&mut build(arm64));
    assert!(refused.contains("is built for arm64 instead of x86_64"), "{refused}");
    let refused = site.refused(&mut build(&format!("sha256:{}", "ab".repeat(32))));
    assert!(refused.contains("manifest unknown"), "{refused}");

    copy(registry.home(), &format!("docker://{}/root@{all}", registry.address), &{
        format!("oci:{}:all", site.path("all").display())
    });
    site.recipe("index", &format!("oci = \"{}:all\"", site.path("all").display()));
    assert_eq!(site.build("index").root.digest, expected);

    // The registry answers with other bytes than the digest says.
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(registry.blob(amd64)).unwrap()).unwrap();
    let layer = manifest["layers"][0]["digest"].as_str().unwrap();
    let flip = |bytes: &mut Vec<u8>| bytes[100] ^= 1;
    // A manifest that is no JSON would be an error of the registry.
    let pad = |bytes: &mut Vec<u8>| bytes.push(b' ');
    for (digest, change) in [(layer, &flip as &dyn Fn(&mut Vec<u8>)), (amd64, &pad)] {
        let file = registry.blob(digest);
        let sound = fs::read(&file).unwrap();
        let mut changed = sound.clone();
        change(&mut changed);
        fs::write(&file, &changed).unwrap();
        let refused = site.refused(build(amd64).arg("--refresh"));
        assert!(refused.contains("copy the OCI image"), "{refused}");
        assert!(refused.to_lowercase().contains("digest"), "{refused}");
        fs::write(&file, &sound).unwrap();
    }
}
