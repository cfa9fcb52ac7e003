//! Archives the revisions of profiles. After a rollback all nodes of a profile boot an earlier
//! revision until an operator ends it.

use crate::{
    environment::alarms::log_failure,
    environment::site_snapshot::{RolledBackProfile, RolledBackProfiles, SiteSnapshot},
    generations::{Generations, archive::load_image, render::RenderError},
    vms::{RunningWorkError, check_no_open_slots, check_no_running_work},
};
use meshd_config::{Faults, Profile, Site};
use meshd_image::catalog::{bundle::load_layer, read_overlays};
use meshd_model::{
    boot::effective_profile,
    fleet::{
        AuditContext, Event, EventKind, Generation, Node, Revision, RevisionDiff, RevisionSummary,
        Revisions,
    },
};
use meshd_store::{ArchiveError, Model, StoreError};
use meshd_types::{BundleName, Digest, OverlayName, ProfileName, failpoint};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

type StoredProfile = Revision<Profile>;

/// Settings of a revision by key, and digests of its overlay files by path.
type RevisionInputs = (BTreeMap<String, String>, BTreeMap<String, Digest>);

/// The digest of an archived revision. It covers the stored text, because a later release may
/// serialize a profile differently.
fn digest(text: &[u8]) -> Generation {
    Generation(Digest::of_fields([b"meshd-revision/1".as_slice(), text]))
}

fn text(archived: &StoredProfile) -> Vec<u8> {
    serde_json::to_vec(archived).expect("a revision is plain data")
}

/// Refuses another revision of a profile while one of its nodes has work or open slots that it
/// would host differently (PR-4).
fn check_no_affected_work(
    model: &Model,
    site: &Site,
    next: &Profile,
    audit: &AuditContext,
) -> Result<(), RunningWorkError> {
    if !failpoint::defends("rollback-guard") {
        return Ok(());
    }
    let changes = |node: &&Node| {
        let now = effective_profile(site, node);
        now.name == next.name && now.changed_vm_resource(next).is_some()
    };
    model.all_nodes().filter(changes).try_for_each(|node| {
        check_no_running_work(model, node.id, audit)?;
        check_no_open_slots(model, node.id, audit)
    })
}

/// Why a profile cannot be rolled back. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum RollbackError {
    #[error("profile {0} has no earlier generation on record")]
    NoneBefore(ProfileName),
    #[error("profile {0} has no generation `{1}` on record, or several")]
    NoGeneration(ProfileName, String),
    #[error("profile {0} is not rolled back")]
    NotRolledBack(ProfileName),
    #[error("profile {profile} cannot be rolled back to {generation}: {why}")]
    Gone { profile: ProfileName, generation: String, why: String },
    /// A node has work that the other revision would host differently.
    #[error(transparent)]
    RunningWork(#[from] RunningWorkError),
    #[error(transparent)]
    Render(#[from] RenderError),
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

meshd_types::hints!(RollbackError {
    RollbackError::NoneBefore(value) => "`meshd profile history {value}` lists all";
    RollbackError::NoGeneration(first, _) => "`meshd profile history {first}` lists them";
    RollbackError::NotRolledBack(value) => "`meshd profile history {value}` lists its generations";
    RollbackError::Gone { profile, .. } => "`meshd profile history {profile}` lists others";
    @source RollbackError::RunningWork(source) => source;
    @source RollbackError::Render(source) => source;
    @source RollbackError::Store(source) => source;
});

/// Why two revisions cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    #[error("profile {0} has no generation `{1}` on record, or several")]
    NoGeneration(ProfileName, String),
    #[error("generation {generation} of profile {profile} cannot be read: {why}")]
    Gone { profile: ProfileName, generation: String, why: String },
}

meshd_types::hints!(CompareError {
    CompareError::NoGeneration(first, _) => "`meshd profile history {first}` lists them";
});

/// Finds a revision by a prefix of its digest; `None` if none or several match.
pub(super) fn find(revisions: &Revisions, prefix: &str) -> Option<Generation> {
    let mut found =
        revisions.all.iter().filter(|one| one.generation.to_string().starts_with(prefix));
    match (found.next(), found.next()) {
        (Some(one), None) if !prefix.is_empty() => Some(one.generation),
        _ => None,
    }
}

/// Settings by their keys; those of a table have dotted keys, as in `site.toml`.
fn flatten(key: &str, value: &serde_json::Value, settings: &mut BTreeMap<String, String>) {
    use serde_json::Value;
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let text = match value {
        Value::Null => return,
        Value::Object(table) => {
            for (name, value) in table {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                flatten(&key, value, settings);
            }
            return;
        }
        Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(" "),
        value => plain(value),
    };
    settings.insert(key.to_owned(), text);
}

/// All that a revision sets.
fn settings(archived: &StoredProfile) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    flatten(
        "",
        &serde_json::to_value(&archived.profile).expect("a profile is plain data"),
        &mut settings,
    );
    settings.insert("image version".to_owned(), archived.version.short());
    settings.extend(
        archived.bundles.iter().map(|(name, layer)| (format!("bundle {name}"), layer.short())),
    );
    settings
}

