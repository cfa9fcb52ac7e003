//! Finds the mesh-agent program and verifies that nodes can run it.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `elf` | reads the ELF header and program headers, which decide whether a node can run a program (ELF-64 Object File Format 1.5) |
//!
//! A node that cannot run its agent shows the cause only on its own console. meshd therefore
//! refuses an unusable agent before any node boots.

mod elf;

use super::image::load_manifest;
use bytes::Bytes;
use meshd_config::{Fault, Site, files::read_regular};
use meshd_types::{Architecture, Digest, ImageName, Timestamp};
use std::{
    collections::BTreeSet,
    fmt, io,
    path::{Path, PathBuf},
};

/// Maximum size of the agent, in bytes.
const MAX_SIZE: u64 = 64 * 1024 * 1024;
/// File name of the agent.
const NAME: &str = "mesh-agent";
/// File name of stage 1.
const STAGE1_NAME: &str = "stage1";
/// Build note by which meshd recognises a mesh-agent. It is split in two, so that meshd itself does
/// not contain the note.
const NOTE: [&str; 2] = ["mesh-agent", " build: version="];
/// Maximum length of a build note after [`NOTE`], in bytes.
const MAX_NOTE: usize = 256;
/// Hints of the errors for an unusable agent and stage 1.
const HINT: &str = "run `make build`, or set [agent].binary to a static mesh-agent";
const STAGE1_HINT: &str = "run `make build`, or put the static stage1 beside the agent";

/// A mesh-agent that nodes can run.
#[derive(Clone, Debug)]
pub struct AgentProgram {
    pub path: PathBuf,
    pub bytes: Bytes,
    pub arch: Architecture,
    pub build: AgentBuild,
}

/// Stage 1: the first program of nodes. Its name decides what it does (ADR 48).
#[derive(Clone, Debug)]
pub struct Stage1Program {
    pub digest: Digest,
    pub bytes: Bytes,
}

/// Build information of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentBuild {
    /// Version of the package.
    pub version: String,
    /// Commit, with `-dirty` when files differed from it.
    pub commit: String,
    /// Build time.
    pub time: Timestamp,
}

impl fmt::Display for AgentBuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.version, self.commit, self.time)
    }
}

/// Reason why a file is not a valid program for the nodes of a site.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {program} {}: {cause}", path.display())]
pub struct AgentError {
    program: &'static str,
    path: PathBuf,
    cause: String,
    hint: &'static str,
}

meshd_types::hints!(AgentError { AgentError { hint, .. } => "{hint}"; });

impl From<AgentError> for Fault {
    fn from(error: AgentError) -> Self {
        let AgentError { program, path, cause, hint } = error;
        Fault::of_file(path, format!("cannot use {program}: {cause}"), hint)
    }
}

/// Reads stage 1 of a site.
///
/// # Errors
/// The file cannot be read, is no static program, or a built image of the site is for another
/// architecture.
pub fn load_stage1(site: &Site) -> Result<Stage1Program, AgentError> {
    let path = stage1_path(site);
    let refused = |cause: String| AgentError {
        program: "stage 1",
        path: path.clone(),
        cause,
        hint: STAGE1_HINT,
    };
    let bytes = read_bounded(&path).map_err(|error| refused(error.to_string()))?;
    let arch = elf::static_program(&bytes).map_err(refused)?;
    check_images(site, arch).map_err(refused)?;
    Ok(Stage1Program { digest: Digest::of(&bytes), bytes })
}

/// Returns the path of a site's stage 1, which is beside the agent.
pub fn stage1_path(site: &Site) -> PathBuf {
    agent_path(site).with_file_name(STAGE1_NAME)
}

/// Returns the path of a site's agent: `[agent].binary`, else the output of `make build`, else the
/// path of the installed package, else a file beside this program.
///
/// `cargo build --release` writes a dynamic mesh-agent beside target/release/meshd, so the static
/// agent of `make build` comes first.
pub fn agent_path(site: &Site) -> PathBuf {
    let own = || std::env::current_exe().ok();
    site.agent
        .binary
        .clone()
        .or_else(|| own().map(|program| default_path(&program)))
        .unwrap_or_else(|| NAME.into())
}

fn default_path(program: &Path) -> PathBuf {
    let folder = program.parent().and_then(Path::parent);
    let built = folder.map(|target| target.join("agent").join(std::env::consts::ARCH).join(NAME));
    let installed = folder.map(|prefix| prefix.join("lib/meshd").join(NAME));
    let found = [built, installed].into_iter().flatten().find(|path| path.is_file());
    found.unwrap_or_else(|| program.with_file_name(NAME))
}

/// Reads the agent of a site.
///
/// # Errors
/// The file cannot be read, is not a static mesh-agent, or a built image of the site is for another
/// architecture.
pub fn load_agent(site: &Site) -> Result<AgentProgram, AgentError> {
    let path = agent_path(site);
    let refused =
        |cause: String| AgentError { program: "the agent", path: path.clone(), cause, hint: HINT };
    let bytes = read_bounded(&path).map_err(|error| refused(error.to_string()))?;
    let arch = elf::static_program(&bytes).map_err(refused)?;
    let build = build_note(&bytes)
        .ok_or_else(|| refused("it is another program than mesh-agent".to_owned()))?;
    check_images(site, arch).map_err(refused)?;
    Ok(AgentProgram { path, bytes, arch, build })
}

