//! The files below the state folder and the folder of blobs that meshd writes and a restored site
//! needs. Editors, crashed programs and operators leave others there.
//!
//! A new kind of file in these folders needs a line here: `backup create` names what it leaves out.

/// Returns whether a member of a backup is such a file, or a folder that may contain one. Every
/// file that operators write for the site (`site.toml`, `images/`, `overlays/`) is.
pub(super) fn is_owned(member: &str, is_folder: bool) -> bool {
    let parts: Vec<&str> = member.split('/').collect();
    match parts[..] {
        ["state", ref state @ ..] if is_folder => is_state_folder(state),
        ["state", ref state @ ..] => is_state_file(state),
        ["blobs", ref blobs @ ..] if is_folder => is_blob_folder(blobs),
        ["blobs", ref blobs @ ..] => is_blob_file(blobs),
        _ => true,
    }
}

/// Returns whether a file is of one process or one write of meshd: it is left out without a word. A
/// file of an operator may have any name.
pub(super) fn is_transient(member: &str) -> bool {
    let parts: Vec<&str> = member.split('/').collect();
    match parts[..] {
        // The copy of an overlay, as its author wrote it.
        ["state", "revisions", "overlays", _, _, ..] => false,
        // Time series of the present central node: a restored one begins its own.
        ["state", "series", ..] => true,
        ["blobs", "lock"] | ["blobs", "volumes", ".lock"] => true,
        ["state" | "blobs", .., name] => name.starts_with(".new") || name.ends_with(".new"),
        _ => false,
    }
}

fn is_state_folder(path: &[&str]) -> bool {
    match path {
        [folder] => ["admin", "boot-logs", "ca", "generations", "keys", "revisions", "tasks"]
            .contains(folder),
        ["ca", root] => is_hex(root),
        ["boot-logs" | "tasks", key] => is_hex(key),
        ["generations", "content"] | ["revisions", "overlays"] => true,
        // The copy of an overlay, as its author wrote it.
        ["revisions", "overlays", digest, ..] => is_hex(digest),
        _ => false,
    }
}

fn is_state_file(path: &[&str]) -> bool {
    match path {
        ["secrets.key" | "site-id"] => true,
        ["admin", name] => ["https.pem", "https.key"].contains(name),
        ["keys", name] => ["repo.rsa", "repo.rsa.pub"].contains(name),
        ["ca", name] => ["authority.json", "ca.pem"].contains(name),
        ["ca", root, name] => is_hex(root) && is_authority_file(name),
        ["generations" | "revisions", record] => record.strip_suffix(".json").is_some_and(is_hex),
        ["generations", "content", digest] => is_hex(digest),
        ["revisions", "overlays", digest, _, ..] => is_hex(digest),
        ["boot-logs" | "tasks", key, offset] => is_hex(key) && is_number(offset),
        _ => false,
    }
}

fn is_authority_file(name: &str) -> bool {
    let cross = name.strip_prefix("cross-").and_then(|name| name.strip_suffix(".pem"));
    ["root.key", "root.pem", "issuer.key", "issuer.pem"].contains(&name)
        || cross.is_some_and(is_hex)
}

fn is_blob_folder(path: &[&str]) -> bool {
    match path {
        [folder] => ["bundles", "images", "in-use", "sha256", "volumes"].contains(folder),
        ["bundles" | "images", name] => is_plain(name),
        ["bundles" | "images", name, "moves"] => is_plain(name),
        _ => false,
    }
}

fn is_blob_file(path: &[&str]) -> bool {
    let is_manifest = |name: &str| name.ends_with(".json") && is_plain(name);
    match path {
        ["sha256", digest] => is_hex(digest),
        ["volumes", name] => is_hex(name.strip_suffix(".json").unwrap_or(name)),
        ["in-use", list] => is_plain(list),
        ["bundles" | "images", manifest] => is_manifest(manifest),
        ["bundles" | "images", _, manifest] => is_manifest(manifest),
        ["bundles" | "images", _, "moves", name] => {
            name.split_once('.').is_some_and(|(number, digest)| is_number(number) && is_hex(digest))
        }
        _ => false,
    }
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Hidden files are those of editors and of writes that a crash ended; `~` marks copies of editors.
fn is_plain(name: &str) -> bool {
    !name.starts_with('.') && !name.ends_with('~')
}
