//! One packet of Linux's netconsole, in its extended or basic format (Linux,
//! Documentation/networking/netconsole.rst). Pure; accepts any input.
//!
//! ```text
//! 6,416,1758426,-;usb 1-1: new device              priority, sequence, microseconds, flags; text
//! 6,417,1758427,-,ncfrag=0/33;the first part of    a long message, in several packets
//! 6,417,1758427,-,ncfrag=18/33;a message
//! a line of the basic format
//! ```

use std::ops::Range;

/// Maximum length of stored text of one packet, in bytes. The kernel sends at most 1000.
pub(super) const MAX_TEXT: usize = 1500;

/// Returns the text of a packet as a line like those of `dmesg`. A message in several packets ends
/// with its last one. Empty for a packet without text.
pub fn text_of(packet: &[u8]) -> String {
    let packet = String::from_utf8_lossy(packet.get(..MAX_TEXT).unwrap_or(packet));
    let (prefix, text, ends) = parse_extended(&packet).unwrap_or((String::new(), &packet, true));
    // Properties of the message follow in further lines, which begin with a space.
    let text = text.trim_end_matches(['\n', '\0']);
    let text = if prefix.is_empty() { text } else { text.lines().next().unwrap_or_default() };
    if text.is_empty() && prefix.is_empty() && ends {
        return String::new();
    }
    format!("{prefix}{text}{}", if ends { "\n" } else { "" })
}

/// Parses the extended format: what precedes the text, the text, and whether the message ends with
/// it.
fn parse_extended(packet: &str) -> Option<(String, &str, bool)> {
    let (head, text) = packet.split_once(';')?;
    let mut fields = head.split(',');
    // With the option `r`, the release of the kernel comes first.
    let first = fields.next()?;
    let priority = if first.parse::<u32>().is_ok() { first } else { fields.next()? };
    priority.parse::<u32>().ok()?;
    fields.next()?.parse::<u64>().ok()?;
    let micros: u64 = fields.next()?.parse().ok()?;
    let fragment = fields.find_map(|field| parse_fragment(field, text));
    let begins = fragment.as_ref().is_none_or(|(range, _)| range.start == 0);
    let ends = fragment.is_none_or(|(range, length)| range.end >= length);
    let time = || format!("[{:5}.{:06}] ", micros / 1_000_000, micros % 1_000_000);
    Some((if begins { time() } else { String::new() }, text, ends))
}

/// Parses `ncfrag=OFFSET/LENGTH`: the bytes of the message that a packet has, and its length.
fn parse_fragment(field: &str, text: &str) -> Option<(Range<usize>, usize)> {
    let (offset, length) = field.strip_prefix("ncfrag=")?.split_once('/')?;
    let offset = offset.parse::<usize>().ok()?;
    let length = length.parse().ok()?;
    Some((offset..offset.saturating_add(text.len()), length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn message_of_each_format_is_a_line_with_its_time() {
        for (packet, line) in [
            (
                "6,416,1758426,-;usb 1-1: new device\n SUBSYSTEM=usb\n",
                "[    1.758426] usb 1-1: new device\n",
            ),
            ("6.1.0-18-amd64,6,416,1758426,-;release\n", "[    1.758426] release\n"),
            ("6,416,1758426,-,caller=T1;with a caller\n", "[    1.758426] with a caller\n"),
            ("[   12.5] panic; of the basic format\n", "[   12.5] panic; of the basic format\n"),
            ("no line end", "no line end\n"),
            ("6,416,x,-;no time\n", "6,416,x,-;no time\n"),
            ("\n", ""),
            ("", ""),
            ("6,416,1758426,-;\n", "[    1.758426] \n"),
        ] {
            assert_eq!(text_of(packet.as_bytes()), line, "{packet:?}");
        }
    }

    #[test]
    fn message_in_several_packets_is_one_line() {
        let packets = [
            "6,417,1758427,-,ncfrag=0/27;the first part of",
            "6,417,1758427,-,ncfrag=17/27; a message",
        ];
        let text: String = packets.iter().map(|packet| text_of(packet.as_bytes())).collect();
        assert_eq!(text, "[    1.758427] the first part of a message\n");
        assert_eq!(text_of(b"6,1,2,-,ncfrag=18446744073709551615/1;x"), "x\n");
    }

    proptest! {
        #[test]
        fn text_of_any_packet_is_bounded(packet in prop::collection::vec(any::<u8>(), 0..3000)) {
            // An invalid byte becomes a character of three bytes.
            prop_assert!(text_of(&packet).len() <= MAX_TEXT * 3 + 64);
        }

        #[test]
        fn text_of_any_header_is_bounded(packet in "(6,|[0-9]{1,25}|,|;|-|ncfrag=|/|\n| |x){0,20}") {
            prop_assert!(text_of(packet.as_bytes()).len() <= MAX_TEXT * 3 + 64);
        }
    }
}
