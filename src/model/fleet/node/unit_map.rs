//! Compares the units of a node with its approved units (GP-16). Pure.

use meshd_proto::{Facts, UnitState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of differences in a description.
const MAX_DIFFERENCES: usize = 8;

/// The assignable functions of a node at its first report with a profile, or at the last approval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitMap {
    /// Profile that selected the devices.
    pub profile: String,
    /// Functions by address.
    pub functions: BTreeMap<String, ApprovedFunction>,
}

/// One function of a [`UnitMap`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovedFunction {
    /// Vendor and device ID: `10de:2335`.
    pub ids: String,
    /// First function of the unit, which identifies it, because IOMMU group numbers differ from
    /// boot to boot.
    pub unit: String,
}

impl UnitMap {
    /// Creates the map of reported units, without missing units.
    pub fn from_facts(facts: &Facts) -> Self {
        let mut functions = BTreeMap::new();
        for unit in facts.units.iter().filter(|unit| unit.state != UnitState::Missing) {
            let Some(first) = unit.members.first() else { continue };
            for member in &unit.members {
                let ids = format!("{}:{}", member.vendor, member.device);
                functions.insert(
                    member.address.clone(),
                    ApprovedFunction { ids, unit: first.address.clone() },
                );
            }
        }
        UnitMap { profile: facts.versions.profile.clone(), functions }
    }

    /// Describes the differences; `None` if there are none, or if the profile differs.
    pub fn drift(&self, now: &UnitMap) -> Option<String> {
        if self.profile != now.profile {
            return None;
        }
        let mut differences = Vec::new();
        for (address, was) in &self.functions {
            match now.functions.get(address) {
                None => differences.push(format!("{address} ({}) is gone", was.ids)),
                Some(is) if is.ids != was.ids => {
                    differences.push(format!("{address} was {} and is {}", was.ids, is.ids))
                }
                Some(is) if is.unit != was.unit => {
                    differences.push(format!(
                        "{address} was in the unit of {} and is in that of {}",
                        was.unit, is.unit
                    ));
                }
                Some(_) => {}
            }
        }
        let new =
            now.functions.iter().filter(|(address, _)| !self.functions.contains_key(*address));
        differences.extend(new.map(|(address, is)| format!("{address} ({}) is new", is.ids)));
        let more = differences.len().saturating_sub(MAX_DIFFERENCES);
        differences.truncate(MAX_DIFFERENCES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (!differences.is_empty()).then(|| format!("{}{more}", differences.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_proto::{PciFacts, UnitFacts};

    fn facts(profile: &str, units: &[(&[&str], UnitState)]) -> Facts {
        let member = |address: &&str| PciFacts {
            address: (*address).into(),
            vendor: "10de".into(),
            device: "2335".into(),
            ..PciFacts::default()
        };
        let unit = |(members, state): &(&[&str], UnitState)| UnitFacts {
            members: members.iter().map(member).collect(),
            state: *state,
            ..UnitFacts::default()
        };
        let mut facts = Facts { units: units.iter().map(unit).collect(), ..Facts::default() };
        facts.versions.profile = profile.into();
        facts
    }

    #[test]
    fn changed_functions_are_drift_and_a_changed_state_is_not() {
        let approved = UnitMap::from_facts(&facts(
            "vfio",
            &[(&["1"], UnitState::Ready), (&["2", "3"], UnitState::Ready)],
        ));
        let drift = |units: &[(&[&str], UnitState)]| {
            approved.drift(&UnitMap::from_facts(&facts("vfio", units)))
        };
        assert_eq!(drift(&[(&["1"], UnitState::Wedged), (&["2", "3"], UnitState::InUse)]), None);
        assert_eq!(
            drift(&[(&["2", "3"], UnitState::Ready)]).as_deref(),
            Some("1 (10de:2335) is gone")
        );
        let missing = drift(&[(&["1"], UnitState::Missing), (&["2", "3"], UnitState::Ready)]);
        assert_eq!(missing.as_deref(), Some("1 (10de:2335) is gone"));
        let apart = drift(&[
            (&["1"], UnitState::Ready),
            (&["2"], UnitState::Ready),
            (&["3"], UnitState::Ready),
        ]);
        assert_eq!(apart.as_deref(), Some("3 was in the unit of 2 and is in that of 3"));
        let more = drift(&[
            (&["1"], UnitState::Ready),
            (&["2", "3"], UnitState::Ready),
            (&["4"], UnitState::Ready),
        ]);
        assert_eq!(more.as_deref(), Some("4 (10de:2335) is new"));
        assert_eq!(
            approved.drift(&UnitMap::from_facts(&facts("discovery", &[]))),
            None,
            "another profile selects otherwise"
        );
    }

    #[test]
    fn first_units_are_approved_until_an_operator_approves_others() {
        let mut node = crate::fleet::Node::fixture(1);
        let mut report = |profile: &str, units: &[(&[&str], UnitState)]| {
            node.facts = Some(facts(profile, units));
            let drift = node.compare_units();
            if drift.is_some() && profile == "approved" {
                node.approve_units();
            }
            drift
        };
        assert_eq!(report("discovery", &[]), None);
        assert_eq!(report("vfio", &[(&["1"], UnitState::Ready), (&["2"], UnitState::Ready)]), None);
        for _ in 0..2 {
            assert!(
                report("vfio", &[(&["1"], UnitState::Ready)]).is_some(),
                "it stays until it is as it was"
            );
        }
        assert_eq!(report("vfio", &[(&["1"], UnitState::Ready), (&["2"], UnitState::Ready)]), None);
        assert_eq!(
            report("approved", &[(&["1"], UnitState::Ready)]),
            None,
            "another profile begins anew"
        );
        assert!(report("approved", &[(&["2"], UnitState::Ready)]).is_some());
        assert_eq!(
            report("approved", &[(&["2"], UnitState::Ready)]),
            None,
            "an operator has approved it"
        );
    }
}
