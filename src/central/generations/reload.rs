//! Reloads site, overlays and images, all or nothing. If they have faults, the last valid snapshot
//! stays, and every fault is reported.

use crate::{
    environment::{bmcs::password_faults, records::group_members, site_snapshot::SiteSnapshot},
    generations::{Generations, render_context::Contexts},
    vms::{check_no_open_slots, check_no_running_work},
};
use meshd_config::{Fault, Faults, Site};
use meshd_image::{
    catalog::{Catalog, load_agent, load_stage1, overlay::read_all, read_secrets},
    overlay::{self, ImageFacts, NodePrograms, RenderInput},
};
use meshd_model::{
    boot::effective_profile,
    fleet::{AuditContext, Event, EventKind, Node},
    image_kind::ImageKindName,
};
use meshd_store::Model;
use meshd_trust::MarkKey;
use meshd_types::{Basis, Digest, ImageName, MacAddr, ProfileName, Timestamp, failpoint};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
    time::Duration,
};

/// Time limit for reading and rendering the site: a site with 1,000 profiles takes seconds.
const READ_DEADLINE: Duration = Duration::from_secs(120);
/// Maximum number of faults in an event; it counts the rest.
const MAX_NAMED_FAULTS: usize = 8;

/// The result of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reload {
    /// Why the reload was refused; empty otherwise.
    pub faults: Vec<Fault>,
    pub changed: bool,
    /// Changed keys of `site.toml` that need a restart.
    pub restart: Vec<&'static str>,
    /// Nodes that the new site does not let boot.
    pub warnings: Vec<Fault>,
}

impl Generations {
    /// Reloads site, overlays and images. [`Generations::last_reload`] returns the result later.
    pub async fn reload(self: &Arc<Self>, audit: &AuditContext) -> Reload {
        let _one = self.reloading.lock().await;
        let (snapshot, restart) = self.read_in_time(READ_DEADLINE).await;
        let (faults, changed) = match snapshot {
            Ok(None) => (Vec::new(), false),
            Ok(Some(snapshot)) => {
                let faults = self.activate(snapshot, audit);
                (faults.clone(), faults.is_empty())
            }
            Err(faults) => (faults.0, false),
        };
        let warnings = if changed { self.nodes_without_profile() } else { Vec::new() };
        let reload = Reload { faults, changed, restart, warnings };
        let before = std::mem::replace(&mut *self.reloaded.lock(), reload.clone());
        if changed {
            self.scan_all();
            self.archive_revisions().await;
            self.enrolment.approve_waiting().await;
        }
        self.record_reload(&before, &reload, audit).await;
        reload
    }

