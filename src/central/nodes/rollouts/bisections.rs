//! Bisections: each probe is a rollout of one node, and the record names it. So a bisection goes on
//! after a kill as its rollouts do.

use super::{PlannedRollout, RolloutError, Rollouts};
use crate::environment::alarms::log_failure;
use meshd_model::{
    bisections::{Bisection, BisectionState, NextProbe, Probe, ProbeVerdict, next_probe},
    boot,
    fleet::{Actor, AuditContext, Event, EventKind, Phase},
    rollouts::{
        Amount, BootKey, GateVerdict, NodeSettings, NodeStage, RolloutNode, RolloutPolicy,
        RolloutState, RolloutTarget,
    },
};
use meshd_store::StoreError;
use meshd_types::{
    BisectionId, Hint as _, Hostlist, NodeId, ParseError, ProfileName, ProgramName, failpoint,
};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of spare nodes of one bisection.
const MAX_NODES: usize = 64;

/// A bisection that an operator wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BisectionRequest {
    pub nodes: Hostlist,
    /// A generation of the profile of the nodes, by a prefix of its digest.
    pub good: String,
    pub bad: String,
    pub check: ProgramName,
    pub runs: u32,
    pub verify: bool,
    pub node_timeout_s: u32,
    pub soak_s: u32,
}

impl Rollouts {
    /// Collects the views of all bisections. `None` omits one.
    pub fn collect_bisections<R>(&self, view: impl FnMut(&Bisection) -> Option<R>) -> Vec<R> {
        self.env.store.read(|model| model.bisections().filter_map(view).collect())
    }

    pub fn bisection(&self, id: BisectionId) -> Result<Bisection, RolloutError> {
        let found = self.env.store.read(|model| model.bisection(id).cloned());
        found.ok_or(RolloutError::UnknownBisection(id))
    }

    /// Starts a bisection.
    pub async fn bisect(
        &self,
        request: BisectionRequest,
        audit: &AuditContext,
    ) -> Result<Bisection, RolloutError> {
        let bisection = self.new_bisection(request, audit)?;
        probe_policy(&bisection).check().map_err(RolloutError::Policy)?;
        let stored = self.env.store.commit(|tx| {
            let before = tx.before();
            let mut open = before.bisections().filter(|other| !other.state.is_final());
            let shared =
                |other: &&Bisection| other.nodes.iter().any(|node| bisection.nodes.contains(node));
            if let Some(other) = open.find(shared) {
                return Err(RolloutError::BisectionOverlap(other.id));
            }
            for node in &bisection.nodes {
                if let Some((rollout, _)) = before.open_rollout_of(*node) {
                    return Err(RolloutError::Overlap { node: *node, rollout });
                }
            }
            tx.remove_surplus_bisections();
            let detail = format!(
                "bisection {} of profile {} over {} generations: started",
                bisection.id,
                bisection.profile,
                bisection.generations.len()
            );
            tx.event(Event::new(bisection.started_at, audit, EventKind::Rollout, detail));
            tx.put_bisection(bisection.clone());
            Ok(bisection)
        });
        stored.await
    }

