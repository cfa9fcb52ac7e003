//! Shells of this node, and of guests on it, for administrators. A shell lives as long as the
//! connection of its user: all its processes are in one control group, which is killed at the end.
//!
//! | module | content |
//! | --- | --- |
//! | `guest_enter` | the process that becomes the SSH client of a login at a guest |
//! | `keys` | what the user types, and that the user leaves |
//! | `login` | the login shell of root: path and home |
//! | `login_wait` | waits until the SSH client of a login is logged in |
//! | `pseudo_terminal` | the terminal of a shell |
//! | `server_wait` | waits for the SSH server of a guest |
//! | `shell_enter` | the process that becomes the shell: control group, session, terminal |
//! | `shell_program` | what runs in the terminal: the login shell of root, a login at a guest, a program in a container |
//! | `shell_session` | one shell, from its order to the end of all its processes |
//! | `vm_end` | waits for the end of the VM at whose guest a login is |

pub mod guest_enter;
mod keys;
mod login;
mod login_wait;
mod pseudo_terminal;
mod server_wait;
pub mod shell_enter;
mod shell_program;
mod shell_session;
mod vm_end;

pub(super) use shell_program::{GuestLogin, ShellProgram};

use super::cgroup::Cgroups;
use crate::link::call::Endpoint;
use meshd_proto::shell::ShellOrder;
use tokio::task::JoinSet;

/// Maximum number of shells of this node.
const MAX_SHELLS: usize = 8;

/// All shells of this node.
#[derive(Default)]
pub(super) struct Shells {
    sessions: JoinSet<()>,
}

impl Shells {
    /// Kills the shells of an earlier agent, in the background.
    pub(super) fn end_leftovers(&mut self, cgroups: &Cgroups) {
        for group in cgroups.shells() {
            tracing::warn!("killing a shell of an earlier agent");
            self.sessions.spawn(async move { group.kill_and_remove().await });
        }
    }

    /// Starts a shell. Its user learns why it does not start.
    pub(super) fn open(
        &mut self,
        order: ShellOrder,
        program: ShellProgram,
        endpoint: Option<Endpoint>,
        cgroups: Result<&Cgroups, String>,
    ) {
        while self.sessions.try_join_next().is_some() {}
        let Some(endpoint) = endpoint else {
            return tracing::warn!("cannot open a shell: this node has no certificate yet");
        };
        let group = match cgroups {
            _ if self.sessions.len() >= MAX_SHELLS => {
                Err(format!("{MAX_SHELLS} shells of this node are open: close one first"))
            }
            Ok(cgroups) => cgroups.create_shell(order.console),
            Err(reason) => Err(reason),
        };
        self.sessions.spawn(shell_session::run(order, program, endpoint, group));
    }

    /// Ends all shells when the agent stops.
    pub(super) async fn end(mut self, cgroups: &Cgroups) {
        self.sessions.shutdown().await;
        for group in cgroups.shells() {
            group.kill_and_remove().await;
        }
    }
}
