//! An operator spoke of what a node boots: its profile, its variables, something for one boot only.

use super::{Central, OperateError};
use crate::boot;
use crate::config::{Edit, MAX_VARS, Site, kernel_arg};
use crate::fleet::{Actor, ConditionKind, Event, EventKind, Node, Once, Phase};
use crate::id::{NodeId, ProfileName, Timestamp, VarName, Vars};
use crate::store::Tx;

/// Most kernel arguments for one boot.
const MAX_ONCE_ARGS: usize = 64;

/// Why a node cannot be told that. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// A variable that it does not have.
    #[error("node {node} has no variable `{name}` of its own; `meshd node show {node}` lists them")]
    NoVar {
        /// Which node.
        node: NodeId,
        /// Which variable.
        name: VarName,
    },
    /// Too many variables.
    #[error("node {node} would have {count} variables of its own; at most {MAX_VARS}")]
    TooManyVars {
        /// Which node.
        node: NodeId,
        /// How many.
        count: usize,
    },
    /// A kernel argument that cannot be set.
    #[error("kernel argument {0}")]
    KernelArg(String),
    /// Nothing was ordered, or too much.
    #[error(
        "an order for one boot is a profile or up to {MAX_ONCE_ARGS} kernel arguments; name --profile or --kernel-arg"
    )]
    NoOrder,
    /// There is nothing to take back.
    #[error("nothing is ordered for one boot of node {node}; `meshd node show {node}` would show it")]
    NothingOrdered {
        /// Which node.
        node: NodeId,
    },
}

impl Central {
    /// Gives a node a profile; it takes effect at its next boot.
    pub async fn assign_profile(&self, id: NodeId, profile: ProfileName) -> Result<Node, OperateError> {
        let site = self.site();
        known(&site, &profile)?;
        let now = self.now();
        self.order(id, |tx, mut node| {
            let before = boot::effective_profile(&site, &node).name.clone();
            node.profile = Some(profile.clone());
            let detail = format!("{before} -> {profile}");
            let running = matches!(node.phase, Phase::Degraded | Phase::Online | Phase::Draining | Phase::Maintenance);
            if running && before != profile {
                node.raise(ConditionKind::RebootRequired, format!("profile {detail}"), now);
            }
            tell(tx, &node, EventKind::ProfileAssigned, detail, now);
            Ok(node)
        })
        .await
    }

    /// Sets variables of a node, and removes others; they take effect at its next boot.
    pub async fn set_vars(&self, id: NodeId, set: Vars, unset: Vec<VarName>) -> Result<Node, OperateError> {
        let now = self.now();
        self.order(id, |tx, mut node| {
            if let Some(name) = unset.iter().find(|name| !node.vars.contains_key(*name)) {
                return Err(OrderError::NoVar { node: id, name: name.clone() }.into());
            }
            let words = set.iter().map(|(name, value)| format!("{name}={value}"));
            let words: Vec<String> = words.chain(unset.iter().map(|name| format!("-{name}"))).collect();
            node.vars.extend(set.clone());
            node.vars.retain(|name, _| !unset.contains(name));
            if node.vars.len() > MAX_VARS {
                return Err(OrderError::TooManyVars { node: id, count: node.vars.len() }.into());
            }
            tell(tx, &node, EventKind::VarsChanged, words.join(" "), now);
            Ok(node)
        })
        .await
    }

    /// Orders something for the next boot of a node only, in place of what was ordered before.
    pub async fn boot_once(
        &self,
        id: NodeId,
        profile: Option<ProfileName>,
        kernel_args: Vec<String>,
    ) -> Result<Node, OperateError> {
        if (profile.is_none() && kernel_args.is_empty()) || kernel_args.len() > MAX_ONCE_ARGS {
            return Err(OrderError::NoOrder.into());
        }
        if let Some(profile) = &profile {
            known(&self.site(), profile)?;
        }
        for arg in &kernel_args {
            let (Ok(Edit::Add(plain)) | Ok(Edit::Remove(plain))) = arg.parse::<Edit<String>>();
            kernel_arg(&plain).map_err(OrderError::KernelArg)?;
        }
        let now = self.now();
        self.order(id, |tx, mut node| {
            let once = Once { profile, kernel_args, set_at: now, used_by: None };
            tell(tx, &node, EventKind::BootOnce, format!("the next boot: {}", once.words()), now);
            node.once = Some(once);
            Ok(node)
        })
        .await
    }

    /// Takes back what was ordered for one boot.
    pub async fn clear_once(&self, id: NodeId) -> Result<Node, OperateError> {
        let now = self.now();
        self.order(id, |tx, mut node| {
            let once = node.once.take().ok_or(OrderError::NothingOrdered { node: id })?;
            tell(tx, &node, EventKind::BootOnce, format!("taken back: {}", once.words()), now);
            Ok(node)
        })
        .await
    }

    /// Changes a node by an operator's word.
    async fn order(
        &self,
        id: NodeId,
        change: impl FnOnce(&mut Tx<'_>, Node) -> Result<Node, OperateError>,
    ) -> Result<Node, OperateError> {
        self.store
            .commit(|tx| {
                let node = tx.node(id).cloned().ok_or_else(|| OperateError::NoNode { name: id.to_string() })?;
                let node = change(tx, node)?;
                tx.put_node(node.clone());
                Ok(node)
            })
            .await
    }
}

fn known(site: &Site, profile: &ProfileName) -> Result<(), OperateError> {
    if site.profiles.contains_key(profile) {
        return Ok(());
    }
    let known: Vec<&str> = site.profiles.keys().map(ProfileName::as_str).collect();
    Err(OperateError::NoProfile { profile: profile.to_string(), known: known.join(", ") })
}

fn tell(tx: &mut Tx<'_>, node: &Node, kind: EventKind, detail: String, now: Timestamp) {
    tx.event(Event::new(now, Actor::Operator, kind, detail).of_node(node.id));
}
