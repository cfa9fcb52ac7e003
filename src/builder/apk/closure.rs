//! Resolves package dependencies from the indexes of a mirror. Reports all missing dependencies
//! with the packages that need them, so that a fault ends the build instead of a boot. Pure.

use super::{depends::Dependency, index::Record, version};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
};

/// A dependency that cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MissingPackage {
    /// No package of the mirror provides the dependency.
    Missing { dependency: String, dependent: String },
    /// Several packages provide the dependency without priority and version, so the choice is
    /// ambiguous.
    Undecided { dependency: String, dependent: String, providers: Vec<String> },
    /// Two packages conflict.
    Conflict { package: String, with: String },
}

impl fmt::Display for MissingPackage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MissingPackage::Missing { dependency, dependent } => {
                write!(f, "the mirror has no package `{dependency}`, which {dependent} needs")
            }
            MissingPackage::Undecided { dependency, dependent, providers } => {
                let providers = providers.join(", ");
                write!(
                    f,
                    "`{dependency}`, which {dependent} needs, is provided by {providers}; name one in packages.install"
                )
            }
            MissingPackage::Conflict { package, with } => {
                write!(f, "{package} and {with} cannot be installed together")
            }
        }
    }
}

/// Name of the recipe as the origin of a dependency.
const RECIPE: &str = "the recipe";

/// Returns `install` and its dependencies, ordered by name. The error contains all unresolved
/// dependencies.
pub fn closure<'r>(
    records: &'r [Record],
    install: &[String],
) -> Result<Vec<&'r Record>, Vec<MissingPackage>> {
    let mut solver = Solver::new(records);
    for name in install {
        // Packages of the recipe are selected first, so that they satisfy the dependencies of other
        // packages.
        solver.enqueue(Dependency::parse(name), RECIPE);
    }
    solver.resolve_queue(false);
    solver.resolve_queue(true);
    while solver.queue_install_if() {
        solver.resolve_queue(true);
    }
    solver.conflicts();
    if solver.missing.is_empty() {
        Ok(solver.selected.into_values().collect())
    } else {
        Err(solver.missing.into_iter().collect())
    }
}

struct Solver<'r> {
    records: &'r [Record],
    /// Packages by name and provided name.
    providers: BTreeMap<&'r str, Vec<&'r Record>>,
    selected: BTreeMap<&'r str, &'r Record>,
    /// Selected packages whose dependencies are not resolved yet.
    unresolved: VecDeque<&'r Record>,
    queue: VecDeque<(Dependency, String)>,
    missing: BTreeSet<MissingPackage>,
}

impl<'r> Solver<'r> {
    fn new(records: &'r [Record]) -> Self {
        let mut providers: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
        for record in records {
            let names =
                record.provides.iter().map(|(name, _)| name.as_str()).chain([record.name.as_str()]);
            for name in names.collect::<BTreeSet<_>>() {
                providers.entry(name).or_default().push(record);
            }
        }
        Solver {
            records,
            providers,
            selected: BTreeMap::new(),
            unresolved: VecDeque::new(),
            queue: VecDeque::new(),
            missing: BTreeSet::new(),
        }
    }

    fn enqueue(&mut self, dependency: Dependency, dependent: &str) {
        if !dependency.conflict {
            self.queue.push_back((dependency, dependent.to_owned()));
        }
    }

    /// Resolves all queued dependencies; `deep` also resolves those of the selected packages.
    fn resolve_queue(&mut self, deep: bool) {
        loop {
            while let Some((dependency, dependent)) = self.queue.pop_front() {
                self.resolve(&dependency, &dependent);
            }
            let Some(record) = deep.then(|| self.unresolved.pop_front()).flatten() else { return };
            for needed in &record.depends {
                self.enqueue(needed.clone(), &record.name);
            }
        }
    }

    fn resolve(&mut self, dependency: &Dependency, dependent: &str) {
        let candidates =
            self.providers.get(dependency.name.as_str()).map(Vec::as_slice).unwrap_or_default();
        if candidates.iter().any(|record| self.is_selected(record) && record.satisfies(dependency))
        {
            return;
        }
        // Only one version of a package can be selected.
        let free =
            candidates.iter().filter(|record| !self.selected.contains_key(record.name.as_str()));
        let fitting: Vec<&'r Record> =
            free.filter(|record| record.satisfies(dependency)).copied().collect();
        match choose(dependency, &fitting) {
            Ok(record) => {
                self.selected.insert(&record.name, record);
                self.unresolved.push_back(record);
            }
            Err(providers) => {
                let dependency = dependency.to_string();
                let dependent = dependent.to_owned();
                self.missing.insert(match providers.is_empty() {
                    true => MissingPackage::Missing { dependency, dependent },
                    false => MissingPackage::Undecided { dependency, dependent, providers },
                });
            }
        }
    }

    fn is_selected(&self, record: &Record) -> bool {
        self.selected
            .get(record.name.as_str())
            .is_some_and(|selected| std::ptr::eq(*selected, record))
    }

    /// Queues packages whose `install_if` is satisfied, such as `dhcpcd-openrc`. Returns whether it
    /// found any.
    fn queue_install_if(&mut self) -> bool {
        let fits = |record: &&Record| {
            let new =
                !record.install_if.is_empty() && !self.selected.contains_key(record.name.as_str());
            new && record.install_if.iter().all(|needed| {
                let satisfied = self.selected.values().any(|selected| selected.satisfies(needed));
                satisfied != needed.conflict
            })
        };
        let found: Vec<&Record> = self.records.iter().filter(fits).collect();
        for record in &found {
            self.enqueue(Dependency::parse(&format!("{}={}", record.name, record.version)), RECIPE);
        }
        !found.is_empty()
    }

    fn conflicts(&mut self) {
        for record in self.selected.values() {
            for needed in record.depends.iter().filter(|needed| needed.conflict) {
                let satisfied = self
                    .selected
                    .values()
                    .find(|other| other.name != record.name && other.satisfies(needed));
                self.missing.extend(satisfied.map(|with| MissingPackage::Conflict {
                    package: record.name.clone(),
                    with: with.name.clone(),
                }));
            }
        }
    }
}

/// Returns the newest package of that name, else the provider with the highest priority and
/// version. The error contains the names of ambiguous providers.
fn choose<'r>(dependency: &Dependency, fitting: &[&'r Record]) -> Result<&'r Record, Vec<String>> {
    let newest = |records: &mut dyn Iterator<Item = &'r Record>| {
        records.reduce(|best, record| {
            if version::compare(&record.version, &best.version).is_gt() { record } else { best }
        })
    };
    if let Some(same) =
        newest(&mut fitting.iter().filter(|record| record.name == dependency.name).copied())
    {
        return Ok(same);
    }
    let Some(highest) = fitting.iter().map(|record| record.priority).max() else {
        return Err(Vec::new());
    };
    let best: Vec<&'r Record> =
        fitting.iter().filter(|record| record.priority == highest).copied().collect();
    let names: BTreeSet<&str> = best.iter().map(|record| record.name.as_str()).collect();
    let version_of = |record: &'r Record| {
        record
            .provides
            .iter()
            .find(|(name, _)| *name == dependency.name)
            .and_then(|(_, version)| version.as_deref())
    };
    let decided = names.len() == 1
        || highest.is_some()
        || best.iter().all(|record| version_of(record).is_some());
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
