//! What costs time in a boot. Evidence comes first: packets, waits, repeated requests. The rest of
//! a slow step is compared with other boots.

use super::{
    baseline::Baseline,
    kind::DelayKind,
    path::BootPath,
    settings::setting,
    step::{BootStep, BootStepTime},
};
use crate::fleet::boot_progress::{
    boot_session::{BootSession, Wait},
    dhcp_attempt::{DhcpAttempt, DhcpClient},
    stage::{Stage, StageMark},
};
use meshd_types::{ClientArch, MacAddr, Timestamp};
use std::{collections::BTreeMap, time::Duration};

/// Minimum cost of a delay.
const MIN_COST: Duration = Duration::from_secs(5);
/// Minimum excess of a slow step over the median of other boots.
const MIN_EXCESS: Duration = Duration::from_secs(10);
/// Duration of the installation of packages that is worth a change.
const LONG_INSTALLATION: Duration = Duration::from_secs(20);
/// Maximum number of NICs and architectures in a text.
const MAX_NAMED: usize = 4;

/// What costs time in a boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootDelay {
    pub kind: DelayKind,
    /// The step that has the delay.
    pub step: BootStep,
    pub cost: Duration,
    /// Observation, for people.
    pub detail: String,
    /// Advice, for people.
    pub setting: &'static str,
}

impl BootDelay {
    fn new(kind: DelayKind, step: BootStep, cost: Duration, detail: String) -> Self {
        BootDelay { kind, step, cost, detail, setting: setting(kind, step) }
    }
}

/// Medians to compare a boot with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootComparison {
    /// Earlier boots of the machine.
    pub own: Baseline,
    /// The newest boots of other machines of the model.
    pub model: Baseline,
}

impl BootComparison {
    /// Returns what costs time in a boot, the largest cost first. `running_until` is the present
    /// time of an unfinished boot.
    pub fn delays(&self, path: &BootPath<'_>, running_until: Option<Timestamp>) -> Vec<BootDelay> {
        let boot = path.boot;
        let mut delays: Vec<BootDelay> = power_attempts(path).into_iter().collect();
        delays.extend(ipv6_first(path));
        delays.extend(failed_attempts(path));
        delays.extend(boot.dhcp.iter().flat_map(|attempt| dhcp_delays(boot, attempt)));
        delays.extend(other_protocols(boot));
        delays.extend(boot.waits.iter().filter_map(|wait| wait_delay(boot, wait, running_until)));
        delays.extend(repeated_script(boot));
        for time in path.steps(running_until) {
            let known: Duration =
                delays.iter().filter(|delay| delay.step == time.step).map(|delay| delay.cost).sum();
            delays.extend(self.slow_step(time, known));
        }
        delays.retain(|delay| delay.cost >= MIN_COST);
        delays.sort_by_key(|delay| std::cmp::Reverse(delay.cost));
        delays
    }

    /// Returns the delay of a step apart from the `known` cost of other delays in it.
    fn slow_step(&self, time: BootStepTime, known: Duration) -> Option<BootDelay> {
        if matches!(time.step, BootStep::Attempts | BootStep::Approval) {
            return None;
        }
        let took = time.duration.saturating_sub(known);
        let installs = time.step == BootStep::Stage(Stage::Modloop) && took >= LONG_INSTALLATION;
        if installs {
            let detail = format!(
                "Alpine installed its packages and started within {}",
                seconds(time.duration)
            );
            return Some(BootDelay::new(DelayKind::PackageInstallation, time.step, took, detail));
        }
        let (usual, of) = self.usual(time.step)?;
        let excess = took.saturating_sub(usual);
        (excess >= MIN_EXCESS && took >= usual * 2).then(|| {
            let took = seconds(time.duration);
            let usual = seconds(usual);
            let detail = format!("took {took}; the median of {of} is {usual}");
            BootDelay::new(DelayKind::SlowStep, time.step, excess, detail)
        })
    }

