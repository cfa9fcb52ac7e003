//! Arguments of the SSH client of a login, and the meaning of its messages. Pure.

use super::guest_access::{GuestAccess, LoginFault};
use meshd_proto::shell::GuestUser;
use std::{ffi::OsString, time::Duration};

/// Seconds for connecting and the banner. The server has greeted before: it hangs, or the guest is
/// slow.
const CONNECT_S: u8 = 45;
/// Interval between requests to a silent guest.
pub const ALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// Number of requests without an answer after which the client ends. Before the login it waits as
/// long for each packet, without requests.
const ALIVE_COUNT: u64 = 3;
/// Longest line of the client in a message, in characters.
const MAX_LINE: usize = 200;

impl GuestAccess {
    /// Returns the arguments of the client. Each option is set, so that no file of the node and
    /// nothing that the guest says adds a program, a forwarding or a question.
    pub fn client_arguments(&self, user: &GuestUser, alive_interval: Duration) -> Vec<OsString> {
        let mut args: Vec<OsString> = ["-F", "none", "-t", "-e", "none"].map(OsString::from).into();
        let options = [
            "BatchMode=yes".to_owned(),
            // At `ERROR`, it ends without a word when the guest is silent.
            "LogLevel=INFO".to_owned(),
            format!("ConnectTimeout={CONNECT_S}"),
            "ConnectionAttempts=1".to_owned(),
            format!("ServerAliveInterval={}", alive_interval.as_secs()),
            format!("ServerAliveCountMax={ALIVE_COUNT}"),
            "IdentitiesOnly=yes".to_owned(),
            "IdentityAgent=none".to_owned(),
            "PreferredAuthentications=publickey".to_owned(),
            "StrictHostKeyChecking=accept-new".to_owned(),
            "GlobalKnownHostsFile=/dev/null".to_owned(),
            // The guest has another address after a move.
            format!("HostKeyAlias={}", self.uuid),
            "CheckHostIP=no".to_owned(),
            "UpdateHostKeys=no".to_owned(),
            "ProxyCommand=none".to_owned(),
            "ControlMaster=no".to_owned(),
            "ControlPath=none".to_owned(),
            "ClearAllForwardings=yes".to_owned(),
            "ForwardAgent=no".to_owned(),
            "ForwardX11=no".to_owned(),
            "PermitLocalCommand=no".to_owned(),
            "Tunnel=no".to_owned(),
        ];
        for option in options {
            args.extend([OsString::from("-o"), option.into()]);
        }
        for (option, path) in
            [("IdentityFile=", &self.key), ("UserKnownHostsFile=", &self.known_hosts)]
        {
            let mut argument = OsString::from(option);
            argument.push(path);
            args.extend([OsString::from("-o"), argument]);
        }
        args.extend(["-l", user.as_str(), "--"].map(OsString::from));
        args.push(self.address.to_string().into());
        args
    }
}

impl LoginFault {
    /// Returns what went wrong, by the messages of a client that failed; `None` if the shell of the
    /// guest ended. Only the last line is the client's own: a guest may send others before.
    pub fn of_client(
        messages: &str,
        user: &GuestUser,
        alive_interval: Duration,
    ) -> Option<LoginFault> {
        let mut lines = messages.lines().map(str::trim).filter(|line| !line.is_empty()).rev();
        let mut last = lines.next()?;
        // The end of each session in a terminal, behind what the guest wrote without a line end. A
        // line before names its cause, if it broke off.
        let end = last.rsplit_once("Connection to ");
        if end.is_some_and(|(_, end)| end.ends_with(" closed.")) {
            last = lines.next().filter(|line| is_cause(line))?;
        }
        let shown: String = last.chars().filter(|c| !c.is_control()).take(MAX_LINE).collect();
        let has = |parts: &[&str]| parts.iter().any(|part| last.contains(part));
        let silence_s = alive_interval.as_secs() * ALIVE_COUNT;
        let look = "the guest is busy or hangs: look at it with `meshd vm console`, or try again";
        Some(if has(&["Host key verification failed"]) {
            LoginFault::new(
                "the host key of the guest is not the one that it showed first",
                "find out why; if the guest was installed anew, use --forget-host-key",
            )
        } else if has(&["Permission denied"]) {
            LoginFault::new(
                format!("the guest refuses the key of this node for the user {user}"),
                "name the user that cloud-init made with --user; a VM that an older agent started \
                 first has no key of its node: create it again",
            )
        } else if has(&["not responding"]) {
            LoginFault::new(
                format!("the guest has not answered for {silence_s} s"),
                "it hangs, or has lost its network: look at it with `meshd vm console`",
            )
        } else if messages.contains("timed out during banner exchange") {
            LoginFault::new(
                format!(
                    "the SSH server of the guest greeted once, and a second time not within \
                     {CONNECT_S} s: {shown}"
                ),
                look,
            )
        } else if has(&[" port 22 timed out"]) {
            LoginFault::new(
                format!(
                    "the SSH server of the guest did not complete the login of {user}: it sent \
                     nothing for {silence_s} s"
                ),
                look,
            )
        } else if has(&["Connection refused", "Connection closed", "Disconnected from"])
            || has(&["Connection reset"])
            || is_cause(last)
        {
            LoginFault::new(
                format!("the guest ended the connection: {shown}"),
                "it was shut down, or its SSH server ended: look at it with `meshd vm console`",
            )
        } else {
            LoginFault::new(format!("the SSH client failed: {shown}"), "see `meshd node logs`")
        })
    }
}

