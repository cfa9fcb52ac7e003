//! Variables, groups and group members that the overlay of a node depends on. Members are found by
//! their IDs, without a pass over all nodes.

use crate::environment::{records::group_members, site_snapshot::SiteSnapshot};
use meshd_config::{Group, Profile};
use meshd_image::overlay::{GroupContext, MemberContext, MemberSize, NodeContext};
use meshd_model::fleet::{Node, Phase};
use meshd_store::Model;
use meshd_types::{Digest, NodeId};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

/// Builds contexts from one snapshot, and caches the members of groups.
pub(crate) struct Contexts<'a> {
    snapshot: &'a SiteSnapshot,
    members: BTreeMap<usize, (Arc<[MemberContext]>, Digest)>,
}

/// A context with its digest.
pub(crate) struct RenderContext {
    pub(crate) node: NodeContext,
    pub(crate) digest: Digest,
}

impl<'a> Contexts<'a> {
    pub(crate) fn new(snapshot: &'a SiteSnapshot) -> Self {
        Contexts { snapshot, members: BTreeMap::new() }
    }

    /// Builds the context of a node with this profile. Later values of a variable override earlier
    /// ones: profile, groups in their order, node.
    pub(crate) fn context(
        &mut self,
        model: &Model,
        node: &Node,
        profile: &Profile,
    ) -> RenderContext {
        let mut vars = profile.vars.clone();
        let mut groups = Vec::new();
        let mut digests = Vec::new();
        for (index, group) in self.snapshot.groups(node) {
            vars.extend(group.vars.clone());
            let (members, digest) =
                self.members.entry(index).or_insert_with(|| members(self.snapshot, model, group));
            digests.push(*digest);
            groups.push(GroupContext {
                name: group.name.clone(),
                overlays: group.overlays.clone(),
                members: members.clone(),
            });
        }
        vars.extend(node.vars.clone());
        let names: Vec<String> =
            groups.iter().map(|group| format!("{} {:?}", group.name, group.overlays)).collect();
        let vars_json = serde_json::to_vec(&vars).expect("variables are plain data");
        let id = node.id.to_string();
        let name = node.name.as_bytes();
        let digest = Digest::of_fields(
            [id.as_bytes(), name, vars_json.as_slice()]
                .into_iter()
                .chain(digests.iter().map(|digest| digest.0.as_slice()))
                .chain(names.iter().map(String::as_bytes)),
        );
        RenderContext {
            node: NodeContext {
                vars,
                groups,
                ..NodeContext::new(node.id, Some(node.name.clone()))
            },
            digest,
        }
    }
}

fn members(
    snapshot: &SiteSnapshot,
    model: &Model,
    group: &Group,
) -> (Arc<[MemberContext]>, Digest) {
    let ids = group_members(model, group);
    // A group may name a node by two IDs: its own, and that of hardware that it replaced.
    let mut seen = BTreeSet::new();
    let members = ids
        .into_iter()
        .map(|id| member(snapshot, model, id))
        .filter(|member| seen.insert(member.id));
    let members: Arc<[MemberContext]> = members.collect();
    let fields: Vec<String> = members
        .iter()
        .map(|member| {
            format!("{} {} {:?} {:?}", member.id, member.hostname, member.address, member.size)
        })
        .collect();
    let digest = Digest::of_fields(fields.iter().map(String::as_bytes));
    (members, digest)
}

/// Describes a member. An unknown member has the name that it will receive, or the default host
/// name of its ID.
fn member(snapshot: &SiteSnapshot, model: &Model, id: NodeId) -> MemberContext {
    let Some(node) = model.current_node(id).filter(|node| node.phase != Phase::Removed) else {
        let name = snapshot.node_name([id], []).map(str::to_owned);
        let address = snapshot.reserved([id], []);
        let hostname = NodeContext::new(id, name).hostname();
        return MemberContext { id, hostname, address, size: None };
    };
    let reserved = snapshot.reserved(node.known_as(), node.seen_nics());
    MemberContext {
        id: node.id,
        hostname: node.name.clone(),
        address: reserved.or_else(|| leased(model, node)),
        size: node
            .facts
            .as_ref()
            .and_then(|facts| MemberSize::of(facts.cpu.threads, facts.memory.total_kib)),
    }
}

