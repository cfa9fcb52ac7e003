//! The folder of the certificate authority, and the rotation of its root.
//!
//! ```text
//! ca/authority.json             active root, retiring roots with their end of trust, former roots; replaced whole
//! ca/ca.pem                     all trusted roots, for people
//! ca/<root>/root.key root.pem   signs only issuers; the key may be offline between two rotations
//! ca/<root>/issuer.key issuer.pem   signs nodes and the server of the agent API
//! ca/<root>/cross-<old>.pem     the issuer, signed by an older root, for nodes that trust only that root
//! ```
//! `<root>` is the beginning of the digest of the root's public key. Folders that [`MANIFEST`] does
//! not name are ignored.

use super::{
    super::{TrustError, files},
    GRACE, MAX_GRACE, MAX_ROOTS,
    certificates::{self, Root},
};
use meshd_types::Timestamp;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

/// Manifest of the folder.
pub const MANIFEST: &str = "authority.json";
/// All trusted roots.
pub const BUNDLE: &str = "ca.pem";
/// Version of [`MANIFEST`].
const VERSION: u32 = 2;
/// Maximum number of former roots.
const MAX_FORMER: usize = 16;

/// [`MANIFEST`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    version: u32,
    /// The root that certificates are issued under.
    pub active: String,
    /// Roots that are still trusted.
    #[serde(default)]
    pub retiring: Vec<Retiring>,
    /// Former roots: their certificates are refused with a specific cause.
    #[serde(default)]
    pub former: Vec<String>,
}

impl Manifest {
    /// Returns the newest roots that are still trusted beside the active one.
    pub fn trusted(&self, now: Timestamp) -> impl Iterator<Item = &Retiring> {
        let is_trusted = |old: &&Retiring| old.until > now;
        let trusted: Vec<_> =
            self.retiring.iter().rev().filter(is_trusted).take(MAX_ROOTS - 1).collect();
        trusted.into_iter().rev()
    }

    /// Gives roots whose end is later than any grace time the default one: a clock in the future
    /// has dated them. Returns true for a change.
    pub fn bound_times(&mut self, now: Timestamp) -> bool {
        let latest = now.after(MAX_GRACE * 2);
        let late = self.retiring.iter_mut().filter(|old| old.until > latest);
        late.map(|old| old.until = now.after(GRACE)).count() > 0
    }

    /// Returns replaced roots that are not trusted.
    pub fn untrusted(&self, now: Timestamp) -> impl Iterator<Item = &String> {
        let trusted: Vec<&String> = self.trusted(now).map(|old| &old.root).collect();
        let over =
            self.retiring.iter().map(|old| &old.root).filter(move |root| !trusted.contains(root));
        over.chain(&self.former)
    }
}

/// A replaced root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retiring {
    pub root: String,
    /// End of trust.
    pub until: Timestamp,
}

/// The folder of an authority.
pub struct Folder<'a>(pub &'a Path);

