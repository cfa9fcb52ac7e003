//! Counters derived from the durable event log.

use meshd_central::Shared;
use meshd_model::fleet::{
    BootSession, BootStatus, BootStep, ConditionKind, Event, EventKind, EventSeq, Stage,
};
use meshd_store::EventFilter;
use meshd_types::{BootSessionId, NodeId};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio_util::sync::CancellationToken;

/// Histogram: time from power-on to each stage, in seconds.
pub(super) const STAGE_SECONDS: &str = "meshd_boot_stage_seconds";
/// Histogram: time from an order to the first packet of its boot, in seconds.
pub(super) const FIRMWARE_SECONDS: &str = "meshd_boot_firmware_seconds";
/// Counter: delays of boots that came online, in seconds, by kind.
pub(super) const DELAY_SECONDS: &str = "meshd_boot_delay_seconds_total";
/// Counter: started boots.
pub(super) const STARTED: &str = "meshd_boots_started_total";
/// Counter: boots that came online or ended.
pub(super) const BOOTS: &str = "meshd_boots_total";
/// Counter: stalls by missing stage.
pub(super) const STALLS: &str = "meshd_boot_stalls_total";
/// Counter: boot loops.
pub(super) const LOOPS: &str = "meshd_boot_loops_total";

/// Maximum number of events per read from the disk when this task has fallen behind.
const CATCH_UP: usize = 10_000;

/// Updates the counters until `stop`.
pub async fn observe(central: Shared, stop: CancellationToken) {
    let mut receiver = central.env.subscribe_to_events();
    let mut last = None;
    while let Some(received) = stop.run_until_cancelled(receiver.recv()).await {
        match received {
            Ok((seq, event)) => count_new(&central, &mut last, seq, &event),
            Err(RecvError::Lagged(_)) => catch_up(&central, &mut receiver, &mut last).await,
            Err(RecvError::Closed) => return,
        }
    }
}

pub(super) fn count_new(
    central: &Shared,
    last: &mut Option<EventSeq>,
    seq: EventSeq,
    event: &Event,
) {
    if last.is_none_or(|last| seq > last) {
        *last = Some(seq);
        count(central, event);
    }
}

/// Reads events from the disk that the channel has dropped.
async fn catch_up(
    central: &Shared,
    receiver: &mut Receiver<(EventSeq, Event)>,
    last: &mut Option<EventSeq>,
) {
    *receiver = receiver.resubscribe();
    let reader = central.clone();
    let filter = EventFilter { after: *last, limit: CATCH_UP, ..EventFilter::default() };
    let missed = tokio::task::spawn_blocking(move || reader.env.events(filter)).await;
    match missed {
        Ok(Ok(missed)) => {
            missed.iter().for_each(|(seq, event)| count_new(central, last, *seq, event))
        }
        Ok(Err(error)) => {
            tracing::error!(error = &error as &dyn std::error::Error, "events are not counted")
        }
        Err(error) => tracing::error!(%error, "events are not counted"),
    }
}

pub(super) fn count(central: &Shared, event: &Event) {
    metrics::counter!("meshd_events_total", "kind" => event.kind.word()).increment(1);
    let Some(id) = event.session else { return };
    if event.kind == (EventKind::Stage { stage: Stage::Online }) {
        count_delays(central, event.node, id);
    }
    // A boot that is not on record any more is not counted.
    let _ = central.boot.read_boot(id, |boot, before| match event.kind {
        EventKind::Stage { stage } => count_stage(boot, stage, event),
        EventKind::BootStarted => {
            metrics::counter!(STARTED).increment(1);
            before.into_iter().for_each(count_abandoned_boot);
        }
        EventKind::Raised { condition: ConditionKind::BootStalled } => {
            let missing = boot.stalls.last().map_or("none", |stall| stall.missing.as_str());
            metrics::counter!(STALLS, "missing" => missing).increment(1);
        }
        EventKind::Raised { condition: ConditionKind::BootLoop } => {
            metrics::counter!(LOOPS).increment(1)
        }
        _ => {}
    });
}

fn count_stage(boot: &BootSession, stage: Stage, event: &Event) {
    let waited = boot.approval_wait(None).filter(|_| stage >= Stage::Enrolled);
    let waited = waited.map(|[began, end]| end.since(began)).unwrap_or_default();
    let seconds = event.at.since(boot.opened_at).saturating_sub(waited).as_secs_f64();
    metrics::histogram!(STAGE_SECONDS, "stage" => stage.as_str()).record(seconds);
    if stage == Stage::Online {
        metrics::counter!(BOOTS, "result" => "online", "stage" => stage.as_str()).increment(1);
    }
}

/// Counts the time from the order to the first packet, and the delays of a boot that came online.
fn count_delays(central: &Shared, node: Option<NodeId>, boot: BootSessionId) {
    let times = central.nodes.read(|fleet| {
        let compared = fleet.compare_boot(fleet.node(node?)?, Some(boot))?;
        let delays = compared.comparison.delays(&compared.path, None);
        Some((compared.path.steps(None), delays))
    });
    let Some((steps, delays)) = times else { return };
    for time in steps.iter().filter(|time| time.step == BootStep::Firmware) {
        metrics::histogram!(FIRMWARE_SECONDS).record(time.duration.as_secs_f64());
    }
    for delay in delays {
        metrics::counter!(DELAY_SECONDS, "kind" => delay.kind.as_str())
            .increment(delay.cost.as_secs());
    }
}

/// Counts a boot that ended because its machine booted again. A boot that came online was counted
/// earlier.
fn count_abandoned_boot(boot: &BootSession) {
    let standing = boot.standing(true);
    if standing != BootStatus::Online {
        let stage = boot.furthest().map_or("none", Stage::as_str);
        metrics::counter!(BOOTS, "result" => standing.as_str(), "stage" => stage).increment(1);
    }
}
