//! Why a machine has no usable BMC.

use meshd_types::{BmcDriver, Hint as _, MacAddr, ParseError};
use std::{net::Ipv4Addr, path::PathBuf};

/// Why a machine has no usable BMC. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BmcError {
    #[error("no BMC of {machine} is known")]
    Unknown { machine: String },
    #[error("the BMC of {machine} has no address")]
    NoAddress { machine: String, driver: BmcDriver },
    #[error("the BMC {mac} of {machine} has no current lease of meshd")]
    NoLease { machine: String, mac: MacAddr },
    #[error("the BMC {mac} of {machine} has leases in several networks: {one} and {other}")]
    SeveralLeases { machine: String, mac: MacAddr, one: Ipv4Addr, other: Ipv4Addr },
    #[error(
        "the BMC of {machine} has its address by DHCP, and cipher suite {suite} of its rule protects no message"
    )]
    WeakCipherSuite { machine: String, suite: u8 },
    #[error("the BMC of {machine} has its address by DHCP, and its rule names no cipher suite")]
    NoCipherSuite { machine: String },
    #[error("the BMC of {machine} has the invalid address `{address}`")]
    InvalidAddress { machine: String, address: String },
    #[error("no rule of the site has the {missing} for driver {driver} of {machine}")]
    NoRule { machine: String, driver: BmcDriver, missing: &'static str },
    #[error("the BMC {address} of {machine} is that of {other}, too")]
    Shared { machine: String, other: String, address: String },
    #[error("the BMC of {machine} does not report: {reason}")]
    Report { machine: String, reason: String },
    #[error("file {} of the BMC {}", file.display(), cause.message())]
    Password { file: PathBuf, cause: ParseError },
}

meshd_types::hints!(BmcError {
    BmcError::Unknown { .. } => "write a [[power.bmc]] in the site file, or import the machine with bmc_driver and bmc_address";
    BmcError::NoAddress { .. } => "import the machine with bmc_address, or write address into its [[power.bmc]]";
    BmcError::NoLease { .. } => "set the BMC to DHCP, and connect it to a segment with mode = \"authoritative\"; or import the machine with bmc_address";
    BmcError::SeveralLeases { .. } => "find out which address is that of the BMC: the other one is that of a stranger, or of its former network until that lease ends; or import the machine with bmc_address";
    BmcError::WeakCipherSuite { .. } => "write cipher_suite = 17 or 3 into the rule: then messages of a session cannot be forged";
    BmcError::NoCipherSuite { .. } => "write cipher_suite = 17 or 3 into the rule: then a stranger at the address cannot pass for the BMC without its password";
    BmcError::InvalidAddress { .. } => "write a host name or an address, with a port if it is not the default";
    BmcError::NoRule { driver, .. } => "write a [[power.bmc]] with driver = \"{driver}\" for the machine";
    BmcError::Shared { .. } => "correct bmc_address of one of them: an order would switch both";
    BmcError::Report { .. } => "`meshd node power status` tries the BMC";
    BmcError::Password { cause, .. } => "{}", cause.hint().unwrap_or_default();
});
