//! `meshd support-bundle`: collects diagnostic data in one archive without secrets.

use crate::cli::{
    Context, Failure,
    client::AdminClient,
    output::print::{bytes, now, table, write},
    path_text, wait,
};
use clap::Args;
use meshd_api::routes as api;
use meshd_image::overlay::Packer;
use meshd_types::{SafePath, Timestamp};
use serde_json::Value;
use std::{fs::OpenOptions, os::unix::fs::OpenOptionsExt as _, path::PathBuf};

/// Keys whose values are removed at any depth. API responses contain no secrets, but users may
/// enter secrets in these values.
const REDACTED_KEYS: [&str; 9] =
    ["argv", "env", "key", "password", "secret", "set", "token", "user_data", "vars"];
const REDACTED: &str = "[redacted]";
/// Maximum number of bytes of one file.
const MAX_FILE: usize = 64 << 20;

/// Collects what a developer needs to find a problem
///
/// The archive contains answers of the admin API without secrets: arguments and environments of
/// tasks, variables of nodes and all values named key, password, secret or token are replaced. It
/// contains names, addresses, serial numbers and the audit log: check it before you send it.
#[derive(Debug, Args)]
pub(crate) struct SupportBundle {
    /// New file [default: meshd-support-TIME.tar.gz]
    file: Option<PathBuf>,
    /// Add log, timeline and history of a node; repeatable
    #[arg(long, value_name = "NODE")]
    node: Vec<String>,
    /// Show the contents, write nothing
    #[arg(long)]
    preview: bool,
}

/// A file of the archive.
struct BundleFile {
    name: String,
    content: Vec<u8>,
}

impl SupportBundle {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.client()?;
        let files = wait(self.collect(&client))?;
        let rows = files.iter().map(|file| [file.name.clone(), bytes(file.content.len() as u64)]);
        write(&table(["file", "size"], rows))?;
        if self.preview {
            return Ok(());
        }
        let path =
            self.file.unwrap_or_else(|| format!("meshd-support-{}.tar.gz", compact(now())).into());
        let failed = |error: std::io::Error| {
            Failure::new(
                format!("cannot write {}: {error}", path_text(&path)),
                "name a new file in a folder that you may write",
            )
        };
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        archive(&files, file).map_err(failed)?;
        message!("{}: written; review it before you send it", path_text(&path));
        Ok(())
    }

    async fn collect(&self, client: &AdminClient) -> Result<Vec<BundleFile>, Failure> {
        let mut files = vec![
            file(client, "status.json", api::GET_STATUS.path([])).await,
            file(client, "doctor.json", api::LIST_FINDINGS.path([])).await,
            file(client, "nodes.json", api::LIST_NODES.path([])).await,
            file(client, "profiles.json", api::LIST_PROFILES.path([])).await,
            file(client, "images.json", api::LIST_IMAGES.path([])).await,
            file(client, "overlays.json", api::LIST_OVERLAYS.path([])).await,
            file(client, "vms.json", api::LIST_VMS.path([])).await,
            file(client, "slots.json", api::LIST_SLOTS.path([])).await,
            file(client, "volumes.json", api::LIST_VOLUMES.path([])).await,
            file(client, "tasks.json", api::LIST_TASKS.path([])).await,
            file(client, "containers.json", api::LIST_CONTAINERS.path([])).await,
            file(client, "operations.json", api::LIST_OPERATIONS.path([])).await,
            file(client, "rollouts.json", api::LIST_ROLLOUTS.path([])).await,
            file(client, "ca.json", api::LIST_ROOTS.path([])).await,
            file(client, "events.jsonl", api::LIST_EVENTS.path([]).with("limit", 5000)).await,
            file(client, "audit.json", api::LIST_AUDIT_RECORDS.path([]).with("limit", 1000)).await,
            file(client, "openapi.json", api::GET_OPENAPI_DOCUMENT.path([])).await,
            file(client, "metrics.txt", api::GET_METRICS.path([])).await,
        ];
        for node in &self.node {
            // An unknown node is an error; a part of a known one may be absent.
            let node = client.get(api::GET_NODE.path([node])).await?.node.id;
            let path = |name: &str| format!("nodes/{node}/{name}");
            files.extend([
                file(client, &path("node.json"), api::GET_NODE.path([&node])).await,
                file(client, &path("timeline.json"), api::GET_NODE_TIMELINE.path([&node])).await,
                file(client, &path("history.json"), api::LIST_NODE_GENERATIONS.path([&node])).await,
                file(client, &path("diff.json"), api::COMPARE_NODE_GENERATIONS.path([&node])).await,
                file(client, &path("boot.log.jsonl"), api::GET_NODE_LOG.path([&node])).await,
            ]);
            let timeline = client.get(api::GET_NODE_TIMELINE.path([&node])).await;
            for boot in timeline.map(|timeline| timeline.boots).unwrap_or_default().iter().skip(1) {
                let log = api::GET_NODE_LOG.path([&node]).with("session", boot.session);
                files.push(
                    file(client, &path(&format!("boot-{}.log.jsonl", boot.session)), log).await,
                );
            }
        }
        Ok(files)
    }
}

