//! Waits for the SSH server of a guest. A guest that starts or is slow shows signs of life, and has
//! more time than one that shows none.

use crate::vm::LoginFault;
use std::{io, net::SocketAddrV4, time::Duration};
use tokio::{
    io::AsyncReadExt as _,
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

/// Time without an answer of any kind from the guest.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);
/// Time for a guest to start, and for one that answers to start its SSH server.
const START_LIMIT: Duration = Duration::from_secs(5 * 60);
/// Time from an accepted connection to the first bytes of the server: the kernel of a guest accepts
/// connections whose server hangs.
const GREETING_LIMIT: Duration = Duration::from_secs(45);
/// Timeout of one attempt to connect, and interval between two attempts.
const ATTEMPT: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_secs(1);

const LOOK: &str = "look at the guest with `meshd vm console`";

/// Result of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Attempt {
    /// Nothing answers at the address.
    Silent(String),
    /// The guest answers, without a server.
    Refused(String),
    /// The guest accepted the connection and sent nothing.
    Mute,
    /// The server sent its first bytes.
    Greeted,
}

/// The attempts so far. Times are relative to the first one.
struct ServerWait {
    server: SocketAddrV4,
    /// Until then, silence means that the guest starts.
    starts_until: Duration,
    /// Time of the last sign of life.
    heard_at: Duration,
    /// The last line for the user.
    told: Option<String>,
}

/// Waits until the SSH server of a guest greets. `age`: time since the start of the VM. `tell` shows
/// a line to the user when the state of the guest changes.
pub(super) async fn until_server(
    server: SocketAddrV4,
    age: Duration,
    mut tell: impl FnMut(&str),
) -> Result<(), LoginFault> {
    let begun = Instant::now();
    let mut wait = ServerWait::new(server, age);
    loop {
        let attempt = connect(server).await;
        if attempt == Attempt::Greeted {
            return Ok(());
        }
        if let Some(line) = wait.assess(&attempt, begun.elapsed())? {
            tell(&line);
        }
        sleep(INTERVAL).await;
    }
}

async fn connect(server: SocketAddrV4) -> Attempt {
    let mut stream = match timeout(ATTEMPT, TcpStream::connect(server)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            return Attempt::Refused(error.to_string());
        }
        Ok(Err(error)) => return Attempt::Silent(error.to_string()),
        Err(_) => return Attempt::Silent("no answer".to_owned()),
    };
    match timeout(GREETING_LIMIT, stream.read(&mut [0; 256])).await {
        Ok(Ok(1..)) => Attempt::Greeted,
        Ok(Ok(0)) => Attempt::Refused("it closed the connection".to_owned()),
        Ok(Err(error)) => Attempt::Refused(error.to_string()),
        Err(_) => Attempt::Mute,
    }
}

impl ServerWait {
    fn new(server: SocketAddrV4, age: Duration) -> Self {
        let starts_until = START_LIMIT.saturating_sub(age);
        ServerWait { server, starts_until, heard_at: Duration::ZERO, told: None }
    }

