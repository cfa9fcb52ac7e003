//! What a node boots: its profile, its variables, its pinned generation, and orders for the next boot.

use super::{
    OperateError, operator_kernel_args,
    setting_changes::{once_cleared, once_ordered, pinned, profile_assigned, unpinned, vars_changed},
};
use crate::{
    generations::{Contexts, RenderError, kept},
    nodes::NodeOps,
};
use meshd_config::{Edit, MAX_VARS, Site, kernel_arg};
use meshd_model::{
    boot::Endpoint,
    fleet::{AuditContext, DeliveredGeneration, Generation, GenerationDiff, History, NextBootOverride, Node},
};
use meshd_store::{ArchiveError, Model, Tx};
use meshd_trust::Role;
use meshd_types::{NodeId, ProfileName, VarName, Vars, fail};
use std::{net::Ipv4Addr, sync::Arc};

/// Most kernel arguments for one boot.
const MAX_ONCE_ARGS: usize = 64;

/// Why a boot setting is refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// A variable that it does not have.
    #[error("node {node} has no variable `{name}`; `meshd node show {node}` lists them")]
    NoVar { node: NodeId, name: VarName },
    /// A variable that no overlay of the site declares.
    #[error("no overlay declares variable `{name}` of node {node}; {hint}")]
    UnknownVar {
        node: NodeId,
        name: VarName,
        /// The name that was meant, or the names that there are.
        hint: String,
    },
    /// Too many variables.
    #[error("cannot set variables of node {node}: {count} exceed the limit of {MAX_VARS}")]
    TooManyVars { node: NodeId, count: usize },
    /// A kernel argument that cannot be set.
    #[error("kernel argument {0}")]
    KernelArg(String),
    /// A kernel argument that another role may set.
    #[error(
        "kernel argument `{arg}` for one boot: role {role} may not set it; ask an admin, or use one of {}",
        operator_kernel_args::operator_args()
    )]
    ForbiddenArg {
        /// As ordered.
        arg: String,
        /// The role of the operator.
        role: Role,
    },
    /// Nothing was ordered, or too much.
    #[error(
        "an order for one boot is a profile or up to {MAX_ONCE_ARGS} kernel arguments; name --profile or --kernel-arg"
    )]
    NoOrder,
    /// It is pinned.
    #[error("node {node} is pinned to one generation; unpin it first: meshd node pin {node} --off")]
    Pinned { node: NodeId },
    /// It is not pinned.
    #[error("node {node} is not pinned; `meshd node show {node}` shows pins")]
    NotPinned { node: NodeId },
    /// No generation of it is named so.
    #[error("node {node} has no generation `{text}` on record, or several; `meshd node history {node}` lists them")]
    NoGeneration {
        node: NodeId,
        /// The text that was given.
        text: String,
    },
    /// The generation that it runs is not known.
    #[error("node {node} has not said yet which generation it runs; name one with --generation")]
    RunsNothing { node: NodeId },
    /// The generation that it runs is not in the archive.
    #[error(transparent)]
    NotKept(ArchiveError),
    /// There is no override for one boot.
    #[error("nothing is ordered for one boot of node {node}; `meshd node show {node}` would show it")]
    NothingOrdered { node: NodeId },
}

impl NodeOps {
    /// Gives a node a profile; it takes effect at its next boot.
    pub async fn assign_profile(
        self: &Arc<Self>,
        id: NodeId,
        profile: ProfileName,
        by: &AuditContext,
    ) -> Result<Node, OperateError> {
        let site = self.env.site();
        known(&site, &profile)?;
        self.check_packages(id, &profile).await?;
        let now = self.env.now();
        self.order(id, |tx, node| profile_assigned(tx, node, &site, &profile, (by, now))).await
    }

