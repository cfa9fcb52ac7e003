//! Memory modules, from the tables of the firmware (SMBIOS 3.7, 7.18). Parsing is pure and total.

use super::super::Tree;
use meshd_proto::{MemoryFacts, MemoryModuleFacts};
use std::collections::BTreeMap;

const TABLE: &str = "/sys/firmware/dmi/tables/DMI";
/// Maximum size of the tables that are read, in bytes. Large servers have 20 KiB.
const MAX_TABLE: u64 = 1 << 20;
/// Maximum number of characters of a word of the firmware.
const MAX_WORD: usize = 64;
/// Maximum number of kinds of modules.
const MAX_KINDS: usize = 32;
/// Bytes before the fields of a structure: type, length, handle.
const HEADER: usize = 4;
const MEMORY_DEVICE: u8 = 17;
const END_OF_TABLE: u8 = 127;
/// Kinds of memory by their number; others have no name here.
const KINDS: [(u8, &str); 11] = [
    (0x12, "DDR"),
    (0x13, "DDR2"),
    (0x18, "DDR3"),
    (0x1a, "DDR4"),
    (0x1d, "LPDDR3"),
    (0x1e, "LPDDR4"),
    (0x20, "HBM"),
    (0x21, "HBM2"),
    (0x22, "DDR5"),
    (0x23, "LPDDR5"),
    (0x24, "HBM3"),
];

/// Adds the memory modules of this machine.
pub fn with_modules(memory: MemoryFacts, tree: &Tree) -> MemoryFacts {
    let table = tree.bytes(TABLE, MAX_TABLE).unwrap_or_default();
    let (sockets, modules) = parse(&table);
    MemoryFacts { sockets, modules, ..memory }
}

/// Returns the number of sockets, and the modules in them.
fn parse(mut table: &[u8]) -> (u32, Vec<MemoryModuleFacts>) {
    let mut sockets = 0u32;
    let mut modules: BTreeMap<MemoryModuleFacts, u32> = BTreeMap::new();
    while let [kind, length, ..] = *table
        && kind != END_OF_TABLE
        && usize::from(length) >= HEADER
        && let Some((fields, after)) = table.split_at_checked(length.into())
    {
        // Two zeros end the strings, also if there are none.
        let end = after.windows(2).position(|pair| pair == [0, 0]).unwrap_or(after.len());
        if kind == MEMORY_DEVICE {
            sockets = sockets.saturating_add(1);
            if let Some(module) = module(fields, &after[..end])
                && (modules.len() < MAX_KINDS || modules.contains_key(&module))
            {
                *modules.entry(module).or_default() += 1;
            }
        }
        table = after.get(end + 2..).unwrap_or_default();
    }
    let modules = modules.into_iter().map(|(module, count)| MemoryModuleFacts { count, ..module });
    (sockets, modules.collect())
}