impl Folder<'_> {
    /// Reads the manifest; `None` if there is none.
    pub fn manifest(&self) -> Result<Option<Manifest>, TrustError> {
        let path = self.0.join(MANIFEST);
        let Some(text) = files::read(&path)? else { return Ok(None) };
        let manifest: Manifest = serde_json::from_str(&text)
            .map_err(|_| TrustError::damaged(&path, "it is not the list that meshd writes"))?;
        if manifest.version != VERSION {
            let found = manifest.version;
            return Err(TrustError::damaged(
                &path,
                &format!("it has version {found}, this meshd reads version {VERSION}"),
            ));
        }
        Ok(Some(manifest))
    }

    /// Creates the first root at the first start.
    pub fn create_first(&self, site_name: &str, now: Timestamp) -> Result<Manifest, TrustError> {
        let root = self.make(site_name, now, &[])?;
        let manifest =
            Manifest { version: VERSION, active: root, retiring: Vec::new(), former: Vec::new() };
        self.write(&manifest, now)?;
        Ok(manifest)
    }

    /// Adds a new root. Present roots are trusted for a grace time; if it is zero, not at all.
    pub fn rotate(
        &self,
        before: &Manifest,
        site_name: &str,
        grace: Duration,
        now: Timestamp,
    ) -> Result<Manifest, TrustError> {
        let mut retiring: Vec<_> = before.trusted(now).cloned().collect();
        if !grace.is_zero() && retiring.len() + 2 > MAX_ROOTS {
            let until = retiring.iter().map(|old| old.until).min().unwrap_or(now);
            return Err(TrustError::TooManyRoots { until });
        }
        retiring.push(Retiring { root: before.active.clone(), until: now.after(grace) });
        // Zero grace also ends the trust in earlier roots.
        retiring.retain(|_| !grace.is_zero());
        let older: Vec<Root> =
            retiring.iter().map(|old| self.root(&old.root)).collect::<Result<_, _>>()?;
        let active = self.make(site_name, now, &older)?;
        let all = before.retiring.iter().map(|old| &old.root).chain([&before.active]);
        let over = all.filter(|root| !retiring.iter().any(|old| old.root == **root));
        let mut former: Vec<_> = before.former.iter().chain(over).cloned().collect();
        former.drain(..former.len().saturating_sub(MAX_FORMER));
        let manifest = Manifest { version: VERSION, active, retiring, former };
        self.write(&manifest, now)?;
        self.forget_keys(&manifest)?;
        Ok(manifest)
    }

    /// Returns the root that signs issuers, with its key.
    fn root(&self, root: &str) -> Result<Root, TrustError> {
        let key_path = self.root_key(root);
        let path = self.root_pem(root);
        let key = files::read_private(&key_path)?
            .ok_or_else(|| TrustError::NoRootKey { path: key_path.clone() })?;
        Root::read(&self.must_read(&path)?, &key)
            .map_err(|invalid| invalid.in_files(&key_path, &path))
    }

    /// Creates a root and its issuer, also under older roots. The manifest activates it.
    fn make(&self, site_name: &str, now: Timestamp, older: &[Root]) -> Result<String, TrustError> {
        let made = certificates::authority(site_name, now, older)?;
        let id = made.id;
        files::make_folder(&self.0.join(&id))?;
        files::write(&self.root_key(&id), &made.root_key, 0o600)?;
        files::write(&self.root_pem(&id), &made.root_pem, 0o644)?;
        files::write(&self.issuer_key(&id), &made.issuer_key, 0o600)?;
        files::write(&self.issuer_pem(&id), &made.issuer_pem, 0o644)?;
        for (old, pem) in &made.crosses {
            files::write(&self.cross_pem(&id, old), pem, 0o644)?;
        }
        Ok(id)
    }

    pub fn write(&self, manifest: &Manifest, now: Timestamp) -> Result<(), TrustError> {
        let text = serde_json::to_string_pretty(manifest).unwrap_or_default();
        files::write(&self.0.join(MANIFEST), &(text + "\n"), 0o600)?;
        self.write_bundle(&self.bundle(manifest, now)?)
    }

    /// Writes [`BUNDLE`] if it differs.
    pub fn write_bundle(&self, roots_pem: &str) -> Result<(), TrustError> {
        let path = self.0.join(BUNDLE);
        if files::read(&path)?.as_deref() == Some(roots_pem) {
            Ok(())
        } else {
            files::write(&path, roots_pem, 0o644)
        }
    }

    /// Returns every trusted root, the active one first.
    pub fn bundle(&self, manifest: &Manifest, now: Timestamp) -> Result<String, TrustError> {
        let retiring = manifest.trusted(now).map(|old| &old.root);
        let roots = [&manifest.active].into_iter().chain(retiring);
        roots.map(|root| self.must_read(&self.root_pem(root))).collect()
    }

    /// Reads a file that the manifest refers to.
    pub fn must_read(&self, path: &Path) -> Result<String, TrustError> {
        files::read(path)?.ok_or_else(|| TrustError::damaged(path, "it is missing"))
    }

    /// Deletes keys of roots that are not trusted any more, and those of an interrupted rotation.
    fn forget_keys(&self, manifest: &Manifest) -> Result<(), TrustError> {
        let is_trusted = |name: &str| {
            manifest.active == name
                || manifest.retiring.iter().any(|retiring| retiring.root == name)
        };
        let entries = fs::read_dir(self.0).map_err(files::fault("read", self.0))?;
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let over = names.filter(|name| is_id(name) && !is_trusted(name));
        let keys = over.flat_map(|name| [self.root_key(&name), self.issuer_key(&name)]);
        for key in keys {
            match fs::remove_file(&key) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(files::fault("remove", &key)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub fn root_key(&self, root: &str) -> PathBuf {
        self.0.join(root).join("root.key")
    }

    pub fn root_pem(&self, root: &str) -> PathBuf {
        self.0.join(root).join("root.pem")
    }

    pub fn issuer_key(&self, root: &str) -> PathBuf {
        self.0.join(root).join("issuer.key")
    }

    pub fn issuer_pem(&self, root: &str) -> PathBuf {
        self.0.join(root).join("issuer.pem")
    }

    pub fn cross_pem(&self, root: &str, old: &str) -> PathBuf {
        self.0.join(root).join(format!("cross-{old}.pem"))
    }
}

fn is_id(name: &str) -> bool {
    name.len() == certificates::ID_LEN && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}