/// Requests one file. An error is recorded in place of the file: it may be the problem.
async fn file<R>(client: &AdminClient, name: &str, path: api::GetPath<R>) -> BundleFile {
    let mut content = Vec::new();
    let read = client.stream(path, |bytes| {
        content
            .extend_from_slice(&bytes[..bytes.len().min(MAX_FILE.saturating_sub(content.len()))]);
        Ok(())
    });
    match read.await {
        Ok(()) => {
            let content =
                content.split_inclusive(|byte| *byte == b'\n').flat_map(redact_line).collect();
            BundleFile { name: name.to_owned(), content }
        }
        Err(failure) => {
            BundleFile { name: format!("{name}.error"), content: failure.to_string().into_bytes() }
        }
    }
}

/// Returns a line without the values of [`REDACTED_KEYS`]. Returns a line that is not JSON
/// unchanged, such as metrics.
fn redact_line(line: &[u8]) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice::<Value>(line) else { return line.to_vec() };
    redact(&mut value);
    format!("{value}\n").into_bytes()
}

fn redact(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (key, value) in members.iter_mut() {
                match value {
                    Value::Null | Value::Bool(_) | Value::Number(_) => {}
                    _ if REDACTED_KEYS.contains(&key.as_str()) => *value = REDACTED.into(),
                    value => redact(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(redact),
        Value::String(text) if text.contains("PRIVATE KEY") => REDACTED.clone_into(text),
        _ => {}
    }
}

fn archive(files: &[BundleFile], to: impl std::io::Write) -> std::io::Result<()> {
    let mut archive = Packer::new(to);
    for BundleFile { name, content } in files {
        let path: SafePath =
            format!("/meshd-support/{name}").parse().map_err(std::io::Error::other)?;
        archive.file(&path, 0o600, content.len() as u64, content.as_slice())?;
    }
    std::io::Write::flush(&mut archive.finish()?)
}

/// Formats a time, such as `20261123T160000Z`.
fn compact(at: Timestamp) -> String {
    at.to_string().chars().filter(|c| c.is_ascii_alphanumeric()).take(15).collect::<String>() + "Z"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn possible_secrets_are_redacted_at_every_depth() {
        let line = r#"{"id":"a","argv":["/bin/x","--password=p1"],"spec":{"env":{"A":"p2"},"list":[{"token":"p3","n":1}]},
            "key":"p4","count":3,"pem":"-----BEGIN PRIVATE KEY-----p5","token":null}"#;
        let text = String::from_utf8(redact_line(line.as_bytes())).expect("text");
        assert!(
            !["p1", "p2", "p3", "p4", "p5"].iter().any(|secret| text.contains(secret)),
            "{text}"
        );
        let parsed: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            (&parsed["id"], &parsed["count"], &parsed["spec"]["list"][0]["n"]),
            (&"a".into(), &3.into(), &1.into())
        );
        assert_eq!(parsed["token"], Value::Null);
        assert_eq!(redact_line(b"meshd_nodes 3"), b"meshd_nodes 3");
    }
}