    fn new_bisection(
        &self,
        request: BisectionRequest,
        audit: &AuditContext,
    ) -> Result<Bisection, RolloutError> {
        let refuse = |what: String, hint: &str| {
            RolloutError::Policy(ParseError::new(format!("invalid bisection: {what}"), hint))
        };
        let nodes = self.nodes.resolve_hostlist(&request.nodes)?;
        if nodes.is_empty() || nodes.len() > MAX_NODES {
            let what = format!("{} nodes are named", nodes.len());
            return Err(refuse(what, "name 1 to 64 spare nodes"));
        }
        let site = self.env.site();
        if !site.programs.contains_key(&request.check) {
            return Err(RolloutError::NoProgram { program: request.check });
        }
        let mut served = BTreeSet::new();
        let before: BTreeMap<NodeId, (ProfileName, NodeSettings)> = self.env.store.read(|model| {
            let found = nodes.iter().filter_map(|id| model.node(*id));
            let settings = found.map(|node| {
                if is_in_service(node.phase) {
                    served.insert(node.id);
                }
                let profile = boot::effective_profile(&site, node).name.clone();
                let pinned = node.pinned;
                let booted = node.booted;
                let settings = NodeSettings { profile: profile.clone(), pinned, booted };
                (node.id, (profile, settings))
            });
            settings.collect()
        });
        let profiles: BTreeSet<&ProfileName> = before.values().map(|(name, _)| name).collect();
        let [profile] = profiles.into_iter().collect::<Vec<_>>()[..] else {
            let hint = "name nodes of the profile whose generations are compared";
            return Err(refuse("the nodes have different profiles".to_owned(), hint));
        };
        let profile = profile.clone();
        let all: Vec<_> =
            self.nodes.generations.revisions(&profile).all.iter().map(|it| it.generation).collect();
        let position = |text: &str| {
            let generation = self.nodes.generations.find_revision(&profile, text);
            let position = all.iter().position(|known| Some(*known) == generation);
            let text = text.chars().take(80).collect::<String>();
            let what =
                format!("profile {profile} has no generation `{text}` on record, or several");
            position.ok_or_else(|| refuse(what, "`meshd profile history` lists them"))
        };
        let good = position(&request.good)?;
        let bad = position(&request.bad)?;
        if good >= bad {
            let what = "the good generation is not older than the bad one".to_owned();
            return Err(refuse(what, "`meshd profile history` lists the newest first"));
        }
        Ok(Bisection {
            id: BisectionId(self.env.random()),
            profile,
            generations: all[good..=bad].to_vec(),
            nodes: before.keys().copied().collect(),
            check: request.check,
            runs: request.runs,
            verify: request.verify,
            node_timeout_s: request.node_timeout_s,
            soak_s: request.soak_s,
            by: audit.clone(),
            started_at: self.env.now(),
            state: BisectionState::Running,
            ends_as: None,
            reason: None,
            first_bad: None,
            probes: Vec::new(),
            before: before.into_iter().map(|(id, (_, settings))| (id, settings)).collect(),
            served,
            returning: None,
            finished_at: None,
        })
    }

    /// Ends a bisection: its nodes return to what they ran.
    pub async fn abort_bisection(
        &self,
        id: BisectionId,
        audit: &AuditContext,
    ) -> Result<Bisection, RolloutError> {
        let now = self.env.now();
        let stored = self.env.store.commit(|tx| {
            let found = tx.bisection(id).cloned();
            let mut bisection = found.ok_or(RolloutError::UnknownBisection(id))?;
            if bisection.state != BisectionState::Running {
                return Err(RolloutError::BisectionState { id, state: bisection.state });
            }
            bisection.conclude(BisectionState::Aborted, audit.reason.as_deref());
            let running = bisection.probes.last().and_then(|probe| tx.rollout(probe.rollout));
            if let Some(mut head) = running.filter(|head| !head.state.is_final()).cloned() {
                head.state = RolloutState::Aborting;
                head.frozen = false;
                tx.put_rollout(head);
            }
            let detail = format!("bisection {id}: aborted");
            tx.event(Event::new(now, audit, EventKind::Rollout, detail));
            tx.put_bisection(bisection.clone());
            Ok(bisection)
        });
        stored.await
    }

    /// Advances all bisections.
    pub(super) async fn drive_bisections(&self) {
        let open: Vec<Bisection> =
            self.collect_bisections(|one| Some(one.clone()).filter(|one| !one.state.is_final()));
        for bisection in open {
            log_failure(self.advance_bisection(bisection).await, "cannot advance a bisection");
        }
    }