    /// Refuses a profile whose packages its image does not have: the node would find out at its next boot. Whatever else keeps it from
    /// being rendered is left to be put right before that boot.
    pub(super) async fn check_packages(
        self: &Arc<Self>,
        id: NodeId,
        profile: &ProfileName,
    ) -> Result<(), OperateError> {
        if !fail::defends("assign-checks-packages") {
            return Ok(());
        }
        let (mut node, _) = self.with_history(id)?;
        (node.profile, node.once) = (Some(profile.clone()), None);
        let this = self.clone();
        let check = move || {
            let (live, nowhere) = (this.env.live(), this.env.endpoint(Ipv4Addr::UNSPECIFIED));
            let prepared = |model: &Model| {
                this.generations.prepare_render(&live, &mut Contexts::new(&live), model, &node, (None, nowhere))
            };
            this.env.store.read(prepared).map_or(Ok(()), |prepared| prepared.check_packages())
        };
        let checked = tokio::task::spawn_blocking(check).await.unwrap_or(Err(RenderError::Interrupted));
        Ok(checked.map_err(Arc::new)?)
    }

    /// Sets variables of a node, and removes others; they take effect at its next boot.
    pub async fn set_vars(
        self: &Arc<Self>,
        id: NodeId,
        set: Vars,
        unset: Vec<VarName>,
        by: &AuditContext,
    ) -> Result<Node, OperateError> {
        let now = self.env.now();
        self.declared(id, &set)?;
        self.order(id, |tx, node| vars_changed(tx, node, (&set, &unset), (by, now))).await
    }

    /// Refuses a variable that no overlay declares.
    pub(super) fn declared(&self, id: NodeId, set: &Vars) -> Result<(), OperateError> {
        let live = self.env.live();
        let Some(name) = set.keys().find(|name| !live.declared().any(|known| known == *name)) else { return Ok(()) };
        let hint = meshd_config::suggest(name.as_str(), live.declared().map(VarName::as_str));
        Err(OrderError::UnknownVar { node: id, name: name.clone(), hint }.into())
    }

    /// Orders something for the next boot of a node only, in place of what was ordered before. `role` decides which kernel arguments.
    pub async fn boot_once(
        self: &Arc<Self>,
        id: NodeId,
        profile: Option<ProfileName>,
        kernel_args: Vec<String>,
        role: Role,
        by: &AuditContext,
    ) -> Result<Node, OperateError> {
        let site = self.env.site();
        check_once(&site, profile.as_ref(), &kernel_args, role)?;
        if let Some(profile) = &profile {
            self.check_packages(id, profile).await?;
        }
        let now = self.env.now();
        let once = NextBootOverride { profile, kernel_args, set_at: now, used_by: None };
        self.order(id, |tx, node| once_ordered(tx, node, &site, once, (by, now))).await
    }

    /// Removes the override for one boot.
    pub async fn clear_once(self: &Arc<Self>, id: NodeId, by: &AuditContext) -> Result<Node, OperateError> {
        let now = self.env.now();
        self.order(id, |tx, node| once_cleared(tx, node, (by, now))).await
    }

    /// Makes a node boot one generation from now on: what it runs, or another one that it was given. Nothing is ordered for one boot
    /// any more.
    ///
    /// # Errors
    /// Not all of that generation is here any more; the node boots as before then.
    pub async fn pin(
        self: &Arc<Self>,
        id: NodeId,
        text: Option<&str>,
        by: &AuditContext,
    ) -> Result<Node, OperateError> {
        let (node, history) = self.with_history(id)?;
        let generation = match text {
            None => node.booted.ok_or(OrderError::RunsNothing { node: id })?,
            Some(text) => named(&history, id, text)?,
        };
        self.generations.hold(node, generation).await.map_err(Arc::new)?;
        let now = self.env.now();
        let pinned = self.order(id, |tx, node| Ok(pinned(tx, node, generation, (by, now)))).await?;
        self.generations.update_in_use().await;
        Ok(pinned)
    }

    /// Unpins the node.
    pub async fn unpin(self: &Arc<Self>, id: NodeId, by: &AuditContext) -> Result<Node, OperateError> {
        let now = self.env.now();
        self.order(id, |tx, node| unpinned(tx, node, (by, now))).await
    }

    /// Makes sure that a node can boot its running generation, and returns that generation.
    pub(super) async fn hold_running(&self, id: NodeId) -> Result<Generation, OperateError> {
        let (node, _) = self.with_history(id)?;
        let generation = node.booted.ok_or(OrderError::RunsNothing { node: id })?;
        self.generations.hold(node, generation).await.map_err(Arc::new)?;
        Ok(generation)
    }

