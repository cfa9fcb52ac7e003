//! What an import promises: the whole image, checked, or nothing at all and the reason.

use super::mirror::{KEY, Mirror, Package, RELEASE, VERSION, netboot, package};
use meshd_builder::{BuildError, BuildRequest, ImportRequest, Quiet, import};
use meshd_image::catalog::{ImageManifest, image::load_image};
use meshd_types::Hint as _;
use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

fn main_packages() -> Vec<Package> {
    vec![
        package("alpine-base", "3.23.0-r0", &["D:alpine-release openrc cmd:busybox"]),
        package("alpine-release", "3.23.0-r0", &[]),
        package(
            "busybox",
            "1.37.0-r30",
            &["D:so:libc.musl-x86_64.so.1", "p:cmd:busybox=1.37.0-r30"],
        ),
        package("musl", "1.2.5-r21", &["p:so:libc.musl-x86_64.so.1=1"]),
        package("openrc", "0.63-r0", &["D:so:libc.musl-x86_64.so.1"]),
        package("busybox-openrc", "1.37.0-r30", &["i:busybox=1.37.0-r30 openrc"]),
        package("unwanted", "1-r0", &[]),
    ]
}

fn community_packages() -> Vec<Package> {
    vec![package("dmidecode", "3.6-r0", &["D:so:libc.musl-x86_64.so.1"])]
}

struct Desk {
    dir: tempfile::TempDir,
    mirror: Mirror,
}

impl Desk {
    fn new() -> Self {
        let mirror = Mirror::new(RELEASE, RELEASE, &main_packages(), &community_packages());
        let desk = Desk { dir: tempfile::tempdir().unwrap(), mirror };
        desk.recipe("");
        desk
    }

    /// Writes the recipe; `netboot` are more lines of that section.
    fn recipe(&self, netboot: &str) {
        let dir = self.dir.path().join("images/lts");
        fs::create_dir_all(&dir).unwrap();
        fs::copy(self.mirror.key(), dir.join(KEY)).unwrap();
        let text = format!(
            "arch = \"x86_64\"\ndescription = \"for tests\"\n\
             [mirror]\nurl = \"{}\"\nbranch = \"v3.23\"\nrepositories = [\"main\", \"community\"]\nkeys = [\"{KEY}\"]\n\
             [netboot]\nversion = \"{VERSION}\"\nflavor = \"lts\"\n{netboot}\n\
             [packages]\ninstall = [\"alpine-base\", \"dmidecode\"]\n",
            self.mirror.url
        );
        fs::write(dir.join("image.toml"), text).unwrap();
    }

    fn blobs(&self) -> PathBuf {
        self.dir.path().join("blobs")
    }

    fn request(&self, name: &str, from: Option<&Path>) -> ImportRequest {
        let dir = self.dir.path();
        ImportRequest {
            build: BuildRequest {
                recipe_dir: dir.join("images").join(name),
                name: name.parse().unwrap(),
                blobs_dir: self.blobs(),
                keys_dir: dir.join("keys"),
                cache_dir: dir.join("cache"),
                work_dir: dir.join("work"),
                promote: true,
                refresh: false,
            },
            from: from.map(Path::to_owned),
            mirror: None,
            trust_mirror: true,
        }
    }

    fn import(&self) -> Result<ImageManifest, BuildError> {
        import(&self.request("lts", None), &Quiet)
    }

    /// The import fails, says this, and leaves nothing behind; nodes get what they got before.
    fn refused(&self, phrases: &[&str]) {
        self.request_refused(&self.request("lts", None), phrases);
    }

