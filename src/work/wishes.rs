//! Which units of one node fulfil what is wished. Each wish gets a unit of its own, or none gets any.

use super::{Held, Host, Lack};
use crate::config::vm::{UnitWish, VmAsk};
use crate::id::{PciAddress, PciName};
use crate::wire::{UnitFacts, UnitKind, UnitState, whole_node};

/// Most units that one machine may wish for, and most that are looked at over all nodes.
pub(super) const MOST: usize = 64;

/// One function of a unit, by which it is named: the first that the profile selects.
pub(super) fn name(unit: &UnitFacts) -> Option<PciAddress> {
    let first = unit.selected.first().or(unit.members.first().map(|member| &member.address));
    first.and_then(|address| address.parse().ok())
}

/// True if a unit is one that some wish could have.
pub(super) fn helps(ask: &VmAsk, unit: &UnitFacts) -> bool {
    ask.units.each.iter().any(|wish| fulfils(unit, wish))
}

fn fulfils(unit: &UnitFacts, wish: &UnitWish) -> bool {
    match wish {
        UnitWish::Any => unit.kind == UnitKind::Device,
        UnitWish::Selected(selector) => unit.members.iter().any(|member| {
            selector.matches(PciName {
                address: &member.address,
                vendor: &member.vendor,
                device: &member.device,
                class: &member.class,
            })
        }),
    }
}

fn is_held(held: &Held, unit: &UnitFacts) -> bool {
    held.unit(unit.members.iter().map(|member| member.address.as_str())).is_some()
}

/// Why the slot of a unit cannot be given.
fn bar<'h>(host: &'h Host<'_>, unit: &UnitFacts) -> Option<&'h str> {
    let is = |address: &PciAddress| unit.members.iter().any(|member| member.address == address.as_str());
    host.barred.iter().find(|(address, _)| is(address)).map(|(_, why)| why.as_str())
}

/// A unit for each wish, or `None`: of those that can be given now, beside what is held; without that, of all that there are.
pub(super) fn grant<'a>(ask: &VmAsk, units: &'a [UnitFacts], now: Option<&Host<'_>>) -> Option<Vec<&'a UnitFacts>> {
    if ask.units.whole {
        let free =
            now.is_none_or(|host| host.held.unit_count() == 0 && host.barred.is_empty() && whole_node(units).is_ok());
        return (free && !units.is_empty()).then(|| units.iter().collect());
    }
    if ask.units.each.is_empty() {
        return Some(Vec::new());
    }
    let free = |unit: &&UnitFacts| {
        now.is_none_or(|host| unit.state == UnitState::Ready && !is_held(host.held, unit) && bar(host, unit).is_none())
    };
    let mut units: Vec<&UnitFacts> = units.iter().filter(free).collect();
    // Those near the processors that were asked for first.
    units.sort_by_key(|unit| ask.spec.numa_node.is_some() && unit.numa_node != ask.spec.numa_node);
    assign(&ask.units.each, &units)
}

/// Augmenting paths: a wish that more units fulfil gives way to one that has no choice.
fn assign<'a>(wishes: &[UnitWish], units: &[&'a UnitFacts]) -> Option<Vec<&'a UnitFacts>> {
    let mut owner: Vec<Option<usize>> = vec![None; units.len()];
    for wish in 0..wishes.len() {
        let mut tried = vec![false; units.len()];
        if !give(wish, wishes, units, &mut owner, &mut tried) {
            return None;
        }
    }
    let unit_of = |wish| owner.iter().position(|owner| *owner == Some(wish)).map(|unit| units[unit]);
    (0..wishes.len()).map(unit_of).collect()
}

fn give(
    wish: usize,
    wishes: &[UnitWish],
    units: &[&UnitFacts],
    owner: &mut [Option<usize>],
    tried: &mut [bool],
) -> bool {
    for unit in 0..units.len() {
        if tried[unit] || !fulfils(units[unit], &wishes[wish]) {
            continue;
        }
        tried[unit] = true;
        let is_free = match owner[unit] {
            None => true,
            Some(other) => give(other, wishes, units, owner, tried),
        };
        if is_free {
            owner[unit] = Some(wish);
            return true;
        }
    }
    false
}

/// What a node lacks of units, in the word that says most.
pub(super) fn lack(ask: &VmAsk, host: &Host<'_>) -> Option<(Lack, String)> {
    if grant(ask, host.units, Some(host)).is_some() {
        return None;
    }
    let wished = if ask.units.whole {
        "all units of it".to_owned()
    } else {
        let words: Vec<String> = ask.units.each.iter().map(ToString::to_string).collect();
        words.join(" ")
    };
    if grant(ask, host.units, None).is_none() {
        return Some((Lack::UnitMissing, format!("{wished}, and it has {} units", host.units.len())));
    }
    let of_interest = |unit: &&UnitFacts| ask.units.whole || helps(ask, unit);
    let taken: Vec<String> =
        host.units.iter().filter(of_interest).filter(|unit| is_held(host.held, unit)).map(UnitFacts::name).collect();
    if !taken.is_empty() {
        return Some((Lack::UnitTaken, format!("{wished}; others have {}", taken.join(", "))));
    }
    let closed = host.units.iter().filter(of_interest).filter_map(|unit| Some((unit, bar(host, unit)?)));
    let closed: Vec<String> = closed.map(|(unit, why)| format!("{}: {why}", unit.name())).collect();
    if !closed.is_empty() && host.units.iter().filter(of_interest).all(|unit| unit.state == UnitState::Ready) {
        return Some((Lack::SlotClosed, format!("{wished}; {}", closed.join(", "))));
    }
    let unready = host.units.iter().filter(of_interest).filter(|unit| unit.state != UnitState::Ready);
    let unready: Vec<String> = unready.map(|unit| format!("{} is {}", unit.name(), unit.state.as_str())).collect();
    Some((Lack::UnitNotReady, format!("{wished}; {}", unready.join(", "))))
}
