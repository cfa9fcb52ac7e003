//! Results of readiness checks: one line for each check, and the outcome of a run.
//!
//! ```text
//! MESH_CHECK status=FAIL check=kvm detail=/dev/kvm\scannot\sbe\sopened remediation=load\sKVM
//! failures=1 warnings=0 1/2 GPU unit(s) ready
//! ```

use super::{DiskFacts, Hosting, SlotFacts, StoreFacts, UnitFacts, facts::iommu_units};
use meshd_types::{BootSessionId, Timestamp, one_line};
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use strum::{Display, EnumString, IntoStaticStr};

/// First word of a check line.
const MARK: &str = "MESH_CHECK";

/// Name of the check that services are started.
pub const SERVICES_CHECK: &str = "services";

/// The result of one readiness check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Check {
    /// Stable name: `services`, `identity`, `clock`...
    pub name: String,
    pub status: CheckStatus,
    pub detail: String,
    /// Hint for the operator; empty when the check passed.
    #[serde(default)]
    pub remediation: String,
    /// The check could not determine its result. This counts as a warning and blocks approvals.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unproven: bool,
}

/// Verdict of a check. Only `Fail` prevents a node from being online.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Display, EnumString, IntoStaticStr,
)]
#[serde(rename_all = "UPPERCASE")]
#[strum(serialize_all = "UPPERCASE")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum CheckStatus {
    Pass,
    Warn,
    Fail,
    /// Not applicable to this profile.
    Skip,
}

serialised_name!(CheckStatus);

/// All checks of one run, with its boot session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckReport {
    /// In execution order.
    pub checks: Vec<Check>,
    /// Boot session of the run. Results of another boot session are invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<BootSessionId>,
    /// As [`super::SystemFacts::kernel_boot_id`].
    pub kernel_boot_id: String,
    /// ID of the request that caused the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<u64>,
    /// Resources of the node at that time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
}

/// Facts that change while a node runs, as in [`super::Facts`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    pub units: Vec<UnitFacts>,
    pub disks: Vec<DiskFacts>,
    pub slots: Vec<SlotFacts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreFacts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosting: Option<Box<Hosting>>,
}

/// Returns the first check that failed or is unproven; it blocks approvals (DR-12).
pub fn blocks_approval(checks: &[Check]) -> Option<&Check> {
    checks.iter().find(|check| check.unproven || check.status == CheckStatus::Fail)
}

/// Returns the numbers of failures and warnings.
pub fn tally(checks: &[Check]) -> (usize, usize) {
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    (count(CheckStatus::Fail), count(CheckStatus::Warn))
}

/// The report of `mesh-agent doctor` and `meshd node doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DoctorReport {
    /// Time of the run or of its report.
    pub at: Timestamp,
    pub session: Option<BootSessionId>,
    pub checks: Vec<Check>,
    pub units_ready: usize,
    /// Units of the profile without switches.
    pub units_total: usize,
    pub failures: usize,
    pub warnings: usize,
}

impl DoctorReport {
    /// Counts results of checks and units.
    pub fn new(
        at: Timestamp,
        session: Option<BootSessionId>,
        checks: Vec<Check>,
        units: &[UnitFacts],
    ) -> Self {
        let (failures, warnings) = tally(&checks);
        let (units_ready, units_total) = iommu_units::count_ready(units);
        DoctorReport { at, session, checks, units_ready, units_total, failures, warnings }
    }

    /// Returns one `MESH_CHECK` line for each check, then the summary.
    pub fn lines(&self) -> String {
        let checks: String =
            self.checks.iter().map(|check| format!("{}\n", check.line())).collect();
        checks + &self.summary()
    }

    /// Returns the report as text. Control characters are escaped: names of checks and
    /// devices are untrusted.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for check in &self.checks {
            text += &format!(
                "{:<5} {:<10} {}\n",
                check.status,
                one_line(&check.name),
                one_line(&check.detail)
            );
            if !check.remediation.is_empty() {
                text += &format!("{:<16} {}\n", "", one_line(&check.remediation));
            }
        }
        text + &self.summary()
    }

    fn summary(&self) -> String {
        let ready = self.units_ready;
        let total = self.units_total;
        format!(
            "failures={} warnings={} {ready}/{total} GPU unit(s) ready\n",
            self.failures, self.warnings
        )
    }
}