    fn request_refused(&self, request: &ImportRequest, phrases: &[&str]) {
        let before =
            load_image(&self.blobs(), &"lts".parse().unwrap()).ok().map(|image| image.manifest);
        let error = import(request, &Quiet).expect_err("this must be refused");
        let text = format!("{}: {}", error.message(), error.hint().unwrap_or_default());
        assert!(
            phrases.iter().all(|phrases| text.contains(phrases)),
            "{phrases:?} is missing from: {text}"
        );
        let after =
            load_image(&self.blobs(), &"lts".parse().unwrap()).ok().map(|image| image.manifest);
        assert_eq!(after, before);
        let left: Vec<_> = fs::read_dir(self.dir.path().join("work"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, ["lts.lock"]);
    }
}

/// The names in an initrd.
fn listing(bytes: &[u8], dir: &Path) -> Vec<String> {
    let file = dir.join("initrd.gz");
    fs::write(&file, bytes).unwrap();
    let list = "gzip -dc \"$0\" | cpio -it --quiet";
    let output = Command::new("sh").args(["-c", list]).arg(&file).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn image_import_is_complete_and_reproducible() {
    let desk = Desk::new();
    let manifest = desk.import().unwrap();
    assert_eq!(
        (manifest.kernel_release.as_str(), manifest.os_release.as_str()),
        (RELEASE, VERSION)
    );
    assert_eq!(manifest.kernel_package, format!("alpine-netboot-lts={VERSION}"));
    let names: Vec<&str> = manifest.packages.keys().map(String::as_str).collect();
    let all = [
        "alpine-base",
        "alpine-release",
        "busybox",
        "busybox-openrc",
        "dmidecode",
        "musl",
        "openrc",
    ];
    assert_eq!(names, all, "the closure, the service files that belong to it, and nothing else");

    let image = load_image(&desk.blobs(), &manifest.name).unwrap();
    let packages = manifest.parts.part("packages").unwrap();
    let listed = listing(image.part(&packages.digest).unwrap(), desk.dir.path());
    assert!(listed.contains(&"packages/x86_64/dmidecode-3.6-r0.apk".to_owned()), "{listed:?}");
    assert!(listed.contains(&"etc/apk/keys/meshd-repo.rsa.pub".to_owned()), "{listed:?}");
    assert_eq!(listed.iter().filter(|name| name.ends_with(".apk")).count(), all.len());

    let again = desk.import().unwrap();
    assert_eq!(again.version(), manifest.version());
    // With everything in the cache, only indexes and digests are asked for.
    fs::remove_file(desk.mirror.bundle()).unwrap();
    fs::remove_file(desk.mirror.file("main/x86_64/musl-1.2.5-r21.apk")).unwrap();
    assert_eq!(desk.import().unwrap().version(), manifest.version());
}

#[test]
fn import_fails_naming_the_package_that_the_mirror_lacks() {
    let desk = Desk::new();
    desk.mirror.sync("community", &[]);
    desk.refused(&["`dmidecode`", "the recipe"]);
    desk.mirror.sync("community", &[package("dmidecode", "3.6-r0", &["D:so:libgone.so.7"])]);
    desk.refused(&["`so:libgone.so.7`", "dmidecode"]);
    desk.mirror.sync("community", &community_packages());
    fs::remove_file(desk.mirror.file("main/x86_64/musl-1.2.5-r21.apk")).unwrap();
    desk.refused(&["musl-1.2.5-r21.apk", "does not have"]);
}

#[test]
fn corrupted_download_is_refused_and_old_version_stays() {
    let desk = Desk::new();
    desk.import().unwrap();
    let flip = |path: PathBuf, at: usize| {
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.len() - at;
        bytes[at] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    // A new package, so that the cache does not have it.
    let newer = [package("dmidecode", "3.7-r0", &[])];
    desk.mirror.sync("community", &newer);
    flip(desk.mirror.file("community/x86_64/dmidecode-3.7-r0.apk"), 20);
    desk.refused(&["dmidecode-3.7-r0.apk", "SHA-256"]);
    desk.mirror.sync("community", &newer);
    flip(desk.mirror.file("community/x86_64/APKINDEX.tar.gz"), 20);
    desk.refused(&["community", "does not fit", KEY]);
    desk.mirror.sync("community", &newer);
    desk.mirror.publish("6.18.2-0-lts", "6.18.2-0-lts");
    flip(desk.mirror.bundle(), 20);
    desk.refused(&["alpine-netboot", "sha512", "damaged"]);
    desk.mirror.publish("6.18.2-0-lts", "6.18.2-0-lts");
    let fresh = desk.import().unwrap();
    assert_eq!(
        (fresh.kernel_release.as_str(), fresh.packages["dmidecode"].as_str()),
        ("6.18.2-0-lts", "3.7-r0")
    );
}

#[test]
fn kernel_and_modules_of_different_releases_are_refused() {
    let desk = Desk::new();
    desk.mirror.publish(RELEASE, "6.18.2-0-lts");
    desk.refused(&[RELEASE, "6.18.2-0-lts", "same release"]);
}

#[test]
fn foreign_index_and_bundle_without_digest_are_refused() {
    let desk = Desk::new();
    let stranger = Mirror::new(RELEASE, RELEASE, &main_packages(), &community_packages());
    fs::copy(
        stranger.file("main/x86_64/APKINDEX.tar.gz"),
        desk.mirror.file("main/x86_64/APKINDEX.tar.gz"),
    )
    .unwrap();
    // The name of the key is the same, the key is not.
    desk.refused(&["main", "does not fit"]);
    desk.mirror.sync("main", &main_packages());
    fs::remove_file(desk.mirror.bundle().with_extension("gz.sha512")).unwrap();
    desk.refused(&["publishes no digest", "netboot.sha256"]);
}

/// Returns the line of `image.toml` that pins the mirror's bundle, by `sha256sum`.
fn pin(mirror: &Mirror) -> String {
    let output = Command::new("sha256sum").arg(mirror.bundle()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    format!("sha256 = \"{}\"", text.split(' ').next().unwrap())
}

#[test]
fn bundle_without_pin_is_refused_and_the_error_has_the_pin() {
    let desk = Desk::new();
    let request = ImportRequest { trust_mirror: false, ..desk.request("lts", None) };
    desk.request_refused(&request, &["does not pin", &pin(&desk.mirror), "--trust-mirror"]);
    // The bundle is in the cache now.
    desk.request_refused(&request, &["does not pin", &pin(&desk.mirror)]);
}

#[test]
fn pinned_bundle_is_imported() {
    let desk = Desk::new();
    desk.recipe(&pin(&desk.mirror));
    import(&ImportRequest { trust_mirror: false, ..desk.request("lts", None) }, &Quiet).unwrap();
}

#[test]
fn bundle_without_pin_is_imported_if_the_mirror_is_trusted() {
    let desk = Desk::new();
    desk.import().unwrap();
}

#[test]
fn bundle_that_a_mirror_replaced_with_its_digest_is_refused_by_the_pin() {
    let desk = Desk::new();
    let pinned = pin(&desk.mirror);
    desk.recipe(&pinned);
    desk.import().unwrap();
    desk.mirror.publish("6.18.2-0-lts", "6.18.2-0-lts");
    fs::remove_dir_all(desk.dir.path().join("cache")).unwrap();
    let stated = pinned.split('"').nth(1).unwrap();
    // Trust in the mirror does not replace a pin.
    desk.refused(&["the recipe says", stated]);
    desk.request_refused(
        &ImportRequest { trust_mirror: false, ..desk.request("lts", None) },
        &["the recipe says", stated],
    );
}

#[test]
fn download_without_a_stated_size_ends_at_its_limit() {
    let desk = Desk::new();
    let digest = desk.mirror.bundle().with_extension("gz.sha512");
    let mut text = fs::read(&digest).unwrap();
    desk.import().unwrap();
    text.resize(64 << 10, b' ');
    fs::write(&digest, text).unwrap();
    desk.refused(&["sha512"]);
}

#[test]
fn bundle_whose_links_lead_to_files_of_the_central_node_is_refused() {
    let desk = Desk::new();
    let private = desk.dir.path().join("private");
    fs::create_dir(&private).unwrap();
    netboot(&private, RELEASE, RELEASE);
    desk.mirror.publish_link("boot/initramfs-lts", &private.join("initramfs-lts"));
    desk.refused(&["initramfs-lts", "a link to a file elsewhere"]);
    desk.mirror.publish_link("boot", &private);
    desk.refused(&["a link to a file elsewhere"]);
}

#[test]
fn unreachable_mirror_is_named_in_the_error() {
    let desk = Desk::new();
    // Bound, so that nobody else gets the port, and never listened on.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let gone = socket.local_addr().unwrap().as_socket().unwrap();
    let request = ImportRequest {
        mirror: Some(format!("http://{gone}/alpine")),
        ..desk.request("lts", None)
    };
    let error = import(&request, &Quiet).unwrap_err();
    assert!(error.to_string().contains(&gone.to_string()), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("reachable")));
}

/// The files of a mirror in a folder, as somebody carries them to a site without a network.
fn carried(desk: &Desk) -> PathBuf {
    let folder = desk.dir.path().join("carried");
    fs::create_dir_all(folder.join("packages")).unwrap();
    netboot(&folder, RELEASE, RELEASE);
    desk.mirror.sync("main", &[main_packages(), community_packages()].concat());
    for entry in fs::read_dir(desk.mirror.file("main/x86_64")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.join("packages").join(entry.file_name())).unwrap();
    }
    folder
}

#[test]
fn folder_with_links_pipes_and_huge_files_is_refused() {
    let desk = Desk::new();
    let elsewhere = desk.dir.path().join("private");
    fs::write(&elsewhere, [0x1f, 0x8b, 8, 0]).unwrap();
    let folder = carried(&desk);
    let make_pipe = |path: &Path| {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    for name in ["vmlinuz-lts", "initramfs-lts", "modloop-lts", "SHA256SUMS"] {
        let file = folder.join(name);
        let before = fs::read(&file).ok();
        let refusals: [(&str, &dyn Fn()); 4] = [
            ("a link to a file elsewhere", &|| symlink(&elsewhere, &file).unwrap()),
            ("a link to a file elsewhere", &|| symlink("/dev/zero", &file).unwrap()),
            ("not a regular file", &|| make_pipe(&file)),
            ("bytes, more than", &|| File::create(&file).unwrap().set_len(20 << 30).unwrap()),
        ];
        for (expected, make) in refusals {
            let _ = fs::remove_file(&file);
            make();
            let message = import(&desk.request("none", Some(&folder)), &Quiet).unwrap_err();
            let message = message.message();
            // A part that is no file at all is one that the folder does not hold.
            let is_refused = message.contains(expected) || message.contains("holds no");
            assert!(is_refused, "{name} ({expected}): {message}");
        }
        fs::remove_file(&file).unwrap();
        if let Some(bytes) = before {
            fs::write(&file, bytes).unwrap();
        }
    }
}

#[test]
fn folder_is_imported_with_and_without_a_recipe() {
    let desk = Desk::new();
    let folder = carried(&desk);
    let with = import(&desk.request("lts", Some(&folder)), &Quiet).unwrap();
    assert!(!with.packages.contains_key("unwanted"));

    let message = import(&desk.request("own", Some(&folder)), &Quiet).unwrap_err().to_string();
    assert!(message.contains("keys/"), "{message}");
    fs::create_dir(folder.join("keys")).unwrap();
    fs::copy(desk.mirror.key(), folder.join("keys").join(KEY)).unwrap();
    let without = import(&desk.request("own", Some(&folder)), &Quiet).unwrap();
    assert!(without.packages.contains_key("unwanted"), "without a recipe everything is taken");
    assert_eq!((without.kernel_release.as_str(), without.name.as_str()), (RELEASE, "own"));
}

#[test]
fn folder_with_wrong_or_missing_digest_is_refused() {
    let desk = Desk::new();
    let folder = carried(&desk);
    let sums = Command::new("sha256sum")
        .args(["vmlinuz-lts", "initramfs-lts", "modloop-lts"])
        .current_dir(&folder)
        .output();
    let sums = String::from_utf8(sums.unwrap().stdout).unwrap();
    fs::write(folder.join("SHA256SUMS"), &sums).unwrap();
    import(&desk.request("lts", Some(&folder)), &Quiet).unwrap();
    fs::write(folder.join("SHA256SUMS"), sums.replace("modloop-lts", "modloop-virt")).unwrap();
    let message = import(&desk.request("lts", Some(&folder)), &Quiet).unwrap_err().to_string();
    assert!(message.contains("modloop-lts") && message.contains("no digest of it"), "{message}");
    fs::write(folder.join("SHA256SUMS"), sums.replace(&sums[..8], "00000000")).unwrap();
    let message = import(&desk.request("lts", Some(&folder)), &Quiet).unwrap_err().to_string();
    assert!(message.contains("vmlinuz-lts") && message.contains("damaged"), "{message}");
}
