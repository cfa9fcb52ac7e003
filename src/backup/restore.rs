//! Restores a backup into a new folder, whole or not at all.

use super::{BackupError, Manifest, failed, read};
use meshd_image::overlay::Unpacked;
use meshd_model::{
    fleet::{Actor, Event, EventKind},
    operations::{NodeOperationState, NodeOutcome},
    rollouts::RolloutState,
};
use meshd_store::{Store, StoreError, Tx};
use meshd_types::{NodeId, OperationId, SafePath, Secret, Timestamp, failpoint};
use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, OpenOptions, Permissions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};
use toml_edit::{DocumentMut, Item, Table, TableLike, value};

/// Folder of members until all are verified.
const STAGING: &str = ".restoring";
/// The admin socket of a restored site, beside its site file.
const SOCKET: &str = "admin.sock";
/// The site file as it was backed up.
const ORIGINAL: &str = "site.toml.original";

/// Maximum number of orders that one transaction cancels.
const BATCH: usize = 256;
/// A restore leaves this part of the file system free,
const SPARE: u64 = 20;
/// but no more bytes than these: a twentieth of a large disk is more than other services need.
const MAX_SPARE: u64 = 1 << 30;

/// Result of a restore.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The site file to start meshd with.
    pub site_file: PathBuf,
    /// Manifest of the backup.
    pub manifest: Manifest,
    /// Number of nodes in the store.
    pub nodes: usize,
}

/// Restores a backup into an absent or empty folder; `now` is the time of the event. All tokens
/// become void, because it is unknown whether one was used or revoked after the backup.
///
/// # Errors
/// The folder is not empty; the backup is damaged, of another format or key; the disk is full. The
/// folder stays empty.
pub async fn restore(
    path: &Path,
    key: &Secret<String>,
    into: &Path,
    now: Timestamp,
) -> Result<Restored, BackupError> {
    make_empty(into)?;
    let staging = into.join(STAGING);
    let restored = async {
        let manifest =
            unpack_whole(path, key, &staging, usable_space(into).map_err(failed("read", into))?)?;
        rewrite_site(&staging)?;
        let nodes = open_store(&staging, &manifest, now).await?;
        move_out(&staging, into)?;
        Ok(Restored { site_file: into.join("site.toml"), manifest, nodes })
    };
    let restored = restored.await;
    if restored.is_err() {
        // The first error is reported.
        let _ = fs::remove_dir_all(&staging);
    }
    restored
}

fn make_empty(into: &Path) -> Result<(), BackupError> {
    make_folder(into).map_err(failed("make the folder", into))?;
    let mut entries = fs::read_dir(into).map_err(failed("read", into))?;
    match entries.next() {
        Some(_) => Err(BackupError::NotEmpty { path: into.to_owned() }),
        None => Ok(()),
    }
}

/// Returns the bytes that a restore may write, so that a hostile backup does not fill the disk of
/// other services.
fn usable_space(folder: &Path) -> io::Result<u64> {
    let space = rustix::fs::statvfs(folder)?;
    let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
    Ok(without_spare(bytes(space.f_blocks), bytes(space.f_bavail)))
}

/// Returns what a restore may write to a file system of `size` bytes, `available` of them free.
pub(super) fn without_spare(size: u64, available: u64) -> u64 {
    available.saturating_sub((size / SPARE).min(MAX_SPARE))
}

