//! Site, overlays, images and rolled back profiles as of one reload. A reload replaces the snapshot
//! as a whole; a request that uses the old snapshot finishes with it.

use bytes::Bytes;
use meshd_config::{
    EnrollPolicy, EnrollRule, Group, Owner, Profile, Reservation, Segment, Site, role_on,
};
use meshd_image::{
    catalog::{Catalog, Image, Overlay, Overlays, overlay::Variable},
    overlay::NodePrograms,
};
use meshd_model::fleet::{Generation, Node, matching_rule};
use meshd_store::Model;
use meshd_types::{
    BundleName, Digest, Hostlist, MacAddr, NodeId, NodePattern, OverlayName, ProfileName, VarName,
    matches_glob,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
};

/// The archived revision that nodes of a rolled back profile boot.
#[derive(Clone, Debug)]
pub(crate) struct RolledBackProfile {
    pub(crate) profile: Profile,
    pub(crate) overlays: BTreeMap<OverlayName, Overlay>,
    pub(crate) version: Digest,
    /// Layers of its bundles. A bundle that an old record does not list uses its present layer.
    pub(crate) bundles: BTreeMap<BundleName, Digest>,
    pub(crate) generation: Generation,
}

/// Rolled back profiles, or why a revision cannot be read. Nodes of an unreadable revision are
/// refused: another revision would be worse.
pub(crate) type RolledBackProfiles = BTreeMap<ProfileName, Result<Arc<RolledBackProfile>, String>>;

/// The immutable inputs of all boots between two reloads.
#[derive(Clone)]
pub struct SiteSnapshot {
    /// The site, with rolled back profiles in place. Settings that need a restart keep their values
    /// from the start.
    pub site: Arc<Site>,
    /// The site without rollbacks.
    site_file: Arc<Site>,
    pub catalog: Arc<Catalog>,
    /// The programs in new overlays.
    pub programs: Arc<NodePrograms>,
    /// The programs before their last change: generations with them may not be archived yet.
    pub(crate) former_programs: Option<Arc<NodePrograms>>,
    rolled_back: RolledBackProfiles,
    /// The catalog's overlays, with those of each rolled back profile in place.
    rollback_overlays: BTreeMap<ProfileName, Arc<Overlays>>,
    /// Groups of a node, as indexes into the site's list.
    groups_of: BTreeMap<NodeId, Vec<usize>>,
    groups_of_name: BTreeMap<String, Vec<usize>>,
    /// Patterns with wildcards.
    groups_of_glob: Vec<(String, usize)>,
    /// Reserved addresses. If a machine has several, the first.
    reserved: BTreeMap<Owner, Ipv4Addr>,
    reserved_at: BTreeMap<Ipv4Addr, Owner>,
    /// Digest of the inputs that all overlays share.
    pub(crate) shared_inputs: Digest,
    profile_digests: BTreeMap<ProfileName, Digest>,
}

impl SiteSnapshot {
    pub(crate) fn new(
        site_file: Arc<Site>,
        catalog: Catalog,
        programs: Arc<NodePrograms>,
        rolled_back: RolledBackProfiles,
    ) -> Self {
        let site = with_rollbacks(&site_file, &rolled_back);
        let overlays =
            |(name, rolled_back): (&ProfileName, &Result<Arc<RolledBackProfile>, String>)| {
                let mut all = catalog.overlays().clone();
                all.named.extend(rolled_back.as_ref().ok()?.overlays.clone());
                Some((name.clone(), Arc::new(all)))
            };
        let rollback_overlays = rolled_back.iter().filter_map(overlays).collect();
        let mut groups_of: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        let mut groups_of_name: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        let mut groups_of_glob = Vec::new();
        for (index, group) in site.groups.iter().enumerate() {
            for node in &group.nodes {
                groups_of.entry(*node).or_default().push(index);
            }
            for pattern in group.hostlists.iter().flat_map(Hostlist::patterns) {
                match pattern {
                    NodePattern::Glob(glob) => groups_of_glob.push((glob.clone(), index)),
                    NodePattern::Word(name) | NodePattern::Name(name) => {
                        groups_of_name.entry(name.clone()).or_default().push(index);
                    }
                }
            }
        }
        let mut reserved = BTreeMap::new();
        for reservation in &site.reservations {
            reserved.entry(reservation.owner).or_insert(reservation.address);
        }
        let at = |reservation: &Reservation| (reservation.address, reservation.owner);
        let reserved_at = site.reservations.iter().map(at).collect();
        let agent_section = &site.agent;
        let boot = &site.boot;
        let program = programs.agent_digest();
        let shared_inputs = (
            &site.name,
            &site.ssh_keys,
            agent_section.port,
            agent_section.heartbeat,
            &boot.consoles,
            program,
        );
        let shared_inputs = format!("{shared_inputs:?}");
        let profile_digests =
            site.profiles.iter().map(|(name, profile)| (name.clone(), digest(profile))).collect();
        let shared_inputs = Digest::of(shared_inputs.as_bytes());
        SiteSnapshot {
            site,
            site_file,
            catalog: Arc::new(catalog),
            programs,
            former_programs: None,
            rolled_back,
            rollback_overlays,
            groups_of,
            groups_of_name,
            groups_of_glob,
            reserved,
            reserved_at,
            shared_inputs,
            profile_digests,
        }
    }

