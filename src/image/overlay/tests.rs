//! Tests of rendering: determinism, the secret part, and faults with positions.

use super::{sample::Sample, *};
use crate::catalog::read_overlays;
use meshd_model::image_kind::{AlpineParts, Blob, ImageKind};
use meshd_proto::{
    mesh_init::{MESH_INIT_CONFIG_FILE, MESH_INIT_PROGRAM, MeshInitConfig},
    stage1::{
        RootMode, RootSource, STAGE1_CONFIG_FILE, STAGE1_OVERLAY_FILE, STAGE1_PROGRAM,
        STAGE1_VERSION, VeritySpec,
    },
    vm::ByteSize,
};
use meshd_types::{Architecture, BootSessionId, MacAddr, Secret, Timestamp};
use std::{
    fs,
    io::{Read as _, Write as _},
    path::Path,
    process::{Command, Stdio},
};

pub(super) const TOKEN: &str = "token-that-nobody-may-see";

/// Creates a sample with overlays of the repository, in this order.
pub(super) fn shipped(names: &[&str]) -> Sample {
    from(&Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("overlays"), names)
}

pub(super) fn from(overlays_dir: &Path, names: &[&str]) -> Sample {
    let overlays = read_overlays(overlays_dir).unwrap_or_else(|faults| panic!("{faults}"));
    Sample::new(overlays, names.iter().map(|name| name.parse().expect("a plain name")).collect())
}

fn alpine() -> ImageKind {
    let blob = Blob { digest: Digest::of(b"part"), size: 4 };
    let [kernel, initramfs, modloop, packages] = [blob; 4];
    ImageKind::Alpine(AlpineParts { kernel, initramfs, modloop, packages })
}

/// Returns the file at a path.
pub(super) fn file<'p>(public: &'p PublicOverlay, path: &str) -> &'p RenderedFile {
    let found = public.files.iter().find(|file| file.path.to_string() == path);
    found.unwrap_or_else(|| {
        panic!(
            "no {path} among {:?}",
            public.files.iter().map(|file| &file.path).collect::<Vec<_>>()
        )
    })
}

/// Returns the text of the file at a path.
pub(super) fn text(public: &PublicOverlay, path: &str) -> String {
    match &file(public, path).kind {
        Kind::File(bytes) | Kind::Secret(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => format!("{other:?}"),
    }
}

pub(super) fn boot_part() -> BootPart {
    BootPart {
        version: meshd_proto::VERSION,
        node: "0123abcd".parse().expect("an ID"),
        session: BootSessionId([7; 12]),
        generation: Digest::of(b"generation").to_string(),
        issued_at: Timestamp::from_millis(1_800_000_000_000),
        roots_pem: None,
        http_port: 8080,
        token: Some(Secret::new(TOKEN.to_owned())),
    }
}

/// Creates a folder of overlays from pairs of path and content.
pub(super) fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a temporary folder");
    for (path, content) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("has one")).expect("made");
        fs::write(path, content).expect("written");
    }
    root
}

fn run(command: &mut Command, input: &[u8]) -> String {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the tool is installed");
    child.stdin.take().expect("piped").write_all(input).expect("read by the tool");
    let output = child.wait_with_output().expect("ends");
    assert!(output.status.success(), "{command:?}");
    String::from_utf8(output.stdout).expect("text")
}

pub(super) fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    flate2::read::MultiGzDecoder::new(bytes).read_to_end(&mut out).expect("gzip");
    out
}

#[test]
fn rendering_of_same_input_is_byte_identical() {
    let one = shipped(&["base", "agent", "motd"]);
    let other = shipped(&["base", "agent", "motd"]);
    let one = one.render().expect("renders");
    let other = other.render().expect("renders");
    assert_eq!(one.to_targz(), other.to_targz());
    let twice = shipped(&["base", "agent", "motd"]);
    let first = twice.render().expect("renders");
    let second = twice.render().expect("renders");
    assert_eq!(first.to_targz(), second.to_targz(), "the cached members are equal to new ones");
    assert_eq!(first.to_targz(), one.to_targz());
    assert_eq!(one.digest, other.digest);
    assert_eq!(deliver(&one, &boot_part(), &[]), deliver(&other, &boot_part(), &[]));
    assert_eq!(
        one.to_targz()[4..10],
        [0, 0, 0, 0, 0, 255],
        "no time and no system in the gzip header"
    );
}

