//! The admin API by HTTPS, from a network of its own: tokens, roles, what is refused, and what is
//! written down of it.

use crate::world::{World, stderr};
use meshd_lab::Namespace;
use serde_json::Value;
use std::{
    fs,
    net::{SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt as _,
    process::{Command, Output, Stdio},
    time::Duration,
};

/// Where meshd is told from.
pub const ADMIN: &str = "10.78.0.1";
pub const PORT: u16 = 8444;

/// The fingerprint of the certificate of the admin API, as the log of meshd shows it.
pub fn fingerprint(world: &World) -> String {
    let log = world.log_text();
    let shown = log.split("fingerprint=").nth(1).unwrap_or_else(|| panic!("{log}"));
    shown.trim_start_matches('"')[..64].to_owned()
}

/// A site whose admin API is on a network where nothing boots, and an operator's machine on that
/// network.
pub struct Office {
    pub world: World,
    pub desk: Namespace,
    fingerprint: String,
}

impl Office {
    pub fn prepared() -> (World, Namespace) {
        let world = World::prepared("approve");
        let desk = world.central.derived("o");
        desk.create().unwrap();
        world
            .central
            .ip(&[
                "link",
                "add",
                "adm0",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                desk.name(),
            ])
            .unwrap();
        world.central.ip(&["address", "add", &format!("{ADMIN}/24"), "dev", "adm0"]).unwrap();
        for (space, link) in [(&world.central, "adm0"), (&world.central, "lo"), (&desk, "eth0")] {
            space.ip(&["link", "set", link, "up"]).unwrap();
        }
        desk.ip(&["address", "add", "10.78.0.2/24", "dev", "eth0"]).unwrap();
        world.edit_site(
            "[enroll]",
            &format!("[admin.https]\naddress = \"{ADMIN}\"\nport = {PORT}\n[enroll]"),
        );
        (world, desk)
    }

    pub fn open() -> Self {
        Self::open_with("")
    }

    /// With more in its site file.
    pub fn open_with(more: &str) -> Self {
        Self::open_in(more, &[])
    }

    /// The same, with these variables in the environment of meshd.
    pub fn open_in(more: &str, environment: &[(&str, String)]) -> Self {
        let (mut world, desk) = Self::prepared();
        world.edit_site("[enroll]", &format!("{more}\n[enroll]"));
        world.start_with(environment);
        let fingerprint = fingerprint(&world);
        Office { world, desk, fingerprint }
    }

    /// Makes a token at the socket; gives the file that it is in.
    pub fn token(&self, name: &str, role: &str) -> String {
        let made =
            self.world.meshd(&["api-token", "create", name, "--role", role, "--reason", "a test"]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let file = self.world.path(name);
        fs::write(&file, made.stdout).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        file.display().to_string()
    }

    /// Runs a verb on the operator's machine.
    fn remote(&self, token_file: &str, fingerprint: &str, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
        command.args(["--server", &format!("https://{ADMIN}:{PORT}"), "--token-file", token_file]);
        command.args(["--server-fingerprint", fingerprint]).args(args);
        let child = self
            .desk
            .spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))
            .unwrap();
        child.wait_with_output().unwrap()
    }

    /// Runs a verb on the operator's machine, with a valid token and fingerprint.
    pub fn ask(&self, token_file: &str, args: &[&str]) -> Output {
        self.remote(token_file, &self.fingerprint, args)
    }

    /// What another program is answered, heads and bodies, all over one connection.
    fn curl(&self, header: &str, path: &str) -> String {
        ok(self.curl_output(header, &format!("/v1/{path}")))
    }

    /// The same for any path; curl fails after a minute.
    pub fn curl_output(&self, header: &str, path: &str) -> Output {
        let mut command = Command::new("curl");
        command.args([
            "--silent",
            "--include",
            "--insecure",
            "--tlsv1.3",
            "--max-time",
            "60",
            "--header",
            header,
        ]);
        command.arg(format!("https://{ADMIN}:{PORT}{path}"));
        let child = self
            .desk
            .spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))
            .unwrap();
        child.wait_with_output().unwrap()
    }

    fn refused(&self, token_file: &str, args: &[&str]) -> String {
        let output = self.remote(token_file, &self.fingerprint, args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        stderr(&output)
    }
}