    /// Reads the next snapshot. A thread that waits for a file cannot be ended, so the deadline
    /// leaves it, and no second one is started.
    async fn read_in_time(
        self: &Arc<Self>,
        deadline: Duration,
    ) -> (Result<Option<SiteSnapshot>, Faults>, Vec<&'static str>) {
        let refused = |message: String, hint: &str| {
            (
                Err(Faults::from(Fault::of_file(self.env.site().file.clone(), message, hint))),
                Vec::new(),
            )
        };
        let hint = "check that the disks of site, overlays and images answer; restart meshd if they do again";
        let Ok(only_reader) = self.reader.clone().try_acquire_owned() else {
            return refused("an earlier reload still reads its files".to_owned(), hint);
        };
        let this = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            let _only_reader = only_reader;
            this.read_anew()
        });
        match tokio::time::timeout(deadline, read).await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => {
                let hint = "this is a fault of meshd, its log says where";
                refused(format!("reading was interrupted: {error}"), hint)
            }
            Err(_) => refused(format!("reading took more than {} s", deadline.as_secs()), hint),
        }
    }

    /// Replaces the snapshot, unless a node with work would boot another profile. The check and the
    /// replacement exclude transactions, so that no work is placed meanwhile.
    fn activate(&self, snapshot: SiteSnapshot, audit: &AuditContext) -> Vec<Fault> {
        let old = self.env.snapshot();
        self.env.store.read(|model| {
            let found = other_profiles(model, &old.site, &snapshot.site, audit);
            if found.is_empty() {
                self.env.replace_snapshot(snapshot);
            }
            found
        })
    }

    /// Returns the result of the last reload.
    pub fn last_reload(&self) -> Reload {
        self.reloaded.lock().clone()
    }

    /// Returns the nodes whose assigned profile the site does not have: they are refused until
    /// another profile is assigned.
    fn nodes_without_profile(&self) -> Vec<Fault> {
        let site = self.env.site();
        self.env.store.read(|model| {
            let stranded = model.nodes().filter_map(|node| {
                let profile = node
                    .profile
                    .as_ref()
                    .filter(|profile| !site.profiles.contains_key(*profile))?;
                let what = format!(
                    "node {} ({}) would not boot: its profile `{profile}` is gone",
                    node.name, node.id
                );
                let hint = format!(
                    "restore the profile, or assign another: meshd node assign-profile {} PROFILE",
                    node.id
                );
                Some(Fault::of_file(site.file.clone(), what, hint))
            });
            stranded.collect()
        })
    }

    async fn record_reload(&self, before: &Reload, reload: &Reload, audit: &AuditContext) {
        if !reload.restart.is_empty() && before.restart != reload.restart {
            let keys = reload.restart.join(", ");
            tracing::warn!(
                keys,
                "these keys of the site file have changed and need a restart of meshd"
            );
        }
        let event = |kind, detail| Event::new(self.env.now(), audit, kind, detail);
        if reload.changed {
            tracing::info!("site, overlays and images were reloaded");
            for warning in &reload.warnings {
                tracing::warn!(%warning, "a node does not boot with the new site");
            }
            let restart = reload.restart.join(", ");
            let restart =
                if restart.is_empty() { restart } else { format!("needs a restart: {restart}") };
            let count = reload.warnings.len();
            let stranded =
                if count > 0 { format!("{count} nodes would not boot") } else { String::new() };
            let detail = [restart, stranded]
                .into_iter()
                .filter(|part| !part.is_empty())
                .collect::<Vec<_>>()
                .join("; ");
            self.env.record(event(EventKind::Reloaded, detail)).await;
        } else if !reload.faults.is_empty() && before.faults != reload.faults {
            for fault in &reload.faults {
                tracing::error!(%fault, "refused: the last valid site, overlays and images stay");
            }
            let mut detail =
                Faults(reload.faults.iter().take(MAX_NAMED_FAULTS).cloned().collect()).to_string();
            if reload.faults.len() > MAX_NAMED_FAULTS {
                detail += &format!("\nand {} more", reload.faults.len() - MAX_NAMED_FAULTS);
            }
            self.env.record(event(EventKind::ReloadRefused, detail)).await;
        }
    }

    /// Reads the next snapshot, `None` if nothing has changed, and the keys that need a restart.
    fn read_anew(&self) -> (Result<Option<SiteSnapshot>, Faults>, Vec<&'static str>) {
        let current = self.env.snapshot();
        let mut site = match meshd_config::load(&current.site.file) {
            Ok(site) => site,
            Err(mut faults) => {
                // Faults of the overlays are reported together with those of the site file.
                faults.0.extend(read_all(&current.site.overlays_dir).faults);
                return (Err(faults), Vec::new());
            }
        };
        let restart = restore_fixed_settings(&mut site, &current.site);
        let catalog = match load_catalog(&site, self.env.random()) {
            Ok(catalog) => catalog,
            Err(faults) => return (Err(faults), restart),
        };
        let program = match load_agent(&site) {
            Ok(program) => program.bytes,
            Err(error) => return (Err(Fault::from(error).into()), restart),
        };
        // Packing takes long; most reloads change something else.
        let stage1 = catalog.stage1();
        let is_same = Digest::of(&program) == current.programs.agent_digest()
            && stage1.is_some_and(|it| it.digest == current.programs.mesh_init_digest());
        let (programs, former_programs) = if is_same {
            (current.programs.clone(), current.former_programs.clone())
        } else {
            let programs = NodePrograms::new(program, stage1);
            (Arc::new(programs), Some(current.programs.clone()))
        };
        let mut snapshot =
            SiteSnapshot::new(site.into(), catalog, programs, self.rolled_back_profiles());
        snapshot.former_programs = former_programs;
        let snapshot = self.with_archived_contents(snapshot);
        if snapshot.is_same(&current) {
            return (Ok(None), restart);
        }
        let faults = self.env.store.read(|model| self.faults(&snapshot, model));
        if faults.is_empty() {
            (Ok(Some(snapshot)), restart)
        } else {
            (Err(Faults(faults)), restart)
        }
    }

    /// Renders each profile once, and once with each set of groups that a node of it is in.
    pub(crate) fn faults(&self, snapshot: &SiteSnapshot, model: &Model) -> Vec<Fault> {
        let site = &snapshot.site;
        let unknown_machine = unknown_machine();
        let mut each: BTreeMap<(&ProfileName, Vec<usize>), &Node> = BTreeMap::new();
        each.extend(site.profiles.keys().map(|name| ((name, Vec::new()), &unknown_machine)));
        // The members of all groups, not all nodes.
        for id in site.groups.iter().flat_map(|group| group_members(model, group)) {
            let Some(node) = model.current_node(id) else { continue };
            let indexes: Vec<usize> = snapshot.groups(node).map(|(index, _)| index).collect();
            let assigned = node.profile.as_ref().filter(|name| site.profiles.contains_key(*name));
            each.entry((assigned.unwrap_or(&site.default_profile), indexes)).or_insert(node);
        }
        let mut contexts = Contexts::new(snapshot);
        let mut faults: Vec<Fault> = unknown_overlays(snapshot);
        for ((name, _), node) in each {
            let Some(profile) = site.profiles.get(name) else { continue };
            let context = contexts.context(model, node, profile);
            let zero = Digest([0; 32]);
            let built = snapshot.image_of(profile).map(|image| &image.manifest);
            let not_built =
                || ImageFacts::placeholder(profile.image.clone(), ImageKindName::default(), zero);
            let image = built.map_or_else(not_built, ImageFacts::from_manifest);
            let image = image.with_stage1(snapshot.catalog.stage1());
            let input = RenderInput {
                site,
                profile,
                // A rolled back profile has the overlays of its revision.
                overlays: snapshot
                    .overlays_for(name)
                    .map_or(snapshot.catalog.overlays(), |overlays| overlays),
                node: &context.node,
                central: Ipv4Addr::UNSPECIFIED,
                programs: &snapshot.programs,
                image: &image,
            };
            let mut found =
                overlay::public_digest(&input).err().map(|faults| faults.0).unwrap_or_default();
            if failpoint::defends("image-lacks-package") {
                found.extend(
                    built.map(|built| overlay::missing_packages(&input, built)).unwrap_or_default(),
                );
            }
            // A template that two profiles share has one fault.
            for fault in found {
                if !faults.contains(&fault) {
                    faults.push(fault);
                }
            }
        }
        faults
    }
}

