//! Finds nodes, VMs, containers and tasks by a part of an ID, name, address, serial number or program.

use super::{
    containers::container_texts,
    nodes,
    text::{Fit, Needle},
    work::{task_texts, vm_texts},
};
use meshd_api::{ContainerView, SearchHit, SearchView, TaskView, VmView};
use meshd_model::fleet::Node;
use std::borrow::Cow;

/// Maximum number of hits per response.
pub(crate) const MAX_HITS: usize = 50;
/// Maximum number of characters of a text in a hit.
const MAX_SHOWN: usize = 200;

/// Hits of a running search.
#[derive(Debug)]
pub(crate) struct SearchRun {
    needle: Needle,
    found: Vec<(Fit, SearchHit)>,
}

impl SearchRun {
    pub(crate) fn new(needle: Needle) -> Self {
        SearchRun { needle, found: Vec::new() }
    }

    pub(crate) fn node(&mut self, node: &Node) {
        self.add("node", nodes::texts(node), || {
            (node.id.to_string(), node.name.clone(), node.phase.to_string())
        });
    }

    pub(crate) fn vm(&mut self, vm: &VmView) {
        let view = || (vm.uuid.to_string(), vm.name.to_string(), vm.state.as_str().to_owned());
        self.add("vm", vm_texts(vm), view);
    }

    pub(crate) fn container(&mut self, container: &ContainerView) {
        let view = || {
            let name = container.name.to_string();
            let count = format!("{}/{} run", container.running, container.replicas.len());
            (name.clone(), name, count)
        };
        self.add("container", container_texts(container), view);
    }

    pub(crate) fn task(&mut self, task: &TaskView) {
        let view =
            || (task.id.to_string(), short(&task.argv.join(" ")), task.state.as_str().to_owned());
        self.add("task", task_texts(task), view);
    }

    /// Adds an object if one of its texts matches, with the first of the best matches. `view`
    /// returns ID, name and state.
    fn add<'t>(
        &mut self,
        kind: &str,
        texts: impl Iterator<Item = (&'static str, Cow<'t, str>)>,
        view: impl FnOnce() -> (String, String, String),
    ) {
        let fits = texts.filter_map(|(field, text)| Some((self.needle.fit(&text)?, field, text)));
        let Some((fit, field, text)) = fits.min_by_key(|(fit, ..)| *fit) else { return };
        let (id, name, state) = view();
        let kind = kind.to_owned();
        let field = field.to_owned();
        let value = short(&text);
        self.found.push((fit, SearchHit { kind, id, name, state, field, value }));
    }

    /// Returns the best hits: exact matches before prefixes before other parts, then by kind, name
    /// and ID.
    pub(crate) fn finish(mut self) -> SearchView {
        let total = self.found.len();
        self.found.sort_by(|(one_fit, one), (other_fit, other)| {
            let key = |hit: &SearchHit| (hit.kind.clone(), hit.name.clone(), hit.id.clone());
            one_fit.cmp(other_fit).then_with(|| key(one).cmp(&key(other)))
        });
        SearchView {
            hits: self.found.into_iter().take(MAX_HITS).map(|(_, hit)| hit).collect(),
            total,
        }
    }
}

/// Cuts a text to [`MAX_SHOWN`] characters.
fn short(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}
