//! Nodes, change and policy of a new rollout, as options of the command line.

use crate::cli::{Failure, node::targets::joined};
use clap::{Args, ValueEnum};
use meshd_api::StartRollout;
use meshd_config::parse_duration;
use meshd_model::{
    fleet::{LabelKey, Selector},
    rollouts::{Amount, DailyWindow, Floor, RolloutPolicy, RolloutTarget, WorkPolicy},
};
use meshd_types::{GroupName, Hint as _, Hostlist, ImageName, ProfileName, ProgramName, Timestamp};
use std::time::Duration;

/// A new rollout: its nodes, the change, and the policy.
#[derive(Debug, Args)]
pub(crate) struct RolloutOptions {
    #[command(flatten)]
    nodes: SelectedNodes,
    #[command(flatten)]
    change: TargetArgs,
    #[command(flatten)]
    policy: PolicyArgs,
}

/// Nodes of a rollout, named in one way.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct SelectedNodes {
    /// Node IDs, names or hostlists, such as gpu[01-40]
    #[arg(value_name = "NODE")]
    nodes: Vec<Hostlist>,
    /// Select nodes by labels, such as rack=a,feed!=2
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<Selector>,
    /// Select the nodes of a group
    #[arg(long, value_name = "GROUP")]
    group: Option<GroupName>,
    /// Select the nodes that have this profile
    #[arg(long, value_name = "PROFILE")]
    has_profile: Option<ProfileName>,
}

/// The change of each node.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
struct TargetArgs {
    /// New profile of the nodes
    #[arg(long, value_name = "PROFILE")]
    profile: Option<ProfileName>,
    /// Generation of the profile or of the node; pins the nodes
    #[arg(long, value_name = "GENERATION")]
    generation: Option<String>,
    /// Version of an image; pins the nodes
    #[arg(long, value_name = "NAME@VERSION", value_parser = image_version)]
    image: Option<(ImageName, String)>,
    /// Reboot only
    #[arg(long)]
    reboot: bool,
}

#[derive(Debug, Args)]
struct PolicyArgs {
    /// Nodes of the first wave [default: 1]
    #[arg(long, value_name = "NUMBER")]
    canaries: Option<u32>,
    /// Nodes of each further wave, or a part [default: 10%]
    #[arg(long, value_name = "AMOUNT")]
    wave: Option<Amount>,
    /// Label whose values are failure domains: one at a time
    #[arg(long, value_name = "LABEL")]
    domain: Option<LabelKey>,
    /// Nodes that must serve: 4, 80% or GROUP=4; repeatable
    #[arg(long, value_name = "FLOOR")]
    floor: Vec<Floor>,
    /// Nodes that may fail [default: 0]
    #[arg(long, value_name = "NUMBER")]
    max_failures: Option<u32>,
    /// Time from reboot to health [default: 45m]
    #[arg(long, value_name = "TIME", value_parser = time)]
    node_timeout: Option<Duration>,
    /// Time of the rollout [default: 1h for each wave]
    #[arg(long, value_name = "TIME", value_parser = time)]
    run_timeout: Option<Duration>,
    /// Time for which a node must stay healthy [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = time)]
    soak: Option<Duration>,
    /// Policy for VMs and tasks [default: drain]
    #[arg(long, value_enum, value_name = "POLICY")]
    workloads: Option<WorkPolicyArg>,
    /// Shutdown time for guests, such as 90s or 5m
    #[arg(long, value_name = "TIME", value_parser = time)]
    grace: Option<Duration>,
    /// Start time, such as 2030-01-31T22:00:00Z
    #[arg(long, value_name = "TIME")]
    start_at: Option<Timestamp>,
    /// Part of each day in which nodes begin: 22:00-06:00, UTC
    #[arg(long, value_name = "WINDOW")]
    window: Option<DailyWindow>,
    /// Program that runs before a node leaves service
    #[arg(long, value_name = "PROGRAM")]
    before_leave: Option<ProgramName>,
    /// Program that decides whether a node is healthy
    #[arg(long, value_name = "PROGRAM")]
    gate: Option<ProgramName>,
    /// Program that runs when a node is back in service
    #[arg(long, value_name = "PROGRAM")]
    after_return: Option<ProgramName>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum WorkPolicyArg {
    /// Take no new work, and leave when the work has ended
    Drain,
    /// Leave when there is no work
    Wait,
    /// Stop the work
    Stop,
    /// Leave nodes with work out
    Skip,
}

pub(super) fn time(text: &str) -> Result<Duration, String> {
    parse_duration(text)
        .filter(|time| time.as_secs() <= u64::from(u32::MAX))
        .ok_or_else(|| "write a number and one of s, m, h, d, such as 5m".to_owned())
}

fn image_version(text: &str) -> Result<(ImageName, String), String> {
    let (image, version) = text.split_once('@').unwrap_or((text, ""));
    if version.is_empty() || !version.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("write a name and a version, such as alpine@3f2a1b".to_owned());
    }
    let image = image.parse::<ImageName>().map_err(|error| error.message())?;
    Ok((image, version.to_lowercase()))
}

fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

impl RolloutOptions {
    /// Returns the request of the rollout.
    pub(super) fn request(&self, all_at_once: Option<u32>) -> Result<StartRollout, Failure> {
        let SelectedNodes { nodes, selector, group, has_profile } = &self.nodes;
        let TargetArgs { profile, generation, image, reboot: _ } = self.change.clone();
        let target = match (profile, generation, image) {
            (Some(profile), ..) => RolloutTarget::Profile { profile },
            (_, Some(generation), _) => RolloutTarget::Generation { generation },
            (.., Some((image, version))) => RolloutTarget::Image { image, version },
            _ => RolloutTarget::Reboot,
        };
        Ok(StartRollout {
            hostlist: if nodes.is_empty() { None } else { Some(joined(nodes)?) },
            label: selector.clone(),
            group: group.clone(),
            profile: has_profile.clone(),
            target,
            policy: self.policy.policy(),
            all_at_once,
        })
    }
}

impl PolicyArgs {
    fn policy(&self) -> RolloutPolicy {
        let default = RolloutPolicy::default();
        let workloads = self.workloads.map(|workloads| match workloads {
            WorkPolicyArg::Drain => WorkPolicy::Drain,
            WorkPolicyArg::Wait => WorkPolicy::Wait,
            WorkPolicyArg::Stop => WorkPolicy::Stop,
            WorkPolicyArg::Skip => WorkPolicy::Skip,
        });
        RolloutPolicy {
            canaries: self.canaries.unwrap_or(default.canaries),
            wave: self.wave.unwrap_or(default.wave),
            domain: self.domain.clone(),
            floors: self.floor.clone(),
            max_failures: self.max_failures.unwrap_or(default.max_failures),
            node_timeout_s: self.node_timeout.map_or(default.node_timeout_s, seconds),
            run_timeout_s: self.run_timeout.map(seconds),
            soak_s: self.soak.map_or(default.soak_s, seconds),
            workloads: workloads.unwrap_or_default(),
            grace_s: self.grace.map(seconds),
            start_at: self.start_at,
            window: self.window,
            before_leave: self.before_leave.clone(),
            gate: self.gate.clone(),
            after_return: self.after_return.clone(),
            ..default
        }
    }
}
