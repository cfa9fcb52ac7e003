//! Power state, sensors, event log, firmware and serial console of a node, by its BMC.

use crate::{
    environment::bmcs::BmcError,
    links::{ConsoleFrame, ConsoleInput, ConsoleSession},
    nodes::{NodeOps, OperateError},
};
use bytes::Bytes;
use meshd_api::{BmcEventView, BmcVerb, FirmwareView, PowerView, SensorView};
use meshd_bmc::{ReportKind, ReportRow, impossible};
use meshd_model::fleet::{AuditContext, Event, EventKind};
use meshd_proto::vm::ConsoleNote;
use meshd_store::StoreError;
use meshd_types::{Basis, BmcRequest, BootDevice, MacAddr, NodeId, PowerState, failpoint};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Requests that a view lists.
const VERBS: [BmcRequest; 8] = [
    BmcRequest::Status,
    BmcRequest::On,
    BmcRequest::ShutDown,
    BmcRequest::Off,
    BmcRequest::Cycle,
    BmcRequest::Reset,
    BmcRequest::BootDevice(BootDevice::Pxe),
    BmcRequest::Identify(true),
];

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
            let machine = bmc.title();
            let address = bmc.address;
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
                let _ = output.send(ConsoleFrame::Note(ConsoleNote::ended(reason))).await;
            }
            drop(open);
        });
        Ok(ConsoleSession { output: shown, input })
    }

    /// Asks the BMC of a node for its power state, or that of a machine that has not booted, by
    /// its MAC address. A BMC that fails is part of the view.
    pub async fn power_status(&self, text: &str) -> Result<PowerView, OperateError> {
        let machine = text.parse::<MacAddr>().ok().and_then(|mac| {
            self.env.store.read(|model| model.expected_machine(mac).map(|it| (mac, it.title())))
        });
        let (id, name) = match &machine {
            Some((mac, title)) => (Basis::Mac(*mac).node_id(), Some(title.clone())),
            None => {
                let id = self.resolve(text)?;
                (id, self.env.store.read(|model| Some(model.node(id)?.name.clone())))
            }
        };
        let mut view = PowerView {
            id: machine.is_none().then_some(id),
            name: name.unwrap_or_default(),
            driver: None,
            address: String::new(),
            state: None,
            error: None,
            is_linked: self.links.is_linked(id),
            verbs: Vec::new(),
        };
        let bmc = match self.bmc_of_machine(id, machine.map(|(mac, _)| mac)) {
            Ok(bmc) => bmc,
            Err(OperateError::Bmc(error)) => {
                view.error = Some(error.to_string());
                return Ok(view);
            }
            Err(error) => return Err(error),
        };
        match self.bmcs.send_when_permitted(&bmc, BmcRequest::Status).await {
            Ok(state) => view.state = state,
            Err(failure) => view.error = Some(failure.reason().to_owned()),
        }
        let verb = |request: &BmcRequest| BmcVerb {
            verb: request.as_str().to_owned(),
            impossible: impossible(bmc.driver, *request),
        };
        (view.driver, view.address) = (Some(bmc.driver), bmc.address.clone());
        view.verbs = VERBS.iter().map(verb).collect();
        Ok(view)
    }

    /// Asks the BMC of a node for its sensors.
    pub async fn sensors(&self, text: &str) -> Result<Vec<SensorView>, OperateError> {
        let rows = self.bmc_report(text, ReportKind::Sensors).await?;
        let view =
            |ReportRow { name, value: reading, state, .. }| SensorView { name, reading, state };
        Ok(rows.into_iter().map(view).collect())
    }

    /// Asks the BMC of a node for the newest events of its log.
    pub async fn bmc_events(&self, text: &str) -> Result<Vec<BmcEventView>, OperateError> {
        let rows = self.bmc_report(text, ReportKind::Events).await?;
        let view = |ReportRow { id, at, name: sensor, value: event, state }| BmcEventView {
            id,
            at,
            sensor,
            event,
            state,
        };
        Ok(rows.into_iter().map(view).collect())
    }

    /// Deletes all events of the log of a BMC, and records that before. Returns those that are
    /// left; none if the log cannot be read after that.
    pub async fn clear_bmc_events(
        &self,
        text: &str,
        audit: &AuditContext,
    ) -> Result<Vec<BmcEventView>, OperateError> {
        let node = self.resolve(text)?;
        let now = self.env.now();
        let stored = self.env.store.commit(|tx| {
            let detail = "an operator clears the event log of its BMC";
            tx.event(Event::new(now, audit, EventKind::NodeAction, detail).of_node(node));
            Ok::<_, StoreError>(())
        });
        stored.await?;
        self.bmc_report(text, ReportKind::ClearEvents).await?;
        Ok(self.bmc_events(text).await.unwrap_or_default())
    }

    /// Asks the BMC of a node for the versions of its firmware.
    pub async fn firmware(&self, text: &str) -> Result<Vec<FirmwareView>, OperateError> {
        let rows = self.bmc_report(text, ReportKind::Firmware).await?;
        let view = |ReportRow { name, value: version, .. }| FirmwareView { name, version };
        Ok(rows.into_iter().map(view).collect())
    }

    /// Asks the BMC of a node for a report.
    async fn bmc_report(
        &self,
        text: &str,
        kind: ReportKind,
    ) -> Result<Vec<ReportRow>, OperateError> {
        let bmc = self.bmc_of(self.resolve(text)?)?;
        if kind == ReportKind::ClearEvents
            && let Some(other) = self.other_machine_of(&bmc)
        {
            let machine = bmc.title();
            let address = bmc.address;
            return Err(BmcError::Shared { machine, other, address }.into());
        }
        let report = self.bmcs.report_when_permitted(&bmc, kind).await;
        report.map_err(|failure| {
            let reason = failure.reason().to_owned();
            BmcError::Report { machine: bmc.title(), reason }.into()
        })
    }

    /// Whether the BMC of a node reports now that the machine is off. False without a BMC, and for
    /// one that is that of another machine, too.
    pub(in crate::nodes) async fn is_reported_off(&self, id: NodeId) -> bool {
        let Ok(bmc) = self.bmc_of(id) else { return false };
        if self.other_machine_of(&bmc).is_some() && failpoint::defends("fence-own-bmc") {
            return false;
        }
        let state = self.bmcs.send_when_permitted(&bmc, BmcRequest::Status).await;
        state == Ok(Some(PowerState::Off))
    }
}

/// The bytes of a piece of input: a BMC has no size of a window, and its input no end of its own.
fn bytes_of(input: ConsoleInput) -> Bytes {
    match input {
        ConsoleInput::Bytes(bytes) => bytes,
        ConsoleInput::Note(_) => Bytes::new(),
    }
}