/// Unpacks and verifies a backup of at most `space` bytes.
pub(super) fn unpack_whole(
    path: &Path,
    key: &Secret<String>,
    staging: &Path,
    space: u64,
) -> Result<Manifest, BackupError> {
    make_folder(staging).map_err(failed("make the folder", staging))?;
    let mut links = BTreeMap::new();
    let mut modes = BTreeMap::new();
    let mut left = Some(space);
    let manifest = read(path, key, |member, mode, unpacked| {
        let path = staging.join(member.relative());
        make_parents(staging, member)?;
        match unpacked {
            Unpacked::Folder => {
                make_folder(&path)?;
                modes.insert(path, mode);
            }
            // Links are created last, so that no file is written through one.
            Unpacked::Link(target) => drop(links.insert(path, target)),
            Unpacked::File(content) => {
                let most = left.unwrap_or_default();
                let mut file =
                    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
                left = most
                    .checked_sub(io::copy(&mut content.take(most.saturating_add(1)), &mut file)?);
                if left.is_none() {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                file.set_permissions(permissions(mode))?;
                file.sync_all()?;
            }
        }
        Ok(())
    });
    if left.is_none() {
        let path = staging.parent().unwrap_or(staging).to_owned();
        return Err(BackupError::NoSpace { path, space });
    }
    let manifest = manifest?;
    for (path, target) in links {
        symlink(target, &path).map_err(failed("write", &path))?;
    }
    for (path, mode) in modes {
        fs::set_permissions(&path, permissions(mode)).map_err(failed("write", &path))?;
    }
    Ok(manifest)
}

/// Returns the permissions of a restored file. It belongs to the user who restores it: set-user-ID,
/// and writing by others, would only serve other users.
fn permissions(mode: u32) -> Permissions {
    Permissions::from_mode(mode & if failpoint::defends("restored-modes") { 0o755 } else { 0o7777 })
}

fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn make_parents(staging: &Path, member: &SafePath) -> io::Result<()> {
    member.parents().last().map_or(Ok(()), |parent| make_folder(&staging.join(parent)))
}

/// Rewrites the site file: its paths refer to the restored files beside it.
fn rewrite_site(staging: &Path) -> Result<(), BackupError> {
    let file = staging.join("site.toml");
    let original = staging.join(ORIGINAL);
    let text = fs::read_to_string(&file).map_err(failed("read", &file))?;
    let mut site: DocumentMut =
        text.parse().map_err(|error| BackupError::Site(format!("{error}")))?;
    for key in ["state", "blobs", "images", "overlays"] {
        table(site.as_table_mut(), "site")?.insert(&format!("{key}_dir"), value(key));
    }
    // The old socket may belong to a running meshd, which would receive orders for the restored
    // site.
    table(site.as_table_mut(), "admin")?.insert("socket", value(SOCKET));
    if site.contains_key("secrets") {
        let secrets = table(site.as_table_mut(), "secrets")?;
        let names: Vec<String> = secrets.iter().map(|(name, _)| name.to_owned()).collect();
        for name in names {
            table(secrets, &name)?.insert("file", value(format!("secrets/{name}")));
        }
    }
    fs::rename(&file, &original).map_err(failed("write", &original))?;
    let written = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&file).and_then(
        |mut out| {
            out.write_all(site.to_string().as_bytes())?;
            out.sync_all()
        },
    );
    written.map_err(failed("write", &file))
}

/// Returns a table of the site file; makes it if it is absent.
fn table<'a>(
    parent: &'a mut dyn TableLike,
    key: &str,
) -> Result<&'a mut dyn TableLike, BackupError> {
    let item = parent.entry(key).or_insert(Item::Table(Table::new()));
    item.as_table_like_mut().ok_or_else(|| BackupError::Site(format!("{key} is not a table")))
}

/// Opens the store, which verifies it, and records the restore.
async fn open_store(
    staging: &Path,
    manifest: &Manifest,
    now: Timestamp,
) -> Result<usize, BackupError> {
    let store = Store::open_restored(&staging.join("state"))?;
    let tokens: Vec<_> = store.read(|model| model.tokens().map(|token| token.hash).collect());
    let api_tokens: Vec<_> =
        store.read(|model| model.api_tokens().map(|token| token.hash).collect());
    let nodes = store.read(|model| model.nodes().count());
    let vms: Vec<_> = store.read(|model| model.vms().cloned().collect());
    let containers: Vec<_> = store.read(|model| model.containers().cloned().collect());
    cancel_orders(&store, now).await?;
    let committed = store.commit(|tx| {
        tokens.iter().for_each(|hash| tx.remove_token(*hash));
        api_tokens.iter().for_each(|hash| tx.remove_api_token(*hash));
        for mut vm in vms {
            vm.mark_unconfirmed();
            tx.put_vm(vm);
        }
        for mut container in containers {
            container.mark_unconfirmed();
            tx.put_container(container);
        }
        pause_rollouts(tx);
        let detail = format!("from the backup of {}, nodes: {nodes}", manifest.created_at);
        tx.event(Event::new(now, Actor::Operator, EventKind::Restored, detail));
        Ok::<_, StoreError>(())
    });
    committed.await?;
    store.close().await?;
    Ok(nodes)
}