impl Drop for Office {
    fn drop(&mut self) {
        let _ = self.desk.delete();
    }
}

fn ok(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn auditor_lists_api_tokens_and_cannot_reload() {
    let office = Office::open();
    let viewer = office.token("eyes", "viewer");
    let auditor = office.token("books", "auditor");
    let listed = ok(office.ask(&auditor, &["api-token", "list", "-o", "json"]));
    assert!(listed.contains("\"eyes\"") && listed.contains("\"auditor\""), "{listed}");
    ok(office.ask(&auditor, &["audit"]));
    let beyond = office.refused(&viewer, &["api-token", "list"]);
    assert!(beyond.contains("role viewer may not") && beyond.contains("role auditor"), "{beyond}");
    let beyond = office.refused(&auditor, &["reload"]);
    assert!(
        beyond.contains("role auditor may not") && beyond.contains("role operator"),
        "{beyond}"
    );
}

#[test]
fn api_token_is_limited_to_its_role_until_revoked_and_is_audited() {
    let office = Office::open();
    let viewer = office.token("eyes", "viewer");
    let operator = office.token("hands", "operator");
    let admin = office.token("head", "admin");
    for (file, status) in [(&viewer, "viewer"), (&operator, "operator"), (&admin, "admin")] {
        let text = ok(office.remote(file, &office.fingerprint, &["status", "-o", "json"]));
        let seen: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&seen["site"], &seen["nodes"]),
            (&Value::from("world"), &Value::from(0)),
            "{status}"
        );
    }
    let beyond = office.refused(&viewer, &["reload", "--reason", "curious"]);
    assert!(beyond.contains("role viewer may not") && beyond.contains("role operator"), "{beyond}");
    ok(office.remote(&operator, &office.fingerprint, &["reload", "--reason", "new motd"]));
    let beyond = office.refused(&operator, &["api-token", "create", "more", "--role", "admin"]);
    assert!(beyond.contains("takes role admin"), "{beyond}");
    let listed =
        ok(office.remote(&admin, &office.fingerprint, &["api-token", "list", "-o", "json"]));
    let text = fs::read_to_string(&viewer).unwrap();
    assert!(listed.contains("\"eyes\"") && !listed.contains(text.trim()), "{listed}");

    ok(office.remote(&admin, &office.fingerprint, &["api-token", "revoke", "eyes", "--yes"]));
    assert!(office.refused(&viewer, &["status"]).contains("this token is invalid"));

    let audit = office.world.json(&["audit", "-o", "json"]);
    let line = |line: &Value| {
        let word = |key: &str| line[key].as_str().unwrap_or("-").to_owned();
        let outcome = line["outcome"]
            .as_str()
            .map(str::to_owned)
            .unwrap_or_else(|| line["outcome"]["refused"].to_string());
        format!(
            "{} {} {} {outcome} {}",
            word("actor"),
            word("verb"),
            word("target"),
            word("reason")
        )
    };
    let lines: Vec<String> = audit.as_array().unwrap().iter().map(line).collect();
    assert_eq!(
        lines,
        [
            "uid:0 api-token-create eyes done a test",
            "uid:0 api-token-create hands done a test",
            "uid:0 api-token-create head done a test",
            "token:eyes reload - \"forbidden\" curious",
            "token:hands reload - done new motd",
            "token:hands api-token-create - \"forbidden\" -",
            "token:head api-token-revoke eyes done -",
        ]
    );
    let hers = office.world.json(&["audit", "--actor", "token:hands", "-o", "json"]);
    assert_eq!(hers.as_array().map(Vec::len), Some(2));
    // Shown once, and nowhere else: neither store nor log has the text of any token.
    let all = String::from_utf8_lossy(&office.world.state_bytes()).into_owned();
    for file in [&viewer, &operator, &admin] {
        let text = fs::read_to_string(file).unwrap();
        assert!(
            text.starts_with("meshd_") && !all.contains(text.trim().trim_start_matches("meshd_"))
        );
    }
}

