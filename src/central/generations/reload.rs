//! Reads site, overlays and images again, all or nothing. While they have faults, the last good snapshot stays, and every fault is
//! reported.

use crate::{
    environment::site_snapshot::SiteSnapshot,
    generations::{Generations, render_context::Contexts},
    workloads::spare,
};
use meshd_config::{Fault, Faults, Site};
use meshd_image::{
    catalog::{Catalog, load_agent, overlay::read_all, read_secrets},
    overlay::{self, AgentBinary, ImageFacts, RenderInput},
};
use meshd_model::{
    boot::effective_profile,
    fleet::{AuditContext, Event, EventKind, Node},
};
use meshd_store::Model;
use meshd_trust::MarkKey;
use meshd_types::{Basis, Digest, ImageName, MacAddr, ProfileName, Timestamp, fail};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
};

/// Faults that an event spells out; it counts the rest.
const TOLD: usize = 8;

/// The result of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reload {
    /// Why it was refused; empty when it was not.
    pub faults: Vec<Fault>,
    /// False when everything is as it was.
    pub changed: bool,
    /// Keys of `site.toml` that differ and cannot change while meshd runs: they need a restart.
    pub restart: Vec<&'static str>,
}

impl Generations {
    /// Reads everything anew. What it gives is remembered for [`Generations::last_reload`].
    pub async fn reload(self: &Arc<Self>, by: &AuditContext) -> Reload {
        let _one = self.reloading.lock().await;
        let this = self.clone();
        let read = tokio::task::spawn_blocking(move || this.read_anew()).await;
        let interrupted = |error| {
            let message = format!("reading was interrupted: {error}");
            let fault =
                Fault::of_file(self.env.site().file.clone(), message, "this is a fault of meshd, its log says where");
            (Err(Faults::from(fault)), Vec::new())
        };
        let (live, restart) = read.unwrap_or_else(interrupted);
        let (faults, changed) = match live {
            Ok(None) => (Vec::new(), false),
            Ok(Some(live)) => {
                let faults = self.go_live(live, by);
                (faults.clone(), faults.is_empty())
            }
            Err(faults) => (faults.0, false),
        };
        let reload = Reload { faults, changed, restart };
        let before = std::mem::replace(&mut *self.reloaded.lock(), reload.clone());
        if changed {
            self.scan_all();
            self.revise().await;
            self.enrolment.admit_waiting().await;
        }
        self.record_reload(&before, &reload, by).await;
        reload
    }

    /// Makes it the site that counts, unless a node that holds work would boot another profile by it. While this is found out no work is
    /// given to a node.
    fn go_live(&self, live: SiteSnapshot, by: &AuditContext) -> Vec<Fault> {
        let was = self.env.live();
        self.env.store.read(|model| {
            let found = other_profiles(model, &was.site, &live.site, by);
            if found.is_empty() {
                self.env.replace_live(live);
            }
            found
        })
    }

    /// Returns the result of the last reload.
    pub fn last_reload(&self) -> Reload {
        self.reloaded.lock().clone()
    }

    async fn record_reload(&self, before: &Reload, reload: &Reload, by: &AuditContext) {
        if !reload.restart.is_empty() && before.restart != reload.restart {
            let keys = reload.restart.join(", ");
            tracing::warn!(keys, "these keys of the site file have changed and need a restart of meshd");
        }
        let event = |kind, detail| Event::new(self.env.now(), by, kind, detail);
        if reload.changed {
            tracing::info!("site, overlays and images were read anew");
            let restart = reload.restart.join(", ");
            let detail = if restart.is_empty() { restart } else { format!("needs a restart: {restart}") };
            self.env.record(event(EventKind::Reloaded, detail)).await;
        } else if !reload.faults.is_empty() && before.faults != reload.faults {
            for fault in &reload.faults {
                tracing::error!(%fault, "refused: the last good site, overlays and images stay");
            }
            let mut detail = Faults(reload.faults.iter().take(TOLD).cloned().collect()).to_string();
            if reload.faults.len() > TOLD {
                detail += &format!("\nand {} more", reload.faults.len() - TOLD);
            }
            self.env.record(event(EventKind::ReloadRefused, detail)).await;
        }
    }

