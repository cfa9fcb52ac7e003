//! Whole machines, each with what must come out of it.

mod driver_bind;
mod host_dependency;
mod machines;

use super::*;
use crate::fake::{FakeMachine, PciFunctionRow};
use meshd_proto::{UnitKind, units_ready};

/// Selectors as a profile writes them.
fn wanted(texts: &[&str]) -> Vec<VfioSelector> {
    texts.iter().map(|text| text.parse().expect("a selector")).collect()
}

fn surveyed(fake: &FakeMachine, selectors: &[&str]) -> Vec<UnitFacts> {
    survey(&fake.tree, &wanted(selectors), fake)
}

/// Binds, and gives the units as they are then.
fn bound(fake: &FakeMachine, selectors: &[&str]) -> Vec<UnitFacts> {
    let bound = bind(&fake.tree, &wanted(selectors), fake).expect("recorded");
    bound.into_iter().map(|bound| bound.unit).collect()
}

fn states(units: &[UnitFacts]) -> Vec<UnitState> {
    units.iter().map(|unit| unit.state).collect()
}

/// A GPU with its sound, alone in a group.
const CARD: [PciFunctionRow; 2] =
    [("0000:01:00.0", "10de:2684", "0300", 1, "", -1), ("0000:01:00.1", "10de:22ba", "0403", 1, "snd_hda_intel", -1)];
