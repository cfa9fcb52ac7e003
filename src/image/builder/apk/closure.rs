//! Resolves package dependencies from the indexes of a mirror. Reports all missing dependencies with the packages that
//! need them, so a fault ends the build and not a boot. Pure.

use super::{depends::Dependency, index::Record, version};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
};

/// Why a list of packages cannot be had whole.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MissingPackage {
    /// No package of the mirror is, or provides, what is wanted.
    Missing { wanted: String, by: String },
    /// Several packages provide it and none of them is preferred.
    Undecided { wanted: String, by: String, providers: Vec<String> },
    /// A package must not meet another one.
    Conflict {
        package: String,
        /// The one that it must not meet.
        with: String,
    },
}

impl fmt::Display for MissingPackage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MissingPackage::Missing { wanted, by } => {
                write!(f, "the mirror has no package `{wanted}`, which {by} needs")
            }
            MissingPackage::Undecided { wanted, by, providers } => {
                let providers = providers.join(", ");
                write!(f, "`{wanted}`, which {by} needs, is provided by {providers}; name one in packages.install")
            }
            MissingPackage::Conflict { package, with } => {
                write!(f, "{package} and {with} cannot be installed together")
            }
        }
    }
}

/// Who wants what the recipe lists.
const RECIPE: &str = "the recipe";

/// The packages that are installed when `install` is asked for, in the order of their names.
///
/// # Errors
/// Everything that cannot be had.
pub fn closure<'r>(records: &'r [Record], install: &[String]) -> Result<Vec<&'r Record>, Vec<MissingPackage>> {
    let mut solver = Solver::new(records);
    for word in install {
        // What is named is taken first, so that it is what meets the needs of others.
        solver.want(Dependency::parse(word), RECIPE);
    }
    solver.drain(false);
    solver.drain(true);
    while solver.install_what_now_fits() {
        solver.drain(true);
    }
    solver.conflicts();
    if solver.lacks.is_empty() {
        Ok(solver.selected.into_values().collect())
    } else {
        Err(solver.lacks.into_iter().collect())
    }
}

struct Solver<'r> {
    records: &'r [Record],
    /// Who is, or provides, a name.
    providers: BTreeMap<&'r str, Vec<&'r Record>>,
    selected: BTreeMap<&'r str, &'r Record>,
    /// Selected packages whose needs have not been looked at.
    fresh: VecDeque<&'r Record>,
    wanted: VecDeque<(Dependency, String)>,
    lacks: BTreeSet<MissingPackage>,
}

impl<'r> Solver<'r> {
    fn new(records: &'r [Record]) -> Self {
        let mut providers: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
        for record in records {
            let names = record.provides.iter().map(|(name, _)| name.as_str()).chain([record.name.as_str()]);
            for name in names.collect::<BTreeSet<_>>() {
                providers.entry(name).or_default().push(record);
            }
        }
        let (selected, fresh, wanted, lacks) = Default::default();
        Solver { records, providers, selected, fresh, wanted, lacks }
    }

    fn want(&mut self, what: Dependency, by: &str) {
        if !what.conflict {
            self.wanted.push_back((what, by.to_owned()));
        }
    }

    /// Meets everything that is wanted, and with `deep` what that needs in turn.
    fn drain(&mut self, deep: bool) {
        loop {
            while let Some((what, by)) = self.wanted.pop_front() {
                self.meet(&what, &by);
            }
            let Some(record) = deep.then(|| self.fresh.pop_front()).flatten() else { return };
            for needed in &record.depends {
                self.want(needed.clone(), &record.name);
            }
        }
    }

    fn meet(&mut self, what: &Dependency, by: &str) {
        let candidates = self.providers.get(what.name.as_str()).map(Vec::as_slice).unwrap_or_default();
        if candidates.iter().any(|record| self.is_selected(record) && record.meets(what)) {
            return;
        }
        // One version of a package at a time: another one of a selected package cannot be had.
        let free = candidates.iter().filter(|record| !self.selected.contains_key(record.name.as_str()));
        let fitting: Vec<&'r Record> = free.filter(|record| record.meets(what)).copied().collect();
        match choose(what, &fitting) {
            Ok(record) => {
                self.selected.insert(&record.name, record);
                self.fresh.push_back(record);
            }
            Err(providers) => {
                let (wanted, by) = (what.to_string(), by.to_owned());
                self.lacks.insert(match providers.is_empty() {
                    true => MissingPackage::Missing { wanted, by },
                    false => MissingPackage::Undecided { wanted, by, providers },
                });
            }
        }
    }

    fn is_selected(&self, record: &Record) -> bool {
        self.selected.get(record.name.as_str()).is_some_and(|selected| std::ptr::eq(*selected, record))
    }

    /// Packages such as `dhcpcd-openrc` are wanted when all that they serve is there. True if there were such.
    fn install_what_now_fits(&mut self) -> bool {
        let fits = |record: &&Record| {
            let new = !record.install_if.is_empty() && !self.selected.contains_key(record.name.as_str());
            new && record.install_if.iter().all(|needed| {
                let met = self.selected.values().any(|selected| selected.meets(needed));
                met != needed.conflict
            })
        };
        let found: Vec<&Record> = self.records.iter().filter(fits).collect();
        for record in &found {
            self.want(Dependency::parse(&format!("{}={}", record.name, record.version)), RECIPE);
        }
        !found.is_empty()
    }

    fn conflicts(&mut self) {
        for record in self.selected.values() {
            for needed in record.depends.iter().filter(|needed| needed.conflict) {
                let met = self.selected.values().find(|other| other.name != record.name && other.meets(needed));
                self.lacks.extend(
                    met.map(|with| MissingPackage::Conflict { package: record.name.clone(), with: with.name.clone() }),
                );
            }
        }
    }
}

/// The package of that name in its newest version; else who provides it, by priority and version. The names of all when nothing
/// says which.
fn choose<'r>(what: &Dependency, fitting: &[&'r Record]) -> Result<&'r Record, Vec<String>> {
    let newest = |records: &mut dyn Iterator<Item = &'r Record>| {
        records
            .reduce(|best, record| if version::compare(&record.version, &best.version).is_gt() { record } else { best })
    };
    if let Some(same) = newest(&mut fitting.iter().filter(|record| record.name == what.name).copied()) {
        return Ok(same);
    }
    let Some(highest) = fitting.iter().map(|record| record.priority).max() else { return Err(Vec::new()) };
    let best: Vec<&'r Record> = fitting.iter().filter(|record| record.priority == highest).copied().collect();
    let names: BTreeSet<&str> = best.iter().map(|record| record.name.as_str()).collect();
    let version_of = |record: &'r Record| {
        record.provides.iter().find(|(name, _)| *name == what.name).and_then(|(_, version)| version.as_deref())
    };
    let decided = names.len() == 1 || highest.is_some() || best.iter().all(|record| version_of(record).is_some());
    if !decided {
        return Err(names.into_iter().map(str::to_owned).collect());
    }
    let order = |left: &&&'r Record, right: &&&'r Record| {
        let provided = |record: &'r Record| version_of(record).unwrap_or_default();
        version::compare(provided(left), provided(right))
            .then_with(|| Reverse(&left.name).cmp(&Reverse(&right.name)))
            .then_with(|| version::compare(&left.version, &right.version))
    };
    best.iter().max_by(order).copied().ok_or_else(Vec::new)
}
