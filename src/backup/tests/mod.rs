//! Tests of backups: round trips, and refusal of damaged files.

mod hostile;
mod power;
mod rollouts;
mod strays;

use super::*;
use meshd_config::Site;
use meshd_model::{
    fleet::{AuditContext, Fingerprint, Lease, Node, Principal, Verb},
    operations::{NodeOperation, NodeOperationState, NodeOrder, Operation, OperationStage},
    work::{ApprovedSlot, SlotId},
};
use meshd_store::{EventFilter, Store, StoreError};
use meshd_trust::{ApiToken, Role, TokenRecord};
use meshd_types::{Basis, BootSessionId, CorrelationId, MacAddr, OperationId};
use std::{
    fs::{self, File},
    os::unix::fs::{PermissionsExt as _, symlink},
};

fn key(text: &str) -> Secret<String> {
    Secret::new(format!("{text} and some more characters"))
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A site with everything that a backup takes, and things that it leaves.
fn site(dir: &Path) -> Site {
    let text = include_str!("../../../site.toml")
        .replace("\"/var/lib/meshd\"", "\"var\"")
        .replace("#[secrets]", "[secrets]")
        .replace(
            "#munge_key = { file = \"/etc/meshd/secrets/munge.key\" }",
            "munge_key = { file = \"munge\" }",
        );
    write(&dir.join("site.toml"), &text, 0o644);
    write(&dir.join("munge"), "a secret of an overlay", 0o600);
    write(&dir.join("var/ca/0a/root.key"), "the authority's key", 0o600);
    write(&dir.join("var/ca/ca.pem"), "the authority", 0o644);
    write(&dir.join("var/ca/0a/issuer.key"), "the issuer's key", 0o600);
    write(&dir.join("var/ca/ca.new"), "half", 0o600);
    write(&dir.join("var/blobs/sha256/00"), "a blob", 0o644);
    write(&dir.join("var/blobs/cache/apk/a.apk"), "a download", 0o644);
    write(&dir.join("var/blobs/work/1/half"), "a build that is under way", 0o644);
    write(&dir.join("var/blobs/images/small/1.json"), "a manifest", 0o644);
    symlink("small/1.json", dir.join("var/blobs/images/small.json")).unwrap();
    write(&dir.join("overlays/base/rootfs/etc/run"), "x", 0o755);
    write(&dir.join("images/small/image.toml"), "a recipe", 0o644);
    meshd_config::load(&dir.join("site.toml")).unwrap_or_else(|faults| panic!("{faults}"))
}

async fn store(dir: &Path) -> Store {
    // The authority is there before the store.
    fs::write(dir.join("var/confirm-new-store"), "").unwrap();
    let store = Store::open(&dir.join("var")).unwrap();
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    let at = Timestamp::from_millis(5);
    let node = Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, at);
    let token = TokenRecord::new(Digest([1; 32]), node.id, BootSessionId([1; 12]), at);
    let by = AuditContext::new(Principal::Operator(0), Verb::Remove, CorrelationId([0; 8]));
    let head = Operation {
        id: OperationId([7; 4]),
        order: NodeOrder::Remove,
        by,
        accepted_at: at,
        targets: 1,
        stage: OperationStage::Accepted,
    };
    let order = NodeOperation::pending(head.id, node.id, String::new());
    let (_, api_token) = ApiToken::mint([1; 32], "ci".parse().unwrap(), Role::Admin, at, None);
    let put = store.commit(|tx| {
        tx.put_node(node);
        tx.put_operation(head);
        tx.put_node_operation(order);
        tx.put_token(token);
        tx.put_api_token(api_token);
        Ok::<_, StoreError>(())
    });
    put.await.unwrap();
    store
}

struct Made {
    dir: tempfile::TempDir,
    manifest: Manifest,
}

impl Made {
    fn file(&self) -> PathBuf {
        self.dir.path().join("backup")
    }

