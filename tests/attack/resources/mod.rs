//! One host opens more connections than there are files, or than an API has places. Every API goes
//! on answering.
//!
//! | module | content |
//! | --- | --- |
//! | `silent_neighbours` | requests in the name of addresses that nobody answers for |

mod silent_neighbours;

use super::client::{Attacker, Identity};
use crate::{
    admin::https::{ADMIN, Office, PORT},
    world::{CENTRAL, World, receive, tftp},
};
use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    process::{Command, Stdio},
    time::Duration,
};
use tokio::time::timeout;

/// An answer that takes longer is none. Idle connections stay ten times as long, so their end is
/// not what makes room.
const SOON: Duration = Duration::from_secs(60);
/// Seconds that a TLS handshake may take, as an environment variable.
const IDLE: (&str, &str) = ("MESHD_HANDSHAKE", "600");
/// Attempts of a connection: a busy machine loses the first packet of some.
const CONNECTS: usize = 20;
/// Files that meshd may open in these tests; what Linux gives a program that does not ask.
const FILES: usize = 1024;

/// Opens idle connections until there are so many, or the other side takes no more at once.
fn idle(world: &World, to: &str, count: usize) -> Vec<TcpStream> {
    let to: SocketAddr = to.parse().unwrap();
    let open = || {
        (0..count)
            .map_while(|_| {
                let connect = |_| TcpStream::connect_timeout(&to, Duration::from_millis(500)).ok();
                (0..CONNECTS).find_map(connect)
            })
            .collect()
    };
    world.nodes.inside(open).unwrap()
}

/// The beginning of the answer to a plain HTTP request, if it comes soon.
fn answer(world: &World, to: &str, path: &str) -> std::io::Result<String> {
    let to: SocketAddr = to.parse().unwrap();
    world
        .nodes
        .inside(|| {
            let mut stream = TcpStream::connect_timeout(&to, SOON)?;
            stream.set_read_timeout(Some(SOON))?;
            write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
            let mut head = [0; 12];
            stream.read_exact(&mut head)?;
            Ok(String::from_utf8_lossy(&head).into_owned())
        })
        .unwrap()
}

/// The test itself needs more files than Linux gives a program that does not ask.
fn raise_own_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(8192, |most| most.min(8192));
    if current.is_some_and(|current| current < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).unwrap();
    }
}

fn small_world() -> World {
    raise_own_limit();
    let mut world = World::prepared("auto");
    world.nodes.ip(&["address", "add", "10.77.0.66/24", "dev", "eth0"]).unwrap();
    world.start_with(&[("MESHD_OPEN_FILES", FILES.to_string()), (IDLE.0, IDLE.1.to_owned())]);
    world
}

#[test]
fn idle_connections_to_one_api_take_no_descriptors_from_the_others() {
    let world = small_world();
    let connections = idle(&world, &format!("{CENTRAL}:8443"), FILES + 500);
    assert!(connections.len() > FILES, "only {} connections", connections.len());
    for _ in 0..3 {
        let answered = answer(&world, &format!("{CENTRAL}:8080"), "/boot.ipxe").unwrap();
        assert_eq!(answered, "HTTP/1.1 200", "the boot API answers");
    }
    let status = world.meshd(&["status"]);
    assert!(
        status.status.success(),
        "the admin API answers: {}",
        String::from_utf8_lossy(&status.stderr)
    );
    drop(connections);
}

#[test]
fn agent_api_answers_while_one_host_holds_idle_connections() {
    let world = small_world();
    let attacker = Attacker::new(&world);
    let connections = idle(&world, &format!("{CENTRAL}:8443"), FILES);
    let nobody = Identity::new();
    let answer = attacker.run(async { timeout(SOON, attacker.get(&nobody, "/v1/nothing")).await });
    let (status, _) = answer.expect("it answers in time").expect("an answer");
    assert_eq!(status, 404);
    drop(connections);
}