    /// The next moment, `None` if nothing has changed; and the keys that need a restart.
    fn read_anew(&self) -> (Result<Option<SiteSnapshot>, Faults>, Vec<&'static str>) {
        let now = self.env.live();
        let mut site = match meshd_config::load(&now.site.file) {
            Ok(site) => site,
            Err(mut faults) => {
                // All at once: whoever corrects the site file finds no others after it.
                faults.0.extend(read_all(&now.site.overlays_dir).faults);
                return (Err(faults), Vec::new());
            }
        };
        let restart = keep_fixed(&mut site, &now.site);
        let catalog = match load_catalog(&site, self.env.random()) {
            Ok(catalog) => catalog,
            Err(faults) => return (Err(faults), restart),
        };
        let program = match load_agent(&site) {
            Ok(program) => program.bytes,
            Err(error) => return (Err(Fault::from(error).into()), restart),
        };
        // Packing takes long; most reloads change something else.
        let (agent, former_agent) = if Digest::of(&program) == now.agent.digest() {
            (now.agent.clone(), now.former_agent.clone())
        } else {
            (Arc::new(AgentBinary::new(&program)), Some(now.agent.clone()))
        };
        let mut live = SiteSnapshot::new(site.into(), catalog, agent, self.all_held());
        live.former_agent = former_agent;
        let live = self.with_all_kept(live);
        if live.is_same(&now) {
            return (Ok(None), restart);
        }
        let faults = self.env.store.read(|model| self.faults(&live, model));
        if faults.is_empty() { (Ok(Some(live)), restart) } else { (Err(Faults(faults)), restart) }
    }

