//! Plans and rollouts as text. Lists of nodes are bounded.

use crate::cli::output::print::{ago, fields, now, span, table};
use meshd_api::{BisectionView, RolloutNodeView, RolloutPlan, RolloutView};
use meshd_model::bisections::ProbeVerdict;
use meshd_model::rollouts::{Floor, NodeStage, RolloutTarget, WorkPolicy};
use meshd_types::ProgramName;
use std::{collections::BTreeMap, time::Duration};

/// Maximum number of names of a wave.
const MAX_NAMES: usize = 12;
/// Number of digits of a generation in a table.
const SHORT_DIGEST: usize = 12;

/// Returns the waves of a plan, and the steps of each node.
pub(super) fn plan(plan: &RolloutPlan) -> String {
    let RolloutPlan { rollout, nodes } = plan;
    let mut waves: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
    for node in nodes {
        waves.entry(node.wave).or_default().push(&node.name);
    }
    let rows = waves.iter().map(|(wave, names)| {
        let title = wave_title(*wave, rollout);
        [title, names.len().to_string(), name_list(names)]
    });
    let steps = steps(rollout);
    let steps = (1..).zip(steps).map(|(number, step)| format!("  {number}. {step}\n"));
    format!(
        "{}\n{}\nSteps of each node:\n{}",
        fields(head(rollout)),
        table(["wave", "nodes", "names"], rows),
        steps.collect::<String>()
    )
}

fn wave_title(wave: u32, rollout: &RolloutView) -> String {
    match wave {
        0 if rollout.policy.canaries > 0 => "0 (canaries)".to_owned(),
        wave => wave.to_string(),
    }
}

