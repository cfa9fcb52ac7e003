//! Reads the ELF header and program headers, which decide whether a node can run a program (ELF-64
//! Object File Format 1.5).

use meshd_types::Architecture;

/// First bytes of a 64-bit, little-endian ELF file.
const MAGIC: &[u8] = b"\x7fELF\x02\x01";
/// Program header of the interpreter's path.
const PT_INTERP: usize = 3;
/// Values of `e_type`: ET_EXEC for fixed addresses, and ET_DYN for position-independent programs
/// (static PIE).
const PROGRAM_TYPES: [usize; 2] = [2, 3];
/// Size of the file header, in bytes.
const HEADER: usize = 64;

/// Returns the architecture of a static program.
///
/// # Errors
/// The reason why no node can run the program, as a phrase for an error message.
pub(super) fn static_program(program: &[u8]) -> Result<Architecture, String> {
    if !program.starts_with(MAGIC) || program.len() < HEADER {
        return Err("it is no 64-bit ELF program".to_owned());
    }
    let kind = number(program, 16, 2).unwrap_or(0);
    if !PROGRAM_TYPES.contains(&kind) {
        return Err(format!("it is no program: its ELF type is {kind}"));
    }
    let machine = number(program, 18, 2).unwrap_or(0);
    let architecture = u16::try_from(machine).ok().and_then(Architecture::from_elf);
    let architecture = architecture
        .ok_or_else(|| format!("it is built for another processor: ELF machine {machine}"))?;
    match interpreter(program)? {
        Some(loader) => {
            Err(format!("it is dynamically linked: it needs {loader}, which nodes do not have"))
        }
        None => Ok(architecture),
    }
}

/// Returns the interpreter (dynamic loader) of a program; `None` for a static program.
fn interpreter(program: &[u8]) -> Result<Option<String>, String> {
    let damaged = || "its ELF program headers are damaged".to_owned();
    let headers = number(program, 32, 8).ok_or_else(damaged)?;
    let size = number(program, 54, 2).ok_or_else(damaged)?;
    let count = number(program, 56, 2).ok_or_else(damaged)?;
    for index in 0..count {
        let header = headers.checked_add(index * size).ok_or_else(damaged)?;
        if number(program, header, 4).ok_or_else(damaged)? != PT_INTERP {
            continue;
        }
        let path = loader_path(program, header).ok_or_else(damaged)?;
        return Ok(Some(String::from_utf8_lossy(path).trim_end_matches('\0').to_owned()));
    }
    Ok(None)
}

fn loader_path(program: &[u8], header: usize) -> Option<&[u8]> {
    let begin = number(program, header.checked_add(8)?, 8)?;
    let length = number(program, header.checked_add(32)?, 8)?;
    program.get(begin..begin.checked_add(length)?)
}

fn number(bytes: &[u8], at: usize, width: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(width)?)?;
    bytes
        .iter()
        .rev()
        .try_fold(0usize, |sum, byte| sum.checked_mul(256)?.checked_add(usize::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn dynamic_program_names_its_loader() {
        let own = std::fs::read("/proc/self/exe").expect("it runs");
        let refused = static_program(&own).expect_err("tests are linked dynamically");
        assert!(refused.contains("dynamically linked") && refused.contains("ld-"), "{refused}");
        assert_eq!(static_program(b"#!/bin/sh\n"), Err("it is no 64-bit ELF program".to_owned()));
    }

    proptest! {
        #[test]
        fn arbitrary_elf_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            bytes.splice(..MAGIC.len().min(bytes.len()), MAGIC.iter().copied());
            let _ = static_program(&bytes);
        }
    }
}
