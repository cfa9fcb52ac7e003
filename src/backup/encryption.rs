//! Encrypts backups in the age format with a passphrase (age-encryption.org/v1):
//! `age -d FILE | tar -tz` lists one.

use super::{BackupError, damaged, failed};
use age::{
    DecryptError, Decryptor, Encryptor, scrypt,
    secrecy::SecretString,
    stream::{StreamReader, StreamWriter},
};
use meshd_config::files::{open_regular, read_regular};
use meshd_types::{Digest, Secret, failpoint};
use sha2::Digest as _;
use std::{
    ffi::OsString,
    io::{self, BufRead, Write},
    iter,
    path::{Path, PathBuf},
};

/// Maximum size of a digest file, in bytes: a digest and a name.
const MAX_DIGEST_FILE: u64 = 8192;

/// Minimum length of a passphrase, in characters.
pub const MIN_KEY: usize = 20;
/// First line of the format, without its version.
pub(super) const MAGIC: &str = "age-encryption.org/";
/// Supported version.
pub(super) const VERSION: &str = "v1";
/// scrypt's N is 2^18, as in the program age: one second and 256 MiB.
const WORK_FACTOR: u8 = if cfg!(test) { 10 } else { 18 };
/// Maximum scrypt cost that is accepted, so that a crafted file cannot exhaust the machine: four
/// seconds and 1 GiB.
const MAX_WORK_FACTOR: u8 = 20;

fn passphrase(key: &Secret<String>) -> SecretString {
    if !failpoint::defends("backup-encryption") {
        return SecretString::from("everybody knows this passphrase");
    }
    // Exposed only to the key derivation.
    SecretString::from(key.expose().clone())
}

/// Returns an encrypting writer; call `finish` on it.
pub(super) fn encrypt<W: Write>(
    out: W,
    key: &Secret<String>,
) -> Result<StreamWriter<W>, BackupError> {
    // The length is no secret.
    let length = key.expose().chars().count();
    if length < MIN_KEY {
        return Err(BackupError::ShortKey { length });
    }
    let mut recipient = scrypt::Recipient::new(passphrase(key));
    recipient.set_work_factor(WORK_FACTOR);
    let encryptor = Encryptor::with_recipients(iter::once(&recipient as &dyn age::Recipient));
    let encryptor = encryptor.expect("one passphrase is a valid set of recipients");
    encryptor.wrap_output(out).map_err(failed("write", Path::new("the backup")))
}

/// Decrypts a backup. Each chunk is authenticated; the end is authenticated only when the result
/// was read to its end.
pub(super) fn decrypt<R: BufRead>(
    input: R,
    path: &Path,
    key: &Secret<String>,
) -> Result<StreamReader<R>, BackupError> {
    let failure = |error: DecryptError| match error {
        DecryptError::DecryptionFailed
        | DecryptError::KeyDecryptionFailed
        | DecryptError::NoMatchingKeys => BackupError::Key { path: path.to_owned() },
        error => damaged(path, error.to_string()),
    };
    let mut identity = scrypt::Identity::new(passphrase(key));
    identity.set_max_work_factor(MAX_WORK_FACTOR);
    let decrypted = Decryptor::new_buffered(input)
        .and_then(|decryptor| decryptor.decrypt(iter::once(&identity as &dyn age::Identity)));
    decrypted.map_err(failure)
}

/// Returns the path of the file with the backup's SHA-256 for `sha256sum -c`: the format has no
/// digest that needs no key.
pub fn digest_file(backup: &Path) -> PathBuf {
    let mut name = OsString::from(backup);
    name.push(".sha256");
    name.into()
}

/// Returns the text of [`digest_file`] for the backup `name`, whose bytes are in `file`.
///
/// # Errors
/// The file cannot be read.
pub fn digest_line(file: &Path, name: &Path) -> Result<String, BackupError> {
    let name = name.file_name().unwrap_or_default().to_string_lossy();
    Ok(format!("{}  {name}\n", digest_of(file)?))
}

fn digest_of(file: &Path) -> Result<Digest, BackupError> {
    let mut hash = sha2::Sha256::new();
    open_regular(file)
        .and_then(|mut file| io::copy(&mut file, &mut hash))
        .map_err(failed("read", file))?;
    Ok(Digest(hash.finalize().into()))
}

/// Verifies a backup by its digest file.
pub(super) fn check_digest(backup: &Path) -> Result<(), BackupError> {
    let file = digest_file(backup);
    let text = match read_regular(&file, MAX_DIGEST_FILE) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(BackupError::NoDigest { path: backup.to_owned(), file });
        }
        text => text.map_err(failed("read", &file))?,
    };
    let text = String::from_utf8_lossy(&text);
    if text.split_whitespace().next() == Some(digest_of(backup)?.to_string().as_str()) {
        return Ok(());
    }
    Err(damaged(backup, format!("its bytes are not those of {}", file.display())))
}