/// Faults for nodes with work or open slots that would boot another profile or host the work
/// differently (PR-4).
fn other_profiles(model: &Model, old: &Site, new: &Site, audit: &AuditContext) -> Vec<Fault> {
    let mut faults = Vec::new();
    for node in model.all_nodes() {
        let from = effective_profile(old, node);
        let to = effective_profile(new, node);
        let key =
            || from.changed_vm_resource(to).filter(|_| failpoint::defends("profile-edit-guard"));
        let changed = key();
        let change = match (from.name == to.name, changed) {
            (true, None) => continue,
            (true, Some(key)) => {
                format!("profile {} of node {} would have another {key}", to.name, node.id)
            }
            (false, _) => {
                format!("node {} would boot profile {} in place of {}", node.id, to.name, from.name)
            }
        };
        let slots = || changed.map_or(Ok(()), |_| check_no_open_slots(model, node.id, audit));
        if let Err(error) = check_no_running_work(model, node.id, audit).and_then(|()| slots()) {
            let hint = "drain the node first, or assign its profile: meshd node assign-profile";
            faults.push(Fault::of_file(new.file.clone(), format!("{change}: {error}"), hint));
        }
    }
    faults
}

/// A node record for a machine that was never seen.
fn unknown_machine() -> Node {
    let mac = MacAddr([0; 6]);
    Node::discovered(
        Basis::Mac(mac),
        meshd_model::fleet::Fingerprint::default(),
        mac,
        Timestamp::EPOCH,
    )
}

