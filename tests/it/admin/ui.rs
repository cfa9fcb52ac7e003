//! The web UI of the real program by HTTPS: who gets in, what an action does, and how a session
//! ends.

use super::https::{ADMIN, Office, PORT};
use crate::world::node::PxeNode;
use std::{
    fs,
    process::{Command, Stdio},
};

/// A browser that only does what it is told.
struct Client<'o> {
    office: &'o Office,
    cookie: String,
}

struct Answer {
    status: u16,
    /// Status lines and headers, in lower case.
    head: String,
    body: String,
}

impl Client<'_> {
    fn curl(&self, path: &str, more: &[&str]) -> Answer {
        let mut command = Command::new("curl");
        command.args([
            "--silent",
            "--include",
            "--insecure",
            "--tlsv1.3",
            "--http1.1",
            "--max-time",
            "20",
        ]);
        command.args(["--header", &format!("Cookie: {}", self.cookie)]).args(more);
        command.arg(format!("https://{ADMIN}:{PORT}{path}"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = self.office.desk.spawn(&mut command).unwrap().wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{path}: {text}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_lowercase(), body: body.to_owned() }
    }

    fn get(&self, path: &str) -> Answer {
        self.curl(path, &[])
    }

    fn post(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        self.post_from(&format!("https://{ADMIN}:{PORT}"), path, fields)
    }

    fn post_from(&self, origin: &str, path: &str, fields: &[(&str, &str)]) -> Answer {
        let origin = format!("Origin: {origin}");
        let pairs: Vec<String> =
            fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut more = vec!["--request", "POST", "--header", &origin];
        more.extend(pairs.iter().flat_map(|pair| ["--data-urlencode", pair.as_str()]));
        self.curl(path, &more)
    }

    fn sign_in(&mut self, token_file: &str) {
        let token = fs::read_to_string(token_file).unwrap();
        let answer = self.post("/ui/sign-in", &[("token", token.trim())]);
        assert_eq!(answer.status, 303, "{}{}", answer.head, answer.body);
        let cookie =
            answer.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
        assert!(
            cookie.starts_with("__host-meshd=")
                && cookie.contains("secure; httponly; samesite=strict"),
            "{cookie}"
        );
        // The value is hexadecimal; only the name lost its capital.
        self.cookie = cookie.split(';').next().unwrap().replace("__host-", "__Host-");
    }

    fn is_signed_out(&self) -> bool {
        let answer = self.get("/ui/");
        answer.status == 303 && answer.head.contains("location: /ui/sign-in")
    }
}

/// The box of the only node in a list: ID, revision, name.
fn target(page: &str) -> String {
    let value = page.split("name=\"node\" value=\"").nth(1).unwrap_or_else(|| panic!("{page}"));
    value.split('"').next().unwrap().to_owned()
}

#[test]
fn operator_approves_a_machine_in_the_web_ui_until_the_token_is_revoked() {
    let office = Office::open();
    PxeNode::new(&office.world, 1).ipxe().unwrap();
    let mut client = Client { office: &office, cookie: String::new() };
    assert!(client.is_signed_out());
    assert_eq!(client.post("/ui/sign-in", &[("token", "meshd_00")]).status, 401);
    client.sign_in(&office.token("hands", "operator"));

    let inbox = client.get("/ui/inbox").body;
    let node = target(&inbox);
    let (id, _) = node.split_once('~').unwrap();
    let form = [("action", "approve"), ("node", node.as_str()), ("reason", "sticker compared")];
    let elsewhere = client.post_from("https://evil.example", "/ui/actions/run", &form);
    assert_eq!((elsewhere.status, &office.world.node()["phase"]), (403, &"discovered".into()));
    let done = client.post("/ui/actions/run", &form);
    assert!(done.status == 200 && done.body.contains("Done for 1 node"), "{}", done.body);
    assert_eq!(office.world.node()["phase"], "approved");
    let again = client.post("/ui/actions/run", &form);
    assert!(
        again.status == 409 && again.body.contains(id),
        "the revision is of before: {}",
        again.body
    );

    let audit = office.world.json(&["audit", "-o", "json"]);
    let line = audit
        .as_array()
        .unwrap()
        .iter()
        .find(|line| line["verb"] == "approve" && line["outcome"] == "done");
    let line = line.unwrap_or_else(|| panic!("{audit}"));
    assert_eq!(
        (&line["actor"], &line["reason"]),
        (&"token:hands".into(), &"sticker compared".into())
    );

    assert!(office.world.meshd(&["api-token", "revoke", "hands", "--yes"]).status.success());
    assert!(client.is_signed_out());
    assert!(!office.world.log_text().contains("__Host"), "no cookie in the log");
}

#[test]
fn viewer_cannot_act_and_sign_out_ends_the_session() {
    let office = Office::open();
    PxeNode::new(&office.world, 1).ipxe().unwrap();
    let mut client = Client { office: &office, cookie: String::new() };
    client.sign_in(&office.token("eyes", "viewer"));
    let list = client.get("/ui/nodes").body;
    assert!(!list.contains("name=\"action\""), "{list}");
    let node = target(&list);
    let refused = client.post("/ui/actions/run", &[("action", "approve"), ("node", &node)]);
    assert!(
        refused.status == 403 && refused.body.contains("role viewer may not do this"),
        "{}",
        refused.body
    );
    for (path, field) in [
        ("/ui/volumes/root/remove", ("reason", "")),
        ("/ui/containers", ("name", "web")),
        ("/ui/containers/web/start", ("reason", "")),
        ("/ui/containers/web/delete", ("reason", "")),
        ("/ui/profiles/compute/rollback", ("off", "1")),
        ("/ui/actions/run", ("action", "pin")),
        ("/ui/actions/run", ("action", "boot-once")),
        ("/ui/actions/run", ("action", "doctor")),
    ] {
        let refused = client.post(path, &[field, ("node", &node)]);
        assert!(
            refused.status == 403 && refused.body.contains("role viewer may not do this"),
            "{path}: {}",
            refused.body
        );
    }
    let operations = client.get("/ui/operations");
    assert!(
        operations.status == 200 && operations.body.contains(">boot</td>"),
        "{}",
        operations.body
    );
    assert_eq!(office.world.node()["phase"], "discovered");
    assert_eq!(client.post("/ui/sign-out", &[]).status, 303);
    assert!(client.is_signed_out());
}