    async fn advance_bisection(&self, mut bisection: Bisection) -> Result<(), StoreError> {
        let last = bisection.probes.last().filter(|probe| probe.verdict.is_none());
        if let Some(current) = bisection.returning.or(last.map(|probe| probe.rollout)) {
            let (head, ended) = self.env.store.read(|model| {
                let records = model.rollout_nodes(current).values().cloned();
                (model.rollout(current).cloned(), records.collect::<Vec<_>>())
            });
            if head.as_ref().is_some_and(|head| !head.state.is_final()) {
                return Ok(());
            }
            if bisection.returning.is_some() {
                if head.is_none() {
                    bisection.add_reason("the rollout that returns its nodes is gone");
                }
                bisection.add_unreturned(&ended);
                bisection.finish(self.env.now());
                return self.store_bisection(bisection, None).await;
            }
            let ended = ended.into_iter().next();
            let unable =
                ended.as_ref().filter(|record| record.gate == Some(GateVerdict::Unable)).cloned();
            if let Some(probe) = bisection.probes.last_mut() {
                judge(probe, ended);
                let phase = self.env.store.read(|model| Some(model.node(probe.node)?.phase));
                probe.lost = probe.verdict == Some(ProbeVerdict::Untested)
                    && phase.is_none_or(|phase| matches!(phase, Phase::Offline | Phase::Booting));
            }
            // A check that does not run says nothing of any generation.
            if let Some(record) = unable.filter(|_| bisection.state == BisectionState::Running) {
                bisection.conclude(BisectionState::Failed, record.reason.as_deref());
            }
            return self.store_bisection(bisection, None).await;
        }
        if bisection.state == BisectionState::Returning {
            return self.return_nodes(bisection).await;
        }
        match next_probe(&bisection) {
            NextProbe::Boot { index, node } => self.start_probe(bisection, index, node).await,
            NextProbe::FirstBad(index) => {
                bisection.first_bad = Some(bisection.generations[index]);
                bisection.conclude(BisectionState::Done, None);
                self.store_bisection(bisection, None).await
            }
            NextProbe::Failed(reason) => {
                bisection.conclude(BisectionState::Failed, Some(&reason));
                self.store_bisection(bisection, None).await
            }
        }
    }

    async fn start_probe(
        &self,
        mut bisection: Bisection,
        index: usize,
        node: NodeId,
    ) -> Result<(), StoreError> {
        let generation = bisection.generations[index].to_string();
        let target = RolloutTarget::Generation { generation };
        let policy = probe_policy(&bisection);
        match self.plan_nodes(&[node], target, &policy, &bisection.by).await {
            Ok(mut planned) => {
                let rollout = planned.head.id;
                for record in &mut planned.nodes {
                    record.drained = bisection.served.contains(&record.node);
                }
                let verdict = None;
                let reason = None;
                let lost = false;
                bisection.probes.push(Probe { index, node, rollout, verdict, reason, lost });
                self.store_bisection(bisection, Some(planned)).await
            }
            Err(RolloutError::Store(error)) => Err(error),
            Err(error) if is_passing(&error) => Ok(()),
            Err(error) => {
                bisection.conclude(BisectionState::Failed, Some(&error.message()));
                self.store_bisection(bisection, None).await
            }
        }
    }

    /// Starts the rollout that returns the nodes.
    async fn return_nodes(&self, mut bisection: Bisection) -> Result<(), StoreError> {
        let used = bisection.used_nodes();
        if used.is_empty() {
            bisection.finish(self.env.now());
            return self.store_bisection(bisection, None).await;
        }
        let ids: Vec<NodeId> = used.keys().copied().collect();
        let count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        let policy = RolloutPolicy {
            canaries: 0,
            wave: Amount::Count(count),
            max_failures: count,
            node_timeout_s: bisection.node_timeout_s,
            soak_s: 0,
            ..RolloutPolicy::default()
        };
        match self.plan_nodes(&ids, RolloutTarget::Previous, &policy, &bisection.by).await {
            Ok(mut planned) => {
                for record in &mut planned.nodes {
                    record.previous = used.get(&record.node).cloned();
                    record.drained = bisection.served.contains(&record.node);
                    self.begin_offline_return(record);
                }
                bisection.returning = Some(planned.head.id);
                self.store_bisection(bisection, Some(planned)).await
            }
            Err(RolloutError::Store(error)) => Err(error),
            Err(error) if is_passing(&error) => Ok(()),
            Err(error) => {
                bisection.add_reason(&format!("its nodes did not return: {}", error.message()));
                bisection.finish(self.env.now());
                self.store_bisection(bisection, None).await
            }
        }
    }