/// Reads overlays, their secrets, built images and bundles. `random` becomes the site's key for
/// marking secrets, if it has none yet.
///
/// # Errors
/// Every fault of every overlay, secret and password of BMCs.
pub fn load_catalog(site: &Site, random: [u8; 32]) -> Result<Catalog, Faults> {
    let images: BTreeSet<ImageName> =
        site.profiles.values().map(|profile| profile.image.clone()).collect();
    let bundles = site.profiles.values().flat_map(|profile| profile.bundles.clone()).collect();
    let catalog = Catalog::load(&site.overlays_dir, &site.blobs_dir, &images);
    let catalog = catalog.map(|catalog| catalog.with_bundles(&site.blobs_dir, &bundles));
    let stage1 = load_stage1(site).map_err(|error| Faults::from(Fault::from(error)));
    let catalog = match (catalog, stage1) {
        (Ok(catalog), Ok(stage1)) => Ok(catalog.with_stage1(Some(stage1))),
        (catalog, stage1) => {
            let faults = [catalog.err(), stage1.err()].into_iter().flatten();
            Err(Faults(faults.flat_map(|faults| faults.0).collect()))
        }
    };
    let passwords = password_faults(site);
    if site.secrets.is_empty() && passwords.is_empty() {
        return catalog;
    }
    let (catalog, secrets) = match (catalog, read_secrets(&site.secrets)) {
        (Ok(catalog), Ok(secrets)) if passwords.is_empty() => (catalog, secrets),
        (catalog, secrets) => {
            let faults =
                [catalog.err(), secrets.err()].into_iter().flatten().flat_map(|faults| faults.0);
            return Err(Faults(faults.chain(passwords).collect()));
        }
    };
    let key = MarkKey::load_or_create(&site.state_dir, random).map_err(|error| {
        Faults::from(Fault::of_file(site.state_dir.clone(), error.to_string(), "check the disk"))
    })?;
    Ok(catalog.with_secrets(secrets, &site.secrets, &key))
}

/// Faults for groups with unknown overlays: a group without nodes is not rendered.
fn unknown_overlays(snapshot: &SiteSnapshot) -> Vec<Fault> {
    let overlays = &snapshot.catalog.overlays().named;
    let mut faults = Vec::new();
    for group in &snapshot.site.groups {
        for overlay in group.overlays.iter().filter(|overlay| !overlays.contains_key(*overlay)) {
            let message = format!("group {}: there is no overlay `{overlay}`", group.name);
            let hint =
                meshd_config::suggest(overlay.as_str(), overlays.keys().map(|name| name.as_str()));
            faults.push(Fault::of_file(snapshot.site.file.clone(), message, hint));
        }
    }
    faults
}

/// Restores settings that need a restart to their former values. Returns the changed keys.
fn restore_fixed_settings(new: &mut Site, old: &Site) -> Vec<&'static str> {
    let mut keys = Vec::new();
    macro_rules! fixed {
        ($($key:literal: $($field:ident).+;)+) => {$(
            if new.$($field).+ != old.$($field).+ {
                new.$($field).+ = old.$($field).+.clone();
                keys.push($key);
            }
        )+};
    }
    fixed! {
        "site.name": name;
        "site.state_dir": state_dir;
        "site.blobs_dir": blobs_dir;
        "site.images_dir": images_dir;
        "site.overlays_dir": overlays_dir;
        "net, dhcp, segment": segments;
        "reservation": reservations;
        "http.port": http.port;
        "agent.port": agent.port;
        "admin.socket": admin.socket;
        "admin.https": admin.https;
        "process": process;
        "metrics": metrics;
        "boot.loaders_dir": boot.loaders_dir;
        "boot.max_loading": boot.max_loading;
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn fixed_settings_are_restored_and_listed_on_reload() {
        let read = |text: &str| {
            meshd_config::parse(text, Path::new("site.toml"))
                .unwrap_or_else(|faults| panic!("{faults}"))
        };
        let sample = include_str!("../../../site.toml");
        let old = read(sample);
        let edited = sample
            .replace("port = 8080", "port = 8081")
            .replace("heartbeat = \"30s\"", "heartbeat = \"10s\"");
        let mut new = read(
            &edited
                .replace("policy = \"approve\"", "policy = \"auto\"")
                .replace("[\"motd\"]", "[]"),
        );
        assert_eq!(restore_fixed_settings(&mut new, &old), ["http.port"]);
        assert_eq!((new.http.port, new.agent.heartbeat.as_secs()), (8080, 10));
        assert_ne!((&new.enroll, &new.profiles), (&old.enroll, &old.profiles));
        assert_eq!(restore_fixed_settings(&mut read(sample), &old), [""; 0]);
    }
}
