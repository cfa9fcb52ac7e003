//! Packages that apk has installed. Alpine's initramfs only warns when `apk add` fails. Pure and
//! total.

use std::collections::BTreeSet;

/// Packages of the node are not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackagesError {
    #[error("no package was installed")]
    None,
    #[error("packages not installed: {}", .0.join(" "))]
    Missing(Vec<String>),
}

/// Returns the wanted packages that apk's database does not have, and those whose files apk could
/// not write, as `NAME(incomplete)`. A package counts if its name, or one that it provides, is in
/// the database (apk-package(5)): `P:` its name, `p:` provided names with versions, `f:` marks of
/// failures, of which `f` is one of files.
pub fn missing_packages(wanted: &str, database: &str) -> Vec<String> {
    let mut missing: BTreeSet<&str> = wanted.split_ascii_whitespace().collect();
    let mut incomplete = BTreeSet::new();
    let mut name = "";
    for line in database.lines() {
        match line.split_once(':') {
            Some(("P", package)) => {
                name = package;
                missing.remove(name);
            }
            Some(("p", provided)) => {
                for provided in provided.split_ascii_whitespace() {
                    let end = provided.find(['=', '<', '>', '~']).unwrap_or(provided.len());
                    missing.remove(&provided[..end]);
                }
            }
            Some(("f", marks)) if marks.contains('f') => {
                incomplete.insert(name);
            }
            _ => {}
        }
    }
    let incomplete = incomplete.into_iter().map(|name| format!("{name}(incomplete)"));
    missing.into_iter().map(str::to_owned).chain(incomplete).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SSHD: &str = "P:openssh\np:sshd=1 cmd:x=1\n\n";

    #[test]
    fn package_whose_files_apk_could_not_write_stops_the_boot() {
        let missing = |installed: &str| missing_packages("base\nsshd\n", installed).join(" ");
        assert_eq!(missing(&format!("P:base\nV:1\n\n{SSHD}")), "");
        let script = format!("P:base\nf:s\n\n{SSHD}");
        assert_eq!(missing(&script), "", "a script failed, which many do in an initramfs");
        assert_eq!(missing(&format!("P:base\nf:fs\n\n{SSHD}")), "base(incomplete)");
        assert_eq!(missing("P:base\n\n"), "sshd");
        assert_eq!(missing("P:base\nf:f\n"), "sshd base(incomplete)");
        assert_eq!(missing("p:base>=2 sshd~1\n"), "", "provided by a package");
    }

    proptest! {
        #[test]
        fn database_of_any_text_never_panics(wanted in "[ab \n]{0,20}", database in "[PpfVab:=<>~\u{fc} \n]{0,200}") {
            let missing = missing_packages(&wanted, &database);
            prop_assert!(missing.len() <= wanted.split_whitespace().count() + database.lines().count());
        }

        #[test]
        fn installed_package_is_never_missing(names in proptest::collection::btree_set("[a-z][a-z0-9+._-]{0,8}", 0..20)) {
            let database: String = names.iter().map(|name| format!("C:Q1=\nP:{name}\nV:1-r0\n\n")).collect();
            let wanted: Vec<&str> = names.iter().map(String::as_str).collect();
            prop_assert_eq!(missing_packages(&wanted.join("\n"), &database), Vec::<String>::new());
        }
    }
}
