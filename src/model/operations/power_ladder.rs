//! The ladder of an order to a BMC: which requests it tries, one rung after another. Pure.

use super::NodeOrder;
use meshd_types::{BmcRequest, BootDevice, PowerAction, PowerLadder, PowerState};
use std::time::Duration;

/// Time that a machine needs to shut its operating system down.
const SHUT_DOWN_WITHIN: Duration = Duration::from_secs(90);
/// Time that a BMC needs to switch a machine off.
pub(super) const OFF_WITHIN: Duration = Duration::from_secs(30);

/// A rung of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rung {
    On,
    ShutDown,
    Off,
    Cycle,
    Reset,
    /// A cold cycle with the network as boot device.
    NetworkBoot,
    /// The first half of a cold cycle by two requests.
    CutOff,
    /// The second half of a cold cycle by two requests.
    TurnOn,
    /// The network as boot device of the cold cycle that follows.
    NetworkDevice,
    /// A request without an effect that meshd can see.
    Plain(BmcRequest),
}

impl Rung {
    /// Returns the requests of the rung, in order. A machine that is off cannot be reset.
    pub(super) fn requests(self, reported: Option<PowerState>) -> Vec<BmcRequest> {
        let is_off = reported == Some(PowerState::Off);
        let start = if is_off { BmcRequest::On } else { BmcRequest::Cycle };
        match self {
            Rung::On | Rung::TurnOn => vec![BmcRequest::On],
            Rung::ShutDown | Rung::Off if is_off => Vec::new(),
            Rung::ShutDown => vec![BmcRequest::ShutDown],
            Rung::Off | Rung::CutOff => vec![BmcRequest::Off],
            Rung::Reset if !is_off => vec![BmcRequest::Reset],
            Rung::Cycle | Rung::Reset => vec![start],
            Rung::NetworkBoot => vec![BmcRequest::BootDevice(BootDevice::Pxe), start],
            Rung::NetworkDevice => vec![BmcRequest::BootDevice(BootDevice::Pxe)],
            Rung::Plain(request) => vec![request],
        }
    }

    /// Whether a rung without an effect of its own has done its part, or has none.
    pub(super) fn is_over(self, accepted: u8, reported: Option<PowerState>) -> bool {
        match self {
            Rung::CutOff => reported == Some(PowerState::Off),
            // The machine has not lost its power.
            Rung::TurnOn => accepted == 0 && reported == Some(PowerState::On),
            Rung::NetworkDevice => accepted > 0,
            _ => false,
        }
    }

    /// Whether the rung disturbs a machine that runs: by a power cut, or by its next boot device.
    pub(super) fn disturbs(self, reported: Option<PowerState>) -> bool {
        match self {
            Rung::NetworkDevice => reported != Some(PowerState::Off),
            _ => self.requests(reported).iter().any(|request| request.cuts_power()),
        }
    }

    pub(super) fn patience(self, appear_within: Duration) -> Duration {
        match self {
            Rung::ShutDown => SHUT_DOWN_WITHIN,
            Rung::Off | Rung::CutOff => OFF_WITHIN,
            _ => appear_within,
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Rung::On | Rung::TurnOn => "power on",
            Rung::ShutDown => "shutdown",
            Rung::Off | Rung::CutOff => "power off",
            Rung::Cycle => "power cycle",
            Rung::Reset => "reset",
            Rung::NetworkBoot => "power cycle with network boot",
            Rung::NetworkDevice => "network as boot device",
            Rung::Plain(request) => request.as_str(),
        }
    }
}

/// Returns the ladder of an order; empty for an order that needs no BMC.
pub(super) fn ladder(order: &NodeOrder, kind: PowerLadder) -> Vec<Rung> {
    let cold: &[Rung] = match kind {
        PowerLadder::Standard => &[Rung::Cycle],
        PowerLadder::OffOn => &[Rung::CutOff, Rung::TurnOn],
    };
    let network: &[Rung] = match kind {
        PowerLadder::Standard => &[Rung::NetworkBoot],
        PowerLadder::OffOn => &[Rung::NetworkDevice, Rung::CutOff, Rung::TurnOn],
    };
    match order {
        NodeOrder::Power { action: PowerAction::On, .. } => {
            [&[Rung::On, Rung::On], network].concat()
        }
        NodeOrder::Power { action: PowerAction::Off, now: false } => {
            vec![Rung::ShutDown, Rung::Off, Rung::Off]
        }
        NodeOrder::Power { action: PowerAction::Off, now: true } => vec![Rung::Off, Rung::Off],
        NodeOrder::Power { action: PowerAction::Cycle, .. } => [cold, cold, network].concat(),
        NodeOrder::Power { action: PowerAction::Reset, .. } => {
            [&[Rung::Reset], cold, network].concat()
        }
        NodeOrder::BootDevice { device } => vec![Rung::Plain(BmcRequest::BootDevice(*device))],
        NodeOrder::Identify { on } => vec![Rung::Plain(BmcRequest::Identify(*on))],
        _ => Vec::new(),
    }
}
