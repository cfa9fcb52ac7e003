//! A stored rendering that can be compared and rebuilt.

use super::{Kind, NodePrograms, Origin, PublicOverlay, RenderedFile, digest, pack};
use bytes::Bytes;
use meshd_model::fleet::{ArchivedFile, ArchivedKind};
use meshd_proto::mesh_init::{MESH_INIT_PROGRAM, PACKAGES_FILE};
use meshd_types::{Digest, SafePath};

impl PublicOverlay {
    /// Returns the entries of the overlay.
    pub fn listing(&self) -> Vec<ArchivedFile> {
        let one = |file: &RenderedFile| ArchivedFile {
            path: file.path.clone(),
            kind: match file.kind {
                Kind::File(_) | Kind::Agent | Kind::MeshInit => ArchivedKind::File,
                Kind::Secret(_) => ArchivedKind::Secret,
                Kind::Link(_) => ArchivedKind::Link,
                Kind::Directory => ArchivedKind::Directory,
            },
            mode: file.mode,
            owner: file.owner,
            origin: file.origin(),
            digest: file.digest,
            size: file.size,
        };
        self.files.iter().map(one).collect()
    }

    /// Returns the packages that a node installs.
    pub fn packages(&self) -> Vec<String> {
        let file = self.files.iter().find(|file| file.path.to_string() == PACKAGES_FILE);
        let Some(Kind::File(bytes)) = file.map(|file| &file.kind) else { return Vec::new() };
        String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect()
    }

    /// Returns the contents of files and the targets of links, without programs.
    pub fn contents(&self) -> impl Iterator<Item = (Digest, &[u8])> {
        self.files.iter().filter_map(|file| match &file.kind {
            Kind::File(bytes) => Some((file.digest, bytes.as_ref())),
            Kind::Link(target) => Some((file.digest, target.as_bytes())),
            Kind::Secret(_) | Kind::Agent | Kind::MeshInit | Kind::Directory => None,
        })
    }

    /// Rebuilds an overlay from its stored description. `content` returns the bytes of a digest,
    /// except for the current programs. Files with secrets are not stored; those of the current
    /// rendering `now` are used if their digests are equal.
    pub fn restore<E>(
        files: &[ArchivedFile],
        programs: &NodePrograms,
        now: Option<&PublicOverlay>,
        content: impl Fn(&Digest) -> Result<Bytes, E>,
    ) -> Result<PublicOverlay, E> {
        let is_mesh_init = |file: &ArchivedFile| {
            file.digest == programs.mesh_init.digest && file.path.to_string() == MESH_INIT_PROGRAM
        };
        let one = |file: &ArchivedFile| {
            let kind = match file.kind {
                ArchivedKind::Directory => Kind::Directory,
                ArchivedKind::Link => {
                    Kind::Link(String::from_utf8_lossy(&content(&file.digest)?).into_owned())
                }
                ArchivedKind::File if file.digest == programs.agent.digest => Kind::Agent,
                ArchivedKind::File if is_mesh_init(file) => Kind::MeshInit,
                ArchivedKind::File => Kind::File(content(&file.digest)?),
                ArchivedKind::Secret => {
                    let is_same = |other: &&RenderedFile| {
                        other.path == file.path && other.digest == file.digest
                    };
                    return Ok(now.and_then(|now| now.files.iter().find(is_same)).cloned());
                }
            };
            let ArchivedFile { path, mode, owner, digest, size, .. } = file.clone();
            Ok(Some(RenderedFile {
                path,
                kind,
                mode,
                owner,
                origins: vec![Origin::Generated],
                digest,
                size,
            }))
        };
        let files =
            files.iter().filter_map(|file| one(file).transpose()).collect::<Result<Vec<_>, E>>()?;
        // Restrict the current secrets to those of the stored rendering.
        let was_stored = |path: &SafePath| {
            files.iter().any(|file| file.path == *path && matches!(file.kind, Kind::Secret(_)))
        };
        let now = now.iter().flat_map(|now| &now.secrets);
        let secrets = now.filter(|secret| was_stored(secret.path())).cloned().collect();
        Ok(PublicOverlay {
            members: pack(&files, programs, &[]),
            digest: digest(&files),
            files,
            secrets,
        })
    }
}
