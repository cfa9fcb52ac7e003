//! Writes the annotated sample with the values of this machine.

use crate::cli::{Failure, output::file::replace, path_text};
use std::{
    fs,
    io::Write as _,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};
use toml_edit::{DocumentMut, value};

const SAMPLE: &str = include_str!("../../../../site.toml");

/// Values that replace those of the sample.
pub(super) struct Values {
    pub(super) name: String,
    pub(super) interface: String,
    pub(super) address: Ipv4Addr,
    pub(super) mode: &'static str,
    pub(super) range: String,
    pub(super) netmask: Ipv4Addr,
    /// Folder of the package's overlays and image recipes, if the package is installed.
    pub(super) share: Option<PathBuf>,
}

/// Returns the text of the site file, with the comments of the sample.
fn text(values: &Values) -> Result<String, Failure> {
    let mut site: DocumentMut =
        SAMPLE.parse().map_err(|error: toml_edit::TomlError| Failure::without_hint(&error))?;
    site["site"]["name"] = value(&values.name);
    if let Some(share) = &values.share {
        site["site"]["images_dir"] = value(share.join("images").display().to_string());
        site["site"]["overlays_dir"] = value(share.join("overlays").display().to_string());
    }
    site["net"]["interface"] = value(&values.interface);
    site["net"]["address"] = value(values.address.to_string());
    site["dhcp"]["mode"] = value(values.mode);
    site["dhcp"]["range"] = value(&values.range);
    // Without it, the file is valid only on a host that has the interface.
    site["dhcp"]["netmask"] = value(values.netmask.to_string());
    Ok(site.to_string())
}

/// Writes the file atomically. Does not write a file that meshd would refuse.
pub(super) fn write(file: &Path, values: &Values) -> Result<(), Failure> {
    let text = text(values)?;
    let cannot = |error: std::io::Error| {
        Failure::new(
            format!("cannot write {}: {error}", path_text(file)),
            "name another file with --site",
        )
    };
    let folder =
        file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let new = folder.join(format!(".{name}.new"));
    replace(&new, 0o644).and_then(|mut out| out.write_all(text.as_bytes())).map_err(cannot)?;
    if let Err(faults) = meshd_config::load(&new) {
        let _ = fs::remove_file(&new);
        // The file is gone: its values come from the options.
        let causes: Vec<String> =
            faults.0.iter().map(|fault| format!("{}: {}", fault.key, fault.message)).collect();
        return Err(Failure::new(
            format!("cannot write {}: {}", path_text(file), causes.join("; ")),
            "correct --range, --mode or --name, or name another --interface",
        ));
    }
    fs::rename(&new, file).map_err(cannot)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Values {
        Values {
            name: "rack-b".into(),
            interface: "eth1".into(),
            address: Ipv4Addr::new(10, 9, 0, 2),
            mode: "proxy",
            range: "10.9.0.100-10.9.0.120".into(),
            netmask: Ipv4Addr::new(255, 255, 255, 0),
            share: Some("/usr/share/meshd".into()),
        }
    }

    #[test]
    fn written_site_file_has_values_and_comments() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("site.toml");
        write(&file, &values()).expect("a valid site");
        let text = fs::read_to_string(&file).expect("written");
        for line in [
            "name = \"rack-b\"",
            "interface = \"eth1\"",
            "address = \"10.9.0.2\"",
            "mode = \"proxy\"",
            "netmask = \"255.255.255.0\"",
            "overlays_dir = \"/usr/share/meshd/overlays\"",
            "#consoles = [\"tty0\", \"ttyS0,115200\"]",
        ] {
            assert!(text.lines().any(|written| written == line), "{line}\n{text}");
        }
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 1, "no other file");
    }

    #[test]
    fn invalid_range_is_refused_and_no_file_is_written() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("site.toml");
        let refused = write(&file, &Values { range: "10.9.0.120-10.9.0.100".into(), ..values() });
        let refused = refused.expect_err("a range that ends before it begins").to_string();
        assert!(
            refused.contains("site.toml: dhcp.range") && refused.contains("--range"),
            "{refused}"
        );
        assert!(!refused.contains(".new"), "the temporary file is not named: {refused}");
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 0, "nothing is left");
    }
}
