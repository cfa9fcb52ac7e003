//! `meshd backup create|verify|restore`: encrypted backups of the site.

use crate::cli::{
    Context, Failure,
    node::targets::count_text,
    output::{
        file,
        print::{bytes, now, write},
    },
    path_text, wait,
};
use clap::{Args, Subcommand};
use meshd_api::{MakeBackup, routes as api};
use meshd_backup::{BackupError, MIN_KEY, Manifest};
use meshd_config::files::read_argument;
use meshd_types::Secret;
use std::{
    fs,
    io::{self, BufWriter, Write as _},
    path::{Path, PathBuf},
};

/// Maximum length of a key, in bytes.
const MAX_KEY: u64 = 4096;

#[derive(Debug, Subcommand)]
pub(crate) enum Backup {
    /// Back up the running central node into one encrypted file
    Create(Create),
    /// Verify a backup; with the key, also its contents
    Verify(Verify),
    /// Restore a backup into a new folder, offline
    Restore(Restore),
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// File to write; existing files are refused
    file: PathBuf,
    #[command(flatten)]
    key: Key,
    /// Include the blobs of images and bundles
    #[arg(long)]
    blobs: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// Backup file
    file: PathBuf,
    /// File with the key of the backup
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// Backup file
    file: PathBuf,
    /// New or empty folder
    #[arg(long, value_name = "DIR")]
    into: PathBuf,
    #[command(flatten)]
    key: Key,
}

#[derive(Debug, Args)]
struct Key {
    /// File with the key, 20 characters or more
    ///
    /// Keep the key apart from the backup and from the central node: it is necessary to read the
    /// backup.
    #[arg(long, value_name = "FILE")]
    key_file: PathBuf,
}

impl Backup {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        match self {
            Backup::Create(create) => create.run(context),
            Backup::Verify(verify) => verify.run(),
            Backup::Restore(restore) => restore.run(),
        }
    }
}

fn read_key(path: &Path) -> Result<Secret<String>, Failure> {
    let failed = |why: String| {
        Failure::new(format!("cannot read the key {}: {why}", path_text(path)), "check --key-file")
    };
    let bytes = read_argument(path, MAX_KEY).map_err(|error| failed(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| failed("it is not UTF-8".to_owned()))?;
    let key = text.trim().to_owned();
    let length = key.chars().count();
    if length < MIN_KEY {
        return Err(Failure::of(&BackupError::ShortKey { length }));
    }
    Ok(Secret::new(key))
}

impl Create {
    fn run(self, context: &Context) -> Result<(), Failure> {
        let key = read_key(&self.key.key_file)?;
        if self.file.exists() {
            return Err(Failure::new(
                format!("{} exists", path_text(&self.file)),
                "name a new file",
            ));
        }
        let fresh = file::with_suffix(&self.file, ".part");
        let made = self.write(context, &fresh, &key).and_then(|()| {
            let verified =
                meshd_backup::verify(&fresh, Some(&key)).map_err(|error| Failure::of(&error))?;
            let digest = meshd_backup::digest_line(&fresh, &self.file)
                .map_err(|error| Failure::of(&error))?;
            file::replace(&meshd_backup::digest_file(&self.file), 0o644)
                .and_then(|mut out| out.write_all(digest.as_bytes()))
                .and_then(|()| fs::rename(&fresh, &self.file))
                .map_err(|error| cannot_write(&self.file, &error))?;
            Ok(verified)
        });
        if made.is_err() {
            let _ = fs::remove_file(&fresh);
        }
        let Some(manifest) = made? else { return Ok(()) };
        for file in &manifest.left_out {
            message!("warning: not in the backup: {file}");
        }
        if !manifest.blobs {
            message!(
                "the backup has no image blobs: keep a copy of sha256/ of blobs_dir, or use --blobs"
            );
        }
        write(&format!("{}: {}\n", path_text(&self.file), manifest_text(&manifest)))
    }

    fn write(&self, context: &Context, fresh: &Path, key: &Secret<String>) -> Result<(), Failure> {
        let failed = |error| cannot_write(&self.file, &error);
        let mut out = BufWriter::new(file::replace(fresh, 0o600).map_err(failed)?);
        let body = MakeBackup { key: key.clone(), blobs: self.blobs };
        wait(context.client()?.download(api::CREATE_BACKUP.path([]), &body, |bytes| {
            out.write_all(bytes).map_err(failed)
        }))?;
        out.flush().and_then(|()| out.get_ref().sync_all()).map_err(failed)
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::new(
        format!("cannot write {}: {error}", path_text(path)),
        "check the folder and the disk",
    )
}

impl Verify {
    fn run(self) -> Result<(), Failure> {
        let key = self.key_file.as_deref().map(read_key).transpose()?;
        let verified =
            meshd_backup::verify(&self.file, key.as_ref()).map_err(|error| Failure::of(&error))?;
        let file = path_text(&self.file);
        match verified {
            Some(manifest) => write(&format!("{file}: {}\n", manifest_text(&manifest))),
            None => {
                message!("the content is not verified: add --key-file");
                write(&format!("{file}: the SHA-256 is correct\n"))
            }
        }
    }
}

impl Restore {
    fn run(self) -> Result<(), Failure> {
        let key = read_key(&self.key.key_file)?;
        let restored = wait(async {
            let restored = meshd_backup::restore(&self.file, &key, &self.into, now()).await;
            restored.map_err(|error| Failure::of(&error))
        })?;
        let site = path_text(&restored.site_file);
        if !restored.manifest.blobs {
            let blobs = path_text(&self.into.join("blobs/sha256"));
            message!("the backup has no image blobs: copy sha256/ of the old blobs_dir to {blobs}");
        }
        message!("stop the old central node permanently, then: meshd serve --site {site}");
        let nodes = count_text(restored.nodes);
        write(&format!("{site}: {nodes}, {}\n", manifest_text(&restored.manifest)))
    }
}

fn manifest_text(manifest: &Manifest) -> String {
    let count = manifest.members.len();
    let size = bytes(manifest.size());
    format!(
        "site {}, made {}, {count} files of {size}, every digest is correct",
        manifest.site, manifest.created_at
    )
}
