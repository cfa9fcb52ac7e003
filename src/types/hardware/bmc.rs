//! Management controllers (BMCs): protocols, requests, and the power state of a machine.

use crate::ParseError;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Implements `ALL`, `Display` and `FromStr` of an enum by the words of its variants.
macro_rules! words {
    ($type:ident, $what:literal { $($variant:ident: $word:literal),+ $(,)? }) => {
        impl $type {
            pub const ALL: &[$type] = &[$($type::$variant),+];

            /// Returns the word that is stored and shown.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($type::$variant => $word),+
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $type {
            type Err = ParseError;

            fn from_str(text: &str) -> Result<Self, ParseError> {
                let known = $type::ALL.iter().find(|value| value.as_str() == text).copied();
                let hint = concat!("use one of" $(, " ", $word)+);
                known.ok_or_else(|| ParseError::of_text(text, concat!("is not ", $what), hint))
            }
        }
    };
}

/// Protocol of a BMC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum BmcDriver {
    Redfish,
    /// IPMI 2.0 over a LAN.
    Ipmi,
    /// Wake-on-LAN: it only powers on, and reports nothing.
    Wol,
    /// A program of the site.
    Command,
}

words!(BmcDriver, "a protocol of BMCs" { Redfish: "redfish", Ipmi: "ipmi", Wol: "wol", Command: "command" });

/// The requests that an order to a BMC tries one after another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PowerLadder {
    /// Cold cycles by the request `cycle`.
    #[default]
    Standard,
    /// Cold cycles by `off`, the report of `off`, and `on`: for BMCs without `cycle`.
    OffOn,
}

words!(PowerLadder, "a ladder of power requests" { Standard: "standard", OffOn: "off-on" });

/// Power of a machine, as its BMC reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum PowerState {
    On,
    Off,
}

words!(PowerState, "a power state" { On: "on", Off: "off" });

/// An order to the power of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum PowerAction {
    On,
    Off,
    /// Off, then on.
    Cycle,
    /// A reset without loss of power.
    Reset,
}

words!(PowerAction, "a power order" { On: "on", Off: "off", Cycle: "cycle", Reset: "reset" });

/// The device that a machine boots from next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum BootDevice {
    /// The network, at the next boot only.
    Pxe,
    /// The first disk, at the next boot only.
    Disk,
    /// The setup of the firmware, at the next boot only.
    Bios,
    /// The order of the firmware: removes an override.
    None,
}

words!(BootDevice, "a boot device" { Pxe: "pxe", Disk: "disk", Bios: "bios", None: "none" });

/// A request to a BMC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BmcRequest {
    /// The power state.
    Status,
    On,
    /// A request to the operating system to shut down.
    ShutDown,
    /// Power off at once.
    Off,
    Cycle,
    Reset,
    /// The device of the next boot.
    BootDevice(BootDevice),
    /// The identification light.
    Identify(bool),
}

impl BmcRequest {
    /// Returns the word of the request in command lines and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            BmcRequest::Status => "status",
            BmcRequest::On => "on",
            BmcRequest::ShutDown => "shut-down",
            BmcRequest::Off => "off",
            BmcRequest::Cycle => "cycle",
            BmcRequest::Reset => "reset",
            BmcRequest::BootDevice(_) => "boot-device",
            BmcRequest::Identify(_) => "identify",
        }
    }

    /// Returns true if the request ends what the machine runs.
    pub const fn cuts_power(self) -> bool {
        matches!(
            self,
            BmcRequest::ShutDown | BmcRequest::Off | BmcRequest::Cycle | BmcRequest::Reset
        )
    }

    /// Returns true if the request changes the power of the machine.
    pub const fn changes_power(self) -> bool {
        matches!(self, BmcRequest::On) || self.cuts_power()
    }

    /// Returns true if the machine starts after the request.
    pub const fn starts_machine(self) -> bool {
        matches!(self, BmcRequest::On | BmcRequest::Cycle | BmcRequest::Reset)
    }
}

impl fmt::Display for BmcRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BmcRequest::BootDevice(device) => write!(f, "boot-device {device}"),
            BmcRequest::Identify(true) => f.write_str("identify on"),
            BmcRequest::Identify(false) => f.write_str("identify off"),
            other => f.write_str(other.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_bmcs_round_trip_and_others_are_refused() {
        for driver in BmcDriver::ALL {
            assert_eq!(driver.to_string().parse(), Ok(*driver));
            assert_eq!(serde_json::to_string(driver).unwrap(), format!("\"{driver}\""));
        }
        for device in BootDevice::ALL {
            assert_eq!(device.to_string().parse(), Ok(*device));
            assert_eq!(serde_json::to_string(device).unwrap(), format!("\"{device}\""));
        }
        for action in PowerAction::ALL {
            assert_eq!(action.to_string().parse(), Ok(*action));
        }
        for ladder in PowerLadder::ALL {
            assert_eq!(ladder.to_string().parse(), Ok(*ladder));
            assert_eq!(serde_json::to_string(ladder).unwrap(), format!("\"{ladder}\""));
        }
        for text in ["", "ON", "on ", "ipmi2"] {
            assert!(text.parse::<BmcDriver>().is_err() && text.parse::<PowerState>().is_err());
        }
    }
}
