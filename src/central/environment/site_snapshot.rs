//! Site, overlays, images and rolled back profiles as of one reload. A reload replaces the snapshot as a whole; a request that holds the
//! old one finishes with it.

use bytes::Bytes;
use meshd_config::{EnrollPolicy, EnrollRule, Group, Owner, Profile, Reservation, Segment, Site, role_on};
use meshd_image::{
    catalog::{Catalog, Image, Overlay, Overlays},
    overlay::AgentBinary,
};
use meshd_model::fleet::{Generation, Node, matching_rule};
use meshd_types::{BundleName, Digest, MacAddr, NodeId, OverlayName, ProfileName, VarName};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

/// A profile as it was: what its nodes boot in place of what the site file says.
#[derive(Clone, Debug)]
pub(crate) struct PinnedProfile {
    pub(crate) profile: Profile,
    pub(crate) overlays: BTreeMap<OverlayName, Overlay>,
    pub(crate) version: Digest,
    /// The layers of its bundles; those of an old record are what they are now.
    pub(crate) bundles: BTreeMap<BundleName, Digest>,
    pub(crate) generation: Generation,
}

/// Profiles that are held, or why that cannot be had: their nodes are refused then, for booting something else would be worse.
pub(crate) type PinnedProfiles = BTreeMap<ProfileName, Result<Arc<PinnedProfile>, String>>;

/// One such moment. Never changes.
#[derive(Clone)]
pub struct SiteSnapshot {
    /// The site. Whatever cannot change while meshd runs is as it was at the start; profiles that are held are as they were then.
    pub site: Arc<Site>,
    /// As the file says.
    filed: Arc<Site>,
    /// Images and overlays.
    pub catalog: Arc<Catalog>,
    /// What new overlays carry.
    pub agent: Arc<AgentBinary>,
    /// What overlays carried before the agent changed; some may not be kept yet.
    pub(crate) former_agent: Option<Arc<AgentBinary>>,
    held: PinnedProfiles,
    /// The overlays for nodes of each profile that is held.
    held_overlays: BTreeMap<ProfileName, Arc<Overlays>>,
    /// Groups of a node, as places in the site's list.
    groups_of: BTreeMap<NodeId, Vec<usize>>,
    /// Reserved addresses; of several of one machine the first.
    reserved: BTreeMap<Owner, Ipv4Addr>,
    /// All of them.
    reserved_at: BTreeMap<Ipv4Addr, Owner>,
    /// Over what every overlay depends on beside overlays, image, profile and node.
    pub(crate) common: Digest,
    /// Over each profile.
    profiles: BTreeMap<ProfileName, Digest>,
}

impl SiteSnapshot {
    pub(crate) fn new(filed: Arc<Site>, catalog: Catalog, agent: Arc<AgentBinary>, held: PinnedProfiles) -> Self {
        let site = with_held(&filed, &held);
        let overlays = |(name, held): (&ProfileName, &Result<Arc<PinnedProfile>, String>)| {
            let mut all = catalog.overlays().clone();
            all.named.extend(held.as_ref().ok()?.overlays.clone());
            Some((name.clone(), Arc::new(all)))
        };
        let held_overlays = held.iter().filter_map(overlays).collect();
        let mut groups_of: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (place, group) in site.groups.iter().enumerate() {
            for node in &group.nodes {
                groups_of.entry(*node).or_default().push(place);
            }
        }
        let mut reserved = BTreeMap::new();
        for reservation in &site.reservations {
            reserved.entry(reservation.owner).or_insert(reservation.address);
        }
        let at = |reservation: &Reservation| (reservation.address, reservation.owner);
        let reserved_at = site.reservations.iter().map(at).collect();
        let (plane, boot, program) = (&site.agent, &site.boot, agent.digest());
        let common = (&site.name, &site.ssh_keys, plane.port, plane.heartbeat, &boot.consoles, program);
        let common = format!("{common:?}");
        let profiles = site.profiles.iter().map(|(name, profile)| (name.clone(), digest(profile))).collect();
        let common = Digest::of(common.as_bytes());
        let catalog = Arc::new(catalog);
        let former_agent = None;
        SiteSnapshot {
            site,
            filed,
            catalog,
            agent,
            former_agent,
            held,
            held_overlays,
            groups_of,
            reserved,
            reserved_at,
            common,
            profiles,
        }
    }

    /// The same with other versions of images and layers of bundles beside the current ones. What boots are decided from does not
    /// change by it.
    pub(crate) fn with_kept(&self, kept: Vec<Image>, layers: BTreeMap<Digest, Bytes>) -> Self {
        SiteSnapshot { catalog: Arc::new(Catalog::clone(&self.catalog).with_kept(kept, layers)), ..self.clone() }
    }

    /// The same with other profiles held.
    pub(crate) fn with_held(&self, held: PinnedProfiles) -> Self {
        let live = SiteSnapshot::new(self.filed.clone(), Catalog::clone(&self.catalog), self.agent.clone(), held);
        SiteSnapshot { former_agent: self.former_agent.clone(), ..live }
    }

    /// The profiles as the site file says.
    pub(crate) fn filed(&self) -> &BTreeMap<ProfileName, Profile> {
        &self.filed.profiles
    }

    /// The overlays for nodes of a profile, where they are not those of the catalog.
    pub(crate) fn overlays_of(&self, profile: &ProfileName) -> Option<&Arc<Overlays>> {
        self.held_overlays.get(profile)
    }

    /// The variables that overlays declare, those of profiles that are held too; some several times.
    pub(crate) fn declared(&self) -> impl Iterator<Item = &VarName> + Clone {
        let current = self.catalog.overlays().all();
        let held = self.held_overlays.values().flat_map(|overlays| overlays.all());
        current.chain(held).flat_map(|overlay| overlay.variables.keys())
    }