/// Checks that the built images of a site are for the architecture of a program.
fn check_images(site: &Site, arch: Architecture) -> Result<(), String> {
    let images: BTreeSet<&ImageName> =
        site.profiles.values().map(|profile| &profile.image).collect();
    for name in images {
        if let Ok(image) = load_manifest(&site.blobs_dir, name)
            && image.arch != arch
        {
            return Err(format!("it is built for {arch}, but image {name} is for {}", image.arch));
        }
    }
    Ok(())
}

fn read_bounded(path: &Path) -> io::Result<Bytes> {
    let bytes = read_regular(path, MAX_SIZE)?;
    if bytes.is_empty() { Err(io::Error::other("its size is 0 bytes")) } else { Ok(bytes.into()) }
}

/// Finds [`NOTE`] and parses the text after it: `version=V commit=C time=SECONDS;`.
fn build_note(program: &[u8]) -> Option<AgentBuild> {
    let start = NOTE.concat().into_bytes();
    let mut rest = program;
    while let Some(at) = find(rest, &start) {
        rest = &rest[at + start.len()..];
        if let Some(build) = parse_note(&rest[..rest.len().min(MAX_NOTE)]) {
            return Some(build);
        }
    }
    None
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    let first = *what.first()?;
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| *byte == first) {
        if bytes[from + at..].starts_with(what) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

fn parse_note(bytes: &[u8]) -> Option<AgentBuild> {
    let end = bytes.iter().position(|byte| *byte == b';')?;
    let (version, rest) = std::str::from_utf8(&bytes[..end]).ok()?.split_once(" commit=")?;
    let (commit, time) = rest.split_once(" time=")?;
    let plain = |text: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+');
        !text.is_empty() && text.bytes().all(allowed)
    };
    let seconds: i64 = time.trim().parse().ok()?;
    let time = Timestamp::from_millis(seconds.saturating_mul(1000));
    (plain(version) && plain(commit)).then(|| AgentBuild {
        version: version.to_owned(),
        commit: commit.to_owned(),
        time,
    })
}

/// Returns the smallest file that [`load_agent`] accepts, for tests and benchmarks that boot no
/// node. `rest` makes its digest unique.
pub fn sample_agent(arch: Architecture, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes[16] = 2;
    bytes[18..20].copy_from_slice(&arch.facts().elf_machine.to_le_bytes());
    bytes.extend(format!("{}0.0.0 commit=sample time=0;", NOTE.concat()).bytes());
    bytes.extend_from_slice(rest);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn site(binary: &Path) -> Site {
        let text = include_str!("../../../../site.toml");
        let text = text.replace(
            "[agent]\n",
            &format!("[agent]\nbinary = {:?}\n", binary.display().to_string()),
        );
        meshd_config::parse(&text, Path::new("site.toml"))
            .unwrap_or_else(|faults| panic!("{faults}"))
    }

    fn refusal(content: &[u8]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent");
        fs::write(&path, content).unwrap();
        load_agent(&site(&path)).expect_err("it is unusable").to_string()
    }

    #[test]
    fn static_agent_is_loaded_with_its_build_info() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent");
        fs::write(&path, sample_agent(Architecture::X86_64, b"")).unwrap();
        let agent = load_agent(&site(&path)).unwrap();
        assert_eq!((agent.arch, agent.build.commit.as_str()), (Architecture::X86_64, "sample"));
    }

    #[test]
    fn unusable_agents_are_refused_with_their_cause() {
        assert!(refusal(&fs::read("/bin/ls").unwrap()).contains("dynamically linked"));
        assert!(refusal(b"#!/bin/sh\n").contains("no 64-bit ELF program"));
        let foreign = sample_agent(Architecture::X86_64, b"");
        assert!(refusal(&foreign[..64]).contains("another program than mesh-agent"));
        let mut unknown = sample_agent(Architecture::X86_64, b"");
        unknown[18] = 8;
        assert!(refusal(&unknown).contains("another processor: ELF machine 8"));
        assert!(refusal(b"").contains("0 bytes"));
    }

    #[test]
    fn agent_in_agent_folder_precedes_agent_beside_meshd() {
        let dir = tempfile::tempdir().unwrap();
        let meshd = dir.path().join("release/meshd");
        assert_eq!(default_path(&meshd), dir.path().join("release/mesh-agent"));
        let built = dir.path().join("agent").join(std::env::consts::ARCH).join(NAME);
        fs::create_dir_all(built.parent().unwrap()).unwrap();
        fs::write(&built, "").unwrap();
        assert_eq!(default_path(&meshd), built);
    }

    #[test]
    fn agent_of_the_package_is_found_in_lib() {
        let dir = tempfile::tempdir().unwrap();
        let installed = dir.path().join("lib/meshd").join(NAME);
        fs::create_dir_all(installed.parent().unwrap()).unwrap();
        fs::write(&installed, "").unwrap();
        assert_eq!(default_path(&dir.path().join("bin/meshd")), installed);
    }
}
