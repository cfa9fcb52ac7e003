//! Firmware images: SeaBIOS and OVMF.

use crate::LabError;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Where distributions put the pair of program and variables.
const PAIRS: [(&str, &str); 3] = [
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
    ("/usr/share/edk2/ovmf/OVMF_CODE.fd", "/usr/share/edk2/ovmf/OVMF_VARS.fd"),
    ("/usr/share/edk2/x64/OVMF_CODE.4m.fd", "/usr/share/edk2/x64/OVMF_VARS.4m.fd"),
];

/// The UEFI firmware of virtual machines.
#[derive(Clone, Debug)]
pub struct Ovmf {
    /// The program, mapped read-only.
    pub code: PathBuf,
    /// Fresh variables, copied for each node.
    pub vars: PathBuf,
}

impl Ovmf {
    /// The first pair that is installed.
    pub fn locate() -> Option<Self> {
        let pairs = PAIRS.map(|(code, vars)| Ovmf { code: code.into(), vars: vars.into() });
        pairs.into_iter().find(|pair| pair.code.is_file() && pair.vars.is_file())
    }

    /// Gives a node variables of its own.
    pub fn fresh_vars(&self, target: &Path) -> Result<(), LabError> {
        fs::copy(&self.vars, target).map(drop).map_err(LabError::file("write", target))
    }
}
