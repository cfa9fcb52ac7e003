//! Results of readiness checks: one line for each check, and the outcome of a run.
//!
//! ```text
//! MESH_CHECK status=FAIL check=kvm detail=/dev/kvm\scannot\sbe\sopened remediation=load\sKVM
//! failures=1 warnings=0 1/2 GPU unit(s) ready
//! ```

use super::{DiskFacts, Hosting, SlotFacts, StoreFacts, UnitFacts, UnitKind, UnitState};
use meshd_types::{BootSessionId, Timestamp};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// What a line of a check begins with.
const MARK: &str = "MESH_CHECK";

/// One readiness check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Stable name: `services`, `identity`, `clock`...
    pub name: String,
    pub status: CheckStatus,
    pub detail: String,
    /// What to do, empty when it passed.
    #[serde(default)]
    pub remediation: String,
    /// It could not find out; that is a warning, and nothing of the node is approved on it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unproven: bool,
}

/// Verdict of a check. Only `Fail` keeps a node from being online.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "UPPERCASE")]
#[strum(serialize_all = "UPPERCASE")]
pub enum CheckStatus {
    /// As it should be.
    Pass,
    /// Works, but look at it.
    Warn,
    /// Does not work.
    Fail,
    /// Not applicable to this profile.
    Skip,
}

/// All checks of one run, and what says when and where they ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckReport {
    /// In the order in which they ran.
    pub checks: Vec<Check>,
    /// The boot that they ran in; checks of another one prove nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<BootSessionId>,
    /// The kernel that they ran under, as [`super::SystemFacts::kernel_boot_id`].
    pub kernel_boot_id: String,
    /// The request that this answers; it ran after the request came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<u64>,
    /// What the node had to give then; absent from an older agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
}

/// What of a node's facts changes while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// As [`super::Facts::units`].
    pub units: Vec<UnitFacts>,
    /// As [`super::Facts::disks`].
    pub disks: Vec<DiskFacts>,
    /// As [`super::Facts::slots`].
    pub slots: Vec<SlotFacts>,
    /// As [`super::Facts::store`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreFacts>,
    /// As [`super::Facts::hosting`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosting: Option<Box<Hosting>>,
}

/// What stands against approving anything of a node by these checks: the first that fails or is unproven (DR-12).
pub fn blocks_approval(checks: &[Check]) -> Option<&Check> {
    checks.iter().find(|check| check.unproven || check.status == CheckStatus::Fail)
}

/// Counts failures and warnings.
pub fn tally(checks: &[Check]) -> (usize, usize) {
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    (count(CheckStatus::Fail), count(CheckStatus::Warn))
}

/// What a doctor of a node prints, the node's own or `meshd node doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorReport {
    /// When the checks ran, or were told.
    pub at: Timestamp,
    /// The boot that they ran in.
    pub session: Option<BootSessionId>,
    /// Each check.
    pub checks: Vec<Check>,
    /// Units that can be given.
    pub units_ready: usize,
    /// All units of the profile but switches.
    pub units_total: usize,
    /// Checks that fail.
    pub failures: usize,
    /// Checks that warn.
    pub warnings: usize,
}

impl DoctorReport {
    /// Of checks and units that belong together.
    pub fn new(at: Timestamp, session: Option<BootSessionId>, checks: Vec<Check>, units: &[UnitFacts]) -> Self {
        let (failures, warnings) = tally(&checks);
        let counted = || units.iter().filter(|unit| unit.kind == UnitKind::Device);
        let units_ready = counted().filter(|unit| unit.state == UnitState::Ready).count();
        DoctorReport { at, session, checks, units_ready, units_total: counted().count(), failures, warnings }
    }

    /// One `MESH_CHECK` line for each check, and the two last lines.
    pub fn lines(&self) -> String {
        let checks: String = self.checks.iter().map(|check| format!("{}\n", check.line())).collect();
        checks + &self.end()
    }

    /// For people. Control characters are made harmless: a device may call itself anything.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for check in &self.checks {
            text += &format!("{:<5} {:<10} {}\n", check.status, check.name, harmless(&check.detail));
            if !check.remediation.is_empty() {
                text += &format!("{:<16} {}\n", "", harmless(&check.remediation));
            }
        }
        text + &self.end()
    }

    fn end(&self) -> String {
        let (ready, total) = (self.units_ready, self.units_total);
        format!("failures={} warnings={} {ready}/{total} GPU unit(s) ready\n", self.failures, self.warnings)
    }
}

fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Why a line is not that of a check.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// It begins otherwise.
    #[error("not a {MARK} line")]
    Other,
    /// A field is not there.
    #[error("a {MARK} line without {0}=")]
    Missing(&'static str),
    /// A field is there twice.
    #[error("a {MARK} line with {0}= twice")]
    Twice(&'static str),
    /// A field says what it cannot say.
    #[error("a {MARK} line whose {0}= cannot be read")]
    Value(&'static str),
}

impl Check {
    /// `MESH_CHECK status= check= detail= remediation=` in one line; values hold no white space. `unproven=yes` stands at the end
    /// where it is so.
    pub fn line(&self) -> String {
        let unproven = if self.unproven { " unproven=yes" } else { "" };
        let [name, detail, remedy] = [&self.name, &self.detail, &self.remediation].map(|text| escape(text));
        format!("{MARK} status={} check={name} detail={detail} remediation={remedy}{unproven}", self.status)
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
        // A field that is not known is one of a later release.
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            let Some(at) = KEYS.iter().position(|known| *known == key) else { continue };
            if found[at].is_some() {
                return Err(LineError::Twice(KEYS[at]));
            }
            found[at] = Some(unescape(value).ok_or(LineError::Value(KEYS[at]))?);
        }
        let [status, name, detail, remediation, unproven] = found;
        let need = |value: Option<String>, at: usize| value.ok_or(LineError::Missing(KEYS[at]));
        Ok(Check {
            status: need(status, 0)?.parse().map_err(|()| LineError::Value(KEYS[0]))?,
            name: need(name, 1)?,
            detail: need(detail, 2)?,
            remediation: need(remediation, 3)?,
            unproven: unproven.is_some_and(|word| word == "yes"),
        })
    }
}

impl CheckStatus {
    /// The word of the wire, which is also shown.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl fmt::Display for CheckStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for CheckStatus {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        use CheckStatus::{Fail, Pass, Skip, Warn};
        [Pass, Warn, Fail, Skip].into_iter().find(|status| status.as_str() == text).ok_or(())
    }
}

/// White space and control characters would end a value or a line: `\s`, `\n`, `\u{1b}`; the backslash is `\\`.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            ' ' => out.push_str("\\s"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_whitespace() || c.is_control() => out.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
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
    use proptest::prelude::*;

    fn check(status: CheckStatus, unproven: bool) -> Check {
        Check { name: "kvm".into(), status, detail: "a b\\c\nd".into(), remediation: String::new(), unproven }
    }

    #[test]
    fn line_has_its_fields_in_order_and_no_value_holds_white_space() {
        let line = check(CheckStatus::Fail, false).line();
        assert_eq!(line, r"MESH_CHECK status=FAIL check=kvm detail=a\sb\\c\nd remediation=");
        assert_eq!(line.parse(), Ok(check(CheckStatus::Fail, false)));
        assert!(check(CheckStatus::Warn, true).line().ends_with(" remediation= unproven=yes"));
    }

    #[test]
    fn malformed_line_is_refused_and_an_unknown_field_is_accepted() {
        let read = |line: &str| line.parse::<Check>();
        assert_eq!(read("WARN kvm"), Err(LineError::Other));
        assert_eq!(read("MESH_CHECK status=PASS check=x detail="), Err(LineError::Missing("remediation")));
        assert_eq!(read("MESH_CHECK status=pass check=x detail= remediation="), Err(LineError::Value("status")));
        assert_eq!(read(r"MESH_CHECK status=PASS check=x detail=\q remediation="), Err(LineError::Value("detail")));
        assert_eq!(read("MESH_CHECK status=PASS status=PASS"), Err(LineError::Twice("status")));
        assert!(read("MESH_CHECK status=PASS check=x detail= remediation= took=3").is_ok());
    }

    #[test]
    fn last_line_counts_failures_warnings_and_units() {
        let units = [UnitFacts { state: UnitState::Ready, ..UnitFacts::default() }, UnitFacts::default()];
        let checks = vec![check(CheckStatus::Fail, false), check(CheckStatus::Warn, true)];
        let report = DoctorReport::new(Timestamp::EPOCH, None, checks, &units);
        for told in [report.lines(), report.text()] {
            assert!(told.ends_with("\nfailures=1 warnings=1 1/2 GPU unit(s) ready\n"), "{told}");
        }
        assert!(!report.text().contains("c\nd"), "nothing of a detail ends a line");
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
        fn every_check_comes_back_from_its_line(
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
