//! Metrics of the TFTP server, and its log: one line for each cause and minute.

use crate::log::Log;
use meshd_tftp::{Event, Observer, Problem, Refusal};
use metrics::{Counter, Gauge};

/// Maximum length of a client's file name in the log, in characters.
const MAX_NAME: usize = 80;

/// Log and metrics of one segment.
pub(super) struct TftpTelemetry {
    log: Log,
    active: Gauge,
    bytes: Counter,
    resent: Counter,
}

impl Default for TftpTelemetry {
    fn default() -> Self {
        TftpTelemetry {
            log: Log::default(),
            active: metrics::gauge!("meshd_tftp_transfers"),
            bytes: metrics::counter!("meshd_tftp_bytes_total"),
            resent: metrics::counter!("meshd_tftp_resent_blocks_total"),
        }
    }
}

impl Observer for TftpTelemetry {
    fn event(&self, event: &Event) {
        match event {
            Event::Began => self.active.increment(1),
            Event::Refused { .. } | Event::Full { .. } | Event::Malformed { .. } | Event::Stray => {
                metrics::counter!("meshd_tftp_refused_total", "cause" => cause_of(event))
                    .increment(1);
            }
            _ => {
                self.active.decrement(1);
                metrics::counter!("meshd_tftp_transfers_total", "result" => result_of(event))
                    .increment(1);
            }
        }
        self.log(event);
    }

    fn sent(&self, bytes: u64, resent_blocks: u64) {
        self.bytes.increment(bytes);
        if resent_blocks > 0 {
            self.resent.increment(resent_blocks);
        }
    }

    fn problem(&self, problem: Problem<'_>) {
        match problem {
            Problem::Receive(error) => {
                metrics::counter!("meshd_tftp_refused_total", "cause" => "not_received")
                    .increment(1);
                self.log.warn("receive", || format!("cannot receive a TFTP packet: {error}"));
            }
            Problem::Send(error) => {
                metrics::counter!("meshd_tftp_refused_total", "cause" => "not_sent").increment(1);
                self.log.warn("send", || format!("cannot send a TFTP packet: {error}"));
            }
            Problem::NoSegmentation(error) => {
                tracing::info!(%error, "no UDP segmentation offload: TFTP windows are sent block by block");
            }
            Problem::SendQueueFull(client) => {
                metrics::counter!("meshd_tftp_refused_total", "cause" => "send_queue_full")
                    .increment(1);
                self.log.warn("queue", || {
                    format!("the send queue of the network is full: TFTP blocks to {client} are sent again later")
                });
            }
            Problem::RequestQueueFull => {
                metrics::counter!("meshd_tftp_refused_total", "cause" => "busy").increment(1);
                self.log.warn("busy", || {
                    "too many TFTP requests: some are dropped, clients repeat them".to_owned()
                });
            }
            Problem::ReportQueueFull => {
                metrics::counter!("meshd_tftp_unrecorded_total").increment(1);
                self.log.warn("reports", || {
                    "too many TFTP transfers end at once: the timelines of some boots lack what was fetched".to_owned()
                });
            }
        }
    }
}

impl TftpTelemetry {
    /// Logs an event on which an operator can act.
    fn log(&self, event: &Event) {
        match event {
            Event::Refused { client, cause: Refusal::NotFound { name } } => self.log.warn("not found", || {
                let name: String = name.chars().take(MAX_NAME).collect();
                format!("TFTP request of {client} for {name:?}: neither a loader nor a part of an image")
            }),
            Event::Refused { client, cause: Refusal::Mode } => self.log.warn("mode", || {
                format!("TFTP request of {client} in text mode: only octet is served, which firmware uses")
            }),
            Event::Refused { client, cause: Refusal::Write } => {
                self.log.warn("write", || format!("TFTP write request of {client}: refused, the server is read-only"));
            }
            Event::Refused { client, cause: Refusal::Illegal } => {
                self.log.warn("illegal", || format!("TFTP request of {client} cannot be read: refused"));
            }
            Event::Stray => self.log.warn("stray", || "TFTP packets that belong to no transfer are dropped".to_owned()),
            Event::Malformed { client } => {
                self.log
                    .warn("malformed", || format!("a packet of {client} at the TFTP port is no packet of a client"));
            }
            // A timeout before the first block ends a size probe.
            Event::TimedOut { client, acked, blocks } if *acked > 0 => self
                .log
                .warn("timed_out", || format!("TFTP transfer of {client} timed out after block {acked} of {blocks}")),
            Event::Full { client } => self.log.warn("too many transfers", || {
                format!("too many TFTP transfers: a request of {client} is not answered until it is repeated")
            }),
            Event::Evicted => self
                .log
                .warn("evicted", || "too many TFTP transfers: stalled ones are ended for new requests".to_owned()),
            _ => {}
        }
    }
}

fn result_of(event: &Event) -> &'static str {
    match event {
        Event::Completed => "complete",
        Event::Aborted => "aborted",
        Event::Restarted => "restarted",
        Event::Evicted => "evicted",
        Event::CutOff => "cut_off",
        _ => "timed_out",
    }
}

fn cause_of(event: &Event) -> &'static str {
    match event {
        Event::Refused { cause: Refusal::NotFound { .. }, .. } => "not_found",
        Event::Refused { cause: Refusal::Mode, .. } => "mode",
        Event::Refused { cause: Refusal::Write, .. } => "write",
        Event::Refused { cause: Refusal::Illegal, .. } => "illegal",
        Event::Full { .. } => "full",
        Event::Stray => "stray",
        _ => "malformed",
    }
}
