//! Reads single values from a site file that may have faults elsewhere. Commands that only talk to
//! the running meshd work while the file is being edited.

use super::{check, reader};
use crate::sections::admin;
use std::path::{Path, PathBuf};

/// The value of one path in a file that may have faults.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    Value(PathBuf),
    /// Present, but not a string.
    Unreadable,
    Absent,
}

/// Returns the admin socket; `None` if `[admin].socket` itself has a fault.
pub(super) fn admin_socket(text: &str, file: &Path) -> Option<PathBuf> {
    let found = match reader::parse(text, file) {
        Ok(document) => {
            let root = document.root();
            return admin::socket(&document, &root);
        }
        Err(_) => path(text, file, "admin", "socket"),
    };
    match found {
        Found::Value(socket) => {
            (socket.as_os_str().len() <= check::MAX_SOCKET_PATH).then_some(socket)
        }
        Found::Absent => Some(admin::default_socket()),
        Found::Unreadable => None,
    }
}

/// Returns the overlay folder; `None` if that key itself has a fault.
pub(super) fn overlays_dir(text: &str, file: &Path) -> Option<PathBuf> {
    match path(text, file, "site", "overlays_dir") {
        Found::Value(folder) => Some(folder),
        Found::Absent => Some(file.parent().unwrap_or(Path::new("")).join("overlays")),
        Found::Unreadable => None,
    }
}

/// Parses each line separately, so that a syntax error elsewhere has no effect.
fn path(text: &str, file: &Path, section: &str, key: &str) -> Found {
    let mut current = String::new();
    for line in
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        if let Some(name) = section_of(line) {
            current = name;
            continue;
        }
        let whole = if current.is_empty() { line.to_owned() } else { format!("{current}.{line}") };
        // `admin.socket = ..` from any spelling: under [admin], or dotted, or in an inline table.
        let compact: String =
            whole.chars().take_while(|c| *c != '=').filter(|c| !c.is_whitespace()).collect();
        if compact != format!("{section}.{key}") && compact != section {
            continue;
        }
        let Ok(document) = toml_edit::Document::parse(whole) else { return Found::Unreadable };
        let item = document.get(section).and_then(|table| table.get(key));
        match item.map(|item| item.as_str()) {
            Some(Some(path)) => {
                return Found::Value(file.parent().unwrap_or(Path::new("")).join(path));
            }
            Some(None) => return Found::Unreadable,
            None => {}
        }
    }
    Found::Absent
}

/// Returns the name in a section header, also if the closing bracket is missing.
fn section_of(line: &str) -> Option<String> {
    let inner = line.strip_prefix('[')?;
    let name: String =
        inner.trim_start_matches('[').chars().take_while(|c| !"]#".contains(*c)).collect();
    let name: String = name.chars().filter(|c| !c.is_whitespace()).collect();
    (!name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c)))
        .then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(text: &str) -> Option<String> {
        admin_socket(text, Path::new("/etc/meshd/site.toml")).map(|path| path.display().to_string())
    }

    #[test]
    fn admin_socket_of_invalid_site_file_is_found() {
        let own = Some("/etc/meshd/a.sock".to_owned());
        for text in [
            "[site\nname = x\n[admin]\nsocket = \"a.sock\" # here\n",
            "name = = 3\n[ admin ]\n socket=\"a.sock\"\n[net]\ninterface = \"\n",
            "admin.socket = \"a.sock\"\n]]\n",
            "admin = { socket = \"a.sock\" }\n]]\n",
            "[admin\nsocket = \"a.sock\"\n",
        ] {
            assert_eq!(socket(text), own, "{text}");
        }
        assert_eq!(socket("[net]\nsocket = \"b\"\n=\n").as_deref(), Some("/run/meshd/admin.sock"));
        assert_eq!(
            socket("[admin]\nsocket = \"a.sock\n"),
            None,
            "the mistake is in the line itself"
        );
        assert_eq!(socket("[admin]\nsocket = 5\n=\n"), None);
    }

    #[test]
    fn overlays_folder_of_invalid_site_file_is_found() {
        let folder = |text| {
            overlays_dir(text, Path::new("/s/site.toml")).map(|path| path.display().to_string())
        };
        assert_eq!(folder("[site]\noverlays_dir = \"over\"\n=").as_deref(), Some("/s/over"));
        assert_eq!(folder("[site]\nname = 5\n").as_deref(), Some("/s/overlays"));
        assert_eq!(folder("[site]\noverlays_dir = 5\n"), None);
    }
}