    /// Begins the return of a node that did not boot a generation: its boot settings need no link.
    fn begin_offline_return(&self, record: &mut RolloutNode) {
        let Some(before) = record.previous.clone() else { return };
        let offline = self.env.store.read(|model| {
            let node = model.node(record.node)?;
            let kernel = node.facts.as_ref().map(|facts| facts.system.kernel_boot_id.clone());
            let boot = BootKey { session: node.boot, kernel: kernel.unwrap_or_default() };
            matches!(node.phase, Phase::Offline | Phase::Booting).then_some(boot)
        });
        if let Some(boot) = offline {
            record.begin_return(before, boot, "it is offline after a probe", self.env.now());
        }
    }

    /// Stores a bisection, and starts a rollout for it. Does nothing if an order has changed the
    /// bisection meanwhile.
    async fn store_bisection(
        &self,
        bisection: Bisection,
        planned: Option<PlannedRollout>,
    ) -> Result<(), StoreError> {
        let now = self.env.now();
        let stored = self.env.store.commit(|tx| {
            let Some(before) = tx.bisection(bisection.id) else { return Ok(()) };
            let is_changed = before.state != bisection.state && before.ends_as.is_some();
            if is_changed && !bisection.state.is_final() {
                return Ok(());
            }
            if before.state != bisection.state {
                let state = bisection.state.as_str();
                let found = bisection.first_bad.map(|bad| format!(": {} is bad", bad.0.short()));
                let why = bisection.reason.as_ref().map(|reason| format!(": {reason}"));
                let detail = format!(
                    "bisection {}: {state}{}{}",
                    bisection.id,
                    found.unwrap_or_default(),
                    why.unwrap_or_default()
                );
                tx.event(Event::new(now, Actor::Central, EventKind::Rollout, detail));
            }
            if let Some(PlannedRollout { head, nodes }) = planned {
                let is_taken =
                    |record: &RolloutNode| tx.before().open_rollout_of(record.node).is_some();
                // The next step finds it out.
                if nodes.iter().any(is_taken) {
                    return Ok(());
                }
                tx.remove_surplus_rollouts(nodes.len());
                nodes.into_iter().for_each(|record| tx.put_rollout_node(record));
                tx.put_rollout(head);
            }
            tx.put_bisection(bisection);
            Ok::<_, StoreError>(())
        });
        stored.await?;
        failpoint::point("bisection-stored");
        Ok(())
    }
}

fn is_in_service(phase: Phase) -> bool {
    matches!(phase, Phase::Online | Phase::Degraded | Phase::Enrolling)
}

/// True if a rollout may begin later: the bisection tries again.
fn is_passing(error: &RolloutError) -> bool {
    matches!(error, RolloutError::Overlap { .. } | RolloutError::TooMany { .. })
}

fn probe_policy(bisection: &Bisection) -> RolloutPolicy {
    RolloutPolicy {
        node_timeout_s: bisection.node_timeout_s,
        soak_s: bisection.soak_s,
        gate: Some(bisection.check.clone()),
        gate_runs: bisection.runs,
        keep_failed: true,
        ..RolloutPolicy::default()
    }
}

/// Derives the verdict of a probe from its rollout.
fn judge(probe: &mut Probe, ended: Option<RolloutNode>) {
    let Some(record) = ended else {
        probe.verdict = Some(ProbeVerdict::Untested);
        probe.reason = Some("its rollout is gone".to_owned());
        return;
    };
    let verdict = match (record.stage, record.gate) {
        (NodeStage::Done, Some(GateVerdict::Passed)) => ProbeVerdict::Good,
        (_, Some(GateVerdict::Failed)) => ProbeVerdict::Bad,
        (_, Some(GateVerdict::Mixed)) => ProbeVerdict::Mixed,
        _ => ProbeVerdict::Untested,
    };
    (probe.verdict, probe.reason) = (Some(verdict), record.reason);
}