#[test]
fn request_without_valid_token_or_fingerprint_is_refused() {
    let office = Office::open();
    let none = office.world.path("none");
    let none_text = format!("meshd_{}", "0".repeat(64));
    fs::write(&none, &none_text).unwrap();
    let none = none.display().to_string();
    assert!(office.refused(&none, &["status"]).contains("this token is invalid"));
    let good = office.token("good", "viewer");
    let output = office.remote(&good, &"0".repeat(64), &["status"]);
    let message = stderr(&output);
    assert!(
        message.contains("another certificate") && message.contains(&office.fingerprint),
        "{message}"
    );
    let header = format!("Authorization: Bearer {none_text}");
    let bare = "X-Nothing: 1".to_owned();
    let answer = office.curl(&bare, "status");
    assert!(
        answer.contains("401") && answer.to_lowercase().contains("www-authenticate: bearer"),
        "{answer}"
    );
    assert!(
        answer.to_lowercase().contains("x-correlation-id: ") && !answer.contains("world"),
        "{answer}"
    );
    // Guessing ends: after some refusals, unknown tokens of the address get no answer for a while.
    // Valid ones do: others may share it.
    let guesses = office.curl(&header, "status?[1-40]");
    let count = |what: &str| guesses.matches(what).count();
    assert_eq!(count("\"unauthorized\"") + count("\"too_many\""), 40, "{guesses}");
    assert!((1..=20).contains(&count("\"unauthorized\"")), "{guesses}");
    assert!(office.refused(&none, &["status"]).contains("too many refused requests"));
    assert!(office.remote(&good, &office.fingerprint, &["status"]).status.success());
    assert!(office.world.meshd(&["status"]).status.success(), "the socket is another way in");
}

#[test]
fn admin_listener_is_unreachable_from_the_boot_network() {
    let office = Office::open();
    let nodes = &office.world.nodes;
    nodes.ip(&["address", "add", "10.77.0.66/24", "dev", "eth0"]).unwrap();
    nodes.ip(&["route", "add", "10.78.0.0/24", "via", "10.77.0.1"]).unwrap();
    let reach = |at: &str| {
        let at: SocketAddr = at.parse().unwrap();
        nodes
            .inside(move || TcpStream::connect_timeout(&at, Duration::from_secs(5)).map(drop))
            .unwrap()
    };
    assert!(reach("10.77.0.1:8080").is_ok(), "the wire is there");
    assert!(reach(&format!("{ADMIN}:{PORT}")).is_err(), "Linux would take it on any interface");
    assert!(reach(&format!("10.77.0.1:{PORT}")).is_err());
}

#[test]
fn admin_listener_on_boot_network_needs_explicit_setting() {
    let (mut world, desk) = Office::prepared();
    desk.delete().unwrap();
    world.edit_site(&format!("address = \"{ADMIN}\""), "address = \"10.77.0.1\"");
    let refused = world.serve_and_fail();
    assert!(
        refused.contains("where machines boot") && refused.contains("boot_network = true"),
        "{refused}"
    );
    world.edit_site(
        "address = \"10.77.0.1\"\nport",
        "address = \"10.77.0.1\"\nboot_network = true\nport",
    );
    world.start();
    assert!(world.stop().success());
}

#[test]
fn certificate_of_unknown_issuer_is_refused_with_pinning_hint() {
    let office = Office::open();
    let token = office.token("eyes", "viewer");
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
    command.args([
        "--server",
        &format!("https://{ADMIN}:{PORT}"),
        "--token-file",
        &token,
        "node",
        "list",
    ]);
    // Any authority but the one that made the certificate.
    command.arg("--server-ca").arg(office.world.path("state/ca/ca.pem"));
    let child = office
        .desk
        .spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let answer = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{answer}");
    assert!(
        answer.contains("issuer of its certificate is unknown")
            && answer.contains("--server-fingerprint"),
        "{answer}"
    );
    let status = office.world.json(&["status", "-o", "json"]);
    assert_eq!(status["https_fingerprint"], office.fingerprint.as_str());
}