/// The line is not a valid check line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    #[error("not a {MARK} line")]
    Other,
    #[error("a {MARK} line without {0}=")]
    Missing(&'static str),
    #[error("a {MARK} line with {0}= twice")]
    Twice(&'static str),
    #[error("invalid {0}= in a {MARK} line")]
    Value(&'static str),
}

impl Check {
    /// Returns `MESH_CHECK status= check= detail= remediation=`, with ` unproven=yes` if unproven.
    /// Values are escaped.
    pub fn line(&self) -> String {
        let unproven = if self.unproven { " unproven=yes" } else { "" };
        let [name, detail, remedy] =
            [&self.name, &self.detail, &self.remediation].map(|text| escape(text));
        format!(
            "{MARK} status={} check={name} detail={detail} remediation={remedy}{unproven}",
            self.status
        )
    }
}

impl FromStr for Check {
    type Err = LineError;

    fn from_str(line: &str) -> Result<Self, LineError> {
        let mut words = line.trim_end_matches(['\n', '\r']).split(' ');
        if words.next() != Some(MARK) {
            return Err(LineError::Other);
        }
        const KEYS: [&str; 5] = ["status", "check", "detail", "remediation", "unproven"];
        let mut found: [Option<String>; 5] = Default::default();
        // Unknown fields belong to a later release.
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            let Some(at) = KEYS.iter().position(|known| *known == key) else { continue };
            if found[at].is_some() {
                return Err(LineError::Twice(KEYS[at]));
            }
            found[at] = Some(unescape(value).ok_or(LineError::Value(KEYS[at]))?);
        }
        let [status, name, detail, remediation, unproven] = found;
        let required = |value: Option<String>, at: usize| value.ok_or(LineError::Missing(KEYS[at]));
        Ok(Check {
            status: required(status, 0)?.parse().map_err(|_| LineError::Value(KEYS[0]))?,
            name: required(name, 1)?,
            detail: required(detail, 2)?,
            remediation: required(remediation, 3)?,
            unproven: unproven.is_some_and(|word| word == "yes"),
        })
    }
}

/// Escapes white space and control characters, which would end a value or a line: `\s`, `\n`,
/// `\u{1b}`, `\\`.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            ' ' => out.push_str("\\s"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_whitespace() || c.is_control() => {
                out.push_str(&format!("\\u{{{:x}}}", u32::from(c)))
            }
            c => out.push(c),
        }
    }
    out
}

fn unescape(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let mut after = rest[at + 1..].chars();
        out.push(match after.next()? {
            '\\' => '\\',
            's' => ' ',
            'n' => '\n',
            't' => '\t',
            'u' => {
                let (code, behind) = after.as_str().strip_prefix('{')?.split_once('}')?;
                after = behind.chars();
                u32::from_str_radix(code, 16).ok().and_then(char::from_u32)?
            }
            _ => return None,
        });
        rest = after.as_str();
    }
    out.push_str(rest);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UnitState;
    use proptest::prelude::*;

    fn check(status: CheckStatus, unproven: bool) -> Check {
        Check {
            name: "kvm".into(),
            status,
            detail: "a b\\c\nd".into(),
            remediation: String::new(),
            unproven,
        }
    }

    #[test]
    fn check_line_has_fields_in_order_without_white_space() {
        let line = check(CheckStatus::Fail, false).line();
        assert_eq!(line, r"MESH_CHECK status=FAIL check=kvm detail=a\sb\\c\nd remediation=");
        assert_eq!(line.parse(), Ok(check(CheckStatus::Fail, false)));
        assert!(check(CheckStatus::Warn, true).line().ends_with(" remediation= unproven=yes"));
    }

    #[test]
    fn malformed_check_line_is_refused_and_unknown_field_accepted() {
        let read = |line: &str| line.parse::<Check>();
        assert_eq!(read("WARN kvm"), Err(LineError::Other));
        assert_eq!(
            read("MESH_CHECK status=PASS check=x detail="),
            Err(LineError::Missing("remediation"))
        );
        assert_eq!(
            read("MESH_CHECK status=pass check=x detail= remediation="),
            Err(LineError::Value("status"))
        );
        assert_eq!(
            read(r"MESH_CHECK status=PASS check=x detail=\q remediation="),
            Err(LineError::Value("detail"))
        );
        assert_eq!(read("MESH_CHECK status=PASS status=PASS"), Err(LineError::Twice("status")));
        assert!(read("MESH_CHECK status=PASS check=x detail= remediation= took=3").is_ok());
    }

    #[test]
    fn last_line_counts_failures_warnings_and_units() {
        let units =
            [UnitFacts { state: UnitState::Ready, ..UnitFacts::default() }, UnitFacts::default()];
        let checks = vec![check(CheckStatus::Fail, false), check(CheckStatus::Warn, true)];
        let report = DoctorReport::new(Timestamp::EPOCH, None, checks, &units);
        for output in [report.lines(), report.text()] {
            assert!(
                output.ends_with("\nfailures=1 warnings=1 1/2 GPU unit(s) ready\n"),
                "{output}"
            );
        }
        assert!(!report.text().contains("c\nd"), "a detail ends no line");
    }

    #[test]
    fn failed_or_unproven_check_blocks_approval_and_a_warning_does_not() {
        let blocked = |checks: &[Check]| blocks_approval(checks).is_some();
        assert!(blocked(&[check(CheckStatus::Pass, false), check(CheckStatus::Warn, true)]));
        assert!(blocked(&[check(CheckStatus::Fail, false)]));
        assert!(!blocked(&[check(CheckStatus::Warn, false), check(CheckStatus::Skip, false)]));
    }

    proptest! {
        #[test]
        fn check_round_trips_as_line(
            name in "\\PC{0,20}", detail: String, remediation: String, status in 0..4usize, unproven: bool,
        ) {
            let status = [CheckStatus::Pass, CheckStatus::Warn, CheckStatus::Fail, CheckStatus::Skip][status];
            let check = Check { name, status, detail, remediation, unproven };
            let line = check.line();
            prop_assert!(line.split_whitespace().count() <= 6 && line.lines().count() == 1, "{line}");
            prop_assert_eq!(line.parse(), Ok(check));
        }

        #[test]
        fn reading_is_total(line: String) {
            let _ = line.parse::<Check>();
            let _ = format!("{MARK} detail={line}").parse::<Check>();
        }
    }
}
