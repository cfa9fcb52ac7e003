//! Somebody has an operator's session cookie: a server on another port of 127.0.0.1 received it, or
//! a machine that the browser runs on leaked it.

use super::https::{ADMIN, Office, PORT};
use crate::{
    boot::refusals::refusal,
    world::{World, program},
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    process::{Child, Command, Output, Stdio},
};

/// A user of the machine without any rights.
const NOBODY: &str = "65534";

/// `meshd ui`, which ends with the test.
struct Ui(Child);

impl Ui {
    /// Starts it, and returns it with its link.
    fn start(world: &World) -> (Self, String) {
        let mut command = Command::new(program(env!("CARGO_BIN_EXE_meshd")));
        command
            .arg("--site")
            .arg(&world.site)
            .arg("ui")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut ui = Ui(command.spawn().unwrap());
        let mut link = String::new();
        BufReader::new(ui.0.stdout.take().unwrap()).read_line(&mut link).unwrap();
        (ui, link.trim().to_owned())
    }

    /// Sends a request and ends the connection before `meshd ui` sees the request. Returns when
    /// `meshd ui` has ended its side.
    fn cancelled(&self, connect: impl FnOnce() -> TcpStream, path: &str, cookie: &str) -> String {
        let process = Pid::from_child(&self.0);
        kill_process(process, Signal::STOP).unwrap();
        waitpid(Some(process), WaitOptions::UNTRACED).unwrap();
        let mut connection = connect();
        let host = connection.peer_addr().unwrap();
        write!(connection, "GET {path} HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n")
            .unwrap();
        connection.shutdown(Shutdown::Write).unwrap();
        kill_process(process, Signal::CONT).unwrap();
        let mut answer = Vec::new();
        // A reset also is an end.
        let _ = connection.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }
}

impl Drop for Ui {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Opens so many connections and prints how many stay open, as soon as the others are closed.
const HOARD: &str = "
import select, socket, sys, time
address, port, count, limit = sys.argv[1], *map(int, sys.argv[2:])
connections = [socket.create_connection((address, port)) for _ in range(count)]
ends = time.monotonic() + 120
while len(connections) > limit and time.monotonic() < ends:
    closed = select.select(connections, [], [], 0.1)[0]
    connections = [one for one in connections if one not in closed]
print(len(connections), flush=True)
sys.stdin.read()
";

/// A request of a user of this machine.
fn curl(user: &str, cookie: &str, url: &str) -> String {
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid",
        user,
        "--clear-groups",
        "curl",
        "--silent",
        "--include",
        "--max-time",
        "20",
    ]);
    text(
        command
            .args(["--header", &format!("Cookie: {cookie}"), url])
            .stdin(Stdio::null())
            .output()
            .unwrap(),
    )
}

fn text(output: Output) -> String {
    String::from_utf8(output.stdout).unwrap()
}

fn cookie_of(answer: &str) -> String {
    let line = answer.lines().find(|line| line.to_lowercase().starts_with("set-cookie: "));
    let line = line.unwrap_or_else(|| panic!("{answer}"));
    line["set-cookie: ".len()..].split(';').next().unwrap().to_owned()
}

#[test]
fn cookie_of_meshd_ui_is_useless_to_another_user_of_the_machine() {
    let world = World::new("approve");
    let (_ui, link) = Ui::start(&world);
    let cookie = cookie_of(&curl("0", "", &link));
    let page = format!("{}/", link.split("/enter").next().unwrap());
    assert!(curl("0", &cookie, &page).starts_with("HTTP/1.1 200"), "the operator sees the site");
    let stolen = curl(NOBODY, &cookie, &page);
    assert!(stolen.starts_with("HTTP/1.1 303") && stolen.contains("/sign-in"), "{stolen}");
}

#[test]
fn cancelled_request_ends_neither_session_nor_link_of_meshd_ui() {
    let world = World::new("approve");
    let (ui, link) = Ui::start(&world);
    let (address, enter) = link["http://".len()..].split_once('/').unwrap();
    let connect = || TcpStream::connect(address).unwrap();
    let early = ui.cancelled(connect, &format!("/{enter}"), "");
    assert!(early.starts_with("HTTP/1.1 403"), "its user is unknown: {early}");
    let cookie = cookie_of(&curl("0", "", &link));
    let page = format!("http://{address}/ui/");
    let lives = |when: &str| {
        let answer = curl("0", &cookie, &page);
        assert!(answer.starts_with("HTTP/1.1 200"), "{when}: {answer}");
    };
    lives("after the sign-in");
    ui.cancelled(connect, "/ui/", &cookie);
    lives("the connection ended before it was accepted");

    let mut connection = connect();
    write!(connection, "GET /ui/ HTTP/1.1\r\nHost: {address}\r\nCookie: {cookie}\r\n\r\n").unwrap();
    let mut begin = [0; 12];
    connection.read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");
    ui.cancelled(|| connection, "/ui/", &cookie);
    lives("the connection ended after it was accepted");
}

#[test]
fn refusal_of_a_slow_upload_reaches_the_client_of_meshd_ui() {
    let world = World::new("approve");
    let (_ui, link) = Ui::start(&world);
    let address = link["http://".len()..].split('/').next().unwrap();
    // The name of the host is another one.
    assert_eq!(refusal(&world, None, address, &["plain", "body", "/ui/", "x: y"]), "421");
}

#[test]
fn user_of_the_machine_holds_few_connections_to_meshd_ui() {
    let world = World::new("approve");
    let (_ui, link) = Ui::start(&world);
    let (address, port) =
        link["http://".len()..].split('/').next().unwrap().split_once(':').unwrap();
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid",
        NOBODY,
        "--clear-groups",
        "/usr/bin/python3",
        "-c",
        HOARD,
        address,
        port,
        "200",
        "64",
    ]);
    let mut hoard = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut open = String::new();
    BufReader::new(hoard.stdout.take().unwrap()).read_line(&mut open).unwrap();
    assert_eq!(open.trim(), "64");
    assert!(curl("0", "", &link).starts_with("HTTP/1.1 303"), "the operator signs in");
    drop(hoard.stdin.take());
    hoard.wait().unwrap();
}

#[test]
fn cookie_of_a_session_is_useless_at_another_address() {
    let office = Office::open();
    office.desk.ip(&["address", "add", "10.78.0.3/24", "dev", "eth0"]).unwrap();
    let token = fs::read_to_string(office.token("ada", "operator")).unwrap();
    let ask = |from: &str, more: &[&str], path: &str| {
        let mut command = Command::new("curl");
        command
            .args(["--silent", "--include", "--insecure", "--max-time", "20", "--interface", from])
            .args(more);
        command
            .arg(format!("https://{ADMIN}:{PORT}{path}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        text(office.desk.spawn(&mut command).unwrap().wait_with_output().unwrap())
    };
    let (origin, field) =
        (format!("Origin: https://{ADMIN}:{PORT}"), format!("token={}", token.trim()));
    let signed_in =
        ask("10.78.0.2", &["--header", &origin, "--data-urlencode", &field], "/ui/sign-in");
    let cookie = format!("Cookie: {}", cookie_of(&signed_in));
    let page = |from: &str| ask(from, &["--header", &cookie], "/ui/");
    assert!(page("10.78.0.2").split("\r\n").next().unwrap().contains(" 200"));
    assert!(
        page("10.78.0.3").split("\r\n").next().unwrap().contains(" 303"),
        "{}",
        page("10.78.0.3")
    );
}
