//! Settings of a node's boot: profile, variables, pinned generation, and the override for the next
//! boot.

use super::{
    error::{MAX_ONCE_ARGS, OperateError, OrderError},
    operator_kernel_args,
    setting_changes::change_node_in,
};
use crate::{
    generations::{Contexts, RenderError, RenderTarget, archive_entry},
    nodes::NodeOps,
};
use meshd_config::{Edit, Faults, Site, kernel_arg};
use meshd_model::{
    boot::{self, Endpoint},
    fleet::{DeliveredGeneration, Generation, GenerationDiff, History, Node},
    rollouts::RolloutTarget,
};
use meshd_store::{Model, Tx};
use meshd_trust::Role;
use meshd_types::{NodeId, ProfileName, VarName, Vars, failpoint};
use std::{net::Ipv4Addr, sync::Arc};

impl NodeOps {
    /// Refuses a profile that no machine can boot. Other faults of a render can be repaired before
    /// the next boot.
    pub(super) async fn check_bootable(
        self: &Arc<Self>,
        id: NodeId,
        profile: &ProfileName,
    ) -> Result<(), OperateError> {
        let (mut node, _) = self.node_with_history(id)?;
        (node.profile, node.boot_override) = (Some(profile.clone()), None);
        let this = self.clone();
        let check = move || {
            let snapshot = this.env.snapshot();
            let unspecified_endpoint = this.env.endpoint(Ipv4Addr::UNSPECIFIED);
            let prepared = |model: &Model| {
                let target =
                    RenderTarget { node: &node, session: None, endpoint: unspecified_endpoint };
                this.generations.prepare_render(
                    &snapshot,
                    &mut Contexts::new(&snapshot),
                    model,
                    &target,
                )
            };
            this.env.store.read(prepared).map_or(Ok(()), |prepared| prepared.check_bootable())
        };
        let checked =
            tokio::task::spawn_blocking(check).await.unwrap_or(Err(RenderError::Interrupted));
        Ok(checked.map_err(Arc::new)?)
    }

    /// Refuses variables with which the next boot would have a fault that it does not have without
    /// them.
    pub(super) async fn check_vars(
        self: &Arc<Self>,
        id: NodeId,
        set: &Vars,
        unset: &[VarName],
    ) -> Result<(), OperateError> {
        self.check_declared(id, set)?;
        let (node, _) = self.node_with_history(id)?;
        let mut changed = node.clone();
        changed.vars.extend(set.clone());
        changed.vars.retain(|name, _| !unset.contains(name));
        let generations = self.generations.clone();
        let check = move || {
            let before = generations.render_faults(&node);
            let after = generations.render_faults(&changed);
            after.into_iter().filter(|fault| !before.contains(fault)).collect::<Vec<_>>()
        };
        let faults = tokio::task::spawn_blocking(check)
            .await
            .map_err(|_| Arc::new(RenderError::Interrupted))?;
        if faults.is_empty() || !failpoint::defends("vars-render") {
            return Ok(());
        }
        Err(OrderError::VarsDoNotRender { node: id, faults: Faults(faults) }.into())
    }

    /// Refuses a variable that no overlay declares, and a value that no declaration accepts.
    pub(super) fn check_declared(&self, id: NodeId, set: &Vars) -> Result<(), OperateError> {
        let snapshot = self.env.snapshot();
        for (name, value) in set {
            let mut refusal = None;
            for (_, declared) in snapshot.declarations().filter(|(known, _)| *known == name) {
                match declared.check(value) {
                    Ok(()) if !declared.secret => {
                        refusal = None;
                        break;
                    }
                    Ok(()) => {
                        refusal = Some((
                            "is a secret".to_owned(),
                            "name its file under [secrets]".to_owned(),
                        ))
                    }
                    Err(found) => refusal = Some(found),
                }
            }
            if let Some((what, hint)) = refusal {
                return Err(
                    OrderError::WrongVar { node: id, name: name.clone(), what, hint }.into()
                );
            }
        }
        let Some(name) = set.keys().find(|name| !snapshot.declared().any(|known| known == *name))
        else {
            return Ok(());
        };
        let hint = meshd_config::suggest(name.as_str(), snapshot.declared().map(VarName::as_str));
        Err(OrderError::UnknownVar { node: id, name: name.clone(), hint }.into())
    }

