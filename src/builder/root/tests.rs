//! Tests of sources: layers are merged as containers see them, and bad archives are refused.

use super::{
    archive::{
        read::{Archive, Reader, Used},
        write,
    },
    contents::ContentStore,
    error::RootFault,
    inspect::{Root, RootKernel},
    limits::Limits,
    machine_state, modules_initrd,
    oci::Layout,
    tree::{InodeKind, RootTree},
};
use crate::work_folder::BuildFolder;
use meshd_types::{Architecture, Digest, Hint as _};
use serde_json::json;
use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};
use tar::EntryType;

const SMALL: Limits = Limits { entries: 64, bytes: 1 << 20 };

/// An entry of an archive.
pub(super) struct Item<'a> {
    path: &'a str,
    kind: EntryType,
    mode: u32,
    content: &'a [u8],
    target: &'a str,
    attributes: &'a [(&'a str, &'a [u8])],
}

fn item<'a>(path: &'a str, kind: EntryType) -> Item<'a> {
    Item { path, kind, mode: 0o755, content: b"", target: "", attributes: &[] }
}

pub(super) fn file<'a>(path: &'a str, content: &'a [u8]) -> Item<'a> {
    Item { content, ..item(path, EntryType::Regular) }
}

fn folder(path: &str) -> Item<'_> {
    item(path, EntryType::Directory)
}

fn link<'a>(path: &'a str, target: &'a str) -> Item<'a> {
    Item { target, ..item(path, EntryType::Symlink) }
}

fn hard_link<'a>(path: &'a str, target: &'a str) -> Item<'a> {
    Item { target, ..item(path, EntryType::Link) }
}

/// Makes an archive as any program could: names are not checked.
pub(super) fn archive(items: &[Item<'_>]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for item in items {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(item.kind);
        header.set_mode(item.mode);
        header.set_uid(5);
        header.set_gid(6);
        header.set_mtime(7);
        header.set_size(item.content.len() as u64);
        let mut records: Vec<(&str, &[u8])> = item.attributes.to_vec();
        let set = |field: &mut [u8; 100], key, text: &'_ str| {
            let length = text.len().min(100);
            field[..length].copy_from_slice(&text.as_bytes()[..length]);
            (text.len() > 100).then_some(key)
        };
        if let Some(key) = set(&mut header.as_old_mut().name, "path", item.path) {
            records.push((key, item.path.as_bytes()));
        }
        if let Some(key) = set(&mut header.as_old_mut().linkname, "linkpath", item.target) {
            records.push((key, item.target.as_bytes()));
        }
        builder.append_pax_extensions(records).unwrap();
        header.set_cksum();
        builder.append(&header, item.content).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Reads layers, and returns the tree with the folder of its contents.
pub(super) struct MergedLayers {
    tree: RootTree,
    contents: ContentStore,
    used: Used,
    dir: tempfile::TempDir,
}

pub(super) fn merge(layers: &[&[u8]]) -> Result<MergedLayers, RootFault> {
    merge_archives(layers, None)
}

pub(super) fn merge_archives(
    layers: &[&[u8]],
    digest: Option<Digest>,
) -> Result<MergedLayers, RootFault> {
    merge_within(SMALL, layers, digest)
}

fn merge_within(
    limits: Limits,
    layers: &[&[u8]],
    digest: Option<Digest>,
) -> Result<MergedLayers, RootFault> {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("contents")).unwrap();
    let mut contents = ContentStore::new(dir.path().join("contents"));
    let mut tree = RootTree::new(limits);
    let mut reader =
        Reader { tree: &mut tree, contents: &mut contents, limits, used: Used::default() };
    for (number, bytes) in layers.iter().enumerate() {
        let path = dir.path().join(format!("{number}.tar"));
        fs::write(&path, bytes).unwrap();
        let name = format!("layer {number}");
        reader.add(&Archive { path, name, is_layer: true, digest })?;
    }
    let used = reader.used;
    Ok(MergedLayers { tree, contents, used, dir })
}

