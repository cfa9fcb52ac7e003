//! Each source gives the same root with all metadata, and an initramfs with its modules.

use super::{
    RootSite, in_mounted, listing, run,
    tree::{self, RELEASE, SPARSE},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Writes an archive of a folder by GNU tar.
pub(super) fn archive(folder: &Path, format: &str, to: &Path) {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sparse", "--sort=name", "--numeric-owner", "--format", format]);
    if format == "pax" {
        tar.args(["--xattrs", "--xattrs-include=*"]);
    }
    run(tar.arg("--file").arg(to).arg("--directory").arg(folder).arg("."));
}

/// Lists a root that Linux has mounted, as [`super::listing`] does.
fn mounted_listing(squashfs: &Path) -> String {
    in_mounted(squashfs, super::LISTING)
}

/// Writes the small system, and an archive of it. Returns both paths.
pub(super) fn write_sources(site: &RootSite) -> (PathBuf, PathBuf) {
    let (folder, tar) = (site.path("tree"), site.path("root.tar"));
    tree::write(&folder);
    archive(&folder, "pax", &tar);
    (folder, tar)
}

#[test]
fn each_source_gives_the_same_root_with_all_metadata() {
    let site = RootSite::new();
    let (folder, tar) = write_sources(&site);
    let pack = |program: &str| {
        let packed = site.path(program);
        let script = format!("{program} -c <\"$0\" >\"$1\"");
        run(Command::new("sh").args(["-ec", &script]).arg(&tar).arg(&packed));
        packed
    };
    site.recipe("plain", &format!("tar = {tar:?}"));
    let plain = site.build("plain");
    let expected = listing(&folder);
    assert_eq!(mounted_listing(&site.blob(&plain.root.digest)), expected);
    let others = ["gzip", "xz", "zstd"].map(|program| format!("tar = {:?}", pack(program)));
    for source in others.iter().chain([&format!("dir = {folder:?}")]) {
        site.recipe("other", source);
        let other = site.build("other");
        assert_eq!(other.kernel.digest, plain.kernel.digest, "{source}");
        assert_eq!(other.modules.digest, plain.modules.digest, "{source}");
        assert_eq!(other.root.digest, plain.root.digest, "{source}");
    }
    // The format gnu has records for long names and sparse files, and none for attributes.
    let gnu = site.path("gnu.tar");
    archive(&folder, "gnu", &gnu);
    site.recipe("gnu", &format!("tar = {gnu:?}"));
    let without = site.path("without");
    run(Command::new("cp").args(["-a", "--no-preserve=xattr"]).arg(&folder).arg(&without));
    let found = mounted_listing(&site.blob(&site.build("gnu").root.digest));
    assert_eq!(found, listing(&without));
}

#[test]
fn capabilities_and_holes_of_a_root_are_seen_by_other_programs() {
    let site = RootSite::new();
    let (_, tar) = write_sources(&site);
    site.recipe("plain", &format!("tar = {tar:?}"));
    let parts = site.build("plain");
    let root = site.blob(&parts.root.digest);
    let out = site.path("out");
    run(Command::new("unsquashfs").args(["-quiet", "-no-progress", "-dest"]).arg(&out).arg(&root));
    let capabilities = run(Command::new("getcap").arg("-r").arg(&out));
    assert!(capabilities.contains("usr/bin/ping cap_net_raw=ep"), "{capabilities}");
    let both = "usr/bin/copy cap_dac_override,cap_fowner=ep";
    assert!(capabilities.contains(both), "{capabilities}");
    let blocks = |path: &Path| -> Vec<u64> {
        let text = run(Command::new("stat").args(["-c", "%b %s"]).arg(path));
        text.split_whitespace().map(|number| number.parse().unwrap()).collect()
    };
    let [used, size] = blocks(&out.join("var/lib/sparse"))[..] else { panic!("two numbers") };
    assert!(size == SPARSE.0 && used * 512 < size / 2, "{used} blocks of {size} bytes");
    assert!(fs::metadata(&root).unwrap().len() < 1 << 20, "holes take no room");
    let listed = run(Command::new("unsquashfs").arg("-lln").arg(&root));
    let su = listed.lines().find(|line| line.ends_with("/usr/bin/su")).unwrap();
    assert!(su.starts_with("-rwsr-xr-x 0/0"), "{su}");

    let verity = &parts.verity;
    let verify = |hash: &str| {
        let mut command = Command::new("veritysetup");
        command
            .args(["verify", "--no-superblock", "--hash=sha256", "--format=1"])
            .arg(format!("--data-block-size={}", verity.block_size))
            .arg(format!("--hash-block-size={}", verity.block_size))
            .arg(format!("--data-blocks={}", verity.data_blocks))
            .arg(format!("--hash-offset={}", verity.hash_offset))
            .arg(format!("--salt={}", verity.salt))
            .args([&root, &root])
            .arg(hash);
        command.output().unwrap().status.success()
    };
    assert!(verify(&verity.root_hash.to_string()));
    assert!(!verify(&parts.root.digest.to_string()), "the hash of another tree");
}

#[test]
fn initramfs_has_needed_modules_with_firmware_and_no_program() {
    let site = RootSite::new();
    let (_, tar) = write_sources(&site);
    site.recipe("plain", &format!("tar = {tar:?}"));
    let parts = site.build("plain");
    let initrd = site.path("initrd");
    fs::create_dir(&initrd).unwrap();
    let unpack = "zstd -dc \"$0\" | cpio --extract --make-directories --quiet -D \"$1\"
                  zstd -dc \"$0\" | cpio -tv --quiet";
    let blob = site.blob(&parts.modules.digest);
    let listed = run(Command::new("sh").args(["-ec", unpack]).arg(&blob).arg(&initrd));
    let is_plain = |line: &str| line.starts_with("drwxr-xr-x ") || line.starts_with("-rw-r--r-- ");
    assert!(listed.lines().all(is_plain), "{listed}");
    let files = run(Command::new("find").arg(&initrd).args(["-type", "f", "-printf", "%P\n"]));
    let mut files: Vec<&str> = files.lines().collect();
    files.sort_unstable();
    let modules = format!("lib/modules/{RELEASE}/");
    let (lists, files): (Vec<&str>, Vec<&str>) =
        files.into_iter().partition(|file| file.starts_with(&format!("{modules}modules.")));
    assert!(lists.len() > 5, "{lists:?}");
    let expected = [
        "lib/firmware/vendor/bus.bin".to_owned(),
        "lib/firmware/vendor/nic.bin".to_owned(),
        "lib/firmware/vendor/packed.bin".to_owned(),
        format!("{modules}kernel/drivers/bus/mesh_bus.ko"),
        format!("{modules}kernel/drivers/net/mesh_nic.ko"),
        format!("{modules}kernel/lib/mesh_crc.ko"),
    ];
    assert_eq!(files, expected);
    let packed = fs::read_to_string(initrd.join("lib/firmware/vendor/packed.bin")).unwrap();
    assert_eq!(packed, "firmware of packed");
    // kmod finds the modules by the device, in the order in which they have to be loaded.
    let device = "pci:v00001D0Fd0000EC20sv00000000sd00000000bc02sc00i00";
    let loaded = run(Command::new("modprobe").arg("-d").arg(&initrd).args([
        "-S",
        RELEASE,
        "--show-depends",
        device,
    ]));
    let names: Vec<&str> = loaded.lines().filter_map(|line| line.rsplit('/').next()).collect();
    assert_eq!(names, ["mesh_crc.ko ", "mesh_bus.ko ", "mesh_nic.ko "]);
    let drivers = serde_json::to_string(&parts.nic_drivers).unwrap();
    assert!(drivers.contains("1d0f:ec20"), "{drivers}");
}
