//! The series of a node, and their values as codes of one byte.
//!
//! A rack of 10,000 nodes has 70,000 series. A value of eight bytes would cost a hundred times the
//! memory and the disk that a code costs, and no plot would show the difference.

use meshd_proto::Usage;

/// Number of series of a node.
pub const NODE_SERIES: usize = NodeSeries::ALL.len();
/// The code of a value that is not known.
pub const UNKNOWN: u8 = u8::MAX;
/// The largest code of a value.
const MAX_CODE: u8 = UNKNOWN - 1;
/// Codes of a factor of two of a rate: a step is 19 %.
const CODES_PER_DOUBLING: f64 = 4.0;

/// A value for each series of a node, in the order of [`NodeSeries::ALL`].
pub type NodeCodes = [u8; NODE_SERIES];

/// A series of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum NodeSeries {
    Cpu,
    Memory,
    Disk,
    NicReceived,
    NicSent,
    Temperature,
    Gpu,
}

as_str!(NodeSeries);

impl NodeSeries {
    /// All series, in the order of their codes in files.
    pub const ALL: [NodeSeries; 7] = [
        NodeSeries::Cpu,
        NodeSeries::Memory,
        NodeSeries::Disk,
        NodeSeries::NicReceived,
        NodeSeries::NicSent,
        NodeSeries::Temperature,
        NodeSeries::Gpu,
    ];

    /// Unit of the values.
    pub fn unit(self) -> &'static str {
        match self {
            NodeSeries::Cpu | NodeSeries::Memory | NodeSeries::Disk | NodeSeries::Gpu => "percent",
            NodeSeries::NicReceived | NodeSeries::NicSent => "bytes_per_second",
            NodeSeries::Temperature => "celsius",
        }
    }

    /// Meaning of the values.
    pub fn meaning(self) -> &'static str {
        match self {
            NodeSeries::Cpu => "Busy time of all processors.",
            NodeSeries::Memory => "Memory that is not available.",
            NodeSeries::Disk => "Used space of the fullest of root file system and VM store.",
            NodeSeries::NicReceived => "Bytes that all NICs received.",
            NodeSeries::NicSent => "Bytes that all NICs sent.",
            NodeSeries::Temperature => "Hottest sensor of the node.",
            NodeSeries::Gpu => "Mean utilisation of the GPUs that the host's driver shows.",
        }
    }

    /// Returns the code of a value: the nearest one of its scale.
    pub fn encode(self, value: f64) -> u8 {
        let code = match self {
            NodeSeries::NicReceived | NodeSeries::NicSent if value >= 1.0 => {
                1.0 + CODES_PER_DOUBLING * value.log2()
            }
            _ => value,
        };
        // The conversion of a float saturates, and maps NaN to 0.
        (code.round() as u8).min(MAX_CODE)
    }

    /// Returns the value of a code; `None` for [`UNKNOWN`].
    pub fn decode(self, code: u8) -> Option<f64> {
        let value = f64::from(code);
        match self {
            _ if code == UNKNOWN => None,
            NodeSeries::NicReceived | NodeSeries::NicSent if code > 0 => {
                Some(((value - 1.0) / CODES_PER_DOUBLING).exp2())
            }
            _ => Some(value),
        }
    }

    /// Returns the code of the mean of several codes.
    pub fn mean(self, codes: &[u8]) -> u8 {
        let values = codes.iter().filter_map(|code| self.decode(*code));
        let (sum, count) =
            values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
        if count == 0 { UNKNOWN } else { self.encode(sum / f64::from(count)) }
    }
}

/// Returns the codes of what a node reports. Percents above 100 are 100: nodes report anything.
pub fn usage_codes(usage: &Usage) -> NodeCodes {
    let percent = |value: Option<u8>| value.map(|value| f64::from(value.min(100)));
    let values = [
        percent(usage.cpu_percent),
        percent(usage.memory_percent),
        percent(usage.disk_percent),
        usage.received_bytes_per_s.map(|bytes| bytes as f64),
        usage.sent_bytes_per_s.map(|bytes| bytes as f64),
        usage.temperature_c.map(f64::from),
        percent(usage.gpu_percent),
    ];
    std::array::from_fn(|at| values[at].map_or(UNKNOWN, |value| NodeSeries::ALL[at].encode(value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn usage_becomes_codes_that_return_its_values() {
        let usage = Usage {
            cpu_percent: Some(37),
            memory_percent: Some(250),
            received_bytes_per_s: Some(0),
            sent_bytes_per_s: Some(1_000_000_000),
            temperature_c: Some(91),
            ..Usage::default()
        };
        let codes = usage_codes(&usage);
        let values: Vec<_> =
            NodeSeries::ALL.iter().zip(codes).map(|(series, code)| series.decode(code)).collect();
        assert_eq!(values[..4], [Some(37.0), Some(100.0), None, Some(0.0)]);
        let sent = values[4].expect("a rate");
        assert!((0.9..=1.1).contains(&(sent / 1e9)), "{sent}");
        assert_eq!(values[5..], [Some(91.0), None]);
        assert_eq!(usage_codes(&Usage::default()), [UNKNOWN; NODE_SERIES]);
    }

    proptest! {
        #[test]
        fn code_of_a_rate_is_within_a_tenth(bytes in 1..u64::MAX >> 8) {
            let value = bytes as f64;
            let decoded = NodeSeries::NicSent.decode(NodeSeries::NicSent.encode(value)).expect("a value");
            prop_assert!((decoded / value - 1.0).abs() < 0.1, "{value} {decoded}");
        }

        #[test]
        fn any_number_has_a_code_and_a_mean_within_its_range(value in any::<f64>(), codes in prop::collection::vec(any::<u8>(), 1..60)) {
            for series in NodeSeries::ALL {
                prop_assert!(series.encode(value) <= MAX_CODE);
                let known: Vec<u8> = codes.iter().copied().filter(|code| *code != UNKNOWN).collect();
                let mean = series.mean(&codes);
                match (known.iter().min(), known.iter().max()) {
                    (Some(low), Some(high)) => prop_assert!((*low..=*high).contains(&mean)),
                    _ => prop_assert_eq!(mean, UNKNOWN),
                }
            }
        }
    }
}
