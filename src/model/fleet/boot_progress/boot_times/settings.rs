//! What to change against a delay, as advice for people.

use super::{kind::DelayKind, step::BootStep};
use crate::fleet::boot_progress::stage::Stage;

/// Returns the setting that removes a delay.
pub(super) fn setting(kind: DelayKind, step: BootStep) -> &'static str {
    match kind {
        DelayKind::PowerAttempts => {
            "`meshd operation list` has the attempts; see the quirks of the BMC in the page about power"
        }
        DelayKind::OtherNic => {
            "move the NIC that boots to the front of the firmware's boot order, or disable network boot of the other NICs"
        }
        DelayKind::RepeatedAttempt => {
            "`meshd node timeline NODE` lists the earlier boots with the stage at which each stopped"
        }
        DelayKind::LostDiscovers => {
            "configure the switch port as an edge port (spanning tree `portfast`), and switch off its negotiation of trunks and LACP"
        }
        DelayKind::SlowRelay => {
            "let the relay forward at once (`min-secs 0`), and configure the switch port as an edge port"
        }
        DelayKind::RepeatedDiscovers => {
            "look for another DHCP or PXE server and for filters between meshd and the machine: `meshd doctor`, `meshd dhcp show`"
        }
        DelayKind::OtherProtocol => {
            "put the protocol that boots first in the firmware's boot order: IPv4 PXE before HTTP boot and IPv6"
        }
        DelayKind::BootQueue => {
            "raise `[boot].max_loading` if network and disk of the server allow it"
        }
        DelayKind::Approval => {
            "approve machines before they boot with `meshd node import --approve`, or by an `[[enroll.rule]]`"
        }
        DelayKind::RecentlyOnline => {
            "reboot with `meshd node reboot`, which announces the boot, or shorten `[agent].offline_after`"
        }
        DelayKind::Refusal => "`meshd node timeline NODE` has the reason",
        DelayKind::RepeatedScript => {
            "a file did not arrive whole, or the overlay was refused: look at `meshd events`, the link of the NIC and the memory"
        }
        DelayKind::PackageInstallation => {
            "install fewer packages in the profile: put software into a bundle, or use an image of kind `root`"
        }
        DelayKind::SlowStep => slow_step(step),
    }
}

fn slow_step(step: BootStep) -> &'static str {
    match step {
        BootStep::Firmware => {
            "in the firmware, put IPv4 PXE of the boot NIC first, before IPv6, HTTP boot and disks; enable its fast boot"
        }
        BootStep::Attempts => setting(DelayKind::OtherNic, step),
        BootStep::Approval => setting(DelayKind::Approval, step),
        BootStep::Stage(stage) => match stage {
            Stage::Dhcp | Stage::Loader => {
                "check the path for lost packets: TFTP waits a second for each; UEFI HTTP boot has no such waits"
            }
            Stage::IpxeDhcp | Stage::OsDhcp => {
                "configure the switch port as an edge port: the link goes down when a driver starts"
            }
            Stage::Script => "check the path from the machine to `[http].port`",
            Stage::Kernel | Stage::Initramfs | Stage::Packages | Stage::Root => {
                "use `[boot].kernel_transport = \"http\"`, and check speed and errors of the NIC's link"
            }
            Stage::Overlay => "check the link of the NIC, and the metric `meshd_render_seconds`",
            Stage::Modloop => {
                "install fewer packages in the profile, and check the link of the NIC"
            }
            Stage::Enrolled => "look for the slow service with `meshd node logs NODE`",
            Stage::Link => "check the path from the node to `[agent].port`",
            Stage::Online => {
                "look for the readiness check that passes last: `meshd node doctor NODE`"
            }
        },
    }
}