impl SiteSnapshot {
    /// A profile of the site file with the versions of its overlays and image; `None` while one of
    /// them is missing.
    fn revision(&self, profile: &Profile) -> Option<StoredProfile> {
        let overlay = |name: &OverlayName| {
            Some((name.clone(), self.catalog.overlays().named.get(name)?.digest))
        };
        let overlays = profile.overlays.iter().map(overlay).collect::<Option<_>>()?;
        let version = self.catalog.image(&profile.image)?.manifest.version();
        let layer = |name: &BundleName| {
            Some((name.clone(), self.catalog.bundle(name)?.manifest.layer.digest))
        };
        let bundles = profile.bundles.iter().map(layer).collect::<Option<_>>()?;
        Some(Revision { profile: profile.clone(), overlays, version, bundles })
    }
}

impl Generations {
    /// Archives the present revision of each profile with all its inputs.
    pub async fn archive_revisions(self: &Arc<Self>) {
        let snapshot = self.env.snapshot();
        let this = self.clone();
        let archive = move || {
            let mut revised = Vec::new();
            for (name, profile) in snapshot.site_file_profiles() {
                let Some(archived) = snapshot.revision(profile) else { continue };
                let generation = digest(&text(&archived));
                let last = this
                    .env
                    .store
                    .read(|model| model.revisions(name).and_then(|all| all.all.last().cloned()));
                if last.is_some_and(|last| last.generation == generation) {
                    continue;
                }
                match this.archive_revision(&snapshot, generation, &archived) {
                    Ok(true) => revised.push((name.clone(), generation, archived)),
                    // The overlay changed during the copy; the next reload archives it.
                    Ok(false) => {}
                    Err(error) => {
                        tracing::warn!(profile = %name, error = &error as &dyn std::error::Error, "cannot archive a profile");
                    }
                }
            }
            revised
        };
        let Ok(revised) = tokio::task::spawn_blocking(archive).await else { return };
        let now = self.env.now();
        let recorded = self.env.store.commit(|tx| {
            for (name, generation, archived) in revised {
                let mut revisions = tx.revisions(&name);
                let image = archived.profile.image.clone();
                revisions.revise(RevisionSummary {
                    generation,
                    image,
                    version: archived.version,
                    since: now,
                });
                tx.put_revisions(name, revisions);
            }
            Ok::<_, StoreError>(())
        });
        log_failure(recorded.await, "cannot record revisions of profiles");
        let this = self.clone();
        drop(tokio::task::spawn_blocking(move || this.sweep_revisions()).await);
    }

    fn archive_revision(
        &self,
        snapshot: &SiteSnapshot,
        generation: Generation,
        archived: &StoredProfile,
    ) -> Result<bool, ArchiveError> {
        for (name, digest) in &archived.overlays {
            self.revisions.put_overlay(
                name,
                digest,
                &snapshot.site.overlays_dir.join(name.as_str()),
            )?;
            let copied = read_overlays(&self.revisions.overlay_dir(digest)).ok();
            let same = copied.and_then(|all| all.named.get(name).map(|overlay| overlay.digest))
                == Some(*digest);
            if !same {
                self.revisions.remove_overlay(digest);
                return Ok(false);
            }
        }
        self.revisions.put(generation, &text(archived)).map(|()| true)
    }

    fn sweep_revisions(&self) {
        let all: BTreeSet<Generation> = self.env.store.read(|model| {
            model
                .all_revisions()
                .flat_map(|(_, revisions)| revisions.all.iter().map(|one| one.generation))
                .collect()
        });
        let read = all.iter().filter_map(|generation| self.read_revision(*generation).ok());
        let overlays = read.flat_map(|archived| archived.overlays.into_values()).collect();
        self.revisions.sweep(&all, &overlays);
    }

