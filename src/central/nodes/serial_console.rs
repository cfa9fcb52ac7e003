//! Serial over LAN: connects an operator to the serial port of a node, by its BMC.

use super::{NodeOps, OperateError};
use crate::{
    environment::bmcs::BmcError,
    links::{ConsoleFrame, ConsoleInput, ConsoleSession},
};
use bytes::Bytes;
use meshd_model::fleet::{AuditContext, Event, EventKind};
use meshd_proto::vm::ConsoleNote;
use meshd_store::StoreError;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Maximum number of queued pieces of output. A reader that is slower delays the BMC.
const OUTPUT_QUEUE: usize = 64;
/// Maximum number of queued pieces of input.
const INPUT_QUEUE: usize = 64;

impl NodeOps {
    /// Opens the serial console of a node. It ends when the session is dropped.
    pub async fn open_serial_console(
        self: &Arc<Self>,
        text: &str,
        audit: &AuditContext,
    ) -> Result<ConsoleSession, OperateError> {
        let node = self.resolve(text)?;
        let bmc = self.bmc_of(node)?;
        if let Some(other) = self.other_machine_of(&bmc) {
            let (machine, address) = (bmc.title(), bmc.address);
            return Err(BmcError::Shared { machine, other, address }.into());
        }
        let opened = self.bmcs.console_when_permitted(&bmc).await;
        let (console, open) = opened.map_err(|failure| {
            let reason = failure.reason().to_owned();
            BmcError::Report { machine: bmc.title(), reason }
        })?;
        let now = self.env.now();
        let stored = self.env.store.commit(|tx| {
            let detail = "an operator opened its serial console";
            tx.event(Event::new(now, audit, EventKind::NodeAction, detail).of_node(node));
            Ok::<_, StoreError>(())
        });
        stored.await?;
        let (output, shown) = mpsc::channel(OUTPUT_QUEUE);
        let (input, typed) = mpsc::channel(INPUT_QUEUE);
        tokio::spawn(async move {
            let ended = console.carry(typed, &output, bytes_of, ConsoleFrame::Bytes).await;
            if let Some(reason) = ended {
                // The operator may be gone.
                let _ = output.send(ConsoleFrame::Note(ConsoleNote::Ended { reason })).await;
            }
            drop(open);
        });
        Ok(ConsoleSession { output: shown, input })
    }
}

/// The bytes of a piece of input: a BMC has no size of a window, and its input no end of its own.
fn bytes_of(input: ConsoleInput) -> Bytes {
    match input {
        ConsoleInput::Bytes(bytes) => bytes,
        ConsoleInput::Note(_) => Bytes::new(),
    }
}