#[test]
fn delivered_overlay_is_read_whole_by_tar() {
    let public = shipped(&["base", "agent"]).render().expect("renders");
    let listing = run(
        Command::new("tar").args(["-tzvf", "-"]),
        &deliver_targz(&public, &boot_part(), &[]).concat(),
    );
    let line = |path: &str| {
        let found = listing.lines().find(|line| line.split(' ').any(|word| word == path));
        found.unwrap_or_else(|| panic!("{path} is not in\n{listing}")).to_owned()
    };
    assert!(line("usr/bin/mesh-agent").starts_with("-rwxr-xr-x 0/0"), "{listing}");
    assert!(line("sbin/mesh-init").starts_with("-rwxr-xr-x 0/0"), "{listing}");
    assert!(line("root/.ssh/").starts_with("drwx------ 0/0"), "{listing}");
    assert!(
        line("etc/runlevels/default/mesh-agent").ends_with("-> /etc/init.d/mesh-agent"),
        "{listing}"
    );
    assert!(line("etc/meshd/boot.json").starts_with("-rw------- 0/0"), "{listing}");
    assert!(!listing.contains("authorized_keys"), "no keys, no file: {listing}");
}

#[test]
fn initrd_contains_the_whole_overlay_and_is_padded() {
    let public = shipped(&["base", "agent"]).render().expect("renders");
    let initrd = deliver(&public, &boot_part(), &[]).concat();
    assert_eq!(initrd.len() % 4, 0);
    let mut cpio = Vec::new();
    flate2::read::GzDecoder::new(&initrd[..])
        .read_to_end(&mut cpio)
        .expect("one gzip stream, then padding");
    let root = tempfile::tempdir().expect("a temporary folder");
    run(Command::new("cpio").args(["-i", "--quiet"]).current_dir(root.path()), &cpio);
    let unpacked =
        fs::read(root.path().join("apkovl.tar.gz")).expect("the file that apkovl= names");
    assert_eq!(unpacked, deliver_targz(&public, &boot_part(), &[]).concat());
}

#[test]
fn initrd_of_a_root_image_has_stage1_its_configuration_and_the_overlay() {
    let public = shipped(&["base", "agent"]).render().expect("renders");
    // Neither size is a multiple of the alignment.
    let bytes = Bytes::from(vec![7; 70_001]);
    let program = Stage1Program { digest: Digest::of(&bytes), bytes };
    let [root_hash, digest] = [1, 2].map(|byte| Digest([byte; 32]));
    let verity = VeritySpec {
        root_hash,
        salt: "00".to_owned(),
        hash_offset: 4096,
        block_size: 4096,
        data_blocks: 1,
    };
    let urls = vec!["http://192.0.2.1/root".to_owned()];
    let config = Stage1Config {
        version: STAGE1_VERSION,
        node: boot_part().node,
        mac: MacAddr([2, 0, 0, 0, 0, 1]),
        session: boot_part().session,
        root: RootSource { urls, digest, size: 8192, verity },
        mode: RootMode::Ram,
        upper_bytes: 1,
        failed_url: "http://192.0.2.1/boot/failed".to_owned(),
        time: 1,
    };
    let initrd = deliver_with_stage1(&public, &boot_part(), &[], &program, &config).concat();
    assert_eq!(initrd.len() % 4, 0);
    let mut cpio = Vec::new();
    flate2::read::GzDecoder::new(&initrd[..])
        .read_to_end(&mut cpio)
        .expect("one gzip stream, then padding");
    let listing = run(Command::new("cpio").args(["-tv", "--quiet"]), &cpio);
    let modes: Vec<&str> = listing.lines().map(|line| &line[..10]).collect();
    assert_eq!(modes, ["drwxr-xr-x", "-rwxr-xr-x", "-rw-------", "-rw-------"], "{listing}");
    let root = tempfile::tempdir().expect("a temporary folder");
    run(Command::new("cpio").args(["-i", "--quiet"]).current_dir(root.path()), &cpio);
    let read = |path: &str| fs::read(root.path().join(path.trim_start_matches('/')));
    assert_eq!(read(STAGE1_PROGRAM).expect("the first program"), program.bytes);
    let written = read(STAGE1_CONFIG_FILE).expect("its configuration");
    assert_eq!(serde_json::from_slice::<Stage1Config>(&written).expect("valid"), config);
    assert_eq!(
        read(STAGE1_OVERLAY_FILE).expect("the overlay"),
        deliver_targz(&public, &boot_part(), &[]).concat()
    );
}

