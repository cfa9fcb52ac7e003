//! Reads backups of format 1, which meshd wrote until November 2026: chunks of ChaCha20-Poly1305 under a key of Argon2id.
//!
//! ```text
//! meshd-backup 1\n                      format
//! {"site":...,"made_at":...,"kdf":...}\n  unencrypted metadata
//! chunks                                each authenticated with its number and the two lines above
//! end, SHA-256 of everything above      detects damage without the key
//! ```
//! The nonce of a chunk contains its number and the last-chunk flag, so chunks cannot be omitted, reordered or truncated.

use super::{BackupError, damaged, failed};
use meshd_types::{Digest, Secret, Timestamp, unhex};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use serde::Deserialize;
use sha2::Digest as _;
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

/// First line of the format.
pub(super) const MAGIC: &str = "meshd-backup ";
const FORMAT: &str = "1";
/// Plain size of a chunk in bytes.
const CHUNK: usize = 64 << 10;
const TAG: usize = 16;
/// Length value of the end marker.
const END: u32 = 0;
/// Maximum length of a head line, in bytes.
const MAX_LINE: u64 = 4096;
/// Maximum Argon2 parameters that are accepted, so that a crafted file cannot exhaust the machine.
const MAX_KDF: (u32, u32, u32) = (1 << 20, 16, 16);
const INVALID_HEAD: &str = "its head makes no sense";

/// Unencrypted metadata.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Head {
    pub site: String,
    pub made_at: Timestamp,
    /// Version of the meshd that created the backup.
    pub meshd: String,
    /// Parameters of the key derivation.
    kdf: Kdf,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Kdf {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
    salt: String,
}

impl Head {
    /// Returns `None` if the parameters are invalid.
    fn key(&self, passphrase: &Secret<String>) -> Option<LessSafeKey> {
        let Kdf { memory_kib, passes, lanes, ref salt } = self.kdf;
        let (most_memory, most_passes, most_lanes) = MAX_KDF;
        if memory_kib > most_memory || passes > most_passes || lanes > most_lanes {
            return None;
        }
        let salt: [u8; 32] = unhex(salt)?;
        let params = argon2::Params::new(memory_kib, passes, lanes, None).ok()?;
        let argon = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
        let mut key = [0; 32];
        // Exposed only to the key derivation.
        argon.hash_password_into(passphrase.expose().as_bytes(), &salt, &mut key).ok()?;
        UnboundKey::new(&CHACHA20_POLY1305, &key).ok().map(LessSafeKey::new)
    }
}

fn nonce(number: u64, is_last: bool) -> Nonce {
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&number.to_le_bytes());
    nonce[8] = u8::from(is_last);
    Nonce::assume_unique_for_key(nonce)
}

/// Decrypts the chunks.
pub(super) struct Opener<R: Read> {
    input: R,
    key: LessSafeKey,
    head: [u8; 32],
    number: u64,
    chunk: Vec<u8>,
    at: usize,
    is_over: bool,
}

impl<R: BufRead> Opener<R> {
    pub(super) fn open(mut input: R, path: &Path, passphrase: &Secret<String>) -> Result<Self, BackupError> {
        let (head, lines) = read_head(&mut input, path)?;
        let key = head.key(passphrase).ok_or_else(|| damaged(path, INVALID_HEAD))?;
        let head = Digest::of(&lines).0;
        let mut opener = Opener { input, key, head, number: 0, chunk: Vec::new(), at: 0, is_over: false };
        // Decrypting the first chunk verifies the key.
        opener.next().map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => BackupError::Key { path: path.to_owned() },
            _ => damaged(path, error.to_string()),
        })?;
        Ok(opener)
    }
}

impl<R: Read> Opener<R> {
    fn next(&mut self) -> io::Result<()> {
        let Some(mut chunk) = read_chunk(&mut self.input)? else {
            return Err(io::Error::other("it ends before its last chunk"));
        };
        let plain = [false, true].into_iter().find_map(|is_last| {
            let mut copy = chunk.clone();
            let opened = self.key.open_in_place(nonce(self.number, is_last), Aad::from(self.head), &mut copy);
            let length = opened.ok()?.len();
            copy.truncate(length);
            chunk = copy;
            Some(is_last)
        });
        let closed = || io::Error::new(io::ErrorKind::InvalidData, "a chunk is not what was sealed");
        self.is_over = plain.ok_or_else(closed)?;
        self.number += 1;
        (self.chunk, self.at) = (chunk, 0);
        Ok(())
    }
}

impl<R: Read> Read for Opener<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.chunk.len() && !self.is_over {
            self.next()?;
        }
        let count = buffer.len().min(self.chunk.len() - self.at);
        buffer[..count].copy_from_slice(&self.chunk[self.at..][..count]);
        self.at += count;
        Ok(count)
    }
}

/// Returns `None` at the end.
fn read_chunk(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length == END as usize {
        return Ok(None);
    }
    if length > CHUNK + TAG {
        return Err(io::Error::other("a chunk is too long"));
    }
    let mut chunk = vec![0; length];
    input.read_exact(&mut chunk)?;
    Ok(Some(chunk))
}

/// Returns the head and its bytes.
fn read_head(input: &mut impl BufRead, path: &Path) -> Result<(Head, Vec<u8>), BackupError> {
    let mut lines = Vec::new();
    let mut line = |lines: &mut Vec<u8>| {
        let begin = lines.len();
        input.take(MAX_LINE).read_until(b'\n', lines).map_err(failed("read", path))?;
        Ok::<_, BackupError>(String::from_utf8_lossy(&lines[begin..]).trim_end().to_owned())
    };
    let first = line(&mut lines)?;
    let found = first.strip_prefix(MAGIC).ok_or_else(|| BackupError::NoBackup { path: path.to_owned() })?;
    if found != FORMAT {
        return Err(BackupError::Format { path: path.to_owned(), found: found.chars().take(20).collect() });
    }
    let second = line(&mut lines)?;
    Ok((serde_json::from_str(&second).map_err(|_| damaged(path, INVALID_HEAD))?, lines))
}

/// Verifies the digest at the end of a file. Needs no key.
pub(super) fn check(path: &Path) -> Result<Head, BackupError> {
    let mut input = BufReader::new(File::open(path).map_err(failed("read", path))?);
    let (head, lines) = read_head(&mut input, path)?;
    let mut hash = sha2::Sha256::new();
    hash.update(&lines);
    let cut = |_| damaged(path, "it is cut short");
    while let Some(chunk) = read_chunk(&mut input).map_err(cut)? {
        hash.update(u32::try_from(chunk.len()).expect("a chunk is small").to_le_bytes());
        hash.update(&chunk);
    }
    hash.update(END.to_le_bytes());
    let mut digest = [0; 32];
    input.read_exact(&mut digest).map_err(cut)?;
    if hash.finalize()[..] != digest {
        return Err(damaged(path, "its bytes are not those that were written"));
    }
    if !input.fill_buf().map_err(failed("read", path))?.is_empty() {
        return Err(damaged(path, "something follows its end"));
    }
    Ok(head)
}
