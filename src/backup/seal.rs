//! Encrypts a stream in chunks with a key derived from a passphrase by Argon2id.
//!
//! The nonce of a chunk is its number with a flag for the last one, so chunks cannot be removed, moved or truncated. The salt makes each key
//! unique to one file.

use super::{BackupError, FORMAT, failed};
use meshd_types::{Digest, Secret, Timestamp, fail, hex, unhex};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    path::Path,
};

/// Shortest passphrase, in characters.
pub const MIN_KEY: usize = 20;
const MAGIC: &str = "meshd-backup ";
/// Plain bytes of a chunk.
const CHUNK: usize = 64 << 10;
const TAG: usize = 16;
/// What stands in place of a length after the last chunk.
const END: u32 = 0;
/// Longest line of the head, in bytes.
const MAX_LINE: u64 = 4096;
/// Argon2id as RFC 9106 recommends it where memory is scarce: 64 MiB, three passes, four lanes.
const KDF: Kdf = Kdf { memory_kib: 64 << 10, passes: 3, lanes: 4, salt: String::new() };
/// The most that a file may ask for, so that a made-up one cannot exhaust the machine.
const MAX_KDF: (u32, u32, u32) = (1 << 20, 16, 16);

/// What may be known of a backup without its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The site's name.
    pub site: String,
    /// When it was made.
    pub made_at: Timestamp,
    /// The meshd that made it.
    pub meshd: String,
    /// How the key is made of the passphrase.
    kdf: Kdf,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kdf {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
    salt: String,
}

impl Head {
    pub(super) fn new(site: &str, made_at: Timestamp, salt: [u8; 32]) -> Self {
        let meshd = env!("CARGO_PKG_VERSION").to_owned();
        Head { site: site.to_owned(), made_at, meshd, kdf: Kdf { salt: hex(&salt), ..KDF } }
    }

    fn lines(&self) -> Vec<u8> {
        let head = serde_json::to_string(self).expect("plain data");
        format!("{MAGIC}{FORMAT}\n{head}\n").into_bytes()
    }

    /// `None`: what the file asks for makes no sense.
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
        // Seen by the function that makes a key of it, and by nothing else.
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

/// Seals what is written to it.
pub(super) struct Sealer<W: Write> {
    out: W,
    key: LessSafeKey,
    /// What each chunk is bound to.
    head: [u8; 32],
    hash: sha2::Sha256,
    number: u64,
    chunk: Vec<u8>,
}

impl<W: Write> Sealer<W> {
    pub(super) fn new(out: W, head: &Head, passphrase: &Secret<String>) -> Result<Self, BackupError> {
        // Its length is no secret.
        let length = passphrase.expose().chars().count();
        if length < MIN_KEY {
            return Err(BackupError::ShortKey { length });
        }
        let key = head.key(passphrase).expect("the bounds of this very file");
        let lines = head.lines();
        let head = Digest::of(&lines).0;
        let mut sealer = Sealer { out, key, head, hash: sha2::Sha256::new(), number: 0, chunk: Vec::new() };
        sealer.put(&lines).map_err(failed("write", Path::new("the backup")))?;
        Ok(sealer)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.out.write_all(bytes)
    }

    fn seal(&mut self, is_last: bool) -> io::Result<()> {
        let mut chunk = std::mem::take(&mut self.chunk);
        if !fail::defends("backup-encryption") {
            chunk.extend([u8::from(is_last); TAG]);
            return self.put_chunk(&chunk);
        }
        let sealed = self.key.seal_in_place_append_tag(nonce(self.number, is_last), Aad::from(self.head), &mut chunk);
        sealed.map_err(|_| io::Error::other("a chunk cannot be sealed"))?;
        self.put_chunk(&chunk)
    }

    fn put_chunk(&mut self, chunk: &[u8]) -> io::Result<()> {
        self.number += 1;
        let length = u32::try_from(chunk.len()).expect("a chunk is small");
        self.put(&length.to_le_bytes())?;
        self.put(chunk)
    }

