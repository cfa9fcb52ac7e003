//! Opens files that operators write. A pipe would hang the reader, and a device may do anything
//! when it is opened: only regular files are opened, without waiting, and read up to a limit.

use meshd_types::{ParseError, Secret};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rustix::{
    fs::{Mode, OFlags, ResolveFlags, openat2},
    io::Errno,
    path::Arg,
};
use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

fn not_a_file() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")
}

/// Opens a regular file; a link is followed.
///
/// # Errors
/// The file cannot be opened, or is a folder, pipe, socket or device.
pub fn open_regular(path: &Path) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(not_a_file());
    }
    // The file may be replaced between the two calls: opening a pipe must not wait.
    let file = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_a_file()) }
}

/// Opens a file or folder below a folder. Follows no link, unless `follows_links`: another user may
/// have put one where a command of root reads and writes. With [`OFlags::NONBLOCK`] the opening of
/// a pipe does not wait.
///
/// # Errors
/// The file cannot be opened, or its path has a link or leaves the folder.
pub fn open_beneath(
    folder: &File,
    path: impl Arg,
    flags: OFlags,
    follows_links: bool,
) -> io::Result<File> {
    let resolve = if follows_links {
        ResolveFlags::empty()
    } else {
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS
    };
    let mode = if flags.contains(OFlags::CREATE) { Mode::from(0o666) } else { Mode::empty() };
    match openat2(folder, path, flags | OFlags::CLOEXEC, mode, resolve) {
        Err(Errno::LOOP) => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "links are not followed here"))
        }
        opened => Ok(opened?.into()),
    }
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// As [`open_regular`], or the file is larger.
pub fn read_regular(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_opened(open_regular(path)?, limit)
}

/// Reads an open file of at most `limit` bytes.
///
/// # Errors
/// It is not a regular file, cannot be read, or is larger.
pub fn read_opened(file: File, limit: u64) -> io::Result<Vec<u8>> {
    if file.metadata()?.is_file() { read_bounded(file, limit) } else { Err(not_a_file()) }
}

/// Reads a file that an operator names on the command line, of at most `limit` bytes: also the pipe
/// of `<(pass show meshd)`. A pipe that no program writes to is empty.
///
/// # Errors
/// The file cannot be opened or read, or is larger.
pub fn read_argument(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    // Without this flag, opening a pipe waits for a program that writes.
    let file = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    fcntl(&file, FcntlArg::F_SETFL(OFlag::empty()))?;
    read_bounded(file, limit)
}

/// Reads a text that nobody else may read, of 1 to `limit` bytes. The last line end of the file is
/// not part of the text.
///
/// # Errors
/// The file cannot be read, may be read by others, is empty, too long or no text. No error contains
/// the text.
pub fn read_secret(path: &Path, limit: usize) -> Result<Secret<String>, ParseError> {
    let unreadable = |error: io::Error| {
        ParseError::new(format!("cannot be read: {error}"), "check its path in site.toml")
    };
    let file = open_regular(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => {
            ParseError::new("is not a file", "name a file that holds the secret and nothing else")
        }
        _ => unreadable(error),
    })?;
    let mode = file.metadata().map_err(unreadable)?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        let hint = format!("run: chmod 600 {}", path.display());
        return Err(ParseError::new(format!("may be read by others (mode {mode:04o})"), hint));
    }
    let mut bytes = Vec::new();
    file.take(limit as u64 + 2).read_to_end(&mut bytes).map_err(unreadable)?;
    let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    let hint = "write it as base64, and decode it where it is used";
    let text = text.ok_or_else(|| ParseError::new("is not text", hint))?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    match text.len() {
        0 => Err(ParseError::new("is empty", "write the secret into the file")),
        length if length <= limit => Ok(Secret::new(text.to_owned())),
        _ => {
            let message = format!("is longer than {limit} bytes");
            Err(ParseError::new(message, "is it the right file?"))
        }
    }
}

fn read_bounded(file: File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let what = format!("it has more than {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::{sys::stat, unistd::mkfifo};
    use std::os::fd::AsRawFd as _;

    #[test]
    fn pipe_of_another_program_is_read_to_its_end() {
        let mut writer = std::process::Command::new("sh");
        writer.args(["-c", "sleep 0.1; echo key"]).stdout(std::process::Stdio::piped());
        let mut writer = writer.spawn().unwrap();
        let pipe = writer.stdout.as_ref().unwrap().as_raw_fd();
        let path = format!("/proc/self/fd/{pipe}");
        assert_eq!(read_argument(Path::new(&path), 9).unwrap(), b"key\n");
        assert!(writer.wait().unwrap().success());
    }

    #[test]
    fn pipe_device_and_folder_are_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        let pipe = dir.path().join("pipe");
        fs::write(&file, "12345").unwrap();
        mkfifo(&pipe, stat::Mode::S_IRWXU).unwrap();
        for path in [&pipe, dir.path(), Path::new("/dev/zero")] {
            assert_eq!(
                read_regular(path, 9).unwrap_err().to_string(),
                "it is not a regular file",
                "{}",
                path.display()
            );
        }
        assert_eq!(read_argument(&pipe, 9).unwrap(), b"", "no program writes to it");
        for endless in [&file, Path::new("/dev/zero")] {
            let error = read_argument(endless, 4).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        }
        assert_eq!(read_regular(&file, 5).unwrap(), b"12345");
        assert_eq!(read_regular(&file, 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
