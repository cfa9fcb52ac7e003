//! Secrets of overlays, read from the files that the site names. Values exist only here and in the
//! overlay of one boot.

use meshd_config::{Fault, Faults, SecretSource, files::read_secret};
use meshd_types::{Hint as _, MAX_VAR_TEXT, Secret, VarName};
use std::collections::BTreeMap;

/// Values by variable name.
pub type Secrets = BTreeMap<VarName, Secret<String>>;

/// Reads all secrets. The last line end of a file is not part of its secret.
///
/// # Errors
/// All faults of all files. No fault contains a secret.
pub fn read_secrets(sources: &BTreeMap<VarName, SecretSource>) -> Result<Secrets, Faults> {
    let mut secrets = Secrets::new();
    let mut faults = Vec::new();
    for (name, SecretSource { file, .. }) in sources {
        match read_secret(file, MAX_VAR_TEXT) {
            Ok(secret) => drop(secrets.insert(name.clone(), secret)),
            Err(error) => {
                let message = format!("secret `{name}` {}", error.message());
                faults.push(Fault::of_file(file, message, error.hint().unwrap_or_default()))
            }
        }
    }
    if faults.is_empty() { Ok(secrets) } else { Err(Faults(faults)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

    #[test]
    fn secret_is_read_from_its_file_and_unsafe_file_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let write = |name: &str, content: &[u8], mode: u32| {
            let path = dir.path().join(name);
            fs::write(&path, content).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("changed");
            (name.parse::<VarName>().expect("a name"), SecretSource { file: path, overlays: None })
        };
        let named = |name: &str, file: PathBuf| {
            (name.parse().expect("a name"), SecretSource { file, overlays: None })
        };
        let good = BTreeMap::from([write("a", b"hunter2\n", 0o600), write("b", b"two\n\n", 0o400)]);
        let secrets = read_secrets(&good).expect("both");
        let values: Vec<&str> = secrets.values().map(|secret| secret.expose().as_str()).collect();
        assert_eq!(values, ["hunter2", "two\n"]);
        let bad = [
            (
                write("c", b"hunter2", 0o640),
                "may be read by others (mode 0640)\n  hint: run: chmod 600",
            ),
            (write("d", b"\n", 0o600), "is empty"),
            (write("e", &[0xff, 0xfe], 0o600), "is not text"),
            (write("f", &vec![b'x'; MAX_VAR_TEXT + 1], 0o600), "is longer than 16384 bytes"),
            (named("g", dir.path().join("absent")), "secret `g` cannot be read: No such file"),
            (named("h", dir.path().to_owned()), "is not a file"),
        ];
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").args(["-m", "600"]).arg(&pipe).status();
        assert!(made.expect("mkfifo is there").success());
        let pipe = BTreeMap::from([named("p", pipe)]);
        assert!(
            read_secrets(&pipe)
                .expect_err("nobody waits for it")
                .to_string()
                .contains("is not a file")
        );
        let faults = read_secrets(&bad.iter().map(|(file, _)| file.clone()).collect())
            .expect_err("all of them");
        for (_, expected) in &bad {
            assert!(faults.to_string().contains(expected), "{expected}\nnot in\n{faults}");
        }
        assert_eq!(faults.0.len(), bad.len());
        assert!(!faults.to_string().contains("hunter2"));
    }
}
