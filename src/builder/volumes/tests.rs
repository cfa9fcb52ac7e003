//! Tests of volumes: what is added, refused and removed.

use super::*;
use meshd_types::Architecture;
use std::collections::BTreeMap;

fn qcow2(backing: u8) -> Vec<u8> {
    let mut image = qcow2::sample_header(200);
    image.resize(0x3_0008, 0);
    image[15] = backing;
    image
}

#[test]
fn truncated_encrypted_or_empty_image_of_qemu_is_refused() {
    use std::{io::Seek as _, process::Command};
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name);
    let run = |args: &[&str]| {
        let made = Command::new("qemu-img")
            .args(args)
            .current_dir(dir.path())
            .output()
            .expect("qemu-img runs");
        let errors = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "{args:?}: {}: {errors}", made.status);
    };
    let volumes = Volumes::new(&path("blobs"));
    let add = |name: &str| {
        volumes.add(&path(name), name.parse().expect("a name"), Timestamp::EPOCH, |_| {})
    };
    let mut raw = File::create(path("raw")).expect("made");
    raw.write_all(&vec![7; 3 << 20]).expect("written");
    raw.seek(io::SeekFrom::Start((64 << 20) - 512)).expect("sought");
    raw.write_all(&[7; 512]).expect("written");
    run(&["convert", "-f", "raw", "-O", "qcow2", "raw", "whole"]);
    run(&["convert", "-f", "raw", "-O", "qcow2", "-c", "raw", "compressed"]);
    run(&["convert", "-f", "raw", "-O", "qcow2", "-o", "compat=0.10", "raw", "old"]);
    run(&[
        "convert",
        "-f",
        "raw",
        "-O",
        "qcow2",
        "-o",
        "extended_l2=on,cluster_size=128k",
        "raw",
        "extended",
    ]);
    run(&["create", "-q", "-f", "qcow2", "empty", "8M"]);
    for name in ["whole", "compressed", "old", "extended", "empty"] {
        assert!(add(name).is_ok(), "{name}: {:?}", add(name));
    }
    for name in ["whole", "compressed", "old", "extended", "empty"] {
        let bytes = fs::read(path(name)).expect("read");
        for length in [100, bytes.len() / 2, bytes.len() * 3 / 4]
            .into_iter()
            .filter(|length| *length < bytes.len())
        {
            fs::write(path("cut"), &bytes[..length]).expect("written");
            let why = add("cut").expect_err("truncated").to_string();
            assert!(
                why.contains("truncated") || why.contains("short"),
                "{name} of {length}: {why}"
            );
        }
    }
    run(&[
        "create",
        "-q",
        "-f",
        "qcow2",
        "--object",
        "secret,id=s,data=abc",
        "-o",
        "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10",
        "luks",
        "8M",
    ]);
    assert!(add("luks").expect_err("encrypted").to_string().contains("encrypted"));
}

#[test]
fn qcow2_with_repeated_unaligned_or_too_many_tables_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("disk");
    let volumes = Volumes::new(&dir.path().join("blobs"));
    // Clusters of 2 MiB: an L2 table has 256 Ki entries and covers 512 GiB.
    let bits = 21_u32;
    let cluster = 2_u64 << 20;
    let entries = 1_u64 << 10;
    let mut header = qcow2::sample_header(entries << 39);
    header[20..24].copy_from_slice(&bits.to_be_bytes());
    header[36..40].copy_from_slice(&u32::try_from(entries).expect("few").to_be_bytes());
    header[40..48].copy_from_slice(&cluster.to_be_bytes());
    header[48..56].copy_from_slice(&(2 * cluster).to_be_bytes());
    let add = |tables: &dyn Fn(u64) -> u64| {
        let mut image = header.clone();
        image.resize(usize::try_from(cluster).expect("small"), 0);
        image.extend((0..entries).flat_map(|entry| tables(entry).to_be_bytes()));
        fs::write(&file, &image).expect("written");
        File::options()
            .write(true)
            .open(&file)
            .and_then(|file| file.set_len(4 * cluster))
            .expect("grown");
        let name = "disk".parse().expect("a name");
        volumes.add(&file, name, Timestamp::EPOCH, |_| {}).map_err(|error| error.to_string())
    };
    assert!(add(&|entry| if entry == 7 { 3 * cluster } else { 0 }).is_ok());
    let why = add(&|_| 3 * cluster).expect_err("one table for all entries");
    assert!(why.contains("twice"), "{why}");
    let why = add(&|entry| if entry == 7 { 3 * cluster + 512 } else { 0 }).expect_err("unaligned");
    assert!(why.contains("aligned"), "{why}");
    let why = add(&|entry| (3 + entry) * cluster).expect_err("beyond the end");
    assert!(why.contains("truncated"), "{why}");
    File::options()
        .write(true)
        .open(&file)
        .and_then(|file| file.set_len((3 + entries) * cluster))
        .expect("grown");
    let why = volumes.add(&file, "holes".parse().expect("a name"), Timestamp::EPOCH, |_| {});
    assert!(why.expect_err("2 GiB of tables, all holes").to_string().contains("more than 1 GiB"));
}

