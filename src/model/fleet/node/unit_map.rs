//! Compares the units of a node with those that it was approved with (GP-16). Pure.

use meshd_proto::{Facts, UnitState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most differences that are told at once.
const MAX_TOLD: usize = 8;

/// What a node could give to virtual machines when it was first seen with its profile, or when an operator last approved it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitMap {
    /// The profile that selected it; another one selects other devices.
    pub profile: String,
    /// Functions by address.
    pub functions: BTreeMap<String, Placed>,
}

/// One function of a [`UnitMap`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// `10de:2335`.
    pub ids: String,
    /// The first function of its unit. Numbers of IOMMU groups differ from boot to boot.
    pub unit: String,
}

impl UnitMap {
    /// Of what a node tells; what is missing is not there.
    pub fn of(facts: &Facts) -> Self {
        let mut functions = BTreeMap::new();
        for unit in facts.units.iter().filter(|unit| unit.state != UnitState::Missing) {
            let Some(first) = unit.members.first() else { continue };
            for member in &unit.members {
                let ids = format!("{}:{}", member.vendor, member.device);
                functions.insert(member.address.clone(), Placed { ids, unit: first.address.clone() });
            }
        }
        UnitMap { profile: facts.versions.profile.clone(), functions }
    }

    /// What is different now, for people; `None` where nothing is, or where another profile selects.
    pub fn drift(&self, now: &UnitMap) -> Option<String> {
        if self.profile != now.profile {
            return None;
        }
        let mut told = Vec::new();
        for (address, was) in &self.functions {
            match now.functions.get(address) {
                None => told.push(format!("{address} ({}) is gone", was.ids)),
                Some(is) if is.ids != was.ids => told.push(format!("{address} was {} and is {}", was.ids, is.ids)),
                Some(is) if is.unit != was.unit => {
                    told.push(format!("{address} went with {} and goes with {}", was.unit, is.unit));
                }
                Some(_) => {}
            }
        }
        let new = now.functions.iter().filter(|(address, _)| !self.functions.contains_key(*address));
        told.extend(new.map(|(address, is)| format!("{address} ({}) is new", is.ids)));
        let more = told.len().saturating_sub(MAX_TOLD);
        told.truncate(MAX_TOLD);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (!told.is_empty()).then(|| format!("{}{more}", told.join(", ")))
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
    fn what_is_gone_new_or_grouped_otherwise_is_drift_and_a_state_alone_is_none() {
        let approved = UnitMap::of(&facts("vfio", &[(&["1"], UnitState::Ready), (&["2", "3"], UnitState::Ready)]));
        let drift = |units: &[(&[&str], UnitState)]| approved.drift(&UnitMap::of(&facts("vfio", units)));
        assert_eq!(drift(&[(&["1"], UnitState::Wedged), (&["2", "3"], UnitState::InUse)]), None);
        assert_eq!(drift(&[(&["2", "3"], UnitState::Ready)]).as_deref(), Some("1 (10de:2335) is gone"));
        let missing = drift(&[(&["1"], UnitState::Missing), (&["2", "3"], UnitState::Ready)]);
        assert_eq!(missing.as_deref(), Some("1 (10de:2335) is gone"));
        let apart = drift(&[(&["1"], UnitState::Ready), (&["2"], UnitState::Ready), (&["3"], UnitState::Ready)]);
        assert_eq!(apart.as_deref(), Some("3 went with 2 and goes with 3"));
        let more = drift(&[(&["1"], UnitState::Ready), (&["2", "3"], UnitState::Ready), (&["4"], UnitState::Ready)]);
        assert_eq!(more.as_deref(), Some("4 (10de:2335) is new"));
        assert_eq!(approved.drift(&UnitMap::of(&facts("discovery", &[]))), None, "another profile selects otherwise");
    }

    #[test]
    fn the_first_units_are_the_approved_ones_until_an_operator_approves_others() {
        use crate::fleet::{Fingerprint, Node};
        use meshd_types::{Basis, MacAddr, Timestamp};
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let mut node = Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, Timestamp::EPOCH);
        let mut tells = |profile: &str, units: &[(&[&str], UnitState)]| {
            node.facts = Some(facts(profile, units));
            let drift = node.compare_units();
            if drift.is_some() && profile == "approved" {
                node.approve_units();
            }
            drift
        };
        assert_eq!(tells("discovery", &[]), None);
        assert_eq!(tells("vfio", &[(&["1"], UnitState::Ready), (&["2"], UnitState::Ready)]), None);
        for _ in 0..2 {
            assert!(tells("vfio", &[(&["1"], UnitState::Ready)]).is_some(), "it stays until it is as it was");
        }
        assert_eq!(tells("vfio", &[(&["1"], UnitState::Ready), (&["2"], UnitState::Ready)]), None);
        assert_eq!(tells("approved", &[(&["1"], UnitState::Ready)]), None, "another profile begins anew");
        assert!(tells("approved", &[(&["2"], UnitState::Ready)]).is_some());
        assert_eq!(tells("approved", &[(&["2"], UnitState::Ready)]), None, "an operator has approved it");
    }
}
