//! Whether the memory of the machine suffices for the root and its writable layer. Pure.

/// The memory does not suffice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    #[error("read /proc/meminfo: it has no MemAvailable")]
    Unknown,
    #[error(
        "load the root into memory: {available_mib} MiB are available; the root needs {root_mib} \
         MiB, and its writable layer {upper_mib} MiB"
    )]
    TooSmall { available_mib: u64, root_mib: u64, upper_mib: u64 },
}

const MIB: u64 = 1024 * 1024;

/// Checks the content of `/proc/meminfo` against the sizes of root and writable layer in bytes.
pub fn require_memory(meminfo: &str, root: u64, upper: u64) -> Result<(), MemoryError> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    let available = kib.ok_or(MemoryError::Unknown)?.saturating_mul(1024);
    if available >= root.saturating_add(upper) {
        return Ok(());
    }
    Err(MemoryError::TooSmall {
        available_mib: available / MIB,
        root_mib: root.div_ceil(MIB),
        upper_mib: upper.div_ceil(MIB),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_below_root_and_writable_layer_is_refused() {
        let meminfo = "MemTotal:  1000000 kB\nMemAvailable:     307200 kB\n";
        assert_eq!(require_memory(meminfo, 200 * MIB, 100 * MIB), Ok(()));
        let error = require_memory(meminfo, 200 * MIB + 1, 100 * MIB).expect_err("too small");
        assert_eq!(
            error.to_string(),
            "load the root into memory: 300 MiB are available; the root needs 201 MiB, and its writable layer 100 MiB"
        );
        assert!(require_memory(meminfo, u64::MAX, u64::MAX).is_err());
        assert_eq!(require_memory("MemFree: 1 kB", 0, 0), Err(MemoryError::Unknown));
    }
}
