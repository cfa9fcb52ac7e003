//! Passwords and authorities of BMCs, read from their files. They are read at each use, so a changed file takes
//! effect at once, and checked at each reload, before an order needs them.

use super::BmcError;
use meshd_bmc::ServerTrust;
use meshd_config::{
    BmcRule, Fault, SecretSource, Site,
    files::{read_regular, read_secret},
};
use meshd_types::{BmcDriver, Hint as _, MAX_VAR_TEXT, ParseError, Secret};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Maximum length of a password, in bytes.
const MAX_PASSWORD: usize = 128;
/// Maximum size of a file of authorities, in bytes.
const MAX_AUTHORITIES: u64 = 1 << 20;
/// Maximum length of a password in IPMI 2.0, in bytes.
const MAX_IPMI_PASSWORD: usize = 20;

/// Returns the faults of all passwords of a site. A secret that cannot be read is a fault of the
/// secrets. Blocks.
pub fn password_faults(site: &Site) -> Vec<Fault> {
    let logins = |rule: &BmcRule| Some((rule.login.as_ref()?.password_file.clone(), rule.driver));
    let is_unreadable = |secret: &&SecretSource| read_secret(&secret.file, MAX_VAR_TEXT).is_err();
    let unreadable: BTreeSet<&PathBuf> =
        site.secrets.values().filter(is_unreadable).map(|secret| &secret.file).collect();
    let mut files: BTreeSet<_> = site.power.rules.iter().filter_map(logins).collect();
    files.retain(|(file, _)| !unreadable.contains(file));
    let fault = |(file, driver): (PathBuf, BmcDriver)| {
        let error = read_password(&file, driver).err()?;
        let hint = error.hint().unwrap_or_default();
        Some(Fault::of_file(file, format!("password of BMCs {}", error.message()), hint))
    };
    let authorities: BTreeSet<_> =
        site.power.rules.iter().filter_map(|rule| rule.ca_file.as_ref()).collect();
    let ca_fault = |file: &PathBuf| {
        let error = read_authorities(file).err()?;
        let hint = error.hint().unwrap_or_default();
        Some(Fault::of_file(file, error.message(), hint))
    };
    files
        .into_iter()
        .filter_map(fault)
        .chain(authorities.into_iter().filter_map(ca_fault))
        .collect()
}

/// Reads a PEM file of authorities. Blocks.
fn read_authorities(file: &Path) -> Result<Vec<u8>, ParseError> {
    let hint = "name a PEM file of certificates";
    let pem = read_regular(file, MAX_AUTHORITIES)
        .map_err(|error| ParseError::new(format!("cannot be read: {error}"), hint))?;
    let is_pem = String::from_utf8_lossy(&pem).contains("-----BEGIN CERTIFICATE-----");
    if is_pem { Ok(pem) } else { Err(ParseError::new("holds no certificate", hint)) }
}

/// Returns the certificates that a Redfish server may show. Blocks.
pub(super) fn trust_of(rule: &BmcRule) -> Result<Option<ServerTrust>, BmcError> {
    if !rule.certificates.is_empty() {
        return Ok(Some(ServerTrust::Certificates(rule.certificates.clone())));
    }
    let Some(file) = &rule.ca_file else { return Ok(None) };
    let refused = |cause| BmcError::Password { file: file.clone(), cause };
    Ok(Some(ServerTrust::Authorities(read_authorities(file).map_err(refused)?)))
}

/// Reads a password. Line ends at the end of the file are not part of it. Blocks.
pub(super) fn read_password(file: &Path, driver: BmcDriver) -> Result<Secret<String>, ParseError> {
    // Safe: the text goes into another secret.
    let text = read_secret(file, MAX_PASSWORD)?.expose().trim_end_matches(['\r', '\n']).to_owned();
    let too_long = driver == BmcDriver::Ipmi && text.len() > MAX_IPMI_PASSWORD;
    match text {
        text if text.is_empty() => Err(ParseError::new("is empty", "write the password into it")),
        text if text.chars().any(char::is_control) => {
            Err(ParseError::new("has several lines", "write one line: the password"))
        }
        _ if too_long => Err(ParseError::new(
            format!("is longer than {MAX_IPMI_PASSWORD} bytes"),
            "IPMI has shorter passwords; set another one in the BMC",
        )),
        text => Ok(Secret::new(text)),
    }
}

/// Reads the password of a rule. Blocks.
pub(super) fn password_of(rule: &BmcRule) -> Result<Option<Secret<String>>, BmcError> {
    let Some(login) = &rule.login else { return Ok(None) };
    let read = read_password(&login.password_file, rule.driver);
    let refused = |cause| BmcError::Password { file: login.password_file.clone(), cause };
    read.map(Some).map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _};

    #[test]
    fn password_ends_before_line_ends_and_unsafe_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let read = |content: &str, mode: u32, driver| {
            let file = folder.path().join("password");
            let _ = fs::remove_file(&file);
            fs::write(&file, content).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            read_password(&file, driver).map(|secret| secret.expose().clone())
        };
        for content in ["se cret", "se cret\n", "se cret\r\n", "se cret\n\n"] {
            assert_eq!(read(content, 0o600, BmcDriver::Ipmi).as_deref(), Ok("se cret"));
        }
        let long = "x".repeat(21);
        assert!(read(&long, 0o600, BmcDriver::Redfish).is_ok());
        for (content, mode, what) in [
            ("", 0o600, "is empty"),
            ("\n", 0o600, "is empty"),
            ("\r\n", 0o600, "is empty"),
            ("a\nb", 0o600, "has several lines"),
            ("a", 0o640, "may be read by others"),
            (&long, 0o600, "is longer than 20 bytes"),
        ] {
            let error = read(content, mode, BmcDriver::Ipmi).unwrap_err();
            assert!(error.message().contains(what), "{content:?}: {}", error.message());
        }
        let missing = read_password(&folder.path().join("none"), BmcDriver::Ipmi).unwrap_err();
        assert!(missing.message().contains("cannot be read"), "{}", missing.message());
    }
}