#[test]
fn tftp_serves_machine_while_one_host_stalls_4200_transfers() {
    let world = small_world();
    world.nodes.ip(&["address", "add", "10.77.0.67/24", "dev", "eth0"]).unwrap();
    // As many for each worker of the server.
    let workers =
        std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).clamp(1, 8));
    let central: Ipv4Addr = CENTRAL.parse().unwrap();
    let stall = || -> std::io::Result<UdpSocket> {
        let socket = UdpSocket::bind("10.77.0.66:0")?;
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        let request = b"\0\x01undionly.kpxe\0octet\0blksize\x008\0timeout\x0060\0";
        // Above a limit, requests are not answered until the next second.
        let answer = (0..25).find_map(|_| {
            socket.send_to(request, (central, 69)).ok()?;
            receive(&socket, &mut [0; 64]).ok()
        });
        let (_, from) = answer.ok_or(std::io::ErrorKind::TimedOut)?;
        socket.send_to(&[0, 4, 0, 0], from)?;
        Ok(socket)
    };
    let connections: Vec<_> =
        world.nodes.inside(|| (0..4200 * workers).map_while(|_| stall().ok()).collect()).unwrap();
    assert!(connections.len() >= 4096 * workers, "{} transfers", connections.len());
    let read = world
        .nodes
        .inside(|| tftp::get(central, "undionly.kpxe", Some([10, 77, 0, 67].into())))
        .unwrap();
    assert_eq!(read.unwrap().len(), 70_001);
    drop(connections);
}

/// Opens streams with a token, then connections that begin a TLS handshake. Prints a line when all
/// are open.
const HOARD: &str = r#"
import socket, ssl, sys
address, port, token, streams, idle = sys.argv[1], int(sys.argv[2]), open(sys.argv[3]).read().strip(), *map(int, sys.argv[4:])
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
connect = lambda: socket.create_connection((address, port))
request = f"GET /v1/events/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
held = []
for _ in range(streams):
    stream = context.wrap_socket(connect())
    stream.sendall(request)
    stream.recv(12)
    held.append(stream)
for _ in range(idle):
    connection = connect()
    connection.sendall(b"\x16\x03\x01\x02\x00\x01")
    held.append(connection)
print(len(held), flush=True)
sys.stdin.read()
"#;

#[test]
fn streams_of_a_viewer_and_idle_connections_do_not_block_the_admin_api() {
    let office = Office::open_in("", &[(IDLE.0, IDLE.1.to_owned())]);
    let token = office.token("vi", "viewer");
    let mut command = Command::new("python3");
    command.args(["-c", HOARD, ADMIN, &PORT.to_string(), &token, "200", "600"]);
    let hoard = office.desk.spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut hoard = hoard.unwrap();
    let mut held = String::new();
    BufReader::new(hoard.stdout.take().unwrap()).read_line(&mut held).unwrap();
    assert_eq!(held.trim(), "800");
    let output = office.curl_output("X-Nothing: 1", "/v1/status");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    drop(hoard.stdin.take());
    hoard.wait().unwrap();
    assert!(text.contains("401"), "{:?}: {text}", output.status);
}

#[test]
fn connections_without_a_token_do_not_block_the_admin_api() {
    let office = Office::open_in("", &[(IDLE.0, IDLE.1.to_owned())]);
    let at = SocketAddr::from((ADMIN.parse::<Ipv4Addr>().unwrap(), PORT));
    // From eight addresses: none of them has many.
    for host in 10..18 {
        office.desk.ip(&["address", "add", &format!("10.78.0.{host}/24"), "dev", "eth0"]).unwrap();
    }
    let open = || {
        let connect = |number: u8| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
            socket.bind(&SocketAddr::from(([10, 78, 0, 10 + number % 8], 0)).into())?;
            socket.connect_timeout(&at.into(), SOON)?;
            Ok::<_, std::io::Error>(socket)
        };
        (0..200).map(connect).collect::<Result<Vec<_>, _>>()
    };
    let connections = office.desk.inside(open).unwrap().unwrap();
    let output = office.curl_output("X-Nothing: 1", "/v1/status");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("401"), "{:?}: {text}", output.status);
    drop(connections);
}