/// The present address of a node, if it is leased to the node.
fn leased(model: &Model, node: &Node) -> Option<Ipv4Addr> {
    let Some(IpAddr::V4(address)) = node.address else { return None };
    model
        .lease(address)
        .filter(|lease| node.seen_nics().any(|mac| *mac == lease.mac))
        .map(|lease| lease.address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_config::{Site, parse};
    use meshd_image::catalog::{Catalog, Overlays};
    use meshd_model::fleet::{Fingerprint, Lease};
    use meshd_store::{Store, StoreError};
    use meshd_types::{Basis, MacAddr, Timestamp, VarValue};
    use std::path::Path;

    fn machine(number: u8) -> Node {
        let mac = MacAddr([2, 0, 0, 0, 0, number]);
        Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, Timestamp::EPOCH)
    }

    fn site(groups: &str) -> Arc<Site> {
        let text = include_str!("../../../site.toml").replace(
            "[profiles.compute]",
            "[profiles.compute]\nvars = { a = 1, b = 1, c = 1, d = 1 }",
        );
        let text = format!(
            "{text}\n[[reservation]]\nmac = \"02:00:00:00:00:02\"\naddress = \"10.77.0.9\"\n{groups}"
        );
        Arc::new(parse(&text, Path::new("site.toml")).unwrap_or_else(|faults| panic!("{faults}")))
    }

    #[tokio::test]
    async fn group_context_lists_members_and_last_variable_wins() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = Store::open(dir.path()).expect("a store");
        let mut one = machine(1);
        let two = machine(2);
        let three = machine(3);
        let ids = format!("nodes = [\"{}\", \"{}\", \"zzzzzzzz\"]", one.id, two.id);
        let groups = format!(
            "[groups.z]\n{ids}\nvars = {{ b = 2, c = 2, d = 2 }}\n[groups.a]\n{ids}\noverlays = [\"motd\"]\nvars = {{ c = 3, d = 3 }}"
        );
        let site = site(&groups);
        one.vars.insert("d".parse().expect("a name"), VarValue::Integer(4));
        one.address = "10.77.0.101".parse().ok();
        let lease = |address: [u8; 4], mac| Lease {
            mac,
            address: address.into(),
            expires_at: Timestamp::EPOCH,
            vm: None,
        };
        let put = store.commit(|tx| {
            for node in [&one, &two, &three] {
                tx.put_node(node.clone());
            }
            tx.put_lease(lease([10, 77, 0, 101], one.mac));
            Ok::<_, StoreError>(())
        });
        put.await.expect("stored");
        let profile = &site.profiles[&"compute".parse().expect("a name")];
        let agent =
            std::sync::Arc::new(meshd_image::overlay::NodePrograms::new(bytes::Bytes::new(), None));
        let snapshot = SiteSnapshot::new(
            site.clone(),
            Catalog::new(Vec::new(), Overlays::default()),
            agent,
            BTreeMap::new(),
        );
        let of = |node: &Node| {
            store.read(|model| Contexts::new(&snapshot).context(model, node, profile))
        };
        let context = of(&one);
        let vars: Vec<String> =
            context.node.vars.iter().map(|(name, value)| format!("{name}{value}")).collect();
        assert_eq!(vars, ["a1", "b2", "c3", "d4"]);
        let groups: Vec<&str> =
            context.node.groups.iter().map(|group| group.name.as_str()).collect();
        assert_eq!(groups, ["z", "a"]);
        let members: BTreeMap<NodeId, (String, Option<Ipv4Addr>)> = context.node.groups[0]
            .members
            .iter()
            .map(|member| (member.id, (member.hostname.clone(), member.address)))
            .collect();
        assert_eq!(
            members[&one.id],
            (one.name.clone(), Some([10, 77, 0, 101].into())),
            "its lease"
        );
        assert_eq!(
            members[&two.id],
            (two.name.clone(), Some([10, 77, 0, 9].into())),
            "its reservation"
        );
        assert_eq!(
            members[&"zzzzzzzz".parse().expect("an ID")],
            ("node-zzzzzzzz".to_owned(), None),
            "never seen"
        );
        assert!(of(&three).node.groups.is_empty());
        let before = context.digest;
        let moved = store.commit(|tx| {
            tx.edit_node(two.id, |node| node.name = "other".to_owned());
            Ok::<_, StoreError>(())
        });
        moved.await.expect("stored");
        assert_ne!(
            of(&one).digest,
            before,
            "what a member is called is part of what the others boot"
        );
        one.vars.clear();
        assert_ne!(of(&one).digest, before);
        let replaced = store.commit(|tx| {
            tx.edit_node(two.id, |node| node.former = vec![one.id]);
            Ok::<_, StoreError>(())
        });
        replaced.await.expect("stored");
        let context = of(&two);
        let members: Vec<NodeId> =
            context.node.groups[0].members.iter().map(|member| member.id).collect();
        assert_eq!(
            members,
            [two.id, "zzzzzzzz".parse().expect("an ID")],
            "both IDs of the group mean one node"
        );
    }
}
