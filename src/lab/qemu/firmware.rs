//! Firmware images: SeaBIOS and OVMF.

use crate::LabError;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Paths of OVMF's code and variables files in distributions.
const PAIRS: [(&str, &str); 3] = [
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
    ("/usr/share/edk2/ovmf/OVMF_CODE.fd", "/usr/share/edk2/ovmf/OVMF_VARS.fd"),
    ("/usr/share/edk2/x64/OVMF_CODE.4m.fd", "/usr/share/edk2/x64/OVMF_VARS.4m.fd"),
];

#[derive(Clone, Debug)]
pub struct Ovmf {
    pub code: PathBuf,
    /// The template of the variables; each node has a copy.
    pub vars: PathBuf,
}

impl Ovmf {
    /// Returns the first installed pair.
    pub fn locate() -> Option<Self> {
        let pairs = PAIRS.map(|(code, vars)| Ovmf { code: code.into(), vars: vars.into() });
        pairs.into_iter().find(|pair| pair.code.is_file() && pair.vars.is_file())
    }

    /// Copies the variables for a node.
    pub fn copy_vars(&self, target: &Path) -> Result<(), LabError> {
        fs::copy(&self.vars, target).map(drop).map_err(LabError::file("write", target))
    }
}
