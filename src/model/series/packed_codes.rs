//! A row of codes in few bits: differences in Rice code, with the best parameter of each row.
//!
//! ```text
//! row      head, u8 │ bitmap of the known columns, if the head says so │ first code │ differences, to a whole byte
//! head     parameter k, 0 to 7; 8: some columns are unknown; 255: all are, and nothing follows
//! difference   zigzag z = 2d or -2d-1: z >> k ones, a zero, the k low bits of z; low bits first
//! ```
//! A steady series needs one bit a value, a noisy one of percents four to five.

use super::node_series::UNKNOWN;

const HAS_BITMAP: u8 = 8;
const EMPTY: u8 = u8::MAX;
/// Parameters of the Rice code.
const PARAMETERS: std::ops::Range<u8> = 0..8;

fn zigzag(before: u8, code: u8) -> u16 {
    let difference = i16::from(code) - i16::from(before);
    let doubled = difference.unsigned_abs() * 2;
    if difference < 0 { doubled - 1 } else { doubled }
}

/// The code after `before`; `None` if it is out of range.
fn unzigzag(before: u8, z: u16) -> Option<u8> {
    let half = i32::from(z / 2);
    let difference = if z.is_multiple_of(2) { half } else { -half - 1 };
    u8::try_from(i32::from(before) + difference).ok()
}

/// Appends a row.
pub fn pack(codes: &[u8], out: &mut Vec<u8>) {
    let known: Vec<u8> = codes.iter().copied().filter(|code| *code != UNKNOWN).collect();
    let Some(first) = known.first() else { return out.push(EMPTY) };
    let differences: Vec<u16> = known.windows(2).map(|pair| zigzag(pair[0], pair[1])).collect();
    let bits =
        |k: &u8| differences.iter().map(|z| u32::from(z >> k) + 1 + u32::from(*k)).sum::<u32>();
    let k = PARAMETERS.min_by_key(bits).unwrap_or(0);
    if known.len() == codes.len() {
        out.push(k);
    } else {
        out.push(k | HAS_BITMAP);
        out.extend(codes.chunks(8).map(|chunk| {
            let bits = chunk.iter().enumerate();
            bits.fold(0, |byte, (bit, code)| byte | u8::from(*code != UNKNOWN) << bit)
        }));
    }
    out.push(*first);
    let mut bits = BitWriter::default();
    for z in differences {
        (0..z >> k).for_each(|_| bits.push(true, out));
        bits.push(false, out);
        (0..k).for_each(|bit| bits.push(z >> bit & 1 == 1, out));
    }
    bits.finish(out);
}

/// Reads a row of so many columns, and returns the bytes after it. `None` if it is damaged.
pub fn unpack(bytes: &[u8], columns: usize) -> Option<(Vec<u8>, &[u8])> {
    let (head, bytes) = bytes.split_first()?;
    let mut codes = vec![UNKNOWN; columns];
    if *head == EMPTY {
        return Some((codes, bytes));
    }
    let k = head & !HAS_BITMAP;
    if !PARAMETERS.contains(&k) {
        return None;
    }
    let (bitmap, bytes) = match head & HAS_BITMAP {
        0 => (None, bytes),
        _ => bytes.split_at_checked(columns.div_ceil(8)).map(|(map, after)| (Some(map), after))?,
    };
    let (first, bytes) = bytes.split_first()?;
    let mut bits = BitReader { bytes, at: 0 };
    let mut before = None;
    for (column, code) in codes.iter_mut().enumerate() {
        if bitmap.is_some_and(|map| map[column / 8] >> (column % 8) & 1 == 0) {
            continue;
        }
        let next = match before {
            None => *first,
            Some(before) => unzigzag(before, bits.rice(k)?)?,
        };
        *code = next;
        before = Some(next);
    }
    Some((codes, &bytes[bits.at.div_ceil(8)..]))
}

#[derive(Default)]
struct BitWriter {
    byte: u8,
    length: u8,
}

impl BitWriter {
    fn push(&mut self, bit: bool, out: &mut Vec<u8>) {
        self.byte |= u8::from(bit) << self.length;
        self.length += 1;
        if self.length == 8 {
            out.push(self.byte);
            *self = BitWriter::default();
        }
    }

    fn finish(self, out: &mut Vec<u8>) {
        if self.length > 0 {
            out.push(self.byte);
        }
    }
}

struct BitReader<'a> {
    bytes: &'a [u8],
    /// Number of bits that were read.
    at: usize,
}

impl BitReader<'_> {
    fn bit(&mut self) -> Option<bool> {
        let byte = self.bytes.get(self.at / 8)?;
        let bit = byte >> (self.at % 8) & 1 == 1;
        self.at += 1;
        Some(bit)
    }

    /// Ends after 512 ones: no difference is as large.
    fn rice(&mut self, k: u8) -> Option<u16> {
        let mut high = 0_u16;
        while self.bit()? {
            high += 1;
            if high >= 512 {
                return None;
            }
        }
        let mut z = high << k;
        for bit in 0..k {
            z |= u16::from(self.bit()?) << bit;
        }
        Some(z)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn row_round_trips_and_its_end_is_known(
            codes in prop::collection::vec(prop_oneof![3 => 0..=255_u8, 1 => Just(UNKNOWN), 4 => 50..55_u8], 0..70),
            after in prop::collection::vec(any::<u8>(), 0..5),
        ) {
            let mut bytes = Vec::new();
            pack(&codes, &mut bytes);
            let length = bytes.len();
            prop_assert!(length <= 2 + codes.len().div_ceil(8) + codes.len() * 2);
            bytes.extend(&after);
            let (read, rest) = unpack(&bytes, codes.len()).expect("a row");
            prop_assert_eq!(read, codes.clone());
            prop_assert_eq!(rest, &after[..]);
            for cut in 0..length {
                let torn = unpack(&bytes[..cut], codes.len());
                prop_assert!(torn.is_none(), "cut at {}", cut);
            }
        }

        #[test]
        fn arbitrary_bytes_are_a_row_or_none(bytes in prop::collection::vec(any::<u8>(), 0..90), columns in 0..70_usize) {
            if let Some((codes, rest)) = unpack(&bytes, columns) {
                prop_assert_eq!(codes.len(), columns);
                prop_assert!(rest.len() < bytes.len());
            }
        }
    }

    #[test]
    fn steady_series_needs_a_bit_a_value() {
        let mut bytes = Vec::new();
        pack(&[40; 60], &mut bytes);
        assert_eq!(bytes.len(), 2 + 8);
        bytes.clear();
        pack(&[UNKNOWN; 60], &mut bytes);
        assert_eq!(bytes, [EMPTY]);
    }
}