    /// Ends the stream.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.seal(true)?;
        self.put(&END.to_le_bytes())?;
        let digest = self.hash.finalize();
        self.out.write_all(&digest)?;
        self.out.flush()
    }
}

impl<W: Write> Write for Sealer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.chunk.len() == CHUNK {
            self.seal(false)?;
        }
        let count = bytes.len().min(CHUNK - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Opens what was sealed.
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
        let damaged = || BackupError::Damaged { path: path.to_owned(), what: "its head makes no sense".to_owned() };
        let key = head.key(passphrase).ok_or_else(damaged)?;
        let head = Digest::of(&lines).0;
        let mut opener = Opener { input, key, head, number: 0, chunk: Vec::new(), at: 0, is_over: false };
        // The first chunk tells whether the key is right.
        opener.next().map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => BackupError::Key { path: path.to_owned() },
            _ => BackupError::Damaged { path: path.to_owned(), what: error.to_string() },
        })?;
        Ok(opener)
    }
}

impl<R: Read> Opener<R> {
    fn next(&mut self) -> io::Result<()> {
        let Some(mut chunk) = read_chunk(&mut self.input)? else {
            return Err(io::Error::other("it ends before its last chunk"));
        };
        if !fail::defends("backup-encryption") {
            self.is_over = chunk.last() == Some(&1);
            chunk.truncate(chunk.len().saturating_sub(TAG));
            (self.chunk, self.at) = (chunk, 0);
            return Ok(());
        }
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

/// `None` at the end.
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

/// The head, and the bytes that it stands in.
fn read_head(input: &mut impl BufRead, path: &Path) -> Result<(Head, Vec<u8>), BackupError> {
    let mut lines = Vec::new();
    let mut line = |lines: &mut Vec<u8>| {
        let begin = lines.len();
        input.take(MAX_LINE).read_until(b'\n', lines).map_err(failed("read", path))?;
        Ok::<_, BackupError>(String::from_utf8_lossy(&lines[begin..]).trim_end().to_owned())
    };
    let first = line(&mut lines)?;
    let found = first.strip_prefix(MAGIC).ok_or_else(|| BackupError::NoBackup { path: path.to_owned() })?;
    if found != FORMAT.to_string() {
        return Err(BackupError::Format { path: path.to_owned(), found: found.chars().take(20).collect() });
    }
    let second = line(&mut lines)?;
    let damaged = |_| BackupError::Damaged { path: path.to_owned(), what: "its head makes no sense".to_owned() };
    Ok((serde_json::from_str(&second).map_err(damaged)?, lines))
}

/// Reads all of a file and compares it with the digest at its end. Needs no key.
pub(super) fn check(path: &Path) -> Result<Head, BackupError> {
    let damaged = |what: &str| BackupError::Damaged { path: path.to_owned(), what: what.to_owned() };
    let mut input = BufReader::new(File::open(path).map_err(failed("read", path))?);
    let (head, lines) = read_head(&mut input, path)?;
    let mut hash = sha2::Sha256::new();
    hash.update(&lines);
    let cut = |_| damaged("it is cut short");
    while let Some(chunk) = read_chunk(&mut input).map_err(cut)? {
        hash.update(u32::try_from(chunk.len()).expect("a chunk is small").to_le_bytes());
        hash.update(&chunk);
    }
    hash.update(END.to_le_bytes());
    let mut digest = [0; 32];
    input.read_exact(&mut digest).map_err(cut)?;
    if hash.finalize()[..] != digest {
        return Err(damaged("its bytes are not those that were written"));
    }
    if !input.fill_buf().map_err(failed("read", path))?.is_empty() {
        return Err(damaged("something follows its end"));
    }
    Ok(head)
}

/// Everything that was sealed, as it was before: what must not be found in the file.
#[cfg(test)]
pub(super) fn plain(path: &Path, passphrase: &Secret<String>) -> Vec<u8> {
    let file = BufReader::new(File::open(path).expect("a backup"));
    let mut plain = Vec::new();
    Opener::open(file, path, passphrase).expect("the key").read_to_end(&mut plain).expect("whole");
    plain
}
