//! Whether guests are ready, as their specifications define it: the node asks a port of the guest
//! in the private network until it answers, once for each start.

use meshd_proto::vm::ReadyCheck;
use meshd_types::SystemUuid;
use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};
use tokio::{
    io::AsyncReadExt as _,
    net::TcpStream,
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};

/// Interval between two attempts.
const INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of one attempt.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Bytes in which the banner of an SSH server begins; other lines may precede it (RFC 4253, 4.2).
const MAX_BANNER: usize = 4096;

/// A running guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunningGuest {
    /// Start order and number of restarts.
    pub(super) run: (Option<u32>, u32),
    pub(super) check: ReadyCheck,
    pub(super) addresses: Vec<Ipv4Addr>,
}

struct Guest {
    asked: RunningGuest,
    is_ready: bool,
    attempts: AbortHandle,
}

/// The guests that are asked, and those that have answered.
#[derive(Default)]
pub(super) struct GuestReadiness {
    guests: BTreeMap<SystemUuid, Guest>,
    answers: JoinSet<SystemUuid>,
}

impl GuestReadiness {
    /// Asks guests that run since another start, or have another address; forgets all others.
    pub(super) fn update(&mut self, running: BTreeMap<SystemUuid, RunningGuest>) {
        self.guests.retain(|uuid, guest| {
            let is_same = running.get(uuid).is_some_and(|now| {
                // An answer counts until the next start, whatever address the guest has.
                if guest.is_ready { now.run == guest.asked.run } else { *now == guest.asked }
            });
            if !is_same {
                guest.attempts.abort();
            }
            is_same
        });
        for (uuid, asked) in running {
            if self.guests.contains_key(&uuid) {
                continue;
            }
            let RunningGuest { check, addresses, .. } = asked.clone();
            let attempts = self.answers.spawn(async move {
                until_ready(check, &addresses).await;
                uuid
            });
            self.guests.insert(uuid, Guest { asked, is_ready: false, attempts });
        }
    }

    /// Waits until a guest becomes ready. Cancel-safe.
    pub(super) async fn next(&mut self) {
        loop {
            match self.answers.join_next_with_id().await {
                None => std::future::pending().await,
                Some(Ok((task, uuid))) => {
                    let guest = self.guests.get_mut(&uuid);
                    if let Some(guest) = guest.filter(|guest| guest.attempts.id() == task) {
                        guest.is_ready = true;
                        return;
                    }
                }
                // Aborted.
                Some(Err(_)) => {}
            }
        }
    }

    pub(super) fn is_ready(&self, uuid: SystemUuid) -> bool {
        self.guests.get(&uuid).is_some_and(|guest| guest.is_ready)
    }
}

async fn until_ready(check: ReadyCheck, addresses: &[Ipv4Addr]) {
    loop {
        for address in addresses {
            let answer = answers(check, SocketAddrV4::new(*address, check.port()));
            if matches!(timeout(ATTEMPT, answer).await, Ok(Ok(true))) {
                return;
            }
        }
        sleep(INTERVAL).await;
    }
}

/// Asks a guest once. What it answers is not trusted, and only compared.
async fn answers(check: ReadyCheck, address: SocketAddrV4) -> io::Result<bool> {
    let mut guest = TcpStream::connect(address).await?;
    let ReadyCheck::Ssh(_) = check else { return Ok(true) };
    let mut banner = Vec::with_capacity(MAX_BANNER);
    while banner.len() < MAX_BANNER {
        if guest.read_buf(&mut banner).await? == 0 {
            return Ok(false);
        }
        if banner.split(|byte| *byte == b'\n').any(|line| line.starts_with(b"SSH-")) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{io::AsyncWriteExt as _, net::TcpListener};

    const DEADLINE: Duration = Duration::from_secs(60);
    const VM: SystemUuid = SystemUuid([7; 16]);

    async fn listener() -> (TcpListener, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        (listener, port)
    }

    fn running(start: u32, check: &str) -> BTreeMap<SystemUuid, RunningGuest> {
        let check = check.parse().expect("a check");
        let addresses = vec![Ipv4Addr::LOCALHOST];
        BTreeMap::from([(VM, RunningGuest { run: (Some(start), 0), check, addresses })])
    }

    #[tokio::test]
    async fn guest_is_ready_when_its_ssh_server_answers_and_until_its_next_start() {
        let (listener, port) = listener().await;
        let mut readiness = GuestReadiness::default();
        let guest = running(1, &format!("ssh:{port}"));
        readiness.update(guest.clone());
        assert!(!readiness.is_ready(VM));
        // First the port is open, but not for SSH; then lines precede the banner.
        let serve = async {
            for text in ["HTTP/1.1 400 SSH-2.0-no\r\n", "welcome\r\nSSH-2.0-x\r\n"] {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                stream.write_all(text.as_bytes()).await.expect("written");
            }
        };
        timeout(DEADLINE, async { tokio::join!(serve, readiness.next()) }).await.expect("ready");
        assert!(readiness.is_ready(VM));
        readiness.update(guest);
        assert!(readiness.is_ready(VM), "it stays ready");
        readiness.update(running(2, &format!("ssh:{port}")));
        assert!(!readiness.is_ready(VM), "another start");
        readiness.update(BTreeMap::new());
        assert!(!readiness.is_ready(VM) && readiness.guests.is_empty(), "it does not run");
    }

    #[tokio::test]
    async fn guest_with_open_port_is_ready_and_endless_banner_is_bounded() {
        let (listener, port) = listener().await;
        let mut readiness = GuestReadiness::default();
        readiness.update(running(1, &format!("tcp:{port}")));
        timeout(DEADLINE, readiness.next()).await.expect("ready");
        drop(listener.accept().await);
        let flood = async {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            while stream.write_all(&[b'x'; 1024]).await.is_ok() {}
        };
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let check = format!("ssh:{port}").parse().expect("a check");
        let asked = async { tokio::join!(flood, answers(check, address)).1 };
        let answer = timeout(DEADLINE, asked).await.expect("it ends");
        assert_eq!(answer.ok(), Some(false));
    }
}