/// Cancels the orders that had not started when the backup was made, and those to BMCs: a reboot, a
/// removal or a power cut of that day is unexpected now.
async fn cancel_orders(store: &Store, now: Timestamp) -> Result<(), BackupError> {
    let open: Vec<(OperationId, NodeId)> = store.read(|model| {
        let open = model.nodes_with_open_operations().flat_map(|id| model.open_operations_of(id));
        // A running order to a BMC makes further attempts.
        let acts = open.filter(|(_, record)| {
            record.state == NodeOperationState::Pending || record.power.is_some()
        });
        acts.map(|(head, record)| (head.id, record.node)).collect()
    });
    for batch in open.chunks(BATCH) {
        let cancelled = store.commit(|tx| {
            for (operation, node) in batch {
                let outcome =
                    NodeOutcome::Cancelled("the site was restored from a backup".to_owned());
                tx.edit_node_operation(*operation, *node, |record| record.finish(outcome, now));
            }
            Ok::<_, StoreError>(())
        });
        cancelled.await?;
    }
    Ok(())
}

/// Pauses the rollouts that were not finished when the backup was made. Nothing of them goes on:
/// their nodes may run something else by now, and an operator decides.
fn pause_rollouts(tx: &mut Tx<'_>) {
    let before = tx.before();
    for mut head in before.open_rollouts().filter_map(|id| before.rollout(id)).cloned() {
        head.state = RolloutState::Paused;
        head.frozen = true;
        head.set_reason("the site was restored from a backup");
        tx.put_rollout(head);
    }
}

/// The site file is moved last: a folder without it is not used as a site.
fn move_out(staging: &Path, into: &Path) -> Result<(), BackupError> {
    let entries = fs::read_dir(staging).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let mut names: Vec<_> =
        entries.map_err(failed("read", staging))?.iter().map(fs::DirEntry::file_name).collect();
    names.sort_by_key(|name| name == "site.toml");
    for (count, name) in names.iter().enumerate() {
        let path = into.join(name);
        if let Err(error) = fs::rename(staging.join(name), &path) {
            // A retry needs an empty folder. The first error is reported.
            names.iter().take(count).for_each(|moved| {
                let _ = fs::rename(into.join(moved), staging.join(moved));
            });
            return Err(failed("write", &path)(error));
        }
    }
    fs::remove_dir(staging).map_err(failed("remove", staging))?;
    fs::File::open(into).and_then(|folder| folder.sync_all()).map_err(failed("write", into))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_move_leaves_nothing_of_the_backup_in_the_folder() {
        let dir = tempfile::tempdir().expect("a folder");
        let staging = dir.path().join(STAGING);
        fs::create_dir_all(staging.join("state")).expect("a folder");
        for file in ["secrets.key", "site.toml"] {
            fs::write(staging.join(file), "restored").expect("written");
        }
        // The last name cannot be moved.
        fs::create_dir(dir.path().join("site.toml")).expect("a folder");
        move_out(&staging, dir.path()).expect_err("a folder has the name");
        fs::remove_dir(dir.path().join("site.toml")).expect("removed");
        assert_eq!(fs::read_dir(dir.path()).expect("there").count(), 1, "the staging folder");
        assert_eq!(fs::read_dir(&staging).expect("there").count(), 3);
    }
}