/// Reads a memory device. `None` for an empty socket.
fn module(fields: &[u8], strings: &[u8]) -> Option<MemoryModuleFacts> {
    let word = |at: usize| Some(u16::from_le_bytes(fields.get(at..at + 2)?.try_into().ok()?));
    let long = |at: usize| Some(u32::from_le_bytes(fields.get(at..at + 4)?.try_into().ok()?));
    let bytes = match word(0x0c)? {
        0 | 0xffff => return None,
        0x7fff => u64::from(long(0x1c)? & 0x7fff_ffff) << 20,
        kib if kib & 0x8000 != 0 => u64::from(kib & 0x7fff) << 10,
        mib => u64::from(mib) << 20,
    };
    let text = |at: usize| {
        let number = fields.get(at).copied().map(usize::from);
        let found =
            number.and_then(|number| strings.split(|byte| *byte == 0).nth(number.checked_sub(1)?));
        let found = String::from_utf8_lossy(found.unwrap_or_default()).into_owned();
        let shown: String =
            found.trim().chars().filter(|c| !c.is_control()).take(MAX_WORD).collect();
        // Firmware has such words for what it does not know.
        if ["unknown", "not specified", "none"].contains(&shown.to_lowercase().as_str()) {
            String::new()
        } else {
            shown
        }
    };
    let kind = fields.get(0x12).and_then(|kind| KINDS.iter().find(|(number, _)| number == kind));
    let speed = |at| word(at).filter(|speed| !matches!(speed, 0 | 0xffff)).map(u32::from);
    Some(MemoryModuleFacts {
        count: 0,
        bytes,
        kind: kind.map(|(_, name)| (*name).to_owned()).unwrap_or_default(),
        // The configured speed, else the highest one.
        speed_mts: speed(0x20).or_else(|| speed(0x15)),
        manufacturer: text(0x17),
        part: text(0x1a),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A structure of type 17 with these fields, and strings.
    fn device(size: u16, kind: u8, speeds: [u16; 2], strings: &[&str]) -> Vec<u8> {
        let mut fields = vec![0; 0x28];
        (fields[0], fields[1]) = (MEMORY_DEVICE, 0x28);
        fields[0x0c..0x0e].copy_from_slice(&size.to_le_bytes());
        fields[0x12] = kind;
        fields[0x15..0x17].copy_from_slice(&speeds[0].to_le_bytes());
        (fields[0x17], fields[0x1a]) = (1, 2);
        fields[0x1c..0x20].copy_from_slice(&(64u32 << 10).to_le_bytes());
        fields[0x20..0x22].copy_from_slice(&speeds[1].to_le_bytes());
        let strings: Vec<u8> =
            strings.iter().flat_map(|text| [text.as_bytes(), b"\0"].concat()).collect();
        let end: &[u8] = if strings.is_empty() { b"\0\0" } else { b"\0" };
        [&fields, &strings, end].concat()
    }

    #[test]
    fn equal_modules_are_counted_and_empty_sockets_are_none() {
        let large = device(0x7fff, 0x22, [5600, 4800], &["Samsung", "M321R8GA0BB0 "]);
        let small = device(512, 0x18, [1333, 0], &["Unknown"]);
        let empty = device(0, 2, [0, 0], &[]);
        let other = [&[1, 4, 0, 0][..], b"a\0b\0\0"].concat();
        let end = [END_OF_TABLE, 4, 0, 0, 0, 0];
        let table = [&other, &large, &empty, &small, &large, &end[..], &large].concat();
        let (sockets, modules) = parse(&table);
        assert_eq!(sockets, 4, "nothing follows the end of the table");
        let expected = [
            MemoryModuleFacts {
                count: 1,
                bytes: 512 << 20,
                kind: "DDR3".to_owned(),
                speed_mts: Some(1333),
                ..MemoryModuleFacts::default()
            },
            MemoryModuleFacts {
                count: 2,
                bytes: 64 << 30,
                kind: "DDR5".to_owned(),
                speed_mts: Some(4800),
                manufacturer: "Samsung".to_owned(),
                part: "M321R8GA0BB0".to_owned(),
            },
        ];
        assert_eq!(modules, expected);
    }

    /// The table of QEMU 7.2 with `-machine q35 -m 20G -smbios type=17,manufacturer=Samsung,...`, as
    /// Linux shows it in sysfs.
    const QEMU: &str = include_str!("../../../../tests/golden/smbios-qemu-7.2.hex");

    #[test]
    fn table_of_qemu_has_its_modules() {
        let digits: String = QEMU.split_whitespace().collect();
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("a byte");
        let table: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
        let fake = crate::fake::FakeMachine::new("", &[]);
        fake.raw(TABLE.trim_start_matches('/'), &table);
        let memory = with_modules(MemoryFacts::default(), &fake.tree);
        let module = |gib: u64| MemoryModuleFacts {
            count: 1,
            bytes: gib << 30,
            speed_mts: Some(3200),
            manufacturer: "Samsung".to_owned(),
            part: "M393A8G40AB2".to_owned(),
            ..MemoryModuleFacts::default()
        };
        assert_eq!((memory.sockets, memory.modules), (2, vec![module(4), module(16)]));
        // Each table that ends early has a part of it.
        for length in 0..table.len() {
            let (sockets, modules) = parse(&table[..length]);
            assert!(sockets <= 2 && modules.len() <= 2, "{length}: {modules:?}");
        }
    }

    proptest! {
        #[test]
        fn table_of_any_bytes_never_panics(
            table in proptest::collection::vec(any::<u8>(), 0..300),
            length in any::<u8>(),
        ) {
            for table in [&table, &[&[MEMORY_DEVICE, length][..], &table].concat()] {
                let (sockets, modules) = parse(table);
                let count: u32 = modules.iter().map(|module| module.count).sum();
                prop_assert!(count <= sockets && modules.len() <= MAX_KINDS);
                let is_clean = |word: &String| {
                    word.chars().count() <= MAX_WORD && !word.contains(char::is_control)
                };
                let words = modules.iter().flat_map(|module| [&module.manufacturer, &module.part]);
                prop_assert!(words.into_iter().all(is_clean));
            }
        }
    }
}
