//! What happened: counted, and said in one line of the log for each cause.

use super::effect::{Happened, Payload, Refusal, Send};
use crate::serve::log::Log;
use metrics::{Counter, Gauge};
use std::io;

/// Characters shown of a name that a client sent.
const SHOWN: usize = 80;

/// The log and the metrics of one segment's workers.
pub(super) struct Notes {
    log: Log,
    active: Gauge,
    bytes: Counter,
    resent: Counter,
}

impl Default for Notes {
    fn default() -> Self {
        Notes {
            log: Log::default(),
            active: metrics::gauge!("meshd_tftp_transfers"),
            bytes: metrics::counter!("meshd_tftp_bytes_total"),
            resent: metrics::counter!("meshd_tftp_resent_blocks_total"),
        }
    }
}

impl Notes {
    /// Counts what leaves.
    pub(super) fn sent(&self, sends: &[Send]) {
        let (mut bytes, mut resent) = (0, 0);
        for send in sends {
            if let Payload::Blocks { file, block, first, count, again } = &send.what {
                let start = (first - 1) * u64::from(*block);
                bytes += (u64::from(*block) * u64::from(*count)).min(file.len() as u64 - start);
                resent += if *again { u64::from(*count) } else { 0 };
            }
        }
        self.bytes.increment(bytes);
        if resent > 0 {
            self.resent.increment(resent);
        }
    }

    /// Counts it; logs it if an operator can do something about it.
    pub(super) fn happened(&self, what: &Happened) {
        match what {
            Happened::Began => self.active.increment(1),
            Happened::Refused { .. } | Happened::Full { .. } | Happened::Malformed => {
                metrics::counter!("meshd_tftp_refused_total", "cause" => cause_of(what)).increment(1);
            }
            _ => {
                self.active.decrement(1);
                metrics::counter!("meshd_tftp_transfers_total", "result" => result_of(what)).increment(1);
            }
        }
        self.log(what);
    }

    fn log(&self, what: &Happened) {
        match what {
            Happened::Refused { client, cause: Refusal::NotFound { name } } => self.log.warn("not found", || {
                let name: String = name.chars().take(SHOWN).collect();
                format!("{client} asks by TFTP for {name:?}, which is neither a loader nor a part of an image")
            }),
            Happened::Refused { client, cause: Refusal::Mode } => self.log.warn("mode", || {
                format!("{client} asks by TFTP for text mode; only octet is served, which firmware uses")
            }),
            Happened::Refused { client, cause: Refusal::Write } => {
                self.log.warn("write", || format!("{client} wants to write by TFTP; it was refused"));
            }
            // Before the first block it was a size probe, which may end so.
            Happened::Silent { client, acked, blocks } if *acked > 0 => self.log.warn("silent", || {
                format!("{client} fell silent after block {acked} of {blocks} of its TFTP transfer")
            }),
            Happened::Full { client, cause } => {
                self.log.warn(cause, || {
                    format!("{cause}: a TFTP request of {client} is not answered, until it asks again")
                });
            }
            Happened::Displaced => self
                .log
                .warn("displaced", || "more TFTP requests than transfers; those that do not read make room".to_owned()),
            Happened::Began
            | Happened::Fetched { .. }
            | Happened::Aborted
            | Happened::Silent { .. }
            | Happened::Restarted
            | Happened::Malformed
            | Happened::CutOff => {}
        }
    }

    /// The socket said no; the others are served.
    pub(super) fn failed(&self, what: &'static str, error: &io::Error) {
        self.log.warn(what, || format!("cannot {what} a TFTP packet: {error}"));
    }

    pub(super) fn not_cut(&self, error: &io::Error) {
        tracing::info!(%error, "UDP segmentation offload is refused here; TFTP windows are sent block by block");
    }

    pub(super) fn queue_full(&self) {
        self.log.warn("queue", || {
            "the network takes no more TFTP packets; what was left out is sent again later".to_owned()
        });
    }

    pub(super) fn busy(&self) {
        self.log.warn("busy", || "more TFTP requests than can be read; some are dropped, clients ask again".to_owned());
    }
}

fn result_of(what: &Happened) -> &'static str {
    match what {
        Happened::Fetched { .. } => "complete",
        Happened::Aborted => "aborted",
        Happened::Restarted => "restarted",
        Happened::Displaced => "displaced",
        Happened::CutOff => "cut_off",
        _ => "silent",
    }
}

fn cause_of(what: &Happened) -> &'static str {
    match what {
        Happened::Refused { cause: Refusal::NotFound { .. }, .. } => "not_found",
        Happened::Refused { cause: Refusal::Mode, .. } => "mode",
        Happened::Refused { cause: Refusal::Write, .. } => "write",
        Happened::Full { .. } => "full",
        _ => "malformed",
    }
}