    /// Reads the revisions of all rolled back profiles. Blocks.
    pub(crate) fn rolled_back_profiles(&self) -> RolledBackProfiles {
        let pinned: Vec<(ProfileName, Generation)> = self.env.store.read(|model| {
            model
                .all_revisions()
                .filter_map(|(name, revisions)| Some((name.clone(), revisions.pinned?)))
                .collect()
        });
        pinned
            .into_iter()
            .map(|(name, generation)| (name, self.restore_revision(generation).map(Arc::new)))
            .collect()
    }

    /// Reads a revision without verifying its digest.
    fn read_revision(&self, generation: Generation) -> Result<StoredProfile, String> {
        let bytes = self.revisions.get(generation).map_err(|error| error.to_string())?;
        serde_json::from_slice(&bytes).map_err(|error| format!("its record is damaged: {error}"))
    }

    /// Restores a revision with its overlays, and verifies the digests.
    pub(super) fn restore_revision(
        &self,
        generation: Generation,
    ) -> Result<RolledBackProfile, String> {
        let bytes = self.revisions.get(generation).map_err(|error| error.to_string())?;
        if digest(&bytes) != generation {
            return Err("the digest of its record does not match".to_owned());
        }
        let archived: StoredProfile = serde_json::from_slice(&bytes)
            .map_err(|error| format!("its record is damaged: {error}"))?;
        let mut overlays = BTreeMap::new();
        for (name, digest) in &archived.overlays {
            let gone = || format!("overlay {name} as it was then is gone");
            let mut read =
                read_overlays(&self.revisions.overlay_dir(digest)).map_err(|_| gone())?;
            let overlay = read
                .named
                .remove(name)
                .filter(|overlay| overlay.digest == *digest)
                .ok_or_else(gone)?;
            overlays.insert(name.clone(), overlay);
        }
        let StoredProfile { profile, version, bundles, .. } = archived;
        Ok(RolledBackProfile { profile, overlays, version, bundles, generation })
    }

    /// Returns the revisions of a profile, newest first, and the one that it is rolled back to.
    pub fn revisions(&self, profile: &ProfileName) -> Revisions {
        self.env.store.read(|model| model.revisions(profile).cloned().unwrap_or_default())
    }

    /// Compares two revisions of a profile that are named by prefixes of their digests. Blocks.
    ///
    /// # Errors
    /// There is no such revision, or a part of it was removed.
    pub fn compare(
        &self,
        profile: &ProfileName,
        [from, to]: [&str; 2],
    ) -> Result<RevisionDiff, CompareError> {
        let revisions = self.revisions(profile);
        let read = |prefix: &str| {
            let none =
                || CompareError::NoGeneration(profile.clone(), prefix.chars().take(80).collect());
            let generation = find(&revisions, prefix).ok_or_else(none)?;
            self.inputs(generation).map_err(|why| {
                let profile = profile.clone();
                let generation = generation.0.short();
                CompareError::Gone { profile, generation, why }
            })
        };
        let before = read(from)?;
        let after = read(to)?;
        Ok(RevisionDiff::new([&before.0, &after.0], [&before.1, &after.1]))
    }

    /// Settings and digests of the overlays' files of a revision.
    fn inputs(&self, generation: Generation) -> Result<RevisionInputs, String> {
        let archived = self.read_revision(generation)?;
        let mut files = BTreeMap::new();
        for digest in archived.overlays.values() {
            files.extend(self.revisions.overlay_files(digest).map_err(|error| error.to_string())?);
        }
        Ok((settings(&archived), files))
    }

    /// Rolls a profile back for all its nodes: to the previous revision, or to the one that matches
    /// `text`.
    pub async fn rollback(
        self: &Arc<Self>,
        profile: ProfileName,
        text: Option<&str>,
        audit: &AuditContext,
    ) -> Result<Generation, RollbackError> {
        let revisions = self.revisions(&profile);
        let target = match text {
            None => {
                revisions
                    .before()
                    .ok_or_else(|| RollbackError::NoneBefore(profile.clone()))?
                    .generation
            }
            Some(text) => find(&revisions, text).ok_or_else(|| {
                RollbackError::NoGeneration(profile.clone(), text.chars().take(80).collect())
            })?,
        };
        let _one = self.reloading.lock().await;
        let this = self.clone();
        let check = move || {
            let revision = this.restore_revision(target)?;
            let snapshot = this.env.snapshot();
            if snapshot.catalog.version(&revision.version).is_none() {
                let loaded = load_image(&snapshot, &revision.profile.image, &revision.version);
                loaded.map_err(|error| error.to_string())?;
            }
            for (name, layer) in
                revision.bundles.iter().filter(|(_, layer)| snapshot.catalog.layer(layer).is_none())
            {
                load_layer(&snapshot.site.blobs_dir, layer)
                    .map_err(|why| format!("bundle {name}: {why}"))?;
            }
            Ok::<_, String>(revision.profile)
        };
        let checked =
            tokio::task::spawn_blocking(check).await.map_err(|_| RenderError::Interrupted)?;
        let generation = target.0.short();
        let next = checked.map_err(|why| RollbackError::Gone {
            profile: profile.clone(),
            generation,
            why,
        })?;
        self.check_revision(&profile, target).await?;
        self.set_rollback(profile, Some(target), &next, audit).await?;
        Ok(target)
    }

