//! A shell of a node, or of a VM on it, for an administrator. The node opens a connection as for a
//! console: [`crate::CONSOLE_PATH`]. Binary frames are the bytes of the terminal, text frames are a
//! [`crate::vm::ConsoleNote`] of the node or an [`InputNote`] of the user.

use crate::{
    text::{plain, text_type},
    vm::ConsoleId,
};
use meshd_types::SystemUuid;
use serde::{Deserialize, Serialize};

/// Maximum number of rows or columns. Programs allocate memory for every cell.
pub const MAX_SIDE: u16 = 1000;

/// Starts the login shell of root in a terminal, and connects it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellOrder {
    pub console: ConsoleId,
    pub window: WindowSize,
    pub terminal: TerminalName,
    /// Seconds after which the node ends the shell, also if the central node does not.
    pub max_s: u32,
}

/// Starts a login at the SSH server of a guest in a terminal of its node, and connects it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestShellOrder {
    pub uuid: SystemUuid,
    pub user: GuestUser,
    /// Trusts the host key that the guest shows now, in place of the one that it showed first.
    #[serde(default)]
    pub forget_host_key: bool,
    pub shell: ShellOrder,
}

/// Size of a terminal, from 1 to [`MAX_SIDE`] on each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u16, u16)", into = "(u16, u16)")]
pub struct WindowSize {
    rows: u16,
    columns: u16,
}

impl WindowSize {
    /// Creates a size; a side out of range becomes the nearest valid one.
    pub fn new(rows: u16, columns: u16) -> Self {
        WindowSize { rows: rows.clamp(1, MAX_SIDE), columns: columns.clamp(1, MAX_SIDE) }
    }

    pub fn rows(self) -> u16 {
        self.rows
    }

    pub fn columns(self) -> u16 {
        self.columns
    }
}

impl Default for WindowSize {
    fn default() -> Self {
        WindowSize { rows: 24, columns: 80 }
    }
}

impl From<(u16, u16)> for WindowSize {
    fn from((rows, columns): (u16, u16)) -> Self {
        WindowSize::new(rows, columns)
    }
}

impl From<WindowSize> for (u16, u16) {
    fn from(size: WindowSize) -> Self {
        (size.rows, size.columns)
    }
}

text_type!(
    /// The type of a terminal, as in the variable TERM.
    TerminalName,
    "terminal type",
    "use letters, digits and . + - _, up to 40 characters",
    |text| plain(text, 40, b".+-_")
);

text_type!(
    /// User of a guest. It becomes an argument of the SSH client.
    GuestUser,
    "user name",
    "use letters, digits and . - _, up to 32 characters, not first - or .",
    |text| plain(text, 32, b".-_")
);

impl Default for TerminalName {
    fn default() -> Self {
        TerminalName("vt100".to_owned())
    }
}

/// A message of the user beside the typed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub enum InputNote {
    /// The terminal of the user has another size.
    Resize { window: WindowSize },
    /// The input is complete. Without this note it broke off.
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_size_of_a_peer_is_bounded() {
        for (text, size) in
            [("[0,0]", (1, 1)), ("[65535,80]", (MAX_SIDE, 80)), ("[24,80]", (24, 80))]
        {
            let window: WindowSize = serde_json::from_str(text).expect("a size");
            assert_eq!((window.rows(), window.columns()), size);
        }
    }

    #[test]
    fn user_of_a_guest_that_is_an_option_or_shell_text_is_refused() {
        for text in ["", "-oProxyCommand=x", "a b", "a;id", "$(id)", "a@b", "a/b", "a\n", "é"] {
            assert!(text.parse::<GuestUser>().is_err(), "{text}");
        }
        for text in ["root", "debian", "cloud-user", "svc_1", "Ada.L"] {
            assert!(text.parse::<GuestUser>().is_ok(), "{text}");
        }
    }

    #[test]
    fn terminal_type_with_path_or_control_character_is_refused() {
        for text in ["", "../../tmp/x", "xterm\n", "x=y", "-x", &"x".repeat(41)] {
            assert!(text.parse::<TerminalName>().is_err(), "{text}");
        }
        for text in ["xterm-256color", "linux", "screen.xterm-256color", "rxvt-unicode"] {
            assert!(text.parse::<TerminalName>().is_ok(), "{text}");
        }
    }
}