    /// Returns a line for the user if the state of the guest is another one; or why the wait ends.
    fn assess(&mut self, attempt: &Attempt, now: Duration) -> Result<Option<String>, LoginFault> {
        let server = self.server;
        let line = match attempt {
            Attempt::Greeted => return Ok(None),
            Attempt::Mute => {
                let seconds = GREETING_LIMIT.as_secs();
                let reason = format!(
                    "the SSH server of the guest does not answer: {server} accepts connections and \
                     sends nothing within {seconds} s"
                );
                return Err(LoginFault::new(reason, LOOK));
            }
            Attempt::Silent(error)
                if now >= self.starts_until.max(self.heard_at + SILENCE_LIMIT) =>
            {
                let seconds = now.saturating_sub(self.heard_at).as_secs();
                let reason =
                    format!("the guest does not answer at {server} within {seconds} s: {error}");
                let hint = "look at the guest with `meshd vm console`: it has no network, or hangs";
                return Err(LoginFault::new(reason, hint));
            }
            Attempt::Silent(error) | Attempt::Refused(error) if now >= START_LIMIT => {
                let minutes = START_LIMIT.as_secs() / 60;
                let reason = format!(
                    "the guest answers, but has no SSH server at {server} within {minutes} min: {error}"
                );
                let hint =
                    "look at the guest with `meshd vm console`; is its SSH server installed?";
                return Err(LoginFault::new(reason, hint));
            }
            Attempt::Silent(error) => {
                format!("waiting for the guest at {}: {error}\n", server.ip())
            }
            Attempt::Refused(error) => {
                self.heard_at = now;
                format!("waiting for the SSH server of the guest at {server}: {error}\n")
            }
        };
        let is_new = self.told.as_ref() != Some(&line);
        Ok(is_new.then(|| self.told.insert(line).clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(172, 30, 0, 9), 22);

    fn silent() -> Attempt {
        Attempt::Silent("no answer".to_owned())
    }

    fn refused() -> Attempt {
        Attempt::Refused("refused".to_owned())
    }

    /// Assesses attempts at these seconds, and returns the reason of the last one.
    fn reason(age: u64, attempts: &[(Attempt, u64)]) -> Option<String> {
        let mut wait = ServerWait::new(SERVER, Duration::from_secs(age));
        let mut assess =
            |(attempt, second): &(Attempt, u64)| wait.assess(attempt, Duration::from_secs(*second));
        let (last, earlier) = attempts.split_last().expect("an attempt");
        for attempt in earlier {
            assess(attempt).expect("it is early");
        }
        assess(last).err().map(|fault| fault.reason)
    }

    #[test]
    fn guest_that_answers_has_more_time_than_a_silent_one() {
        const OLD: u64 = 3600;
        for (age, attempts, expected) in [
            (OLD, vec![(silent(), 59)], None),
            (
                OLD,
                vec![(silent(), 5), (silent(), 60)],
                Some("does not answer at 172.30.0.9:22 within 60 s"),
            ),
            // It was started two minutes ago.
            (120, vec![(silent(), 60), (silent(), 179)], None),
            (120, vec![(silent(), 180)], Some("does not answer at 172.30.0.9:22 within 180 s")),
            // Its network is up, its server is not.
            (OLD, vec![(silent(), 50), (refused(), 55), (refused(), 299)], None),
            (
                OLD,
                vec![(refused(), 1), (refused(), 300)],
                Some("no SSH server at 172.30.0.9:22 within 5 min"),
            ),
            // It starts again.
            (OLD, vec![(refused(), 100), (silent(), 159)], None),
            (OLD, vec![(refused(), 100), (silent(), 160)], Some("does not answer at")),
            (OLD, vec![(refused(), 250), (silent(), 300)], Some("no SSH server at")),
            (
                OLD,
                vec![(refused(), 1), (Attempt::Mute, 46)],
                Some("accepts connections and sends nothing"),
            ),
        ] {
            let reason = reason(age, &attempts);
            let is_expected = match expected {
                None => reason.is_none(),
                Some(part) => reason.as_ref().is_some_and(|reason| reason.contains(part)),
            };
            assert!(is_expected, "{attempts:?}: {reason:?}");
        }
    }

    #[test]
    fn user_reads_each_state_of_the_guest_once() {
        let mut wait = ServerWait::new(SERVER, START_LIMIT);
        let attempts = [silent(), silent(), refused(), refused(), silent()];
        let told = attempts.iter().filter_map(|attempt| {
            wait.assess(attempt, Duration::from_secs(1)).expect("it is early")
        });
        let told: Vec<String> = told.collect();
        assert_eq!(
            told,
            [
                "waiting for the guest at 172.30.0.9: no answer\n",
                "waiting for the SSH server of the guest at 172.30.0.9:22: refused\n",
                "waiting for the guest at 172.30.0.9: no answer\n",
            ]
        );
    }

    #[tokio::test]
    async fn server_is_found_by_its_greeting_and_a_closed_port_is_refused() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let std::net::SocketAddr::V4(server) = listener.local_addr().expect("bound") else {
            panic!("an IPv4 address")
        };
        let greet = async {
            use tokio::io::AsyncWriteExt as _;
            // The first connection ends without a greeting.
            drop(listener.accept().await.expect("a connection"));
            let (mut stream, _) = listener.accept().await.expect("a connection");
            stream.write_all(b"SSH-2.0-test\r\n").await.expect("sent");
            stream
        };
        let (first, second) =
            tokio::join!(async { (connect(server).await, connect(server).await) }, greet).0;
        assert_eq!(first, Attempt::Refused("it closed the connection".to_owned()));
        assert_eq!(second, Attempt::Greeted);
        drop(listener);
        assert!(matches!(connect(server).await, Attempt::Refused(_)));
    }
}
