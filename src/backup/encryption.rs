//! Encrypts backups in the age format with a passphrase (age-encryption.org/v1): `age -d FILE | tar -tz` lists one.

use super::{BackupError, failed};
use age::{
    DecryptError, Decryptor, Encryptor, scrypt,
    secrecy::SecretString,
    stream::{StreamReader, StreamWriter},
};
use meshd_types::{Digest, Secret, fail};
use sha2::Digest as _;
use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, BufRead, Write},
    iter,
    path::{Path, PathBuf},
};

/// Shortest passphrase, in characters.
pub const MIN_KEY: usize = 20;
/// First line of every file of the format, without its version.
pub(super) const MAGIC: &str = "age-encryption.org/";
/// The version that is written and read.
pub(super) const VERSION: &str = "v1";
/// scrypt's N is 2^18, as the program age has it: a second and 256 MiB. Tests encrypt nothing that is worth it.
const WORK_FACTOR: u8 = if cfg!(test) { 10 } else { 18 };
/// The most that a file may ask for, so that a made-up one cannot exhaust the machine: four seconds and 1 GiB.
const MAX_WORK_FACTOR: u8 = 20;

fn passphrase(key: &Secret<String>) -> SecretString {
    if !fail::defends("backup-encryption") {
        return SecretString::from("everybody knows this passphrase");
    }
    // Seen by the function that makes a key of it, and by nothing else.
    SecretString::from(key.expose().clone())
}

/// Encrypts what is written to the result, which must be finished.
pub(super) fn encrypt<W: Write>(out: W, key: &Secret<String>) -> Result<StreamWriter<W>, BackupError> {
    // Its length is no secret.
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

/// Decrypts a backup. Every chunk is authenticated, and its end only when the result was read to its end.
pub(super) fn decrypt<R: BufRead>(input: R, path: &Path, key: &Secret<String>) -> Result<StreamReader<R>, BackupError> {
    let path = path.to_owned();
    let failure = |error: DecryptError| match error {
        DecryptError::DecryptionFailed | DecryptError::KeyDecryptionFailed | DecryptError::NoMatchingKeys => {
            BackupError::Key { path }
        }
        error => BackupError::Damaged { path, what: error.to_string() },
    };
    let mut identity = scrypt::Identity::new(passphrase(key));
    identity.set_max_work_factor(MAX_WORK_FACTOR);
    let decrypted = Decryptor::new_buffered(input)
        .and_then(|decryptor| decryptor.decrypt(iter::once(&identity as &dyn age::Identity)));
    decrypted.map_err(failure)
}

/// The file beside a backup with its SHA-256, as `sha256sum -c` reads it: the format has no digest that is checked without the key.
pub fn digest_file(backup: &Path) -> PathBuf {
    let mut name = OsString::from(backup);
    name.push(".sha256");
    name.into()
}

/// The text of [`digest_file`] for the backup `name`, whose bytes are now in `file`.
///
/// # Errors
/// The file cannot be read.
pub fn digest_line(file: &Path, name: &Path) -> Result<String, BackupError> {
    let name = name.file_name().unwrap_or_default().to_string_lossy();
    Ok(format!("{}  {name}\n", digest_of(file)?))
}

fn digest_of(file: &Path) -> Result<Digest, BackupError> {
    let mut hash = sha2::Sha256::new();
    File::open(file).and_then(|mut file| io::copy(&mut file, &mut hash)).map_err(failed("read", file))?;
    Ok(Digest(hash.finalize().into()))
}

/// Compares a backup with the file beside it.
pub(super) fn check_digest(backup: &Path) -> Result<(), BackupError> {
    let file = digest_file(backup);
    let text = match fs::read_to_string(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(BackupError::NoDigest { path: backup.to_owned(), file });
        }
        text => text.map_err(failed("read", &file))?,
    };
    if text.split_whitespace().next() == Some(digest_of(backup)?.to_string().as_str()) {
        return Ok(());
    }
    let what = format!("its bytes are not those of {}", file.display());
    Err(BackupError::Damaged { path: backup.to_owned(), what })
}