    /// Adds further versions of images and layers of bundles. The current versions stay current.
    pub(crate) fn with_archived_contents(
        &self,
        images: Vec<Image>,
        layers: BTreeMap<Digest, Bytes>,
    ) -> Self {
        SiteSnapshot {
            catalog: Arc::new(Catalog::clone(&self.catalog).with_pinned(images, layers)),
            ..self.clone()
        }
    }

    /// Replaces the set of rolled back profiles.
    pub(crate) fn with_rollbacks(&self, rolled_back: RolledBackProfiles) -> Self {
        let snapshot = SiteSnapshot::new(
            self.site_file.clone(),
            Catalog::clone(&self.catalog),
            self.programs.clone(),
            rolled_back,
        );
        SiteSnapshot { former_programs: self.former_programs.clone(), ..snapshot }
    }

    /// The profiles of the site file, without rollbacks.
    pub(crate) fn site_file_profiles(&self) -> &BTreeMap<ProfileName, Profile> {
        &self.site_file.profiles
    }

    /// The overlays of a rolled back profile; `None` if its nodes use those of the catalog.
    pub(crate) fn overlays_for(&self, profile: &ProfileName) -> Option<&Arc<Overlays>> {
        self.rollback_overlays.get(profile)
    }

    /// The names of [`SiteSnapshot::declarations`].
    pub(crate) fn declared(&self) -> impl Iterator<Item = &VarName> + Clone {
        self.declarations().map(|(name, _)| name)
    }

    /// The variables that overlays declare, those of rolled back profiles too; with duplicates.
    pub(crate) fn declarations(&self) -> impl Iterator<Item = (&VarName, &Variable)> + Clone {
        let current = self.catalog.overlays().all();
        let rolled_back = self.rollback_overlays.values().flat_map(|overlays| overlays.all());
        current.chain(rolled_back).flat_map(|overlay| &overlay.variables)
    }

    pub(crate) fn rolled_back_profiles(&self) -> &RolledBackProfiles {
        &self.rolled_back
    }

    /// The image that nodes of a profile boot. A rolled back profile has the version of its
    /// revision.
    pub(crate) fn image_of(&self, profile: &Profile) -> Option<&Image> {
        match self.rolled_back.get(&profile.name) {
            Some(Ok(rolled_back)) => self.catalog.version(&rolled_back.version),
            _ => self.catalog.image(&profile.image),
        }
    }

    /// True if a boot cannot differ between the two snapshots.
    pub(crate) fn is_same(&self, other: &SiteSnapshot) -> bool {
        let revisions = |snapshot: &SiteSnapshot| {
            snapshot
                .rolled_back
                .values()
                .map(|profile| profile.as_ref().ok().map(|profile| profile.generation))
                .collect::<Vec<_>>()
        };
        let same_agent = self.programs.agent_digest() == other.programs.agent_digest();
        self.site_file == other.site_file
            && same_agent
            && revisions(self) == revisions(other)
            && self.catalog.is_same(&other.catalog)
    }

    /// The groups that list a node by its ID, a former ID or its name, with their indexes, in the
    /// order of the site file.
    pub(crate) fn groups(&self, node: &Node) -> impl Iterator<Item = (usize, &Group)> {
        let by_id = node.known_as().filter_map(|id| self.groups_of.get(&id)).flatten().copied();
        let by_name = self.groups_of_name.get(&node.name).into_iter().flatten().copied();
        let globs = self.groups_of_glob.iter();
        let by_glob =
            globs.filter(|(glob, _)| matches_glob(glob, &node.name)).map(|(_, index)| *index);
        let indexes: BTreeSet<usize> = by_id.chain(by_name).chain(by_glob).collect();
        indexes.into_iter().filter_map(|index| Some((index, self.site.groups.get(index)?)))
    }

