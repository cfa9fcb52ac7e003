//! Shells of nodes: the real command in a terminal, the real agent, the login shell of this
//! machine.

use super::rig::Rig;
use crate::{
    admin::https::{ADMIN, Office, PORT, fingerprint},
    world::eventually,
};
use meshd_lab::Namespace;
use rustix::{
    process::{Pid, Signal, kill_process_group},
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Termios, Winsize, tcgetattr, tcsetwinsize},
};
use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::PermissionsExt as _,
    },
    process::{Child, Command},
    sync::{Arc, Mutex},
    thread,
};

/// Bytes at the end of the output that a failed test shows.
const SHOWN: usize = 600;
/// Lines of a flood.
const FLOOD: usize = 1_000_000;
/// Lines of a paste, 5 bytes each: more than a terminal and the queues of meshd take.
const PASTED: usize = 200_000;

/// The text before the exit code of a command.
const EXIT: &str = "[[exit ";
/// Runs a command, shows its exit code, and stays until the terminal goes: with the end of the
/// process that controls a terminal, the kernel drops what the other side has not read yet.
const LEADER: &str = "\"$@\"; printf '\\n[[exit %s]]\\n' $?; exec cat >/dev/null";

/// A command in a terminal.
pub struct Terminal {
    child: Child,
    keys: File,
    other: OwnedFd,
    before: Termios,
    received: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    pub fn open(command: &mut Command, inside: Option<&Namespace>) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let own = openpt(flags).unwrap();
        grantpt(&own).unwrap();
        unlockpt(&own).unwrap();
        let other = ioctl_tiocgptpeer(&own, flags).unwrap();
        resize(&own, 30, 90);
        let before = tcgetattr(&other).unwrap();
        let mut controlling = Command::new("setsid");
        controlling.args(["--ctty", "sh", "-c", LEADER, "sh"]);
        controlling.arg(command.get_program()).args(command.get_args());
        controlling.env("TERM", "xterm-256color");
        for side in 0..3 {
            let side_end = other.try_clone().unwrap();
            match side {
                0 => controlling.stdin(side_end),
                1 => controlling.stdout(side_end),
                _ => controlling.stderr(side_end),
            };
        }
        let child = match inside {
            Some(namespace) => namespace.spawn(&mut controlling).unwrap(),
            None => controlling.spawn().unwrap(),
        };
        let keys = File::from(own);
        let mut shown = keys.try_clone().unwrap();
        let received = Arc::<Mutex<Vec<u8>>>::default();
        let writer = received.clone();
        // The thread ends with the program of the tests: this side stays open.
        thread::spawn(move || {
            let mut bytes = vec![0; 65536];
            while let Ok(length @ 1..) = shown.read(&mut bytes) {
                writer.lock().unwrap().extend_from_slice(&bytes[..length]);
            }
        });
        Terminal { child, keys, other, before, received }
    }

    /// Types keys once the command has the terminal: it drops what was typed before.
    pub fn types(&mut self, keys: &str) {
        self.shows("Ctrl-] ends it");
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the output has a text.
    pub fn shows(&self, text: &str) {
        eventually(text, || {
            let received = self.received.lock().unwrap();
            let found = received.windows(text.len()).any(|part| part == text.as_bytes());
            if found { Ok(()) } else { Err(tail(&received)) }
        });
    }

    /// Waits for the end of the command, which has restored its terminal.
    pub fn exit_code(&mut self) -> i32 {
        let code = eventually("the command ends", || {
            let received = self.received.lock().unwrap();
            // The terminal shows the rest of a paste behind it, which nobody has read.
            let at = received.windows(EXIT.len()).rposition(|part| part == EXIT.as_bytes());
            let rest = at.map(|at| String::from_utf8_lossy(&received[at + EXIT.len()..]));
            let code = rest.as_deref().and_then(|rest| rest.split_once("]]")?.0.parse().ok());
            code.ok_or_else(|| tail(&received))
        });
        let before = &self.before;
        let after = tcgetattr(&self.other).unwrap();
        let modes = |of: &Termios| (of.local_modes, of.input_modes, of.output_modes);
        assert_eq!(modes(before), modes(&after), "the terminal is restored");
        code
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The command, too: it is in the group of the process that controls the terminal.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

fn tail(received: &[u8]) -> String {
    let end = &received[received.len().saturating_sub(SHOWN)..];
    format!("{} bytes, the last {:?}", received.len(), String::from_utf8_lossy(end))
}

fn resize(terminal: impl AsFd, ws_row: u16, ws_col: u16) {
    tcsetwinsize(terminal, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

/// Waits until so many processes of a `sleep` run.
fn until_running(rig: &Rig, seconds: &str, count: usize) {
    eventually(&format!("{count} times sleep {seconds}"), || {
        match rig.running(&["sleep", seconds]) {
            found if found == count => Ok(()),
            found => Err(found.to_string()),
        }
    });
}

fn details(rig: &Rig) -> Vec<String> {
    let events = rig.world.events("node_shell");
    events.iter().map(|event| event["detail"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn shell_has_a_terminal_and_leaves_nothing_but_its_begin_and_end() {
    let rig = Rig::new();
    let id = &rig.machines[0].id;
    let mut command = rig.world.cli(&["node", "shell", id, "--reason", "a look"]);
    let mut shell = Terminal::open(&mut command, None);
    shell.types("stty -echo; echo uid $(id -u) $((6 * 7)); tty; stty size; echo $TERM\r");
    for part in ["uid 0 42", "/dev/pts/", "30 90", "xterm-256color"] {
        shell.shows(part);
    }
    resize(&shell.keys, 50, 120);
    shell
        .types("until [ \"$(stty size)\" = '50 120' ]; do sleep 0.1; done; echo size $((1 + 1))\r");
    shell.shows("size 2");
    // Ctrl-C reaches the program, and not the command.
    shell.types("echo begun $((2 + 2)); sleep 271829\r");
    shell.shows("begun 4");
    until_running(&rig, "271829", 1);
    shell.types("\u{3}");
    until_running(&rig, "271829", 0);
    // Nothing of a flood is lost.
    shell.types(&format!("yes meshd | head -n {FLOOD}; echo flooded $((4 + 4)) s3cret-7e1b\r"));
    shell.shows("flooded 8");
    let lines = {
        let received = shell.received.lock().unwrap();
        received.windows(7).filter(|part| part == b"meshd\r\n").count()
    };
    assert_eq!(lines, FLOOD);
    // A program in the background ends with its shell.
    shell.types("sleep 271830 & echo background $((5 + 5))\r");
    shell.shows("background 10");
    until_running(&rig, "271830", 1);
    assert_eq!(details(&rig), ["an admin opens a shell"]);
    shell.types("exit 7\r");
    assert_eq!(shell.exit_code(), 7);
    until_running(&rig, "271830", 0);
    let ended = eventually("the end is recorded", || match details(&rig) {
        found if found.len() == 2 => Ok(found),
        found => Err(format!("{found:?}")),
    });
    assert!(ended.contains(&"the shell ended: exit code 7".to_owned()), "{ended:?}");
    let audit = rig.world.meshd(&["audit", "-o", "json"]);
    let audit = String::from_utf8(audit.stdout).unwrap();
    assert!(audit.contains("node-shell") && audit.contains("a look"), "{audit}");
    let secret = b"s3cret-7e1b";
    let log = rig.machines[0].log().into_bytes();
    for kept in [rig.world.state_bytes(), log, audit.into_bytes()] {
        assert!(!kept.windows(secret.len()).any(|part| part == secret), "what is typed is kept");
    }
    rig.is_clean();

    // Ctrl-] leaves a program that reads nothing.
    let mut left = Terminal::open(&mut rig.world.cli(&["node", "shell", id]), None);
    left.types("stty -echo; echo begun $((3 + 3)); exec sleep 271833\r");
    left.shows("begun 6");
    left.types("\u{1d}");
    assert_eq!(left.exit_code(), 0);
    until_running(&rig, "271833", 0);
    // Without a terminal it is refused, with the verb that takes one.
    let refused = rig.world.meshd(&["node", "shell", id]);
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(stderr.contains("needs a terminal") && stderr.contains("node exec"), "{stderr}");
}

#[test]
fn shell_ends_with_its_agent_and_the_next_agent_ends_its_processes() {
    let mut rig = Rig::new();
    let mut command = rig.world.cli(&["node", "shell", &rig.machines[0].id]);
    let mut shell = Terminal::open(&mut command, None);
    // It ignores the end of its terminal.
    shell.types("stty -echo; (trap '' HUP; exec sleep 271831) & echo begun $((4 + 4))\r");
    shell.shows("begun 8");
    until_running(&rig, "271831", 1);
    rig.kill_agent(0);
    assert_eq!(shell.exit_code(), 255);
    shell.shows("was lost: its agent restarted, or the node is down");
    rig.start_agent(0);
    until_running(&rig, "271831", 0);
    eventually("the end is recorded", || match details(&rig) {
        found if found.iter().any(|end| end.contains("was lost")) => Ok(()),
        found => Err(format!("{found:?}")),
    });
}

#[test]
fn revoked_token_ends_shell_and_all_its_processes() {
    let (world, desk) = Office::prepared();
    let rig = Rig::of(world);
    let id = rig.machines[0].id.clone();
    let token = |name: &str, role: &str| {
        let made = rig.world.meshd(&["api-token", "create", name, "--role", role]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let file = rig.world.path(name);
        fs::write(&file, made.stdout).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        file
    };
    let shell = |name: &str, role: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
        command.args(["--server", &format!("https://{ADMIN}:{PORT}"), "--token-file"]);
        command.arg(token(name, role)).args(["--server-fingerprint", &fingerprint(&rig.world)]);
        Terminal::open(command.args(["node", "shell", &id]), Some(&desk))
    };
    for role in ["viewer", "auditor", "operator"] {
        let mut refused = shell(role, role);
        refused.shows("it takes role admin");
        assert_eq!(refused.exit_code(), 1);
    }
    assert_eq!(details(&rig), [""; 0], "no shell began");
    let mut shell = shell("desk", "admin");
    shell.types("stty -echo; (trap '' HUP; exec sleep 271832) & echo begun $((5 + 5))\r");
    shell.shows("begun 10");
    until_running(&rig, "271832", 1);
    // The program reads nothing of a paste, which must not hold up the end.
    shell.types("sleep 271834\r");
    until_running(&rig, "271834", 1);
    shell.types(&"true\r".repeat(PASTED));
    let revoked = rig.world.meshd(&["api-token", "revoke", "desk", "--yes"]);
    assert!(revoked.status.success(), "{}", String::from_utf8_lossy(&revoked.stderr));
    assert_eq!(shell.exit_code(), 255);
    until_running(&rig, "271832", 0);
    until_running(&rig, "271834", 0);
    eventually("the end is recorded", || match details(&rig) {
        found if found.iter().any(|end| end.contains("was revoked")) => Ok(()),
        found => Err(format!("{found:?}")),
    });
    rig.is_clean();
    drop(rig);
    let _ = desk.delete();
}
