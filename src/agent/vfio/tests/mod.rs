//! The units of fake machines.

mod driver_bind;
mod host_dependency;
mod machines;

use super::*;
use crate::fake::{FakeMachine, PciFunctionRow};
use meshd_proto::{UnitKind, units_ready};

/// Parses selectors of a profile.
fn selectors(texts: &[&str]) -> Vec<VfioSelector> {
    texts.iter().map(|text| text.parse().expect("a selector")).collect()
}

fn surveyed(fake: &FakeMachine, texts: &[&str]) -> Vec<UnitFacts> {
    survey(&fake.tree, &selectors(texts), fake)
}

/// Binds, and returns the units afterwards.
fn bound(fake: &FakeMachine, texts: &[&str]) -> Vec<UnitFacts> {
    let bound = bind(&fake.tree, &selectors(texts), fake).expect("recorded");
    bound.into_iter().map(|bound| bound.unit).collect()
}

fn states(units: &[UnitFacts]) -> Vec<UnitState> {
    units.iter().map(|unit| unit.state).collect()
}

/// A GPU and its sound function, alone in a group.
const CARD: [PciFunctionRow; 2] = [
    ("0000:01:00.0", "10de:2684", "0300", 1, "", -1),
    ("0000:01:00.1", "10de:22ba", "0403", 1, "snd_hda_intel", -1),
];

/// A machine with [`CARD`] bound to vfio-pci.
fn bound_card() -> FakeMachine {
    FakeMachine::new("", &CARD.map(|row| (row.0, row.1, row.2, row.3, "vfio-pci", row.5)))
}

/// A machine with another function in the group of [`CARD`].
fn card_with(cmdline: &str, function: PciFunctionRow) -> FakeMachine {
    FakeMachine::new(cmdline, &[CARD[0], CARD[1], function])
}