    /// Makes sure that a node can boot its running generation, or another generation of its
    /// history, or one of its profile. Returns that generation, and a new record for its history.
    pub(super) async fn prepare_pin(
        &self,
        id: NodeId,
        text: Option<&str>,
    ) -> Result<(Generation, Option<DeliveredGeneration>), OperateError> {
        let (node, history) = self.node_with_history(id)?;
        let generation = match text {
            None => node.booted.ok_or(OrderError::RunsNothing { node: id })?,
            Some(text) => {
                let profile = boot::effective_profile(&self.env.site(), &node).name.clone();
                let found = self.find_generation(id, &profile, &history, text)?;
                let known = history.of_revision(found).map(|known| known.generation);
                let known = known.filter(|known| self.generations.is_archived(*known));
                if history.get(found).is_some() {
                    found
                } else {
                    // The node may have other values than at its last pin.
                    let rendered =
                        self.generations.prepare_revision_pin(node.clone(), profile, found).await;
                    match (rendered, known) {
                        (Ok(delivered), _) => {
                            return Ok((delivered.generation, Some(delivered)));
                        }
                        (Err(RenderError::RevisionGone { .. }), Some(known)) => known,
                        (Err(error), _) => return Err(Arc::new(error).into()),
                    }
                }
            }
        };
        self.generations.prepare_pin(node, generation).await.map_err(Arc::new)?;
        Ok((generation, None))
    }

    /// Finds the generation to which a rollout pins a node: of its history, or of its profile.
    pub(super) fn rollout_goal(
        &self,
        id: NodeId,
        target: &RolloutTarget,
    ) -> Result<Option<Generation>, OperateError> {
        let (node, history) = self.node_with_history(id)?;
        let profile = || boot::effective_profile(&self.env.site(), &node).name.clone();
        match target {
            RolloutTarget::Generation { generation } => {
                Ok(Some(self.find_generation(id, &profile(), &history, generation)?))
            }
            RolloutTarget::Image { image, version } => {
                let found = self.generations.find_image(&profile(), image, version);
                let text = format!("{image}@{version}").chars().take(80).collect();
                Ok(Some(found.ok_or(OrderError::NoGeneration { node: id, text })?))
            }
            _ => Ok(None),
        }
    }

    /// Finds a generation of a node or of its profile by a prefix of its digest.
    fn find_generation(
        &self,
        id: NodeId,
        profile: &ProfileName,
        history: &History,
        text: &str,
    ) -> Result<Generation, OrderError> {
        let revisions: Vec<Generation> =
            self.generations.revisions(profile).all.iter().map(|one| one.generation).collect();
        let found = history.find_by_prefix(revisions.into_iter(), text);
        let text = text.chars().take(80).collect();
        found.ok_or(OrderError::NoGeneration { node: id, text })
    }

    fn node_with_history(&self, id: NodeId) -> Result<(Node, History), OperateError> {
        let read = |model: &Model| {
            Some((model.node(id)?.clone(), model.history(id).cloned().unwrap_or_default()))
        };
        self.env.store.read(read).ok_or_else(|| OperateError::NoNode { name: id.to_string() })
    }

    /// The generations of a node, newest first, each with whether it is archived.
    pub fn generations(
        &self,
        id: NodeId,
    ) -> Result<Vec<(DeliveredGeneration, bool)>, OperateError> {
        let (_, history) = self.node_with_history(id)?;
        let newest_first = history.0.into_iter().rev();
        let with_archive_state = newest_first.map(|delivered| {
            let is_archived = self.generations.is_archived(delivered.generation);
            (delivered, is_archived)
        });
        Ok(with_archive_state.collect())
    }

    /// Compares the running generation of a node with the one that it would boot now.
    pub async fn node_diff(
        self: &Arc<Self>,
        id: NodeId,
        endpoint: Endpoint,
    ) -> Result<(Generation, Generation, GenerationDiff), OperateError> {
        let (node, _) = self.node_with_history(id)?;
        let runs = node.booted.ok_or(OrderError::RunsNothing { node: id })?;
        let endpoint = node.central_address.map_or(endpoint, |address| self.env.endpoint(address));
        let next = self.generations.render(&node, endpoint).await?;
        let this = self.clone();
        let before =
            tokio::task::spawn_blocking(move || this.generations.archived_generation(runs)).await;
        let before = before
            .map_err(|_| Arc::new(RenderError::Interrupted))?
            .map_err(OrderError::NotArchived)?;
        Ok((runs, next.generation, before.diff(&archive_entry(&next))))
    }

    /// Changes a node, and determines what it would boot now.
    pub(super) async fn change_node(
        self: &Arc<Self>,
        id: NodeId,
        change: impl FnOnce(&mut Tx<'_>, Node) -> Result<Node, OperateError>,
    ) -> Result<Node, OperateError> {
        let node = self.env.store.commit(|tx| change_node_in(tx, id, change)).await?;
        failpoint::point("order-committed");
        self.generations.scan(vec![id]).await?;
        Ok(node)
    }
}

pub(super) fn check_profile(site: &Site, profile: &ProfileName) -> Result<(), OperateError> {
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
    profile.map_or(Ok(()), |profile| check_profile(site, profile))?;
    for arg in kernel_args {
        let (Ok(Edit::Add(plain)) | Ok(Edit::Remove(plain))) = arg.parse::<Edit<String>>();
        kernel_arg(&plain).map_err(OrderError::KernelArg)?;
    }
    match operator_kernel_args::first_forbidden_arg(role, kernel_args) {
        Some(arg) => Err(OrderError::ForbiddenArg { arg: arg.to_owned(), role }.into()),
        None => Ok(()),
    }
}
