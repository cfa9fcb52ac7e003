//! Lists of what a site needs of a folder of blobs. Sites may share such a folder, and each keeps
//! what another one lists.
//!
//! ```text
//! blobs_dir/in-use/<site>.<id>            versions of images and bundles
//! blobs_dir/in-use/<site>.<id>.volumes    volumes of VMs
//! state_dir/site-id                       the ID, which a backup contains: two sites may have the same name
//! ```

use super::store::write_whole;
use crate::error::{BuildError, io_error};
use meshd_config::files::read_regular;
use meshd_image::catalog::versions::{IN_USE, InUseError, read_list};
use meshd_types::Digest;
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

/// File of the ID, below the state folder.
const ID_FILE: &str = "site-id";
/// Length of the ID in hexadecimal digits.
const ID_LENGTH: usize = 16;

/// The owner of lists: one site.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ListOwner {
    site: String,
    id: String,
}

/// What a list contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListKind {
    /// Versions of images and bundles.
    Versions,
    /// Volumes of VMs.
    Volumes,
}

impl ListOwner {
    /// Reads the ID of a site. Blocks.
    ///
    /// # Errors
    /// The file cannot be read, or contains no ID. [`io::ErrorKind::NotFound`]: the site has no ID
    /// yet.
    pub fn read(state_dir: &Path, site: &str) -> io::Result<Self> {
        let path = state_dir.join(ID_FILE);
        let text =
            String::from_utf8_lossy(&read_regular(&path, ID_LENGTH as u64 + 1)?).into_owned();
        let id = text.trim_end();
        if id.len() != ID_LENGTH || !id.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            let what = format!(
                "{}: it is not an ID of 16 hexadecimal digits; remove the file",
                path.display()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(ListOwner { site: site.to_owned(), id: id.to_owned() })
    }

    /// As [`ListOwner::read`]; a new site receives `random` as its ID. Only one thread may call it
    /// for the same folder.
    ///
    /// # Errors
    /// The file cannot be read or written, or contains no ID.
    pub fn read_or_create(
        state_dir: &Path,
        site: &str,
        random: [u8; ID_LENGTH / 2],
    ) -> io::Result<Self> {
        match Self::read(state_dir, site) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = format!("{:016x}\n", u64::from_be_bytes(random));
                write_whole(&state_dir.join(ID_FILE), text.as_bytes(), 0o600)?;
                Self::read(state_dir, site)
            }
            read => read,
        }
    }

    fn list_name(&self, kind: ListKind) -> String {
        let site = plain_name(&self.site);
        let id = &self.id;
        match kind {
            ListKind::Versions => format!("{site}.{id}"),
            ListKind::Volumes => format!("{site}.{id}.volumes"),
        }
    }

    /// Returns the name of the list that releases before the site ID wrote.
    fn former_list_name(&self, kind: ListKind) -> String {
        match kind {
            ListKind::Versions => plain_name(&self.site),
            ListKind::Volumes => plain_name(&format!("{} volumes", self.site)),
        }
    }

    fn owns(&self, list: &str) -> bool {
        list.split('.').nth(1) == Some(&self.id)
    }

    /// Replaces a list of this site. The list under a former name of the site is removed.
    ///
    /// # Errors
    /// A list cannot be written or removed.
    pub fn declare(
        &self,
        blobs_dir: &Path,
        kind: ListKind,
        needed: &BTreeSet<Digest>,
    ) -> Result<(), BuildError> {
        let folder = blobs_dir.join(IN_USE);
        let name = self.list_name(kind);
        let former = self.former_list_name(kind);
        let path = folder.join(&name);
        let lines: String = needed.iter().map(|digest| format!("{digest}\n")).collect();
        let text = format!(
            "# What {} runs or is kept at. Written by meshd; `image prune` and `bundle prune` keep it.\n{lines}",
            self.site.escape_debug()
        );
        let is_first = !path.exists();
        write_whole(&path, text.as_bytes(), 0o644).map_err(io_error("write", &path))?;
        let is_volumes = |list: &str| list.ends_with(".volumes");
        let is_former = |list: &str| {
            (self.owns(list) && is_volumes(list) == is_volumes(&name) && list != name)
                || (is_first && list == former)
        };
        for list in list_names(&folder).iter().filter(|list| is_former(list)) {
            let path = folder.join(list);
            fs::remove_file(&path).map_err(io_error("remove", &path))?;
        }
        Ok(())
    }

    /// Removes all lists of this site, which ends. Blocks.
    ///
    /// # Errors
    /// A list cannot be removed.
    pub fn withdraw(&self, blobs_dir: &Path) -> io::Result<()> {
        let folder = blobs_dir.join(IN_USE);
        let mut own = list_names(&folder).into_iter().filter(|list| self.owns(list));
        own.try_for_each(|list| match fs::remove_file(folder.join(list)) {
            // Another process withdraws them, too.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        })
    }

    /// Returns a list of another site that contains a digest.
    ///
    /// # Errors
    /// A list cannot be read: the digest may be in it.
    pub fn list_of_other(
        &self,
        blobs_dir: &Path,
        digest: &Digest,
    ) -> Result<Option<PathBuf>, InUseError> {
        let folder = blobs_dir.join(IN_USE);
        for list in list_names(&folder).iter().filter(|list| !self.owns(list)) {
            let path = folder.join(list);
            if read_list(&path)?.contains(digest) {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// Returns a list of another site with the name of this one. Blocks.
    pub fn list_of_namesake(&self, blobs_dir: &Path) -> Option<PathBuf> {
        let folder = blobs_dir.join(IN_USE);
        let name = plain_name(&self.site);
        let is_namesake = |list: &String| !self.owns(list) && list.split('.').next() == Some(&name);
        list_names(&folder).into_iter().find(is_namesake).map(|list| folder.join(list))
    }
}

/// Lists the folder without temporary files; empty if it does not exist.
fn list_names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.'))
        .collect()
}

/// Returns a site name as part of a file name. A site name may contain any character, a file name
/// may not. Different site names stay different.
fn plain_name(site: &str) -> String {
    let plain: String = site
        .chars()
        .take(64)
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' })
        .collect();
    if plain == site { plain } else { format!("{plain}-{}", Digest::of(site.as_bytes()).short()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_image::catalog::versions::in_use;

    fn owner(dir: &Path, site: &str, random: u8) -> ListOwner {
        ListOwner::read_or_create(&dir.join(format!("state-{random}")), site, [random; 8])
            .expect("made")
    }

    #[test]
    fn site_id_stays_and_a_damaged_one_is_an_error() {
        let dir = tempfile::tempdir().expect("a folder");
        let first = owner(dir.path(), "rack", 1);
        let again =
            ListOwner::read_or_create(&dir.path().join("state-1"), "rack", [2; 8]).expect("read");
        assert_eq!(
            (&first, first.list_name(ListKind::Versions).as_str()),
            (&again, "rack.0101010101010101")
        );
        for text in ["", "../../etc/passwd", "0101010101010101x", "01010101"] {
            fs::write(dir.path().join("state-1").join(ID_FILE), text).expect("written");
            let error = ListOwner::read_or_create(&dir.path().join("state-1"), "rack", [2; 8])
                .expect_err("damaged")
                .to_string();
            assert!(error.contains("site-id") || error.contains("more than"), "{error}");
        }
    }

    #[test]
    fn sites_of_one_name_keep_separate_lists_and_learn_of_each_other() {
        let dir = tempfile::tempdir().expect("a folder");
        let one = owner(dir.path(), "rack", 1);
        let two = owner(dir.path(), "rack", 2);
        let blobs = dir.path();
        let digest = Digest::of(b"x");
        one.declare(blobs, ListKind::Volumes, &[digest].into()).expect("declared");
        assert_eq!(one.list_of_namesake(blobs), None);
        two.declare(blobs, ListKind::Volumes, &BTreeSet::new()).expect("declared");
        assert!(two.list_of_other(blobs, &digest).expect("read").is_some());
        assert_eq!(one.list_of_other(blobs, &digest).expect("read"), None);
        assert!(one.list_of_namesake(blobs).is_some() && two.list_of_namesake(blobs).is_some());
        one.withdraw(blobs).expect("withdrawn");
        assert_eq!(
            (two.list_of_namesake(blobs), one.list_of_namesake(blobs).is_some()),
            (None, true)
        );
    }

    #[test]
    fn lists_of_former_names_and_releases_are_replaced() {
        let dir = tempfile::tempdir().expect("a folder");
        let blobs = dir.path();
        let digest = Digest::of(b"x");
        fs::create_dir(blobs.join(IN_USE)).expect("made");
        for former in ["rack", "rack_volumes-", "other"] {
            let former =
                if former.ends_with('-') { plain_name("rack volumes") } else { former.to_owned() };
            fs::write(blobs.join(IN_USE).join(former), format!("{digest}\n")).expect("written");
        }
        let needed = BTreeSet::from([Digest::of(b"y")]);
        let before = owner(blobs, "rack", 1);
        before.declare(blobs, ListKind::Versions, &needed).expect("declared");
        before.declare(blobs, ListKind::Volumes, &needed).expect("declared");
        let renamed = owner(blobs, "rack-2", 1);
        renamed.declare(blobs, ListKind::Versions, &needed).expect("declared");
        let mut lists = list_names(&blobs.join(IN_USE));
        lists.sort();
        assert_eq!(lists, ["other", "rack-2.0101010101010101", "rack.0101010101010101.volumes"]);
    }

    #[test]
    fn site_names_that_are_no_file_names_have_different_lists() {
        let dir = tempfile::tempdir().expect("a folder");
        let sites = ["a b", "a_b", "../a", "a/b", "ä", "a.b"];
        for (random, site) in (1..).zip(sites) {
            let needed = BTreeSet::from([Digest::of(site.as_bytes())]);
            owner(dir.path(), site, random)
                .declare(dir.path(), ListKind::Versions, &needed)
                .expect("declared");
        }
        assert_eq!(
            in_use(dir.path()).expect("read"),
            sites.map(|site| Digest::of(site.as_bytes())).into()
        );
    }
}
