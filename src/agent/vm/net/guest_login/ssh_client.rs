//! Arguments of the SSH client of a login, and the meaning of its messages. Pure.

use super::guest_access::{GuestAccess, LoginFault};
use meshd_proto::shell::GuestUser;
use std::ffi::OsString;

/// Seconds for connecting, the banner and the key exchange. The server has greeted before: it hangs,
/// or the guest is slow.
const CONNECT_S: u8 = 45;
/// Seconds between requests to a silent guest; after three without answer the client ends.
const ALIVE_S: u8 = 20;
/// Longest line of the client in a message, in characters.
const MAX_LINE: usize = 200;

impl GuestAccess {
    /// Returns the arguments of the client. Each option is set, so that no file of the node and
    /// nothing that the guest says adds a program, a forwarding or a question.
    pub fn client_arguments(&self, user: &GuestUser) -> Vec<OsString> {
        let mut args: Vec<OsString> = ["-F", "none", "-t", "-e", "none"].map(OsString::from).into();
        let options = [
            "BatchMode=yes".to_owned(),
            "LogLevel=ERROR".to_owned(),
            format!("ConnectTimeout={CONNECT_S}"),
            "ConnectionAttempts=1".to_owned(),
            format!("ServerAliveInterval={ALIVE_S}"),
            "ServerAliveCountMax=3".to_owned(),
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
    /// Returns what went wrong, by the messages of a client that failed; `None` if it wrote none.
    pub fn of_client(messages: &str, user: &GuestUser) -> Option<LoginFault> {
        let last = messages.lines().map(str::trim).rfind(|line| !line.is_empty())?;
        let last: String = last.chars().filter(|c| !c.is_control()).take(MAX_LINE).collect();
        let has = |parts: &[&str]| parts.iter().any(|part| messages.contains(part));
        Some(if has(&["Host key verification failed", "HOST IDENTIFICATION HAS CHANGED"]) {
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
        } else if has(&["timed out"]) {
            LoginFault::new(
                format!(
                    "the SSH server of the guest greeted, and did not complete the key exchange \
                     within {CONNECT_S} s: {last}"
                ),
                "the guest is busy or hangs: look at it with `meshd vm console`, or try again",
            )
        } else if has(&["Connection refused", "Connection closed", "Connection reset"]) {
            LoginFault::new(
                format!("the SSH server of the guest ended the connection: {last}"),
                "look at the guest with `meshd vm console`",
            )
        } else {
            LoginFault::new(format!("the SSH client failed: {last}"), "see `meshd node logs`")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::SystemUuid;
    use std::{net::Ipv4Addr, time::Duration};

    fn access() -> GuestAccess {
        GuestAccess {
            uuid: SystemUuid([0x11; 16]),
            address: Ipv4Addr::new(172, 30, 0, 9),
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
        let args = access().client_arguments(&user);
        let args: Vec<&str> = args.iter().map(|arg| arg.to_str().expect("text")).collect();
        assert_eq!(args[..5], ["-F", "none", "-t", "-e", "none"]);
        assert_eq!(args[args.len() - 4..], ["-l", "debian", "--", "172.30.0.9"]);
        let option = |text: &str| args.windows(2).any(|pair| pair == ["-o", text]);
        for text in [
            "BatchMode=yes",
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
        let changed = "@@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.\r\n";
        let cases = [
            (changed, "not the one", "--forget-host-key"),
            ("debian@1.2.3.4: Permission denied (publickey).\r\n", "user debian", "--user"),
            ("Connection timed out during banner exchange\r\n", "within 45 s", "busy or hangs"),
            ("Connection closed by 1.2.3.4 port 22\r\n", "ended the connection", "vm console"),
            ("strange\u{1b}[31m\n\n", "failed: strange[31m", "logs"),
        ];
        for (messages, reason, hint) in cases {
            let fault = LoginFault::of_client(messages, &user).expect("a fault");
            assert!(fault.reason.contains(reason), "{fault:?}");
            assert!(fault.hint.contains(hint), "{fault:?}");
        }
        assert_eq!(
            LoginFault::of_client(" \n", &user),
            None,
            "the shell of the guest ended with 255"
        );
        let long = LoginFault::of_client(&"x".repeat(9999), &user).expect("a fault");
        assert!(long.reason.len() < 300);
    }
}