    fn with_history(&self, id: NodeId) -> Result<(Node, History), OperateError> {
        let found = self
            .env
            .store
            .read(|model| Some((model.node(id)?.clone(), model.history(id).cloned().unwrap_or_default())));
        found.ok_or_else(|| OperateError::NoNode { name: id.to_string() })
    }

    /// The generations that a node was given, newest first, each with whether all of it is kept.
    pub fn generations(&self, id: NodeId) -> Result<Vec<(DeliveredGeneration, bool)>, OperateError> {
        let (_, history) = self.with_history(id)?;
        let each = history.0.into_iter().rev();
        Ok(each
            .map(|given| (self.generations.is_kept(given.generation), given))
            .map(|(kept, given)| (given, kept))
            .collect())
    }

    /// How what a node would boot now differs from what it runs.
    pub async fn node_diff(
        self: &Arc<Self>,
        id: NodeId,
        endpoint: Endpoint,
    ) -> Result<(Generation, Generation, GenerationDiff), OperateError> {
        let (node, _) = self.with_history(id)?;
        let runs = node.booted.ok_or(OrderError::RunsNothing { node: id })?;
        let endpoint = node.told.map_or(endpoint, |told| self.env.endpoint(told));
        let next = self.generations.render(&node, endpoint).await?;
        let this = self.clone();
        let before = tokio::task::spawn_blocking(move || this.generations.kept_generation(runs)).await;
        let before = before.map_err(|_| Arc::new(RenderError::Interrupted))?.map_err(OrderError::NotKept)?;
        Ok((runs, next.generation, before.diff(&kept(&next))))
    }

    /// Changes a node by an operator's word, and finds out what it would boot now.
    pub(super) async fn order(
        self: &Arc<Self>,
        id: NodeId,
        change: impl FnOnce(&mut Tx<'_>, Node) -> Result<Node, OperateError>,
    ) -> Result<Node, OperateError> {
        let node = self
            .env
            .store
            .commit(|tx| {
                let node = tx.node(id).cloned().ok_or_else(|| OperateError::NoNode { name: id.to_string() })?;
                let node = change(tx, node)?;
                tx.put_node(node.clone());
                Ok::<_, OperateError>(node)
            })
            .await?;
        fail::point("order-committed");
        self.generations.scan(vec![id]).await?;
        Ok(node)
    }
}

/// The generation that somebody means by its digest or the beginning of it.
fn named(history: &History, node: NodeId, text: &str) -> Result<Generation, OrderError> {
    let mut found = history.0.iter().map(|given| given.generation).filter(|one| one.to_string().starts_with(text));
    match (found.next(), found.next()) {
        (Some(generation), None) if !text.is_empty() => Ok(generation),
        _ => Err(OrderError::NoGeneration { node, text: text.chars().take(80).collect() }),
    }
}

pub(super) fn known(site: &Site, profile: &ProfileName) -> Result<(), OperateError> {
    if site.profiles.contains_key(profile) {
        return Ok(());
    }
    let known: Vec<&str> = site.profiles.keys().map(ProfileName::as_str).collect();
    Err(OperateError::NoProfile { profile: profile.to_string(), known: known.join(", ") })
}

/// Refuses an override for one boot that no node may have.
pub(super) fn check_once(
    site: &Site,
    profile: Option<&ProfileName>,
    kernel_args: &[String],
    role: Role,
) -> Result<(), OperateError> {
    if (profile.is_none() && kernel_args.is_empty()) || kernel_args.len() > MAX_ONCE_ARGS {
        return Err(OrderError::NoOrder.into());
    }
    profile.map_or(Ok(()), |profile| known(site, profile))?;
    for arg in kernel_args {
        let (Ok(Edit::Add(plain)) | Ok(Edit::Remove(plain))) = arg.parse::<Edit<String>>();
        kernel_arg(&plain).map_err(OrderError::KernelArg)?;
    }
    match operator_kernel_args::beyond(role, kernel_args) {
        Some(arg) => Err(OrderError::ForbiddenArg { arg: arg.to_owned(), role }.into()),
        None => Ok(()),
    }
}
