//! Makes the squashfs of a root and its hash tree.

use super::{
    archive::{read::digest_of, write},
    contents::ContentStore,
    error::RootFault,
    tree::RootTree,
};
use crate::{
    command::ToolCommand,
    error::{BuildError, failed, io_error},
    work_folder::BuildFolder,
};
use meshd_proto::stage1::VeritySpec;
use meshd_types::Digest;
use std::{
    fs::{self, OpenOptions},
    io::BufWriter,
    path::{Path, PathBuf},
};

/// Size of data blocks and hash blocks in bytes.
const BLOCK: u32 = 4096;
/// Maximum size of a root: the central node keeps it in memory.
const MAX_ROOT: u64 = 2 << 30;
/// Level 15 takes many times the processor time for a few percent less to fetch.
const COMPRESSION_LEVEL: &str = "9";
/// Domain of the salt of hash trees.
const SALT: &[u8] = b"meshd-root-salt/1";

/// Makes the file with squashfs and hash tree. `date` is the time of the file system in seconds.
pub(super) fn make(
    tree: &RootTree,
    contents: &ContentStore,
    date: u64,
    work: &BuildFolder,
) -> Result<(PathBuf, VeritySpec), BuildError> {
    let out = make_squashfs(tree, contents, date, work)?;
    let verity = add_hash_tree(&out)?;
    let size = fs::metadata(&out).map_err(io_error("read", &out))?.len();
    if size > MAX_ROOT {
        return Err(RootFault::SquashfsTooLarge { size, most: MAX_ROOT }.into());
    }
    Ok((out, verity))
}

/// Makes the squashfs.
///
/// Owners and attributes need a real tree: Debian's mksquashfs 4.5 reads no attributes from an
/// archive. A user makes the tree in a user namespace.
pub(super) fn make_squashfs(
    tree: &RootTree,
    contents: &ContentStore,
    date: u64,
    work: &BuildFolder,
) -> Result<PathBuf, BuildError> {
    let folder = work.mapped_folder("tree")?;
    let mut written = Ok(());
    ToolCommand::as_mapped_root("tar")
        .args(["--extract", "--file=-", "--absolute-names", "--numeric-owner", "--same-owner"])
        .args(["--same-permissions", "--delay-directory-restore"])
        .args(["--xattrs", "--xattrs-include=*", "--directory"])
        .arg(folder.path())
        .fed_by(|input| {
            written = write::write(tree, contents, BufWriter::new(input));
        })
        .map_err(failed("make the tree of the root"))?;
    written.map_err(io_error("write", folder.path()))?;
    let out = work.path("root");
    ToolCommand::as_mapped_root("mksquashfs")
        .arg(folder.path())
        .arg(&out)
        .args(["-noappend", "-no-progress", "-quiet", "-comp", "zstd", "-Xcompression-level"])
        .args([COMPRESSION_LEVEL, "-mkfs-time", &date.to_string()])
        .run()
        .map_err(failed("make the squashfs of the root"))?;
    Ok(out)
}

/// Appends the hash tree of dm-verity, without a superblock. The salt is derived from the content,
/// so that equal roots have equal trees.
fn add_hash_tree(file: &Path) -> Result<VeritySpec, BuildError> {
    let block = u64::from(BLOCK);
    let length = fs::metadata(file).map_err(io_error("read", file))?.len();
    let hash_offset = length.next_multiple_of(block);
    let data_blocks = hash_offset / block;
    let opened = OpenOptions::new().write(true).open(file);
    opened.and_then(|opened| opened.set_len(hash_offset)).map_err(io_error("pad", file))?;
    let content = digest_of(file, "the squashfs of the root")?;
    let salt = Digest::of_fields([SALT, &content.0]).to_string();
    let verity = |action: &str| {
        ToolCommand::new("veritysetup")
            .args([action, "--no-superblock", "--hash=sha256", "--format=1"])
            .args([format!("--data-block-size={BLOCK}"), format!("--hash-block-size={BLOCK}")])
            .args([format!("--data-blocks={data_blocks}"), format!("--hash-offset={hash_offset}")])
            .arg(format!("--salt={salt}"))
            .args([file, file])
    };
    let printed = verity("format").output().map_err(failed("make the hash tree of the root"))?;
    let hash = printed.lines().find_map(|line| line.strip_prefix("Root hash:"));
    let root_hash: Option<Digest> = hash.and_then(|hash| hash.trim().parse().ok());
    let root_hash = root_hash.ok_or(RootFault::NoRootHash)?;
    verity("verify")
        .arg(root_hash.to_string())
        .run()
        .map_err(failed("verify the hash tree of the root"))?;
    Ok(VeritySpec { root_hash, salt, hash_offset, block_size: BLOCK, data_blocks })
}