    fn write_digest(&self) {
        fs::write(digest_file(&self.file()), digest_line(&self.file(), &self.file()).unwrap())
            .unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

async fn made(blobs: bool) -> Made {
    made_with(blobs, |_| {}).await
}

/// A backup of a site with more files.
async fn made_with(blobs: bool, add: impl FnOnce(&Path)) -> Made {
    let dir = tempfile::tempdir().unwrap();
    let site = site(dir.path());
    add(dir.path());
    let store = store(dir.path()).await;
    let created_at = Timestamp::from_millis(9);
    let authority = AuthorityFiles::read(&site.state_dir.join(AUTHORITY)).unwrap();
    let source = BackupSource {
        site: &site,
        store: store.snapshot().unwrap().files,
        authority,
        created_at,
        blobs,
    };
    let out = File::create(dir.path().join("backup")).unwrap();
    let manifest = create(source, &key("right"), out).unwrap();
    let made = Made { dir, manifest };
    made.write_digest();
    made
}

#[tokio::test]
async fn restored_backup_has_file_modes_and_valid_site_file() {
    let made = made(false).await;
    assert_eq!(verify(&made.file(), Some(&key("right"))).unwrap().as_ref(), Some(&made.manifest));
    let into = made.path("new/rack");
    let restored =
        restore(&made.file(), &key("right"), &into, Timestamp::from_millis(11)).await.unwrap();
    assert_eq!(restored.nodes, 1);
    let mode = |name: &str| fs::metadata(into.join(name)).unwrap().permissions().mode() & 0o777;
    let text = |name: &str| fs::read_to_string(into.join(name)).unwrap();
    assert_eq!(
        (text("state/ca/0a/root.key").as_str(), mode("state/ca/0a/root.key")),
        ("the authority's key", 0o600)
    );
    assert_eq!(
        (text("state/ca/0a/issuer.key").as_str(), mode("state/ca/0a")),
        ("the issuer's key", 0o700)
    );
    assert_eq!(
        (text("secrets/munge_key").as_str(), mode("secrets/munge_key")),
        ("a secret of an overlay", 0o600)
    );
    assert_eq!(
        (text("overlays/base/rootfs/etc/run").as_str(), mode("overlays/base/rootfs/etc/run")),
        ("x", 0o755)
    );
    assert_eq!(text("blobs/images/small.json"), "a manifest", "through its link");
    assert!(!into.join("blobs/sha256/00").exists() && !into.join("state/ca/ca.new").exists());
    assert!(!into.join("state/blobs").exists(), "blobs are backed up once");
    assert_eq!(
        text("site.toml.original"),
        fs::read_to_string(made.dir.path().join("site.toml")).unwrap()
    );

    let site = meshd_config::load(&restored.site_file).unwrap();
    assert_eq!(
        site.admin.socket,
        into.join("admin.sock"),
        "not that of the old central node, which may still run"
    );
    assert_eq!(site.state_dir, into.join("state"));
    assert_eq!(
        site.secrets.values().map(|secret| &secret.file).collect::<Vec<_>>(),
        [&into.join("secrets/munge_key")]
    );
    let store = Store::open(&site.state_dir).unwrap();
    let left = store
        .read(|model| (model.nodes().count(), model.tokens().count(), model.api_tokens().count()));
    assert_eq!(left, (1, 0, 0), "tokens are void");
    let operation = OperationId([7; 4]);
    let orders: Vec<_> =
        store.read(|model| model.node_operations(operation).map(|record| record.state).collect());
    assert_eq!(
        orders,
        [NodeOperationState::Cancelled],
        "an order of the day of the backup is not executed"
    );
    let events = store.events(EventFilter { limit: 9, ..EventFilter::default() }).unwrap();
    assert_eq!(events.last().map(|(_, event)| event.kind.word()), Some("restored"));
}

#[tokio::test]
async fn restored_backup_has_the_same_nodes_leases_and_slots() {
    let dir = tempfile::tempdir().unwrap();
    let site = site(dir.path());
    let store = store(dir.path()).await;
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    let at = Timestamp::from_millis(5);
    let id: SlotId = format!("{}/0000:41:00.0", Basis::Mac(mac).node_id()).parse().unwrap();
    let put = store.commit(|tx| {
        tx.put_lease(Lease { mac, address: [10, 77, 0, 100].into(), expires_at: at, vm: None });
        tx.put_slot(ApprovedSlot {
            id,
            functions: [("0000:41:00.0".to_owned(), "10de:2335".to_owned())].into(),
            disk: None,
            fabric: Some("mlx5_0".to_owned()),
            nic: None,
            disabled: Some("a fan is loud".to_owned()),
            approved_at: at,
        });
        Ok::<_, StoreError>(())
    });
    put.await.unwrap();
    let records = |store: &Store| {
        store.read(|model| {
            let nodes: Vec<_> = model.nodes().cloned().collect();
            let leases: Vec<_> = model.leases().cloned().collect();
            (nodes, leases, model.slots().clone())
        })
    };
    let before = records(&store);
    assert_eq!((before.0.len(), before.1.len(), before.2.len()), (1, 1, 1));
    let restored = restored_store(&dir, &site, &store).await;
    assert_eq!(records(&restored), before);
}

/// The store of a site that is backed up and restored.
async fn restored_store(dir: &tempfile::TempDir, site: &Site, store: &Store) -> Store {
    let at = Timestamp::from_millis(9);
    let authority = AuthorityFiles::read(&site.state_dir.join(AUTHORITY)).unwrap();
    let source = BackupSource {
        site,
        store: store.snapshot().unwrap().files,
        authority,
        created_at: at,
        blobs: false,
    };
    let file = dir.path().join("backup");
    create(source, &key("right"), File::create(&file).unwrap()).unwrap();
    fs::write(digest_file(&file), digest_line(&file, &file).unwrap()).unwrap();
    let restored = restore(&file, &key("right"), &dir.path().join("new"), at).await.unwrap();
    let site = meshd_config::load(&restored.site_file).unwrap();
    Store::open(&site.state_dir).unwrap()
}

#[tokio::test]
async fn backup_excludes_caches_and_unfinished_builds() {
    for blobs in [false, true] {
        let names = made(blobs).await.manifest.members.into_keys();
        let disposable: Vec<_> =
            names.filter(|name| name.contains("/cache/") || name.contains("/work/")).collect();
        assert!(disposable.is_empty(), "blobs: {blobs}: {disposable:?}");
    }
}

#[tokio::test]
async fn backup_with_blobs_restores_blobs() {
    let made = made(true).await;
    let into = made.path("new");
    restore(&made.file(), &key("right"), &into, Timestamp::EPOCH).await.unwrap();
    assert_eq!(fs::read_to_string(into.join("blobs/sha256/00")).unwrap(), "a blob");
}

#[tokio::test]
async fn backup_reveals_nothing_without_the_key() {
    let made = made(true).await;
    let bytes = fs::read(made.file()).unwrap();
    // What is encrypted is packed, so that words in it prove nothing: no piece of the packed bytes
    // may be there either.
    let encrypted: std::collections::BTreeSet<&[u8]> = bytes.windows(8).collect();
    let mut plain = Vec::new();
    encryption::decrypt(&bytes[..], &made.file(), &key("right"))
        .unwrap()
        .read_to_end(&mut plain)
        .unwrap();
    assert!(plain.len() > 500, "{} bytes", plain.len());
    let found = plain
        .chunks_exact(8)
        .filter(|piece| piece.iter().any(|byte| *byte != 0) && encrypted.contains(piece))
        .count();
    assert_eq!(found, 0, "of {} pieces", plain.len() / 8);
    for text in ["authority", "secret", "munge", "manifest", "base"] {
        assert!(!bytes.windows(text.len()).any(|window| window == text.as_bytes()), "{text}");
    }
    assert!(verify(&made.file(), None).unwrap().is_none());
    assert!(matches!(verify(&made.file(), Some(&key("wrong"))), Err(BackupError::Key { .. })));
    let source = BackupSource {
        site: &meshd_config::load(&made.dir.path().join("site.toml")).unwrap(),
        store: Vec::new(),
        authority: AuthorityFiles::default(),
        created_at: Timestamp::EPOCH,
        blobs: false,
    };
    let short = create(source, &Secret::new("hunter2".to_owned()), Vec::new());
    assert!(matches!(short, Err(BackupError::ShortKey { length: 7 })));
}

#[tokio::test]
async fn restore_into_nonempty_folder_is_refused() {
    let made = made(false).await;
    let into = made.path("other");
    write(&into.join("state/ca/0a/root.key"), "of another site", 0o600);
    let refused = restore(&made.file(), &key("right"), &into, Timestamp::EPOCH).await.unwrap_err();
    assert!(matches!(refused, BackupError::NotEmpty { .. }), "{refused}");
    assert_eq!(fs::read_to_string(into.join("state/ca/0a/root.key")).unwrap(), "of another site");
    assert_eq!(fs::read_dir(&into).unwrap().count(), 1);
}

#[tokio::test]
async fn damaged_or_newer_backup_is_refused_and_nothing_is_written() {
    let made = made(false).await;
    let bytes = fs::read(made.file()).unwrap();
    let into = made.path("new");
    let refused = async |bytes: &[u8]| {
        fs::write(made.file(), bytes).unwrap();
        let refused =
            restore(&made.file(), &key("right"), &into, Timestamp::EPOCH).await.unwrap_err();
        assert_eq!(fs::read_dir(&into).unwrap().count(), 0, "{refused}");
        assert!(verify(&made.file(), None).is_err());
        refused
    };
    // In the first chunk, the middle and the end; a key that fits nothing looks the same as a
    // header that does.
    let payload = bytes.windows(5).position(|line| line == b"\n--- ").unwrap() + 64;
    for at in [payload, bytes.len() / 2, bytes.len() - 38, bytes.len() - 1] {
        let mut altered = bytes.clone();
        altered[at] ^= 1;
        let error = refused(&altered).await;
        assert!(matches!(error, BackupError::Damaged { .. }), "at {at}: {error}");
    }
    for at in 30..payload {
        let mut altered = bytes.clone();
        altered[at] ^= 1;
        let error = refused(&altered).await;
        assert!(
            matches!(error, BackupError::Damaged { .. } | BackupError::Key { .. }),
            "at {at}: {error}"
        );
    }
    for length in [bytes.len() - 1, bytes.len() - 36, bytes.len() / 2, payload, 100] {
        let error = refused(&bytes[..length]).await;
        assert!(matches!(error, BackupError::Damaged { .. }), "{length}: {error}");
    }
    assert!(matches!(refused(&[&bytes[..], b"x"].concat()).await, BackupError::Damaged { .. }));
    let error = refused(&[b"age-encryption.org/v2\n", &bytes[22..]].concat()).await;
    assert!(matches!(&error, BackupError::Format { found, .. } if found == "age v2"), "{error}");
    assert!(matches!(refused(b"PK\x03\x04 something else").await, BackupError::NoBackup { .. }));
}

#[tokio::test]
async fn altered_backup_with_matching_digest_is_detected_with_the_key() {
    let made = made(false).await;
    assert!(matches!(verify(&made.path("none"), None), Err(BackupError::File { .. })));
    let mut bytes = fs::read(made.file()).unwrap();
    let last = bytes.len() - 100;
    bytes[last] ^= 1;
    fs::write(made.file(), &bytes).unwrap();
    assert!(matches!(verify(&made.file(), None), Err(BackupError::Damaged { .. })));
    made.write_digest();
    assert!(verify(&made.file(), None).is_ok(), "anybody can make the outer digest");
    assert!(verify(&made.file(), Some(&key("right"))).is_err());
    fs::remove_file(digest_file(&made.file())).unwrap();
    assert!(matches!(verify(&made.file(), None), Err(BackupError::NoDigest { .. })));
}

#[tokio::test]
async fn restored_file_has_no_permissions_for_other_users() {
    let made = made_with(false, |dir| {
        write(&dir.join("overlays/base/rootfs/root-shell"), "x", 0o6777);
        write(&dir.join("overlays/base/rootfs/open/file"), "x", 0o666);
        fs::set_permissions(
            dir.join("overlays/base/rootfs/open"),
            fs::Permissions::from_mode(0o7777),
        )
        .unwrap();
    })
    .await;
    let into = made.path("new");
    restore(&made.file(), &key("right"), &into, Timestamp::EPOCH).await.unwrap();
    let mode = |name: &str| {
        fs::metadata(into.join("overlays/base/rootfs").join(name)).unwrap().permissions().mode()
    };
    let modes = ["root-shell", "open", "open/file"].map(|name| mode(name) & 0o7777);
    assert_eq!(modes, [0o755, 0o755, 0o644]);
}

#[test]
fn restore_leaves_a_bounded_part_of_the_disk_free() {
    const GIB: u64 = 1 << 30;
    assert_eq!(restore::without_spare(10 * GIB, 4 * GIB), 4 * GIB - GIB / 2);
    assert_eq!(restore::without_spare(10 * GIB, GIB / 4), 0, "a small disk that is almost full");
    // Five percent of this disk are more than what is free, and nobody needs as much.
    assert_eq!(restore::without_spare(10_000 * GIB, 300 * GIB), 299 * GIB);
}

#[tokio::test]
async fn backup_that_would_fill_the_disk_is_refused() {
    let made = made(false).await;
    let size = made.manifest.size();
    let unpacked = |space, name: &str| {
        restore::unpack_whole(&made.file(), &key("right"), &made.path(name), space)
    };
    assert!(unpacked(size, "whole").is_ok());
    assert!(
        matches!(unpacked(size - 1, "part"), Err(BackupError::NoSpace { space, .. }) if space == size - 1)
    );
}

#[tokio::test]
async fn overlay_that_is_a_link_is_backed_up_and_strange_files_are_left_out() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};
    let elsewhere = tempfile::tempdir().unwrap();
    write(&elsewhere.path().join("linked/overlay.toml"), "description = \"x\"", 0o644);
    write(&elsewhere.path().join("linked/rootfs/etc/x"), "a file", 0o644);
    symlink("x", elsewhere.path().join("linked/rootfs/etc/link")).unwrap();
    let made = made_with(false, |dir| {
        symlink(elsewhere.path().join("linked"), dir.join("overlays/linked")).unwrap();
        symlink("..", dir.join("overlays/base/loop")).unwrap();
        symlink("absent", dir.join("overlays/dangling")).unwrap();
        fs::write(dir.join("images").join(OsStr::from_bytes(b"bad\xff")), "x").unwrap();
        let pipe = std::process::Command::new("mkfifo")
            .arg(dir.join("overlays/base/pipe"))
            .status()
            .unwrap();
        assert!(pipe.success());
    })
    .await;
    drop(elsewhere);
    assert_eq!(made.manifest.left_out.len(), 2, "{:?}", made.manifest.left_out);
    for (text, why) in [("images/bad\\u{fffd}", "UTF-8"), ("overlays/base/pipe", "pipe")] {
        let is = |file: &String| file.contains(why) && (file.contains(text) || why == "UTF-8");
        assert!(made.manifest.left_out.iter().any(is), "{text}: {:?}", made.manifest.left_out);
    }
    let into = made.path("new");
    let restored = restore(&made.file(), &key("right"), &into, Timestamp::EPOCH).await.unwrap();
    assert_eq!(restored.manifest.left_out, made.manifest.left_out);
    assert_eq!(fs::read_to_string(into.join("overlays/linked/rootfs/etc/x")).unwrap(), "a file");
    assert_eq!(
        fs::read_link(into.join("overlays/linked/rootfs/etc/link")).unwrap(),
        Path::new("x")
    );
    assert_eq!(fs::read_link(into.join("overlays/base/loop")).unwrap(), Path::new(".."));
    assert_eq!(fs::read_link(into.join("overlays/dangling")).unwrap(), Path::new("absent"));
}

#[tokio::test]
async fn overlays_that_link_to_each_other_are_backed_up_once() {
    let made = made_with(false, |dir| {
        write(&dir.join("overlays/motd/overlay.toml"), "description = \"x\"", 0o644);
        for link in ["one", "two"] {
            symlink("../motd", dir.join("overlays/base").join(link)).unwrap();
            symlink("../base", dir.join("overlays/motd").join(link)).unwrap();
        }
    })
    .await;
    assert_eq!(made.manifest.left_out, [""; 0]);
    let into = made.path("new");
    restore(&made.file(), &key("right"), &into, Timestamp::EPOCH).await.unwrap();
    let text = fs::read_to_string(into.join("overlays/base/one/overlay.toml")).unwrap();
    assert_eq!(text, "description = \"x\"", "a link that leads to no open folder is followed");
    assert_eq!(
        fs::read_link(into.join("overlays/base/two/two")).unwrap(),
        Path::new("../base"),
        "a cycle stays a link"
    );
}
