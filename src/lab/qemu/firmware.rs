//! Firmware images: SeaBIOS and OVMF.

use crate::LabError;
use meshd_types::Architecture;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The architecture of the lab's nodes.
pub const NODE_ARCHITECTURE: Architecture = Architecture::X86_64;

#[derive(Clone, Debug)]
pub struct Ovmf {
    pub code: PathBuf,
    /// The template of the variables; each node has a copy.
    pub vars: PathBuf,
}

impl Ovmf {
    /// Returns the first installed pair without Secure Boot.
    pub fn locate() -> Option<Self> {
        let installed = NODE_ARCHITECTURE
            .facts()
            .installed_uefi
            .iter()
            .filter(|firmware| !firmware.secure_boot);
        let mut pairs = installed
            .map(|firmware| Ovmf { code: firmware.code.into(), vars: firmware.vars.into() });
        pairs.find(|pair| pair.code.is_file() && pair.vars.is_file())
    }

    /// Copies the variables for a node.
    pub fn copy_vars(&self, target: &Path) -> Result<(), LabError> {
        fs::copy(&self.vars, target).map(drop).map_err(LabError::file("write", target))
    }
}