fn name_list(names: &[&str]) -> String {
    let shown = names.iter().take(MAX_NAMES).copied().collect::<Vec<_>>().join(" ");
    match names.len().saturating_sub(MAX_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Returns the steps of each node, in words.
fn steps(rollout: &RolloutView) -> Vec<String> {
    let policy = &rollout.policy;
    let drain = match policy.workloads {
        WorkPolicy::Drain => "drain, until its work has ended",
        WorkPolicy::Wait => "wait until it has no work, then drain",
        WorkPolicy::Stop => "drain, and stop its work",
        WorkPolicy::Skip => "leave it out if it has work, else drain",
    };
    let run = |program: &Option<ProgramName>, when: &str| {
        program.as_ref().map(|program| format!("run program {program} {when}"))
    };
    let mut steps: Vec<String> =
        run(&policy.before_leave, "on the central node").into_iter().collect();
    steps.push(drain.to_owned());
    match &rollout.target {
        RolloutTarget::Reboot => {}
        RolloutTarget::Profile { profile } => {
            steps.push(format!("unpin it, and assign profile {profile}"));
        }
        RolloutTarget::Generation { .. } | RolloutTarget::Image { .. } => {
            steps.push(format!("pin it to {}", rollout.target));
        }
        RolloutTarget::Previous => {
            steps.push("restore its earlier profile, pin and generation".to_owned());
        }
    }
    let timeout = span(Duration::from_secs(policy.node_timeout_s.into()));
    let soak = span(Duration::from_secs(policy.soak_s.into()));
    steps.push(format!("reboot; its checks pass within {timeout}"));
    steps.push("return it to service".to_owned());
    steps.push(format!("it stays healthy for {soak}; else it returns to what it ran"));
    steps.extend(run(&policy.gate, "on the central node; if it fails, the node returns"));
    steps.extend(run(&policy.after_return, "on the central node"));
    steps
}

fn head(rollout: &RolloutView) -> Vec<(&'static str, String)> {
    let policy = &rollout.policy;
    let waves = if rollout.waves == 1 { "wave" } else { "waves" };
    let floors: Vec<String> = policy.floors.iter().map(Floor::to_string).collect();
    vec![
        ("change", rollout.target.to_string()),
        ("nodes", format!("{} in {} {waves} of {}", rollout.nodes, rollout.waves, policy.wave)),
        ("domain", policy.domain.as_ref().map(ToString::to_string).unwrap_or_default()),
        ("floor", floors.join(", ")),
        ("failures", format!("at most {}", policy.max_failures)),
        ("starts at", policy.start_at.map(|at| at.to_string()).unwrap_or_default()),
        ("window", policy.window.map(|window| format!("{window} UTC")).unwrap_or_default()),
        ("takes about", eta(rollout).unwrap_or_default()),
    ]
}

/// Returns the estimated time until the end.
fn eta(rollout: &RolloutView) -> Option<String> {
    Some(span(Duration::from_secs(rollout.eta_s?)))
}

/// Returns rollouts as a table.
pub(super) fn rows(found: &[RolloutView]) -> String {
    let rows = found.iter().map(|rollout| {
        [
            rollout.id.to_string(),
            short_target(&rollout.target),
            rollout.state.as_str().to_owned(),
            rollout.progress.words(),
            ago(rollout.started_at, now()),
            rollout.by.principal.to_string(),
        ]
    });
    table(["id", "change", "state", "nodes", "started", "by"], rows)
}

/// Returns a target for a table: rollouts of bisections name whole digests.
fn short_target(target: &RolloutTarget) -> String {
    match target {
        RolloutTarget::Generation { generation } => {
            format!("generation {}", generation.chars().take(SHORT_DIGEST).collect::<String>())
        }
        target => target.to_string(),
    }
}

/// Returns the progress of a rollout in one line.
pub(super) fn progress(rollout: &RolloutView) -> String {
    let why = rollout.reason.as_ref().or(rollout.waits.as_ref());
    let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
    // To minutes: a line follows each change.
    let minutes = rollout.eta_s.map(|seconds| seconds.div_ceil(60)).filter(|minutes| *minutes > 0);
    let eta = minutes.map(|minutes| format!(", about {minutes} min left")).unwrap_or_default();
    format!("{}: {}{eta}{why}", rollout.state.as_str(), rollout.progress.words())
}

/// Returns a rollout with its waves, and the nodes that have begun, up to a maximum.
pub(super) fn rollout(rollout: &RolloutView, nodes: &[RolloutNodeView], most: usize) -> String {
    let mut lines = vec![
        ("rollout", rollout.id.to_string()),
        ("state", rollout.state.as_str().to_owned()),
        ("reason", rollout.reason.clone().unwrap_or_default()),
        ("waits for", rollout.waits.clone().unwrap_or_default()),
        ("progress", rollout.progress.words()),
        ("undoes", rollout.undoes.map(|id| id.to_string()).unwrap_or_default()),
    ];
    lines.extend(head(rollout));
    lines.push(("started", ago(rollout.started_at, now())));
    lines.push(("by", rollout.by.principal.to_string()));
    let begun: Vec<&RolloutNodeView> =
        nodes.iter().filter(|node| node.stage != NodeStage::Waiting).collect();
    let rows = begun.iter().take(most).map(|node| {
        [
            node.wave.to_string(),
            node.node.to_string(),
            node.name.clone(),
            node.stage.as_str().to_owned(),
            node.began_at.map(|at| ago(at, now())).unwrap_or_default(),
            node.reason.clone().unwrap_or_default(),
        ]
    });
    let more = match begun.len().saturating_sub(most) {
        0 => String::new(),
        more => format!("{more} more nodes: use -o json\n"),
    };
    let listed = table(["wave", "node", "name", "stage", "began", "reason"], rows);
    format!("{}\n{}\n{listed}{more}", fields(lines), board(rollout))
}

/// Returns one row for each wave.
fn board(rollout: &RolloutView) -> String {
    let rows =
        rollout.board.iter().map(|wave| [wave_title(wave.wave, rollout), wave.progress.words()]);
    table(["wave", "nodes"], rows)
}

/// Returns bisections as a table.
pub(super) fn bisection_rows(found: &[BisectionView]) -> String {
    let rows = found.iter().map(|bisection| {
        [
            bisection.id.to_string(),
            bisection.profile.to_string(),
            bisection_progress(bisection),
            ago(bisection.started_at, now()),
            bisection.by.principal.to_string(),
        ]
    });
    table(["id", "profile", "state", "started", "by"], rows)
}

/// Returns the progress of a bisection in one line.
pub(super) fn bisection_progress(bisection: &BisectionView) -> String {
    let state = bisection.state.as_str();
    if let Some(bad) = &bisection.first_bad {
        let boots = bisection.probes.len();
        return format!("{state}: {} is the first bad generation ({boots} boots)", bad.0.short());
    }
    let last = bisection.probes.last().map(|probe| {
        let verdict = probe.verdict.map_or("is tested", ProbeVerdict::as_str);
        format!(", {} {verdict}", probe.generation.0.short())
    });
    let left = if bisection.suspects == 1 { "generation" } else { "generations" };
    format!("{state}: {} {left} left{}", bisection.suspects, last.unwrap_or_default())
}

/// Returns a bisection with its boots.
pub(super) fn bisection(bisection: &BisectionView) -> String {
    let bad = bisection.first_bad.map(|bad| bad.to_string());
    let lines = vec![
        ("bisection", bisection.id.to_string()),
        ("profile", bisection.profile.to_string()),
        ("state", bisection_progress(bisection)),
        ("first bad", bad.unwrap_or_default()),
        ("reason", bisection.reason.clone().unwrap_or_default()),
        ("generations", bisection.generations.len().to_string()),
        ("check", bisection.check.to_string()),
        ("started", ago(bisection.started_at, now())),
        ("by", bisection.by.principal.to_string()),
    ];
    let rows = bisection.probes.iter().map(|probe| {
        [
            probe.generation.0.short(),
            probe.node.to_string(),
            probe.rollout.to_string(),
            probe.verdict.map_or("running", ProbeVerdict::as_str).to_owned(),
            probe.reason.clone().unwrap_or_default(),
        ]
    });
    let probes = table(["generation", "node", "rollout", "verdict", "reason"], rows);
    format!("{}\n{probes}", fields(lines))
}
