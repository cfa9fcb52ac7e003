//! Requests to the management controllers (BMCs) of machines.
//!
//! | module | content |
//! | --- | --- |
//! | this file | a BMC, and the request that each driver carries out |
//! | `address` | host and port of a BMC |
//! | `command` | a program of the site |
//! | `ipmi` | IPMI 2.0 over a LAN, by `ipmitool` |
//! | `program` | runs a program with limits of time and output |
//! | `redfish` | Redfish |
//! | `report` | sensors, event log and versions, as rows |
//! | `wol` | Wake-on-LAN |
//!
//! A request is bounded in time and in the size of its answer. It is sent once: the caller decides
//! about repetitions, because the effect of a request may come without its answer.

mod address;
mod command;
mod ipmi;
mod program;
mod redfish;
mod report;
mod wol;

pub use address::{BmcAddress, parse_address};
pub use ipmi::SerialConsole;
pub use program::CommandLine;
pub use report::{ReportKind, ReportRow};
pub use wol::BroadcastDomain;

use meshd_model::operations::{BmcFailure, BmcResult};
use meshd_types::{BmcDriver, BmcRequest, Digest, MacAddr, NodeId, Secret};
use std::{collections::BTreeSet, time::Duration};

/// A BMC, with everything that a request needs.
#[derive(Clone, Debug)]
pub struct Bmc {
    pub driver: BmcDriver,
    /// Host name or address, with a port if it is not the default; empty for Wake-on-LAN.
    pub address: String,
    pub login: Option<Login>,
    pub machine: Machine,
    /// The program of the driver `command`.
    pub command: Option<CommandLine>,
    /// Certificates that a Redfish server may show.
    pub trust: Option<ServerTrust>,
    /// IPMI cipher suite; `None` lets `ipmitool` choose.
    pub cipher_suite: Option<u8>,
    /// Networks for Wake-on-LAN.
    pub broadcast_domains: Vec<BroadcastDomain>,
    /// Time limit of a program, or of one answer of a Redfish server.
    pub timeout: Duration,
}

/// Certificates that a Redfish server may show.
#[derive(Clone, Debug)]
pub enum ServerTrust {
    /// Exactly these, by the SHA-256 of each.
    Certificates(BTreeSet<Digest>),
    /// Those of these authorities, PEM, for the name or address of the BMC.
    Authorities(Vec<u8>),
}

/// User and password of a BMC.
#[derive(Clone, Debug)]
pub struct Login {
    pub user: String,
    pub password: Secret<String>,
}

/// The machine of a BMC.
#[derive(Clone, Debug)]
pub struct Machine {
    /// ID of the node; `None` before its first boot.
    pub node: Option<NodeId>,
    pub name: String,
    /// MAC address of the boot NIC.
    pub mac: MacAddr,
}

impl Bmc {
    /// Sends a request. The result of [`BmcRequest::Status`] is the power state; other requests
    /// have none.
    pub async fn send(&self, request: BmcRequest) -> BmcResult {
        if let Some(reason) = impossible(self.driver, request) {
            return Err(BmcFailure::Unsupported(reason));
        }
        match self.driver {
            BmcDriver::Ipmi => ipmi::send(self, request).await,
            BmcDriver::Command => command::send(self, request).await,
            BmcDriver::Wol => wol::send(self).await,
            BmcDriver::Redfish => redfish::send(self, request).await,
        }
    }

    /// Opens the serial port of the machine.
    pub async fn serial_console(&self) -> Result<SerialConsole, BmcFailure> {
        if has_serial_console(self.driver) {
            return ipmi::open_console(self).await;
        }
        Err(BmcFailure::Unsupported(format!("driver {} has no serial console", self.driver)))
    }

    /// Ends the session of the serial port, whoever has it.
    ///
    /// # Errors
    /// The BMC has no session, or does not answer.
    pub async fn end_serial_console(&self) -> Result<(), BmcFailure> {
        if has_serial_console(self.driver) {
            return ipmi::end_console(self).await;
        }
        Err(BmcFailure::Unsupported(format!("driver {} has no serial console", self.driver)))
    }

    /// Asks for a report: at most 1024 rows.
    pub async fn report(&self, kind: ReportKind) -> Result<Vec<ReportRow>, BmcFailure> {
        match self.driver {
            BmcDriver::Ipmi => ipmi::report(self, kind).await,
            BmcDriver::Redfish => redfish::report(self, kind).await,
            BmcDriver::Command | BmcDriver::Wol => {
                Err(BmcFailure::Unsupported(format!("driver {} has no reports", self.driver)))
            }
        }
    }
}

/// Returns whether a driver opens serial consoles.
pub fn has_serial_console(driver: BmcDriver) -> bool {
    driver == BmcDriver::Ipmi
}

/// Returns why a driver has no such request; `None` if the BMC decides.
pub fn impossible(driver: BmcDriver, request: BmcRequest) -> Option<String> {
    let is_impossible = driver == BmcDriver::Wol && request != BmcRequest::On;
    is_impossible.then(|| format!("Wake-on-LAN has no `{}`", request.as_str()))
}