    /// Renders each profile once, and once with each set of groups that a node of it is in.
    fn faults(&self, live: &SiteSnapshot, model: &Model) -> Vec<Fault> {
        let site = &live.site;
        let nobody = nobody();
        let mut each: BTreeMap<(&ProfileName, Vec<usize>), &Node> = BTreeMap::new();
        each.extend(site.profiles.keys().map(|name| ((name, Vec::new()), &nobody)));
        // The IDs of all groups, not all nodes.
        for id in site.groups.iter().flat_map(|group| &group.nodes) {
            let places: Vec<usize> = live.groups([*id]).map(|(place, _)| place).collect();
            let Some(node) = model.standing_for(*id) else { continue };
            let assigned = node.profile.as_ref().filter(|name| site.profiles.contains_key(*name));
            each.entry((assigned.unwrap_or(&site.default_profile), places)).or_insert(node);
        }
        let mut contexts = Contexts::new(live);
        let mut faults: Vec<Fault> = unknown_overlays(live);
        for ((name, _), node) in each {
            let Some(profile) = site.profiles.get(name) else { continue };
            let context = contexts.of(model, node, profile);
            let zero = Digest([0; 32]);
            let built = live.image_of(profile).map(|image| &image.manifest);
            let image = built.map(ImageFacts::of).unwrap_or(ImageFacts {
                name: profile.image.clone(),
                manifest: zero,
                modloop: zero,
                bundles: Vec::new(),
            });
            let input = RenderInput {
                site,
                profile,
                // A profile that is held has the overlays that it had then.
                overlays: live.overlays_of(name).map_or(live.catalog.overlays(), |held| held),
                node: &context.node,
                central: Ipv4Addr::UNSPECIFIED,
                agent: &live.agent,
                image: &image,
            };
            let mut found = overlay::public_digest(&input).err().map(|faults| faults.0).unwrap_or_default();
            if fail::defends("image-lacks-package") {
                found.extend(built.map(|built| overlay::missing_packages(&input, built)).unwrap_or_default());
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

/// Nodes that hold work and would boot another profile, or host that work otherwise (PR-4).
fn other_profiles(model: &Model, was: &Site, new: &Site, by: &AuditContext) -> Vec<Fault> {
    let mut faults = Vec::new();
    for node in model.all_nodes() {
        let (from, to) = (effective_profile(was, node), effective_profile(new, node));
        let key = || from.changed_vm_resource(to).filter(|_| fail::defends("profile-edit-guard"));
        let change = match (from.name == to.name, key()) {
            (true, None) => continue,
            (true, Some(key)) => format!("profile {} of node {} would have another {key}", to.name, node.id),
            (false, _) => format!("node {} would boot profile {} in place of {}", node.id, to.name, from.name),
        };
        if let Err(error) = spare(model, node.id, by) {
            let hint = "drain the node first, or give it its profile: meshd node assign-profile";
            faults.push(Fault::of_file(new.file.clone(), format!("{change}: {error}"), hint));
        }
    }
    faults
}

/// A node record for a machine that was never seen.
fn nobody() -> Node {
    let mac = MacAddr([0; 6]);
    Node::discovered(Basis::Mac(mac), meshd_model::fleet::Fingerprint::default(), mac, Timestamp::EPOCH)
}

/// Reads overlays, their secrets, built images and bundles. `random` becomes the site's key for marking secrets, if it has none yet.
///
/// # Errors
/// Every fault of every overlay and secret.
pub fn load_catalog(site: &Site, random: [u8; 32]) -> Result<Catalog, Faults> {
    let images: BTreeSet<ImageName> = site.profiles.values().map(|profile| profile.image.clone()).collect();
    let bundles = site.profiles.values().flat_map(|profile| profile.bundles.clone()).collect();
    let catalog = Catalog::load(&site.overlays_dir, &site.blobs_dir, &images);
    let catalog = catalog.map(|catalog| catalog.with_bundles(&site.blobs_dir, &bundles));
    if site.secrets.is_empty() {
        return catalog;
    }
    let (catalog, secrets) = match (catalog, read_secrets(&site.secrets)) {
        (Ok(catalog), Ok(secrets)) => (catalog, secrets),
        (catalog, secrets) => {
            let faults = [catalog.err(), secrets.err()].into_iter().flatten().flat_map(|faults| faults.0);
            return Err(Faults(faults.collect()));
        }
    };
    let key = MarkKey::load_or_create(&site.state_dir, random)
        .map_err(|error| Faults::from(Fault::of_file(site.state_dir.clone(), error.to_string(), "check the disk")))?;
    Ok(catalog.with_secrets(secrets, &key))
}

/// A group may name an overlay that none of its nodes has met yet.
fn unknown_overlays(live: &SiteSnapshot) -> Vec<Fault> {
    let there = &live.catalog.overlays().named;
    let mut faults = Vec::new();
    for group in &live.site.groups {
        for overlay in group.overlays.iter().filter(|overlay| !there.contains_key(*overlay)) {
            let message = format!("group {}: there is no overlay `{overlay}`", group.name);
            let hint = meshd_config::suggest(overlay.as_str(), there.keys().map(|name| name.as_str()));
            faults.push(Fault::of_file(live.site.file.clone(), message, hint));
        }
    }
    faults
}

/// Sets what cannot change while meshd runs to what it was, and gives the keys that differ.
fn keep_fixed(new: &mut Site, was: &Site) -> Vec<&'static str> {
    let mut keys = Vec::new();
    macro_rules! fixed {
        ($($key:literal: $($field:ident).+;)+) => {$(
            if new.$($field).+ != was.$($field).+ {
                new.$($field).+ = was.$($field).+.clone();
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
    fn what_cannot_change_stays_and_is_named_and_all_else_is_new() {
        let read =
            |text: &str| meshd_config::parse(text, Path::new("site.toml")).unwrap_or_else(|faults| panic!("{faults}"));
        let sample = include_str!("../../../site.toml");
        let was = read(sample);
        let edited = sample.replace("port = 8080", "port = 8081").replace("heartbeat = \"30s\"", "heartbeat = \"10s\"");
        let mut new = read(&edited.replace("policy = \"approve\"", "policy = \"auto\"").replace("[\"motd\"]", "[]"));
        assert_eq!(keep_fixed(&mut new, &was), ["http.port"]);
        assert_eq!((new.http.port, new.agent.heartbeat.as_secs()), (8080, 10));
        assert_ne!((&new.enroll, &new.profiles), (&was.enroll, &was.profiles));
        assert_eq!(keep_fixed(&mut read(sample), &was), [""; 0]);
    }
}