    /// Refuses a revision that nodes cannot boot: the rules may have changed since meshd archived
    /// it.
    async fn check_revision(
        self: &Arc<Self>,
        name: &ProfileName,
        target: Generation,
    ) -> Result<(), RollbackError> {
        let this = self.clone();
        let named = name.clone();
        let check = move || {
            let mut rolled_back = this.rolled_back_profiles();
            rolled_back.insert(named, this.restore_revision(target).map(Arc::new));
            let next = this.with_archived_contents(this.env.snapshot().with_rollbacks(rolled_back));
            this.env.store.read(|model| this.faults(&next, model))
        };
        let faults =
            tokio::task::spawn_blocking(check).await.map_err(|_| RenderError::Interrupted)?;
        if faults.is_empty() {
            return Ok(());
        }
        Err(RenderError::Faults { profile: name.to_string(), source: Faults(faults) }.into())
    }

    /// Ends the rollback of a profile.
    pub async fn end_rollback(
        self: &Arc<Self>,
        profile: ProfileName,
        audit: &AuditContext,
    ) -> Result<(), RollbackError> {
        let _one = self.reloading.lock().await;
        if self.revisions(&profile).pinned.is_none() {
            return Err(RollbackError::NotRolledBack(profile));
        }
        let snapshot = self.env.snapshot();
        let next = snapshot
            .site_file_profiles()
            .get(&profile)
            .ok_or_else(|| RollbackError::NotRolledBack(profile.clone()))?;
        self.set_rollback(profile, None, next, audit).await
    }

    async fn set_rollback(
        self: &Arc<Self>,
        profile: ProfileName,
        target: Option<Generation>,
        next: &Profile,
        audit: &AuditContext,
    ) -> Result<(), RollbackError> {
        let site = self.env.site();
        let now = self.env.now();
        let detail = match target {
            Some(generation) => format!("profile {profile} at generation {}", generation.0.short()),
            None => format!("profile {profile} as in the site file"),
        };
        let stored = self.env.store.commit(|tx| {
            check_no_affected_work(tx.before(), &site, next, audit)?;
            let mut revisions = tx.revisions(&profile);
            revisions.pinned = target;
            tx.put_revisions(profile, revisions);
            tx.event(Event::new(now, audit, EventKind::ProfileRolledBack, detail));
            Ok::<_, RollbackError>(())
        });
        stored.await?;
        let this = self.clone();
        let snapshot = tokio::task::spawn_blocking(move || {
            let now = this.env.snapshot();
            this.with_archived_contents(now.with_rollbacks(this.rolled_back_profiles()))
        });
        self.env.replace_snapshot(snapshot.await.map_err(|_| RenderError::Interrupted)?);
        self.update_in_use().await;
        self.scan_all();
        Ok(())
    }

    /// Adds the images and layers of pinned nodes and rolled back profiles to a snapshot. Blocks.
    pub(crate) fn with_archived_contents(&self, snapshot: SiteSnapshot) -> SiteSnapshot {
        let images = self.archived_images(&snapshot);
        let layers = self.pinned_layers(&snapshot);
        if images.is_empty() && layers.is_empty() {
            snapshot
        } else {
            snapshot.with_archived_contents(images, layers)
        }
    }

    /// The generation that a profile is rolled back to.
    pub fn rolled_back(&self, profile: &ProfileName) -> Option<Generation> {
        let snapshot = self.env.snapshot();
        snapshot
            .rolled_back_profiles()
            .get(profile)?
            .as_ref()
            .ok()
            .map(|revision| revision.generation)
    }
}