    /// Returns the lower one of both medians of a step, and the boots that have it.
    fn usual(&self, step: BootStep) -> Option<(Duration, String)> {
        let boots = |count: usize| if count == 1 { "boot" } else { "boots" };
        let own = &self.own;
        let of_own = format!("{} earlier {} of this machine", own.boots, boots(own.boots));
        let model = &self.model;
        let of_model = format!("{} {} of the same model", model.boots, boots(model.boots));
        let medians = [(own.median(step), of_own), (model.median(step), of_model)];
        medians.into_iter().filter_map(|(median, of)| Some((median?, of))).min()
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn power_attempts(path: &BootPath<'_>) -> Option<BootDelay> {
    let order = path.order.as_ref()?;
    let cost = order.at.since(order.first_at);
    let detail = format!(
        "{}: the first request had no effect, and the last one followed {} later",
        order.order,
        seconds(cost)
    );
    Some(BootDelay::new(DelayKind::PowerAttempts, BootStep::Firmware, cost, detail))
}

/// Returns the delay by firmware that tried IPv6 before its first packet of DHCP.
fn ipv6_first(path: &BootPath<'_>) -> Option<BootDelay> {
    let first = path.attempts.first().unwrap_or(&path.boot);
    let begun = path.order.as_ref().map(|order| order.first_at);
    let since = first.ipv6_since.filter(|since| begun.is_none_or(|begun| *since >= begun))?;
    let detail = format!("the firmware tried first: IPv6 on {}", nic(first.mac));
    let cost = first.opened_at.since(since);
    Some(BootDelay::new(DelayKind::OtherProtocol, BootStep::Firmware, cost, detail))
}

/// Returns the delays by attempts that failed before the boot, one for each kind.
fn failed_attempts(path: &BootPath<'_>) -> Vec<BootDelay> {
    let boot = path.boot;
    let ends = path.attempts.iter().skip(1).map(|next| next.opened_at).chain([boot.opened_at]);
    let mut costs: BTreeMap<DelayKind, BTreeMap<String, Duration>> = BTreeMap::new();
    for (attempt, end) in path.attempts.iter().zip(ends) {
        let stage = attempt.furthest().map_or("dhcp", Stage::as_str);
        let other_arch = attempt.arch.filter(|_| attempt.arch != boot.arch);
        let (kind, words) = match other_arch {
            _ if attempt.mac != boot.mac => (DelayKind::OtherNic, nic(attempt.mac)),
            Some(arch) => (DelayKind::OtherProtocol, arch_text(arch)),
            None => (DelayKind::RepeatedAttempt, format!("a boot that stopped after {stage}")),
        };
        *costs.entry(kind).or_default().entry(words).or_default() += end.since(attempt.opened_at);
    }
    let delays = costs.into_iter().map(|(kind, costs)| {
        let total = costs.values().sum();
        let words = costs.iter().map(|(words, cost)| format!("{words} ({})", seconds(*cost)));
        let detail = match kind {
            DelayKind::RepeatedAttempt => format!("before this boot: {}", joined(words)),
            DelayKind::OtherProtocol => format!("the firmware tried first: {}", joined(words)),
            _ => format!("tried before {}: {}", nic(boot.mac), joined(words)),
        };
        BootDelay::new(kind, BootStep::Attempts, total, detail)
    });
    delays.collect()
}

fn nic(mac: MacAddr) -> String {
    format!("NIC {mac}")
}

fn arch_text(ClientArch(arch): ClientArch) -> String {
    let protocol = if ClientArch(arch).is_http() { "HTTP boot" } else { "PXE" };
    format!("{protocol} with architecture {arch}")
}

fn joined(words: impl ExactSizeIterator<Item = String>) -> String {
    let more = words.len().saturating_sub(MAX_NAMED);
    let rest = (more > 0).then(|| format!("{more} more"));
    words.take(MAX_NAMED).chain(rest).collect::<Vec<_>>().join(", ")
}

/// Returns the delays of one program in DHCP.
fn dhcp_delays(boot: &BootSession, attempt: &DhcpAttempt) -> Vec<BootDelay> {
    let stage = match attempt.client {
        DhcpClient::Firmware => Stage::Dhcp,
        DhcpClient::Ipxe => Stage::IpxeDhcp,
        DhcpClient::Os => Stage::OsDhcp,
    };
    let client = attempt.client.title();
    let step = BootStep::Stage(stage);
    let waited = Duration::from_secs(attempt.waited_s.into());
    let (kind, by) = if boot.is_relayed {
        (DelayKind::SlowRelay, "the relay forwarded its first request")
    } else {
        (DelayKind::LostDiscovers, "its first request arrived: the switch port did not forward yet")
    };
    let lost = format!("{client} had asked for {} when {by}", seconds(waited));
    let asked = attempt.last_discover.map_or(Duration::ZERO, |last| last.since(attempt.first));
    let repeated = format!(
        "{client} sent {} DISCOVERs within {}, although meshd replied",
        attempt.discovers,
        seconds(asked)
    );
    vec![
        BootDelay::new(kind, step, waited, lost),
        BootDelay::new(DelayKind::RepeatedDiscovers, step, asked, repeated),
    ]
}

/// Returns the delay by other architectures that the firmware named first in this session.
fn other_protocols(boot: &BootSession) -> Option<BootDelay> {
    let firmware: Vec<_> =
        boot.dhcp.iter().filter(|attempt| attempt.client == DhcpClient::Firmware).collect();
    let [first, .., last] = firmware.as_slice() else { return None };
    let earlier = firmware.len() - 1;
    let archs = firmware.iter().take(earlier).filter_map(|attempt| attempt.arch).map(arch_text);
    let archs: Vec<String> = archs.collect();
    let detail = format!("the firmware tried first: {}", joined(archs.into_iter()));
    let cost = last.first.since(first.first);
    let step = BootStep::Stage(Stage::Loader);
    Some(BootDelay::new(DelayKind::OtherProtocol, step, cost, detail))
}

fn wait_delay(
    boot: &BootSession,
    wait: &Wait,
    running_until: Option<Timestamp>,
) -> Option<BootDelay> {
    if wait.code == Wait::APPROVAL {
        let [began, end] = boot.approval_wait(running_until)?;
        let detail = "the machine waited for an operator".to_owned();
        let cost = end.since(began);
        return Some(BootDelay::new(DelayKind::Approval, BootStep::Approval, cost, detail));
    }
    let kind = match wait.code.as_str() {
        "busy" => DelayKind::BootQueue,
        Wait::RECENTLY_ONLINE => DelayKind::RecentlyOnline,
        _ => DelayKind::Refusal,
    };
    let next: Option<&StageMark> =
        boot.stages.iter().filter(|mark| mark.at > wait.last).min_by_key(|mark| mark.at);
    let next_wait = boot.waits.iter().map(|other| other.at).filter(|at| *at > wait.last).min();
    let end = next.map(|mark| mark.at).into_iter().chain(next_wait).min().unwrap_or(wait.last);
    let step = BootStep::Stage(next.map_or(Stage::Script, |mark| mark.stage));
    Some(BootDelay::new(kind, step, end.since(wait.at), wait.reason()))
}

/// Returns the delay of iPXE that started its script again, although it was not deferred.
fn repeated_script(boot: &BootSession) -> Option<BootDelay> {
    let script = boot.stages.iter().find(|mark| mark.stage == Stage::Script)?;
    if !boot.waits.is_empty() || script.count < 2 {
        return None;
    }
    let cost = script.last.since(script.at);
    let detail = format!("iPXE requested its script {} times", script.count);
    let later = boot.stages.iter().filter(|mark| mark.at >= script.last).min_by_key(|mark| mark.at);
    let step = BootStep::Stage(later.map_or(Stage::Script, |mark| mark.stage));
    Some(BootDelay::new(DelayKind::RepeatedScript, step, cost, detail))
}