/// Returns `path content` for files and `path -> target` for links, and paths of folders.
pub(super) fn listing(merged: &MergedLayers) -> Vec<String> {
    let line = |(path, _, inode): (&[u8], usize, &super::tree::Inode)| {
        let path = String::from_utf8_lossy(path).into_owned();
        match &inode.kind {
            InodeKind::Folder => path,
            InodeKind::Link(target) => format!("{path} -> {}", String::from_utf8_lossy(target)),
            InodeKind::File { content, .. } => {
                let content = merged.contents.read(*content).unwrap();
                format!("{path} {}", String::from_utf8_lossy(&content))
            }
        }
    };
    merged.tree.paths().map(line).collect()
}

fn refusal(items: &[Item<'_>]) -> String {
    match merge(&[&archive(items)]) {
        Ok(merged) => panic!("it was read: {:?}", listing(&merged)),
        Err(fault) => fault.to_string(),
    }
}

#[test]
fn upper_layer_hides_replaces_and_links_files_of_lower_layers() {
    let lower = archive(&[
        folder("./"),
        folder("usr/"),
        folder("usr/lib/"),
        link("lib", "usr/lib"),
        file("usr/lib/a", b"old"),
        file("usr/lib/b", b"gone"),
        folder("usr/full/"),
        file("usr/full/x", b"hidden"),
        folder("usr/full/deep/"),
        file("usr/full/deep/y", b"hidden"),
        file("usr/full-not", b"stays"),
    ]);
    let upper = archive(&[
        file("lib/a", b"new"),
        file("usr/lib/.wh.b", b""),
        file("usr/full/new", b"kept"),
        file("usr/full/.wh..wh..opq", b""),
        hard_link("usr/c", "usr/lib/a"),
        file("usr/.wh..wh.plnk", b""),
        file("made/without/parents", b"p"),
    ]);
    let expected = [
        "",
        "lib -> usr/lib",
        "made",
        "made/without",
        "made/without/parents p",
        "usr",
        "usr/c new",
        "usr/full",
        "usr/full-not stays",
        "usr/full/new kept",
        "usr/lib",
        "usr/lib/a new",
    ];
    assert_eq!(listing(&merge(&[&lower, &upper]).unwrap()), expected);
}

#[test]
fn archive_that_leads_out_of_the_root_is_refused() {
    let cases: [(&[Item<'_>], &str); 7] = [
        (&[file("../x", b"")], "leads out of the root by `..`"),
        (&[file("a/../../x", b"")], "leads out of the root by `..`"),
        (&[link("out", "../../etc"), file("out/passwd", b"")], "by a symbolic link"),
        (&[link("a", "a"), file("a/x", b"")], "a loop of symbolic links"),
        (&[hard_link("x", "../../etc/passwd")], "leads out of the root by `..`"),
        (&[hard_link("x", "/etc/passwd")], "a hard link to a path that no earlier entry has"),
        (&[folder("d"), hard_link("x", "d")], "a hard link to a folder"),
    ];
    for (items, cause) in cases {
        let refused = refusal(items);
        assert!(refused.contains(cause) && refused.contains("layer 0"), "{cause}: {refused}");
    }
    // An absolute path and an absolute target begin at the root of the image.
    let inside = archive(&[link("out", "/etc"), file("/out/passwd", b"x")]);
    assert_eq!(listing(&merge(&[&inside]).unwrap()), ["", "etc", "etc/passwd x", "out -> /etc"]);
}

#[test]
fn whiteout_that_leads_out_of_the_root_is_refused() {
    for path in [".wh...", "a/../../.wh.x", ".wh..wh..opq/../../.wh.x"] {
        let refused = refusal(&[file(path, b"")]);
        assert!(refused.contains("root"), "{path}: {refused}");
    }
}

#[test]
fn device_node_is_left_out_and_hides_the_file_below_it() {
    let lower = archive(&[file("dev/null", b"file")]);
    let upper = archive(&[item("dev/null", EntryType::Char), item("p", EntryType::Fifo)]);
    let merged = merge(&[&lower, &upper]).unwrap();
    assert_eq!(
        (listing(&merged).as_slice(), merged.used.left_out),
        (&["", "dev"].map(String::from)[..], 2)
    );
}

#[test]
fn archive_beyond_a_limit_is_refused_before_it_is_stored() {
    let many: Vec<Item<'_>> = (0..65).map(|_| file("x", b"")).collect();
    assert!(refusal(&many).contains("more than 64 files"));
    let half = vec![1; 600 << 10];
    let large = [file("a", &half), file("b", &half)];
    assert!(refusal(&large).contains("expand to more than 1048576 bytes"));
    // A sparse file states any size in a few bytes.
    let mut header = tar::Header::new_gnu();
    header.set_path("sparse").unwrap();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.realsize[..].copy_from_slice(b"20000000000\0");
    gnu.sparse[0].offset[..].copy_from_slice(b"20000000000\0");
    gnu.sparse[0].numbytes[..].copy_from_slice(b"00000000000\0");
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.resize(512 * 3, 0);
    let refused = merge(&[&bytes]).map(|merged| listing(&merged)).unwrap_err().to_string();
    assert!(refused.contains("expand to more than"), "{refused}");
    let sparse = [Item { attributes: &[("GNU.sparse.major", b"1")], ..file("s", b"") }];
    assert!(refusal(&sparse).contains("sparse in an old format"));
}

#[test]
fn chains_of_long_links_and_deep_folders_are_refused_in_bounded_work() {
    let names: Vec<String> = (0..=40).map(|number| format!("l{number}")).collect();
    let way = "x/../".repeat(800);
    let targets: Vec<String> = names.iter().skip(1).map(|next| format!("{way}{next}")).collect();
    let links = names.iter().zip(&targets).map(|(name, target)| link(name, target));
    let below = file("l0/file", b"content");
    let folders = [folder("x"), folder("l40")];
    let items: Vec<Item<'_>> = folders.into_iter().chain(links).chain([below]).collect();
    let refused = refusal(&items);
    assert!(refused.contains("`l0/file`") && refused.contains("passes more names"), "{refused}");
    let refused = refusal(&[folder(&"d/".repeat(2000))]);
    assert!(refused.contains("below too many folders"), "{refused}");
}

#[test]
fn written_archive_keeps_modes_owners_links_attributes_and_long_names() {
    let long = format!("usr/{}/{}", "n".repeat(120), "m".repeat(200));
    let capability: &[u8] = b"\x01\0\0\x02\0\x20\0\0";
    let attributes: &[(&str, &[u8])] = &[
        ("SCHILY.xattr.security.capability", capability),
        ("SCHILY.xattr.user.note", b"n"),
        ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
    ];
    let bytes = archive(&[
        Item { mode: 0o1777, ..folder("tmp/") },
        Item { mode: 0o4755, ..file("usr/su", b"setuid") },
        Item { attributes, ..file("usr/ping", b"capable") },
        file(&long, b"long"),
        hard_link("usr/alias", &long),
        link("l", &"t".repeat(300)),
        file("boot/vmlinuz-1", b"kernel"),
    ]);
    let merged = merge(&[&bytes]).unwrap();
    let mut written = Vec::new();
    write::write(&merged.tree, &merged.contents, &mut written).unwrap();
    let mut reader = tar::Archive::new(&written[..]);
    let mut lines = Vec::new();
    for entry in reader.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let target = entry.link_name_bytes().map_or(0, |target| target.len());
        let header = entry.header();
        let mode = header.mode().unwrap();
        let owner = header.uid().unwrap();
        let mut content = String::new();
        entry.read_to_string(&mut content).unwrap();
        let records = entry.pax_extensions().unwrap().into_iter().flatten();
        let attributes = records.map(|record| record.unwrap().key().unwrap().to_owned());
        let attributes: Vec<String> = attributes.filter(|key| key.contains("xattr")).collect();
        lines.push(format!("{path} {mode:o} {owner} {target} {content} {}", attributes.join(",")));
    }
    let expected = [
        ". 755 0 0  ".to_owned(),
        "boot 755 0 0  ".to_owned(),
        "l 755 5 300  ".to_owned(),
        "tmp 1777 5 0  ".to_owned(),
        "usr 755 0 0  ".to_owned(),
        "usr/alias 755 5 0 long ".to_owned(),
        format!("usr/{} 755 0 0  ", "n".repeat(120)),
        format!("{long} 755 5 9  "),
        "usr/ping 755 5 0 capable SCHILY.xattr.security.capability,SCHILY.xattr.user.note"
            .to_owned(),
        "usr/su 4755 5 0 setuid ".to_owned(),
    ];
    assert_eq!(lines, expected);
}

/// A file that passes for a bzImage of this release.
fn bz_image(release: &str) -> Vec<u8> {
    let mut bytes = vec![0; 0x1000];
    bytes[0x1f1] = 1;
    bytes[0x202..0x206].copy_from_slice(b"HdrS");
    bytes[0x20e..0x210].copy_from_slice(&0x600u16.to_le_bytes());
    bytes[0x800..0x800 + release.len()].copy_from_slice(release.as_bytes());
    bytes
}

fn elf(machine: u16) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes[18..20].copy_from_slice(&machine.to_le_bytes());
    bytes
}

/// Returns the fault of a root, or its kernel's release.
fn inspect(items: &[Item<'_>], arch: Architecture) -> Result<String, String> {
    let merged = merge(&[&archive(items)]).unwrap();
    let root = Root { tree: &merged.tree, contents: &merged.contents, arch };
    let kernel = root.kernel().map_err(|error| error.message())?;
    root.check_init().map_err(|error| error.message())?;
    assert!(kernel.file.starts_with(merged.dir.path()));
    Ok(kernel.release)
}

#[test]
fn root_that_no_node_can_boot_is_refused_with_its_cause() {
    let kernel = bz_image("6.1.0-1-amd64");
    let other = bz_image("6.1.0-2-amd64");
    let init = elf(62);
    let foreign = elf(183);
    let good = || {
        vec![
            folder("usr/lib/systemd"),
            link("lib", "usr/lib"),
            link("sbin/init", "/lib/systemd/systemd"),
            file("usr/lib/systemd/systemd", &init),
            file("usr/lib/modules/6.1.0-1-amd64/modules.dep", b""),
            file("boot/vmlinuz-6.1.0-1-amd64", &kernel),
            link("vmlinuz", "boot/vmlinuz-6.1.0-1-amd64"),
        ]
    };
    let x86 = Architecture::X86_64;
    assert_eq!(inspect(&good(), x86), Ok("6.1.0-1-amd64".to_owned()));
    let missing =
        [(5, "has no kernel"), (4, "no modules for its kernel"), (3, "no program /sbin/init")];
    for (index, cause) in missing {
        let mut items = good();
        items.remove(index);
        let refused = inspect(&items, x86).unwrap_err();
        assert!(refused.contains(cause), "{cause}: {refused}");
    }
    let mut items = good();
    items[3].mode = 0o644;
    assert!(inspect(&items, x86).unwrap_err().contains("no program /sbin/init"));
    items[3].mode = 0o755;
    items[3].content = b"text";
    assert!(inspect(&items, x86).unwrap_err().contains("no program /sbin/init"));
    let built_for = inspect(&good(), Architecture::Aarch64).unwrap_err();
    assert!(built_for.contains("is built for x86_64 instead of aarch64"), "{built_for}");
    let mut items = good();
    items[3].content = &foreign;
    assert!(inspect(&items, x86).unwrap_err().contains("/sbin/init is built for aarch64"));
    let mut items = good();
    items.push(file("boot/vmlinuz-6.1.0-2-amd64", &other));
    let several = inspect(&items, x86).unwrap_err();
    assert!(
        several.contains("2 kernels: vmlinuz-6.1.0-1-amd64, vmlinuz-6.1.0-2-amd64"),
        "{several}"
    );
    let mut items = good();
    items[5].content = &other;
    assert!(inspect(&items, x86).unwrap_err().contains("its release is 6.1.0-2-amd64"));
    let mut items = good();
    items[5].content = b"text";
    assert!(inspect(&items, x86).unwrap_err().contains("is no kernel"));
}

#[test]
fn modules_list_that_leads_out_of_its_folder_is_refused() {
    let modules = ["af_packet", "dm_verity", "loop", "overlay", "squashfs"];
    let paths = modules.map(|name| format!("lib/modules/6.1/{name}.ko"));
    let mut list: String = modules.map(|name| format!("{name}.ko:\n")).concat();
    list +=
        "kernel/a.ko: ../../../../outside/evil\nloop.ko: kernel/a.ko ../../../../outside/evil\n";
    let mut items: Vec<Item<'_>> = paths.iter().map(|path| file(path, b"module")).collect();
    items.push(file("lib/modules/6.1/kernel/a.ko", b"module"));
    items.push(file("lib/modules/6.1/modules.dep", list.as_bytes()));
    items.push(file("outside/evil", b"evil"));
    let merged = merge(&[&archive(&items)]).unwrap();
    let work = BuildFolder::begin(merged.dir.path(), "work").unwrap();
    let root = Root { tree: &merged.tree, contents: &merged.contents, arch: Architecture::X86_64 };
    let kernel = RootKernel { release: "6.1".to_owned(), file: PathBuf::new() };
    let made = modules_initrd::make(&root, &kernel, &[], 0, &work);
    assert!(!work.path("outside/evil").exists(), "it was written outside of its folder");
    let error = made.unwrap_err().to_string();
    assert!(error.contains("`../../../../outside/evil`"), "{error}");
}

/// Writes a layout with one image of one layer. Returns the path of the layer.
pub(super) fn write_layout(folder: &Path, architecture: &str, layer: &[u8]) -> PathBuf {
    let blobs = folder.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let put = |bytes: &[u8]| {
        let digest = Digest::of(bytes);
        fs::write(blobs.join(digest.to_string()), bytes).unwrap();
        json!({ "digest": format!("sha256:{digest}"), "size": bytes.len() })
    };
    let id = format!("sha256:{}", Digest::of(layer));
    let run = json!({ "User": "web", "Entrypoint": ["/a"], "Cmd": null, "Env": ["A=b=c"] });
    let rootfs = json!({ "diff_ids": [id] });
    let config = json!({ "architecture": architecture, "rootfs": rootfs, "config": run });
    let config = put(config.to_string().as_bytes());
    let manifest = json!({ "config": config, "layers": [put(layer)] });
    let mut manifest = put(manifest.to_string().as_bytes());
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": "v1" });
    let index = json!({ "manifests": [manifest] });
    fs::write(folder.join("index.json"), index.to_string()).unwrap();
    blobs.join(Digest::of(layer).to_string())
}

#[test]
fn oci_image_with_a_lying_or_truncated_blob_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let layer = archive(&[file("a", b"content")]);
    let path = write_layout(dir.path(), "amd64", &layer);
    let image = |arch, tag| {
        let layout = Layout { folder: dir.path(), name: "lab".to_owned(), arch };
        layout.image(tag).map(|image| image.layers.len()).map_err(|fault| fault.to_string())
    };
    let x86 = Architecture::X86_64;
    assert_eq!((image(x86, None), image(x86, Some("v1"))), (Ok(1), Ok(1)));
    let layout = Layout { folder: dir.path(), name: "lab".to_owned(), arch: x86 };
    let config = layout.image(None).unwrap().config;
    assert_eq!((config.user.as_deref(), config.cmd), (Some("web"), None));
    assert_eq!(config.env, Some(vec!["A=b=c".to_owned()]));
    let unknown = image(x86, Some("v2")).unwrap_err();
    assert_eq!(unknown, "lab has no image `v2`; it has v1");
    let foreign = image(Architecture::Aarch64, None).unwrap_err();
    assert_eq!(foreign, "lab is built for amd64 instead of aarch64");
    fs::write(&path, &layer[..512]).unwrap();
    let truncated = image(x86, None).unwrap_err();
    assert!(
        truncated.contains(&format!("has 512 bytes instead of {}", layer.len())),
        "{truncated}"
    );
    let mut lying = layer.clone();
    lying[0] ^= 1;
    fs::write(&path, &lying).unwrap();
    let lying = image(x86, None).unwrap_err();
    assert!(lying.contains(&format!("instead of {}", Digest::of(&layer))), "{lying}");
    fs::remove_file(&path).unwrap();
    assert!(image(x86, None).unwrap_err().contains("cannot read blob"));
    fs::write(dir.path().join("index.json"), "{").unwrap();
    assert!(image(x86, None).unwrap_err().contains("lab is no OCI image: index.json"));
}

#[test]
fn key_of_munged_is_removed() {
    let items = [folder("etc"), folder("etc/munge"), file("etc/munge/munge.key", b"secret")];
    let mut merged = merge(&[&archive(&items)]).unwrap();
    machine_state::remove(&mut merged.tree, &mut merged.contents).unwrap();
    assert_eq!(listing(&merged), ["", "etc", "etc/munge"]);
}
