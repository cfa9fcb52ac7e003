//! Opens an overlay as initramfs and agent do: gzip, cpio, and an apkovl of several gzip members.

use crate::fault::Fault;
use flate2::read::{GzDecoder, MultiGzDecoder};
use meshd_proto::{AgentConfig, BootPart};
use serde::de::DeserializeOwned;
use std::io::Read as _;

/// What the agent reads of it.
pub struct Opened {
    pub config: AgentConfig,
    pub boot: BootPart,
    pub roots_pem: String,
}

/// Reads the two files of the agent.
pub fn open(initrd: &[u8]) -> Result<Opened, Fault> {
    let damaged = |what: &str| Fault::Overlay(format!("{what} is damaged"));
    let mut cpio = Vec::new();
    GzDecoder::new(initrd).read_to_end(&mut cpio).map_err(|_| damaged("its compression"))?;
    let apkovl = member(&cpio, "apkovl.tar.gz").ok_or_else(|| damaged("its cpio"))?;
    let mut config = None;
    let mut boot = None::<BootPart>;
    let mut archive = tar::Archive::new(MultiGzDecoder::new(apkovl));
    for entry in archive.entries().map_err(|_| damaged("its tar"))? {
        let mut entry = entry.map_err(|_| damaged("its tar"))?;
        let path = entry.path_bytes().into_owned();
        let mut text = String::new();
        let mut read = || {
            entry
                .read_to_string(&mut text)
                .map(|_| std::mem::take(&mut text))
                .map_err(|_| damaged("a file"))
        };
        match path.as_slice() {
            b"etc/meshd/agent.json" => config = Some(json(&read()?)?),
            b"etc/meshd/boot.json" => boot = Some(json(&read()?)?),
            _ => {}
        }
    }
    let missing = || Fault::Overlay("a file of the agent is missing".to_owned());
    let boot = boot.ok_or_else(missing)?;
    let roots_pem = boot.roots_pem.clone().ok_or_else(missing)?;
    Ok(Opened { config: config.ok_or_else(missing)?, boot, roots_pem })
}

fn json<T: DeserializeOwned>(text: &str) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(|error| Fault::Overlay(error.to_string()))
}

/// A file of a "newc" archive (Linux, buffer-format.rst).
fn member<'a>(cpio: &'a [u8], wanted: &str) -> Option<&'a [u8]> {
    let mut at = 0;
    loop {
        let header = cpio.get(at..at + 110)?;
        let field = |index: usize| {
            let text = std::str::from_utf8(&header[6 + index * 8..14 + index * 8]).ok()?;
            usize::from_str_radix(text, 16).ok()
        };
        let size = field(6)?;
        let name_size = field(11)?;
        let name = cpio.get(at + 110..at + 110 + name_size.checked_sub(1)?)?;
        let start = (at + 110 + name_size).next_multiple_of(4);
        match name {
            b"TRAILER!!!" => return None,
            name if name.strip_prefix(b"/").unwrap_or(name) == wanted.as_bytes() => {
                return cpio.get(start..start + size);
            }
            _ => at = (start + size).next_multiple_of(4),
        }
    }
}