#[test]
fn token_is_only_in_the_boot_file_of_the_last_member() {
    let public = shipped(&["base", "agent", "motd"]).render().expect("renders");
    let holds = |bytes: &[u8]| String::from_utf8_lossy(&gunzip(bytes)).contains(TOKEN);
    assert!(!holds(&public.to_targz()));
    assert!(holds(&deliver_targz(&public, &boot_part(), &[]).concat()));
    assert!(!format!("{:?}", boot_part()).contains(TOKEN));
    let unapproved = BootPart { token: None, ..boot_part() };
    assert!(!String::from_utf8_lossy(&gunzip(&boot_member(&unapproved, &[]))).contains("token"));
}

#[test]
fn manifest_of_files_has_valid_digests_and_omits_edited_files() {
    let public = shipped(&["base", "agent", "motd"]).render().expect("renders");
    let root = tempfile::tempdir().expect("a temporary folder");
    run(Command::new("tar").args(["-xzf", "-", "-C"]).arg(root.path()), &public.to_targz());
    let manifest =
        fs::read_to_string(root.path().join("etc/meshd/manifest.sha256")).expect("is there");
    for line in manifest.lines() {
        let (digest, path) = line.split_once("  /").expect("the format of sha256sum");
        assert_eq!(
            digest,
            Digest::of(&fs::read(root.path().join(path)).expect("is there")).to_string(),
            "{path}"
        );
    }
    for path in ["/sbin/mesh-init", "/usr/bin/mesh-agent", "/etc/meshd/packages"] {
        assert!(manifest.contains(&format!("  {path}\n")), "{path}");
    }
    for path in ["/etc/inittab", "/etc/apk/world", "/etc/meshd/boot.json"] {
        assert!(!manifest.contains(path), "{path} is edited on the node");
    }
}

#[test]
fn rendered_agent_config_and_ssh_keys_are_those_of_the_site() {
    let mut sample = shipped(&["base", "agent"]);
    sample.site.ssh_keys = vec!["ssh-ed25519 AAAA admin".into(), "ssh-ed25519 BBBB other".into()];
    let public = sample.render().expect("renders");
    let Kind::File(config) = &file(&public, meshd_proto::AGENT_CONFIG_FILE).kind else {
        panic!("a file")
    };
    let config: meshd_proto::AgentConfig =
        serde_json::from_slice(config).expect("the wire's own type");
    assert_eq!((config.heartbeat_s, config.port), (30, 8443));
    assert!(config.services.contains(&"mesh-agent".to_owned()));
    let keys = file(&public, "/root/.ssh/authorized_keys");
    assert_eq!(keys.kind, Kind::File("ssh-ed25519 AAAA admin\nssh-ed25519 BBBB other\n".into()));
    assert_eq!(keys.mode, 0o600);
}

#[test]
fn generation_changes_with_kernel_arguments_and_overlay() {
    let sample = shipped(&["base", "agent"]);
    let overlay = sample.render().expect("renders").digest;
    let contents = |sample: &Sample, args: &[&str], writable| BootContents {
        profile: sample.profile.name.clone(),
        image: sample.image.name.clone(),
        architecture: Architecture::X86_64,
        kind: alpine(),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        writable,
        root_mode: RootMode::Ram,
    };
    let generation_of = |sample: &Sample, overlay, args: &[&str]| {
        generation(&sample.image, overlay, &contents(sample, args, None))
    };
    let first = generation_of(&sample, overlay, &["quiet"]);
    assert_eq!(first, generation_of(&sample, overlay, &["quiet"]));
    let larger = contents(&sample, &["quiet"], Some(ByteSize::from_mib(1024)));
    assert_ne!(first, generation(&sample.image, overlay, &larger), "a larger writable layer");
    let tethered =
        BootContents { root_mode: RootMode::Tethered, ..contents(&sample, &["quiet"], None) };
    assert_ne!(first, generation(&sample.image, overlay, &tethered), "another root mode");
    assert_ne!(first, generation_of(&sample, overlay, &[]));
    let renamed = Sample {
        node: NodeContext { name: Some("gpu-1".into()), ..sample.node.clone() },
        ..sample
    };
    assert_ne!(
        first,
        generation_of(&renamed, renamed.render().expect("renders").digest, &["quiet"])
    );
}

