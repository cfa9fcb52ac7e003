//! A program of the site that switches machines: the driver `command`.
//!
//! The program runs as `PROGRAM ARGS... REQUEST`. REQUEST is `status`, `on`, `shut-down`, `off`,
//! `cycle`, `reset`, `boot-device DEVICE`, `identify on` or `identify off`. Variables describe the
//! machine. Exit code 0: done; `status` prints `on` or `off`. 2: the machine has no such request.
//! 3: user or password are refused. All others: failed; the last line of the error output is the
//! reason.

use crate::{Bmc, program};
use meshd_model::operations::{BmcFailure, BmcResult};
use meshd_types::BmcRequest;

const UNSUPPORTED: i32 = 2;
const REFUSED: i32 = 3;

/// Runs the program.
pub(crate) async fn send(bmc: &Bmc, request: BmcRequest) -> BmcResult {
    let Some(line) = &bmc.command else {
        return Err(BmcFailure::Failed("the BMC has no program".to_owned()));
    };
    let mut command = line.command();
    command.args(request.to_string().split(' '));
    let node = bmc.machine.node.map(|node| node.to_string()).unwrap_or_default();
    command
        .env("MESHD_NODE", node)
        .env("MESHD_NAME", &bmc.machine.name)
        .env("MESHD_MAC", bmc.machine.mac.to_string())
        .env("MESHD_BMC_ADDRESS", &bmc.address);
    if let Some(login) = &bmc.login {
        // Safe: only processes of this user and of root can read the environment of a process.
        let password = login.password.expose();
        command.env("MESHD_BMC_USER", &login.user).env("MESHD_BMC_PASSWORD", password);
    }
    let output = program::run(command, bmc.timeout).await?;
    match output.code {
        Some(0) if request == BmcRequest::Status => {
            let word = output.stdout.split_whitespace().next().unwrap_or_default();
            let unknown = || BmcFailure::Failed("the program did not print on or off".to_owned());
            word.parse().map(Some).map_err(|_| unknown())
        }
        Some(0) => Ok(None),
        Some(UNSUPPORTED) => {
            let silent = format!("the program has no request `{request}`");
            Err(BmcFailure::Unsupported(output.message_or(&silent)))
        }
        Some(REFUSED) => Err(BmcFailure::Credentials(output.message())),
        _ => Err(BmcFailure::Failed(output.message())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CommandLine, Login, Machine};
    use meshd_types::{BmcDriver, BootDevice, MacAddr, PowerState, Secret};
    use std::time::Duration;

    fn bmc(script: &str) -> Bmc {
        let args = vec!["-c".to_owned(), script.to_owned(), "power".to_owned()];
        Bmc {
            driver: BmcDriver::Command,
            address: "pdu-1".to_owned(),
            login: Some(Login {
                user: "meshd".to_owned(),
                password: Secret::new("a b".to_owned()),
            }),
            machine: Machine {
                node: None,
                name: "gpu001".to_owned(),
                mac: MacAddr([2, 0, 0, 0, 0, 1]),
            },
            command: Some(CommandLine { program: "/bin/sh".into(), args }),
            trust: None,
            cipher_suite: None,
            broadcast_domains: Vec::new(),
            timeout: Duration::from_secs(20),
        }
    }

    async fn result(script: &str, request: BmcRequest) -> BmcResult {
        bmc(script).send(request).await
    }

    #[tokio::test]
    async fn program_gets_the_request_as_arguments_and_the_machine_as_variables() {
        let script = r#"echo "$*|$MESHD_NODE|$MESHD_NAME|$MESHD_MAC|$MESHD_BMC_ADDRESS|$MESHD_BMC_USER|$MESHD_BMC_PASSWORD|$HOME" >&2; exit 1"#;
        let device = BmcRequest::BootDevice(BootDevice::Pxe);
        let words = "boot-device pxe||gpu001|02:00:00:00:00:01|pdu-1|meshd|a b|";
        assert_eq!(result(script, device).await, Err(BmcFailure::Failed(words.to_owned())));
    }

    #[tokio::test]
    async fn exit_code_and_output_are_the_result() {
        let status = BmcRequest::Status;
        assert_eq!(result("echo on", status).await, Ok(Some(PowerState::On)));
        assert_eq!(result("echo off", status).await, Ok(Some(PowerState::Off)));
        assert!(matches!(result("echo maybe", status).await, Err(BmcFailure::Failed(_))));
        assert_eq!(result("echo on", BmcRequest::On).await, Ok(None));
        let no = || Err(BmcFailure::Unsupported("no".to_owned()));
        assert_eq!(result("echo no >&2; exit 2", BmcRequest::Identify(true)).await, no());
        let silent = Err(BmcFailure::Unsupported("the program has no request `reset`".to_owned()));
        assert_eq!(result("exit 2", BmcRequest::Reset).await, silent);
        let refused = result("exit 3", BmcRequest::On).await;
        assert!(matches!(refused, Err(BmcFailure::Credentials(_))));
        let missing = Bmc {
            command: Some(CommandLine { program: "/no/such".into(), args: Vec::new() }),
            ..bmc("")
        };
        assert!(matches!(missing.send(BmcRequest::On).await, Err(BmcFailure::Failed(_))));
    }

    #[tokio::test]
    async fn program_that_hangs_or_prints_without_end_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let hung = Bmc {
            timeout: Duration::from_millis(500),
            ..bmc(&format!("sleep 1000 & echo $! >{}; wait", pid.display()))
        };
        let Err(BmcFailure::Unanswered(reason)) = hung.send(BmcRequest::On).await else {
            panic!("it hangs")
        };
        assert!(reason.contains("no end within"), "{reason}");
        let started = std::fs::read_to_string(&pid).unwrap();
        let gone = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", started.trim()));
            stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z "))
        };
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while !gone() {
            assert!(std::time::Instant::now() < deadline, "its child runs on");
            tokio::task::yield_now().await;
        }
        let endless = Bmc { timeout: Duration::from_secs(2), ..bmc("while :; do echo on; done") };
        assert!(endless.send(BmcRequest::Status).await.is_err());
    }
}
