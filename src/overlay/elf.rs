//! Is a program static? Nodes run musl; a program that asks for another system's loader (ELF program header PT_INTERP) does not
//! start there, and says so only on the node's console.

/// `e_type` and what follows begin here: the header of a 64-bit, little-endian ELF file (ELF-64 Object File Format 1.5).
const MAGIC: &[u8] = b"\x7fELF\x02\x01";
/// Program header of the interpreter's path.
const PT_INTERP: u32 = 3;

/// The loader that a program asks for; `None` if it is static, or no 64-bit little-endian ELF file at all.
pub fn interpreter(program: &[u8]) -> Option<String> {
    program.strip_prefix(MAGIC)?;
    let headers = number(program, 32, 8)?;
    let (size, count) = (number(program, 54, 2)?, number(program, 56, 2)?);
    (0..count).find_map(|place| {
        let header = headers.checked_add(place * size)?;
        (number(program, header, 4)? == PT_INTERP as usize).then_some(())?;
        let (begin, length) =
            (number(program, header.checked_add(8)?, 8)?, number(program, header.checked_add(32)?, 8)?);
        let path = program.get(begin..begin.checked_add(length)?)?;
        Some(String::from_utf8_lossy(path).trim_end_matches('\0').to_owned())
    })
}

fn number(bytes: &[u8], at: usize, width: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(width)?)?;
    bytes.iter().rev().try_fold(0usize, |sum, byte| sum.checked_mul(256)?.checked_add(usize::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn this_very_program_asks_for_a_loader() {
        let own = std::fs::read("/proc/self/exe").expect("it runs");
        assert!(interpreter(&own).is_some_and(|path| path.contains("ld-")), "tests are linked dynamically");
        assert_eq!(interpreter(b"#!/bin/sh\n"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_program_or_none(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            bytes.splice(..MAGIC.len().min(bytes.len()), MAGIC.iter().copied());
            interpreter(&bytes);
        }
    }
}
