//! Debian sources: the real mmdebstrap asks the mirror of the recipe and trusts its keys only;
//! newer packages of the same recipe are installed on request.

use super::{
    RootSite, run,
    sources::{archive, write_sources},
};
use crate::{site::images::mirror::FileServer, world::write_program};
use meshd_types::Digest;
use std::{fs, process::Command};

/// A mirror with one package that nobody needs, signed by the key of this name.
const MIRROR: &str = r#"
cd "$0"
folder=dists/bookworm/main/binary-amd64
mkdir -p $folder
export GNUPGHOME="$PWD/keys"
mkdir -m 700 "$GNUPGHOME"
for name in signer stranger; do
    gpg --batch --quiet --passphrase '' --quick-generate-key $name default sign never
    gpg --batch --quiet --export $name >$name.gpg
done
printf 'Package: other\nVersion: 1\nArchitecture: amd64\nFilename: other.deb\nSize: 1\n' >$folder/Packages
printf 'SHA256: %064d\nDescription: x\n\n' 0 >>$folder/Packages
{
    printf 'Suite: bookworm\nCodename: bookworm\nArchitectures: amd64\nComponents: main\n'
    LC_ALL=C date -u '+Date: %a, %d %b %Y %H:%M:%S UTC'
    printf 'SHA256:\n %s %s main/binary-amd64/Packages\n' \
        $(sha256sum <$folder/Packages | cut -d' ' -f1) $(stat -c %s $folder/Packages)
} >Release
gpg --batch --quiet --local-user signer --clearsign --output dists/bookworm/InRelease Release
gpgconf --kill gpg-agent
"#;

#[test]
fn mirrors_and_keys_of_a_debian_recipe_reach_apt() {
    let site = RootSite::new();
    let folder = site.path("mirror");
    fs::create_dir(&folder).unwrap();
    run(Command::new("sh").args(["-ec", MIRROR]).arg(&folder));
    let server = FileServer::start(folder.clone());
    let url = format!("http://{}/", server.address);
    let refusal = |options: &str| {
        let packages = "suite = \"bookworm\", packages = [\"mesh-kernel\"]";
        site.refusal(&format!("debian = {{ {packages}, {options} }}"))
    };
    let mirror = |key: &str| format!("mirror = {url:?}, keyring = {:?}", folder.join(key));
    let foreign = refusal(&mirror("stranger.gpg"));
    assert!(foreign.contains("bookworm InRelease' is not signed"), "{foreign}");
    assert!(foreign.contains("check suite, packages, mirror and keyring"), "{foreign}");
    let missing = refusal(&mirror("signer.gpg"));
    assert!(missing.contains("Unable to locate package mesh-kernel"), "{missing}");
    let key = folder.join("signer.gpg").display().to_string();
    let line = format!("deb [signed-by={key}] {url} bookworm main");
    let missing = refusal(&format!("sources = [{line:?}]"));
    assert!(missing.contains("Unable to locate package mesh-kernel"), "{missing}");
}

/// Stands in for mmdebstrap with a mirror: its last argument is the archive.
const MMDEBSTRAP: &str = "#!/bin/sh\nfor last; do :; done\ncp \"$ROOT_TAR\" \"$last\"\n";

#[test]
fn newer_packages_are_installed_on_request_only() {
    let site = RootSite::new();
    let (folder, tar) = write_sources(&site);
    fs::create_dir(site.path("bin")).unwrap();
    write_program(&site.path("bin/mmdebstrap"), MMDEBSTRAP);
    site.recipe("root", "debian = { suite = \"bookworm\", packages = [\"mesh-kernel\"] }");
    let path = format!("{}:{}", site.path("bin").display(), std::env::var("PATH").unwrap());
    let build = |more: &[&str]| -> Digest {
        run(site.command("root").args(more).env("PATH", &path).env("ROOT_TAR", &tar));
        site.parts("root").root.digest
    };
    let first = build(&[]);
    assert_eq!(build(&["--refresh"]), first, "the mirror has nothing newer");
    fs::write(folder.join("etc/os-release"), "PRETTY_NAME=\"Mesh Linux 1.1\"\n").unwrap();
    archive(&folder, "pax", &tar);
    assert_eq!(build(&[]), first, "the recipe is the same");
    assert_eq!(build(&["--refresh", "--no-promote"]), first, "nodes boot the first version");
    let second = build(&["--refresh"]);
    assert_ne!(second, first);
    run(&mut site.meshd(&["image", "rollback", "root"]));
    assert_eq!(site.parts("root").root.digest, first);
}