    /// What profiles are held at.
    pub(crate) fn all_held(&self) -> &PinnedProfiles {
        &self.held
    }

    /// The image that nodes of a profile boot: the version of that time where the profile is held.
    pub(crate) fn image_of(&self, profile: &Profile) -> Option<&Image> {
        match self.held.get(&profile.name) {
            Some(Ok(held)) => self.catalog.version(&held.version),
            _ => self.catalog.image(&profile.image),
        }
    }

    /// True if a machine could not tell the two apart.
    pub(crate) fn is_same(&self, other: &SiteSnapshot) -> bool {
        let held = |live: &SiteSnapshot| {
            live.held.values().map(|held| held.as_ref().ok().map(|it| it.generation)).collect::<Vec<_>>()
        };
        let same_agent = self.agent.digest() == other.agent.digest();
        self.filed == other.filed && same_agent && held(self) == held(other) && self.catalog.is_same(&other.catalog)
    }

    /// The groups that a node is in by any ID that it is known as, with their places, in the order of the site file.
    pub(crate) fn groups(&self, known_as: impl IntoIterator<Item = NodeId>) -> impl Iterator<Item = (usize, &Group)> {
        let places = known_as.into_iter().filter_map(|id| self.groups_of.get(&id)).flatten().copied();
        let places: BTreeSet<usize> = places.collect();
        places.into_iter().filter_map(|place| Some((place, self.site.groups.get(place)?)))
    }

    /// The address that is reserved for a machine, by an ID that it is known as or by one of its cards.
    pub(crate) fn reserved<'m>(
        &self,
        known_as: impl IntoIterator<Item = NodeId>,
        macs: impl IntoIterator<Item = &'m MacAddr>,
    ) -> Option<Ipv4Addr> {
        let by_card = || macs.into_iter().find_map(|mac| self.reserved.get(&Owner::Mac(*mac)));
        let by_id = known_as.into_iter().find_map(|id| self.reserved.get(&Owner::Node(id)));
        by_id.or_else(by_card).copied()
    }

    /// Returns the name that the site gives a machine, by an ID of its node or by one of its NICs.
    pub(crate) fn node_name<'m>(
        &self,
        known_as: impl IntoIterator<Item = NodeId>,
        macs: impl IntoIterator<Item = &'m MacAddr>,
    ) -> Option<&str> {
        let names = &self.site.node_names;
        let by_nic = || macs.into_iter().find_map(|mac| names.get(&Owner::Mac(*mac)));
        let by_id = known_as.into_iter().find_map(|id| names.get(&Owner::Node(id)));
        by_id.or_else(by_nic).map(String::as_str)
    }

    /// An address that is reserved for one card or one machine.
    pub(crate) fn reserved_for(&self, owner: Owner) -> Option<Ipv4Addr> {
        self.reserved.get(&owner).copied()
    }

    /// What of the site an address belongs to, if it is nobody's to have.
    pub(crate) fn holder_of(&self, address: Ipv4Addr) -> Option<String> {
        let reserved = self.reserved_at.get(&address).map(|owner| match owner {
            Owner::Mac(mac) => format!("reserved for the card {mac} by a [[reservation]]"),
            Owner::Node(node) => format!("reserved for node {node} by a [[reservation]]"),
        });
        reserved.or_else(|| {
            let role = self.site.segments.iter().find_map(|segment| Some((role_on(segment, address)?, segment)));
            role.map(|(role, segment)| format!("{role} of {}", segment.link))
        })
    }

    /// The ID by which DHCP finds the reserved address of a node: one for which there is one, else its own.
    pub(crate) fn reserved_as(&self, node: &Node) -> NodeId {
        node.known_as().find(|id| self.reserved.contains_key(&Owner::Node(*id))).unwrap_or(node.id)
    }

    /// Whether the site lets a machine in by itself: `Some(None)` by its policy, `Some(rule)` by a rule.
    pub(crate) fn lets_in(&self, node: &Node) -> Option<Option<&EnrollRule>> {
        let enroll = &self.site.enroll;
        if let Some(rule) = matching_rule(&enroll.rules, node, self.segment_of(node).as_deref()) {
            return Some(Some(rule));
        }
        (enroll.policy == EnrollPolicy::Auto).then_some(None)
    }

    /// The segment that a node boots on, by its address.
    fn segment_of(&self, node: &Node) -> Option<String> {
        let segments = &self.site.segments;
        if let [only] = segments.as_slice() {
            return Some(only.name());
        }
        let Some(IpAddr::V4(address)) = node.address else { return None };
        let on = |segment: &&Segment| segment.subnet.as_ref().is_some_and(|subnet| subnet.is_on_network(address));
        segments.iter().find(on).map(Segment::name)
    }

    /// Over all that a profile says; known for those of the site.
    pub(crate) fn profile_digest(&self, profile: &Profile) -> Digest {
        let own = self.site.profiles.get(&profile.name).filter(|own| std::ptr::eq(*own, profile));
        let known = own.and_then(|own| self.profiles.get(&own.name).copied());
        known.unwrap_or_else(|| digest(profile))
    }
}

/// The site with profiles that are held in place of those of the file. What the file does not have any more is not held.
fn with_held(filed: &Arc<Site>, held: &PinnedProfiles) -> Arc<Site> {
    let mut site = filed.clone();
    for (name, held) in held {
        if let (Ok(held), true) = (held, filed.profiles.contains_key(name)) {
            Arc::make_mut(&mut site).profiles.insert(name.clone(), held.profile.clone());
        }
    }
    site
}

fn digest(profile: &Profile) -> Digest {
    Digest::of(&serde_json::to_vec(profile).expect("a profile is plain data"))
}
