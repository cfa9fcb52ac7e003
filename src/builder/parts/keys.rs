//! The site's signing key for package repositories.

use crate::{
    command::ToolCommand,
    error::{BuildError, failed, io_error},
    versions::store::write_whole,
};
use std::{
    fs,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// Name of the public key on nodes, in /etc/apk/keys.
pub(crate) const PUBLIC_NAME: &str = "meshd-repo.rsa.pub";

/// Paths of the key pair.
pub(crate) struct RepoKey {
    /// Private key; mode 0600.
    pub(crate) private: PathBuf,
    /// Public key, which every initramfs contains.
    pub(crate) public: PathBuf,
}

/// Returns the site's key; creates it if absent.
pub(crate) fn repo_key(keys_dir: &Path, scratch: &Path) -> Result<RepoKey, BuildError> {
    let key = RepoKey { private: keys_dir.join("repo.rsa"), public: keys_dir.join("repo.rsa.pub") };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(keys_dir)
        .map_err(io_error("make the folder", keys_dir))?;
    if !key.private.exists() {
        let made = ToolCommand::new("openssl")
            .args(["genpkey", "-quiet", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:3072"])
            .output();
        let pem = made.map_err(failed("make the repository key"))?;
        write_whole(&key.private, pem.as_bytes(), 0o600)
            .map_err(io_error("write", &key.private))?;
    }
    // Restore the mode, because copied or restored files may have lost it.
    fs::set_permissions(&key.private, fs::Permissions::from_mode(0o600))
        .map_err(io_error("protect", &key.private))?;
    let public = scratch.join(PUBLIC_NAME);
    ToolCommand::new("openssl")
        .args(["pkey", "-pubout", "-in"])
        .arg(&key.private)
        .arg("-out")
        .arg(&public)
        .run()
        .map_err(failed("read the repository key"))?;
    let pem = fs::read(&public).map_err(io_error("read", &public))?;
    write_whole(&key.public, &pem, 0o644).map_err(io_error("write", &key.public))?;
    Ok(key)
}