#[test]
fn volume_is_added_whole_and_refused_file_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let volumes = Volumes::new(&dir.path().join("blobs"));
    assert_eq!(volumes.list().expect("none yet"), []);
    let file = dir.path().join("disk.img");
    let add = |bytes: &[u8], name: &str| {
        fs::write(&file, bytes).expect("written");
        volumes.add(&file, name.parse().expect("a name"), Timestamp::EPOCH, |_| {})
    };
    let one = add(&qcow2(0), "one").expect("an image");
    assert_eq!((one.kind, one.size, one.virtual_size), (VolumeKind::Qcow2, 0x3_0008, 200));
    assert_eq!(fs::read(volumes.path(&one.digest)).expect("there"), qcow2(0));
    let mut iso = vec![0; 40_000];
    iso[ISO_MARK.0..ISO_MARK.0 + 5].copy_from_slice(ISO_MARK.1);
    assert!(matches!(add(&iso, "one"), Err(VolumeError::Taken { .. })));
    let two = add(&iso, "two").expect("an image");
    assert_eq!((two.kind, two.digest), (VolumeKind::Iso, Digest::of(&iso)));
    for (bytes, why) in
        [(qcow2(9), "backing file"), (vec![0; 50_000], "neither"), (Vec::new(), "neither")]
    {
        assert!(add(&bytes, "three").expect_err("no image").to_string().contains(why));
    }
    assert_eq!(volumes.list().expect("read"), [one.clone(), two.clone()]);
    // An incomplete file, as a crash leaves it.
    fs::write(volumes.dir.join(".new-1"), "half").expect("written");
    fs::write(volumes.path(&Digest::of(b"x")), "x").expect("written");
    let again = add(&iso, "again").expect("the same file by another name");
    assert_eq!(volumes.find("again").expect("there").digest, two.digest);
    let found = volumes.find(&one.digest.to_string()).expect("there");
    // Two sites of the same name.
    let [ours, theirs] = [1, 2].map(|site| {
        ListOwner::read_or_create(&dir.path().join(format!("state-{site}")), "rack-a", [site; 8])
            .expect("made")
    });
    volumes.declare(&theirs, &[one.digest].into()).expect("declared");
    volumes.declare(&ours, &BTreeSet::new()).expect("declared");
    let refused =
        volumes.remove(&ours, &found).expect_err("a VM of another site uses it").to_string();
    assert!(refused.contains("another site") && refused.contains("rack-a"), "{refused}");
    volumes.declare(&theirs, &BTreeSet::new()).expect("declared");
    volumes.remove(&ours, &found).expect("removed");
    assert_eq!(volumes.list().expect("read"), [again]);
    // The three files are the volume, its description and the lock.
    assert_eq!(fs::read_dir(&volumes.dir).expect("a folder").count(), 3);
}

#[test]
fn image_with_the_files_of_another_image_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let volumes = Volumes::new(&dir.path().join("blobs"));
    let file = dir.path().join("squashfs");
    fs::write(&file, "layers").expect("written");
    let image = |manifest: u8, cmd: &str| ContainerImage {
        manifest: Digest([manifest; 32]),
        arch: Architecture::X86_64,
        entrypoint: Vec::new(),
        cmd: vec![cmd.to_owned()],
        env: BTreeMap::new(),
        working_dir: "/".to_owned(),
        uid: 0,
        gid: 0,
    };
    let add = |name: &str, image| {
        volumes.add_container_image(&file, name.parse().expect("a name"), image, Timestamp::EPOCH)
    };
    let web = add("web", image(1, "server")).expect("added");
    for (name, cmd) in [("web", "other"), ("api", "other"), ("api", "server")] {
        let refused = add(name, image(2, cmd)).expect_err("the same files");
        assert!(matches!(refused, VolumeError::SameFiles { .. }), "{name} {cmd}: {refused}");
    }
    assert_eq!(volumes.list().expect("read"), std::slice::from_ref(&web));
    let again = add("web", image(2, "server")).expect("a manifest alone changes nothing");
    assert_eq!(again.digest, web.digest);
    fs::write(&file, squashfs(&dir.path().join("tree"))).expect("written");
    let name = |text: &str| text.parse().expect("a name");
    let data = volumes.add(&file, name("data"), Timestamp::EPOCH, |_| {}).expect("added");
    assert_eq!((data.kind, data.container), (VolumeKind::Squashfs, None));
    let site = add("site", image(3, "server")).expect("files become an image");
    let refused = volumes.add(&file, name("site"), Timestamp::EPOCH, |_| {});
    let refused = refused.expect_err("its configuration would be lost").to_string();
    assert!(refused.contains("image `site`"), "{refused}");
    assert_eq!(volumes.find("site").expect("there"), site);
}

/// Makes a squashfs of an empty folder.
fn squashfs(folder: &Path) -> Vec<u8> {
    let image = folder.with_extension("squashfs");
    fs::create_dir_all(folder).expect("made");
    let made = std::process::Command::new("mksquashfs")
        .args([folder, &image])
        .args(["-quiet", "-noappend", "-no-progress"])
        .output()
        .expect("mksquashfs, from `.ci/setup`");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs::read(image).expect("read")
}