#[test]
fn archive_read_back_equals_the_rendering() {
    let public = shipped(&["base", "agent"]).render().expect("renders");
    let read = read_targz(&public.to_targz()).expect("an archive");
    let seen = |file: &RenderedFile| (file.path.clone(), file.mode, file.owner, file.digest);
    assert_eq!(
        read.iter().map(seen).collect::<Vec<_>>(),
        public.files.iter().map(seen).collect::<Vec<_>>()
    );
}

#[test]
fn bundle_layer_digest_is_listed_in_overlay_and_changes_its_digest() {
    let layer = |content: &[u8]| {
        let blob = Blob { digest: Digest::of(content), size: 4096 };
        vec![("mpi".parse().expect("plain"), blob)]
    };
    let with = |bundles| {
        let mut sample = shipped(&["base", "agent"]);
        sample.image.bundles = bundles;
        sample.render().expect("renders")
    };
    let config = |public: &PublicOverlay| -> MeshInitConfig {
        serde_json::from_str(&text(public, MESH_INIT_CONFIG_FILE)).expect("its own type")
    };
    let none = with(Vec::new());
    let old = with(layer(b"old"));
    let new = with(layer(b"new"));
    assert_eq!(config(&none).bundles, []);
    assert_eq!(config(&none).modloop.digest, Digest::of(b"modloop"));
    let [bundle] = &config(&old).bundles[..] else { panic!("one bundle") };
    assert_eq!((bundle.name.as_str(), bundle.layer.digest), ("mpi", Digest::of(b"old")));
    assert_eq!(bundle.layer.size, 4096);
    assert!(none.digest != old.digest && old.digest != new.digest);
}

/// A stage 1 with this content.
fn stage1(content: &'static [u8]) -> Stage1Program {
    Stage1Program { digest: Digest::of(content), bytes: Bytes::from_static(content) }
}

#[test]
fn mesh_init_is_stage1_and_a_restored_overlay_has_that_of_its_generation() {
    let programs =
        |content| NodePrograms::new(Bytes::from_static(b"agent"), Some(&stage1(content)));
    let sample = Sample { programs: programs(b"former"), ..shipped(&["base", "agent"]) };
    let former = sample.render().expect("renders");
    let mesh_init = |public: &PublicOverlay| {
        let files = read_targz(&public.to_targz()).expect("an archive");
        let file = files.into_iter().find(|file| file.path.to_string() == MESH_INIT_PROGRAM);
        let file = file.expect("the first program");
        (file.mode, file.owner, file.content().cloned())
    };
    let expected = (0o755, (0, 0), Some(Bytes::from_static(b"former")));
    assert_eq!(mesh_init(&former), expected);
    for now in [b"former".as_slice(), b"later"] {
        let restored = PublicOverlay::restore(&former.listing(), &programs(now), None, |digest| {
            let mut archived = former.contents().chain(sample.programs.contents());
            let found = archived.find(|(known, _)| known == digest);
            found.map(|(_, bytes)| Bytes::copy_from_slice(bytes)).ok_or(())
        });
        let restored = restored.expect("archived");
        assert_eq!(mesh_init(&restored), expected);
        assert_eq!(restored.digest, former.digest);
    }
    let systemd = shipped(&["base", "agent"]).on(System::Systemd).render().expect("renders");
    assert!(systemd.files.iter().all(|file| file.kind != Kind::MeshInit));
}

#[test]
fn folder_above_a_file_keeps_the_mode_of_its_package() {
    let root = folder(&[
        ("t/overlay.toml", "description = \"x\"\n"),
        ("t/rootfs/tmp/x", "x"),
        ("t/rootfs/var/tmp/a/x", "x"),
        ("t/rootfs/root/x", "x"),
        ("t/rootfs/etc/x", "x"),
    ]);
    let public = from(root.path(), &["t"]).render().expect("renders");
    // GNU tar stands for that of busybox: both set the mode of a folder that they made before.
    let out = tempfile::tempdir().expect("a folder");
    run(
        Command::new("tar").args(["-xzpf", "-"]).current_dir(out.path()),
        &deliver_targz(&public, &boot_part(), &[]).concat(),
    );
    use std::os::unix::fs::PermissionsExt as _;
    let mode = |path: &str| {
        fs::metadata(out.path().join(path)).expect("unpacked").permissions().mode() & 0o7777
    };
    assert_eq!(
        ["tmp", "var/tmp", "root", "etc", "var/tmp/a"].map(mode),
        [0o1777, 0o1777, 0o700, 0o755, 0o755]
    );
}