/// Returns true for a line by which the client says that a session broke off (`quit_message` in
/// clientloop.c).
fn is_cause(line: &str) -> bool {
    line.ends_with(" closed by remote host.") || line.starts_with("Read from remote host ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::SystemUuid;
    use std::{net::Ipv4Addr, time::Duration};

    fn access() -> GuestAccess {
        GuestAccess {
            name: "web".parse().expect("a name"),
            uuid: SystemUuid([0x11; 16]),
            address: Ipv4Addr::new(172, 30, 0, 9),
            qemu: None,
            age: Duration::MAX,
            key: "/vms/a b/key".into(),
            known_hosts: "/vms/x/known_hosts".into(),
            passwd: "/vms/x/passwd".into(),
            folder: "/vms/x".into(),
            uid: 5,
            program: "/usr/bin/ssh".into(),
        }
    }

    #[test]
    fn client_asks_nothing_runs_nothing_and_forwards_nothing() {
        let user = "debian".parse().expect("a user");
        let args = access().client_arguments(&user, ALIVE_INTERVAL);
        let args: Vec<&str> = args.iter().map(|arg| arg.to_str().expect("text")).collect();
        assert_eq!(args[..5], ["-F", "none", "-t", "-e", "none"]);
        assert_eq!(args[args.len() - 4..], ["-l", "debian", "--", "172.30.0.9"]);
        let option = |text: &str| args.windows(2).any(|pair| pair == ["-o", text]);
        for text in [
            "BatchMode=yes",
            "ServerAliveInterval=20",
            "StrictHostKeyChecking=accept-new",
            "HostKeyAlias=11111111-1111-1111-1111-111111111111",
            "ProxyCommand=none",
            "PermitLocalCommand=no",
            "ForwardAgent=no",
            "ClearAllForwardings=yes",
            "IdentityAgent=none",
            "IdentityFile=/vms/a b/key",
            "UserKnownHostsFile=/vms/x/known_hosts",
        ] {
            assert!(option(text), "{text}: {args:?}");
        }
    }

    #[test]
    fn messages_of_the_client_become_reason_and_hint() {
        let user = "debian".parse().expect("a user");
        let lost = "Connection to 1.2.3.4 closed by remote host.\r\nConnection to 1.2.3.4 closed.";
        let reset = "Read from remote host 1.2.3.4: Connection timed out\r\nConnection to 1.2.3.4 closed.\r\n";
        // Lines of OpenSSH 9.2.
        let cases = [
            ("@@@@\nHost key verification failed.\r\n", "not the one", "--forget-host-key"),
            ("debian@1.2.3.4: Permission denied (publickey).\r\n", "user debian", "--user"),
            ("Timeout, server 1.2.3.4 not responding.\r\n", "not answered for 60 s", "it hangs"),
            (
                "Connection timed out during banner exchange\r\nConnection to 1.2.3.4 port 22 timed out",
                "within 45 s",
                "busy or hangs",
            ),
            ("Connection to 1.2.3.4 port 22 timed out", "login of debian", "busy or hangs"),
            ("Connection closed by 1.2.3.4 port 22\r\n", "ended the connection", "vm console"),
            (lost, "ended the connection: Connection to 1.2.3.4 closed by", "shut down"),
            (reset, "ended the connection: Read from remote", "shut down"),
            ("strange\u{1b}[31m\n\n", "failed: strange[31m", "logs"),
            // A banner of the guest.
            (
                "Permission denied to strangers\nConnection closed by 1.2.3.4 port 22",
                "ended the connection",
                "",
            ),
        ];
        let of = |messages: &str| LoginFault::of_client(messages, &user, ALIVE_INTERVAL);
        for (messages, reason, hint) in cases {
            let fault = of(messages).expect("a fault");
            assert!(fault.reason.contains(reason), "{fault:?}");
            assert!(fault.hint.contains(hint), "{fault:?}");
        }
        // The shell of the guest ended with 255.
        let ended =
            ["Connection to 1.2.3.4 closed.\r\n", "a banner\nConnection to 1.2.3.4 closed."];
        // The guest wrote it without a line end.
        let forged = "Host key verification failed.Connection to 1.2.3.4 closed.";
        for messages in [" \n", ended[0], ended[1], forged] {
            assert_eq!(of(messages), None, "{messages}");
        }
        assert!(of(&"x".repeat(9999)).expect("a fault").reason.len() < 300);
    }
}
