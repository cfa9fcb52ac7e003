//! Fetches files with curl, in parallel, with limits on size and time.

use crate::{
    command::{CommandError, ToolCommand},
    error::{BuildError, io_error},
};
use meshd_types::failpoint;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A file to download.
pub(super) struct Download {
    pub(super) url: String,
    pub(super) to: PathBuf,
}

/// Downloads one file of at most `limit` bytes.
pub(super) fn download(url: &str, to: &Path, limit: u64) -> Result<(), CommandError> {
    curl(limit).arg("--output").arg(to).arg("--url").arg(url).run()
}

/// Downloads many files. Failed files are absent afterwards; the first failure is returned.
pub(super) fn download_all(
    downloads: &[Download],
    limit: u64,
    scratch: &Path,
) -> Result<Option<CommandError>, BuildError> {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    let lines = downloads.iter().map(|download| {
        format!(
            "url = \"{}\"\noutput = \"{}\"\n",
            quoted(&download.url),
            quoted(&download.to.to_string_lossy())
        )
    });
    let list = scratch.join("curl.list");
    fs::write(&list, lines.collect::<String>()).map_err(io_error("write", &list))?;
    Ok(curl(limit).args(["--parallel", "--parallel-max", "8", "--config"]).arg(list).run().err())
}

/// Returns curl with limits. Before release 8.4, curl does not apply `--max-filesize` to an answer
/// that does not state its size, so the kernel limits the file. curl survives the signal of that
/// limit, and removes the file.
fn curl(limit: u64) -> ToolCommand {
    let command = match failpoint::defends("download-limit") {
        true => ToolCommand::new("prlimit").arg(format!("--fsize={limit}")).args([
            "env",
            "--ignore-signal=XFSZ",
            "curl",
        ]),
        false => ToolCommand::new("curl"),
    };
    command
        // Ignore the user's curlrc.
        .arg("--disable")
        .args([
            "--fail",
            "--location",
            "--silent",
            "--show-error",
            "--remove-on-error",
            "--proto",
            "=http,https",
        ])
        .args([
            "--connect-timeout",
            "20",
            "--speed-limit",
            "1024",
            "--speed-time",
            "60",
            "--retry",
            "2",
        ])
        .args(["--max-filesize".to_owned(), limit.to_string()])
}
