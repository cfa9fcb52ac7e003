//! The admin socket: created with its mode, never taken over from a running meshd.

use crate::connections::{accept::ListeningSocket, limiter::Source};
use std::{
    fs, io,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};
use tokio::net::{UnixListener, UnixStream};

/// Socket mode. Write access grants the admin role to the owner and the group.
const MODE: u32 = 0o660;
/// Mode of a created parent folder.
const FOLDER_MODE: u32 = 0o755;

/// Reason why the admin socket is not available.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another meshd listens at the path.
    #[error("another meshd answers at {0}")]
    Taken(PathBuf),
    /// The path exists but is not a socket.
    #[error("{0} is not a socket")]
    Foreign(PathBuf),
    /// The folder or the socket cannot be created.
    #[error("cannot make the admin socket {path}")]
    Make { path: PathBuf, source: io::Error },
}

meshd_types::hints!(SocketError {
    SocketError::Taken(_) => "stop it, or give this site another [admin].socket";
    SocketError::Foreign(_) => "remove it, or write another path into [admin].socket";
    SocketError::Make { .. } => "write a path that meshd may use into [admin].socket";
});

/// The bound socket. Dropping it removes the file.
#[derive(Debug)]
pub struct Socket {
    pub(crate) listener: UnixListener,
    path: PathBuf,
}

/// A connection, and the user ID of its program.
impl ListeningSocket for Socket {
    type Stream = (UnixStream, u32);

    async fn accept(&self) -> io::Result<(Self::Stream, Source)> {
        let (stream, _) = self.listener.accept().await?;
        let uid = stream.peer_cred()?.uid();
        Ok(((stream, uid), Source::Credential(format!("uid:{uid}"))))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // A missing file needs no removal. The next start detects any other error.
        let _ = fs::remove_file(&self.path);
    }
}

/// Binds the admin socket. Replaces the socket of a process that has ended.
///
/// # Errors
/// Another process listens at the path, or the file system refuses.
pub fn bind(path: &Path) -> Result<Socket, SocketError> {
    let failed = |source| SocketError::Make { path: path.to_owned(), source };
    if let Some(folder) =
        path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists())
    {
        fs::create_dir_all(folder).map_err(failed)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(FOLDER_MODE)).map_err(failed)?;
    }
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(SocketError::Foreign(path.to_owned()));
        }
        Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
            Ok(_) => return Err(SocketError::Taken(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(failed(error)),
        },
    }
    // The socket gets its final name after its mode is set, so that no client connects earlier.
    let mut name = path.as_os_str().to_owned();
    name.push("~");
    let fresh = PathBuf::from(name);
    let _ = fs::remove_file(&fresh);
    let listener = UnixListener::bind(&fresh).map_err(failed)?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(MODE)).map_err(failed)?;
    fs::rename(&fresh, path).map_err(failed)?;
    Ok(Socket { listener, path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::Hint as _;

    #[tokio::test]
    async fn stale_socket_is_replaced_and_socket_in_use_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run/admin.sock");
        let first = bind(&path).expect("a free path");
        assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, MODE);
        let refused = bind(&path).expect_err("it is alive");
        assert!(matches!(refused, SocketError::Taken(_)), "{refused}");
        assert!(refused.hint().is_some_and(|hint| hint.contains("[admin].socket")));
        // A killed process leaves the file without a listener.
        let dead = std::os::unix::net::UnixListener::bind(folder.path().join("dead"))
            .expect("a free path");
        drop((first, dead));
        assert!(!path.exists(), "a socket that is closed in order is gone");
        fs::rename(folder.path().join("dead"), &path).expect("same folder");
        bind(&path).expect("a dead socket is replaced");
    }

    #[tokio::test]
    async fn regular_file_at_socket_path_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notes.txt");
        fs::write(&path, "keep me").expect("written");
        assert!(matches!(bind(&path), Err(SocketError::Foreign(_))));
        assert_eq!(fs::read_to_string(&path).expect("still there"), "keep me");
    }
}
