//! IPMI 2.0 over a LAN, by `ipmitool`. The password is in its environment, never in its arguments.
//!
//! | module | content |
//! | --- | --- |
//! | here | requests that change or report the power |
//! | `reports` | sensors, event log, versions |
//! | `serial_console` | the serial port, over LAN |

mod reports;
mod serial_console;

pub(crate) use reports::report;
pub use serial_console::SerialConsole;
pub(crate) use serial_console::{end as end_console, open as open_console};

use crate::{
    Bmc, parse_address,
    program::{self, Output},
};
use meshd_model::operations::{BmcFailure, BmcResult};
use meshd_types::{BmcRequest, BootDevice, PowerState};
use tokio::process::Command;

/// Seconds that the light stays on after `identify on`: the maximum of the protocol.
const IDENTIFY_SECONDS: &str = "255";
/// Texts of `ipmitool -v` for a refused user or password. Without them, a wrong password looks like
/// a BMC that does not answer, and repetitions may lock the account.
const REFUSALS: [&str; 4] = [
    "RAKP 2 HMAC is invalid",
    "RAKP 2 message indicates an error : unauthorized name",
    "insufficient privilege",
    "Insufficient privilege",
];
/// Texts for a request that the BMC does not have, in the last message: before it, `-v` reports
/// other requests.
const UNSUPPORTED: [&str; 3] =
    ["Invalid command", "Illegal parameter", "Invalid data field in request"];

/// Sends a request.
pub(crate) async fn send(bmc: &Bmc, request: BmcRequest) -> BmcResult {
    let output = run(bmc, words(request)).await?;
    let text = output.stdout.to_lowercase();
    match request {
        BmcRequest::Status if text.contains("power is on") => Ok(Some(PowerState::On)),
        BmcRequest::Status if text.contains("power is off") => Ok(Some(PowerState::Off)),
        BmcRequest::Status => {
            Err(BmcFailure::Failed("ipmitool did not report a power state".to_owned()))
        }
        BmcRequest::BootDevice(device) => check_boot_device(bmc, device).await,
        _ => Ok(None),
    }
}

fn words(request: BmcRequest) -> &'static [&'static str] {
    match request {
        BmcRequest::Status => &["chassis", "power", "status"],
        BmcRequest::On => &["chassis", "power", "on"],
        BmcRequest::ShutDown => &["chassis", "power", "soft"],
        BmcRequest::Off => &["chassis", "power", "off"],
        BmcRequest::Cycle => &["chassis", "power", "cycle"],
        BmcRequest::Reset => &["chassis", "power", "reset"],
        BmcRequest::BootDevice(BootDevice::Pxe) => &["chassis", "bootdev", "pxe"],
        BmcRequest::BootDevice(BootDevice::Disk) => &["chassis", "bootdev", "disk"],
        BmcRequest::BootDevice(BootDevice::Bios) => &["chassis", "bootdev", "bios"],
        BmcRequest::BootDevice(BootDevice::None) => &["chassis", "bootdev", "none"],
        BmcRequest::Identify(true) => &["chassis", "identify", IDENTIFY_SECONDS],
        BmcRequest::Identify(false) => &["chassis", "identify", "0"],
    }
}

/// Reads the boot device back: some BMCs accept it and forget it. A BMC that cannot report it is
/// believed.
async fn check_boot_device(bmc: &Bmc, device: BootDevice) -> BmcResult {
    let Ok(output) = run(bmc, &["chassis", "bootparam", "get", "5"]).await else { return Ok(None) };
    let has_forgotten = device != BootDevice::None && output.stdout.contains("No override");
    if has_forgotten {
        let message = format!("the BMC accepted boot device {device} and does not report it");
        return Err(BmcFailure::Failed(message));
    }
    Ok(None)
}

/// Runs `ipmitool` with messages that tell a refused password from a BMC that does not answer.
async fn run(bmc: &Bmc, words: &[&str]) -> Result<Output, BmcFailure> {
    let output = program::run(command(bmc, &["-v"], words)?, bmc.timeout).await?;
    if output.code == Some(0) { Ok(output) } else { Err(failure(&output)) }
}

/// Returns the command line of `ipmitool` for a BMC.
fn command(bmc: &Bmc, options: &[&str], words: &[&str]) -> Result<Command, BmcFailure> {
    let failed = |what: &str| BmcFailure::Failed(what.to_owned());
    let address =
        parse_address(&bmc.address).ok_or_else(|| failed("the address of the BMC is invalid"))?;
    let login = bmc.login.as_ref().ok_or_else(|| failed("the BMC has no user"))?;
    let mut command = Command::new("ipmitool");
    command.args(options);
    command.args(["-I", "lanplus", "-E", "-N", "5", "-R", "2", "-H", &address.host]);
    if let Some(port) = address.port {
        command.args(["-p", &port.to_string()]);
    }
    if let Some(suite) = bmc.cipher_suite {
        command.args(["-C", &suite.to_string()]);
    }
    command.args(["-U", &login.user]).args(words);
    // Safe: only processes of this user and of root can read the environment of a process.
    command.env_clear().env("IPMI_PASSWORD", login.password.expose());
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    Ok(command)
}

fn failure(output: &Output) -> BmcFailure {
    let has = |texts: &[&str]| texts.iter().any(|text| output.stderr.contains(text));
    let message = output.message();
    if has(&REFUSALS) {
        BmcFailure::Credentials("the BMC refuses the user or the password".to_owned())
    } else if UNSUPPORTED.iter().any(|text| message.contains(text)) {
        BmcFailure::Unsupported(message)
    } else {
        BmcFailure::Failed(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(stderr: &str) -> BmcFailure {
        failure(&Output { code: Some(1), stdout: String::new(), stderr: stderr.to_owned() })
    }

    #[test]
    fn refused_password_differs_from_a_bmc_that_does_not_answer() {
        let session = "Error: Unable to establish IPMI v2 / RMCP+ session";
        for refusal in
            ["> RAKP 2 HMAC is invalid", "RAKP 2 message indicates an error : unauthorized name"]
        {
            let text = format!("Loading IANA PEN Registry...\n{refusal}\n{session}\n");
            assert!(matches!(failed(&text), BmcFailure::Credentials(_)), "{text}");
        }
        let silent = format!("Get Auth Capabilities error\n{session}\n\n");
        assert_eq!(failed(&silent), BmcFailure::Failed(session.to_owned()));
        let unsupported = "Unable to set Chassis Power Control to Soft: Invalid command";
        assert!(matches!(failed(unsupported), BmcFailure::Unsupported(_)));
        let noise = format!("Invalid completion code received: Invalid command\n{session}");
        assert_eq!(failed(&noise), BmcFailure::Failed(session.to_owned()));
        assert_eq!(failed(""), BmcFailure::Failed("no message".to_owned()));
    }
}