    /// The address that is reserved for a machine, by one of its IDs or NICs.
    pub(crate) fn reserved<'m>(
        &self,
        node_ids: impl IntoIterator<Item = NodeId>,
        macs: impl IntoIterator<Item = &'m MacAddr>,
    ) -> Option<Ipv4Addr> {
        by_owner(&self.reserved, node_ids, macs).copied()
    }

    /// Returns the name that the site gives a machine, by an ID of its node or by one of its NICs.
    pub(crate) fn node_name<'m>(
        &self,
        node_ids: impl IntoIterator<Item = NodeId>,
        macs: impl IntoIterator<Item = &'m MacAddr>,
    ) -> Option<&str> {
        by_owner(&self.site.node_names, node_ids, macs).map(String::as_str)
    }

    /// Describes the reservation or network role of an address; `None` if it is free to assign.
    pub(crate) fn holder_of(&self, address: Ipv4Addr) -> Option<String> {
        let reserved = self.reserved_at.get(&address).map(|owner| match owner {
            Owner::Mac(mac) => format!("reserved for NIC {mac} by a [[reservation]]"),
            Owner::Node(node) => format!("reserved for node {node} by a [[reservation]]"),
        });
        let role = || {
            let on = |segment| Some((role_on(segment, address)?, segment));
            let (role, segment) = self.site.segments.iter().find_map(on)?;
            Some(format!("{role} of {}", segment.link))
        };
        // A segment need not name the address of its interface.
        let own = || {
            let is_own = self.site.own_addresses.contains(&address);
            is_own.then(|| "an address of this central node".to_owned())
        };
        reserved.or_else(role).or_else(own)
    }

    /// The ID with which DHCP looks up the reserved address of a node: a former ID that has a
    /// reservation, else the present ID.
    pub(crate) fn reserved_node_id(&self, node: &Node) -> NodeId {
        node.known_as().find(|id| self.reserved.contains_key(&Owner::Node(*id))).unwrap_or(node.id)
    }

    /// Whether the site approves a machine automatically: `Some(None)` by its policy, `Some(rule)`
    /// by a rule.
    pub(crate) fn automatic_approval(
        &self,
        model: &Model,
        node: &Node,
    ) -> Option<Option<&EnrollRule>> {
        let enroll = &self.site.enroll;
        // Without a relay, the machine itself may have written the option.
        let boot = model.newest_session(node.mac).filter(|boot| boot.is_relayed);
        let port = boot.and_then(|boot| boot.relay_port.as_ref());
        let port = port.filter(|port| port.relay.is_some());
        let segment = self.segment_of(node);
        if let Some(rule) = matching_rule(&enroll.rules, node, segment.as_deref(), port) {
            return Some(Some(rule));
        }
        (enroll.policy == EnrollPolicy::Auto).then_some(None)
    }

    /// The segment that a node boots on, by its address.
    fn segment_of(&self, node: &Node) -> Option<String> {
        self.site.segment_at(node.address).map(Segment::name)
    }

    /// The digest of a profile; precomputed for the profiles of the site.
    pub(crate) fn profile_digest(&self, profile: &Profile) -> Digest {
        let own = self.site.profiles.get(&profile.name).filter(|own| std::ptr::eq(*own, profile));
        let known = own.and_then(|own| self.profile_digests.get(&own.name).copied());
        known.unwrap_or_else(|| digest(profile))
    }
}

/// Returns the first value of one of these IDs, else of one of these NICs.
fn by_owner<'s, 'm, T>(
    values: &'s BTreeMap<Owner, T>,
    node_ids: impl IntoIterator<Item = NodeId>,
    macs: impl IntoIterator<Item = &'m MacAddr>,
) -> Option<&'s T> {
    let mut owners =
        node_ids.into_iter().map(Owner::Node).chain(macs.into_iter().map(|mac| Owner::Mac(*mac)));
    owners.find_map(|owner| values.get(&owner))
}

/// Replaces profiles of the site file with their rolled back revisions. A profile that the file no
/// longer contains is not added.
fn with_rollbacks(site_file: &Arc<Site>, rolled_back: &RolledBackProfiles) -> Arc<Site> {
    let mut site = site_file.clone();
    for (name, rolled_back) in rolled_back {
        if let (Ok(rolled_back), true) = (rolled_back, site_file.profiles.contains_key(name)) {
            Arc::make_mut(&mut site).profiles.insert(name.clone(), rolled_back.profile.clone());
        }
    }
    site
}

fn digest(profile: &Profile) -> Digest {
    Digest::of(&serde_json::to_vec(profile).expect("a profile is plain data"))
}
