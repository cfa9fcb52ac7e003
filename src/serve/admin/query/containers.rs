//! Filters and order of containers.

use super::{
    page::{OrderKey, time_key},
    parameters::{ListSpec, ParameterError, Parameters},
    text::Needle,
};
use meshd_api::{ContainerView, ReplicaView};
use meshd_model::work::container::ReplicaPhase;
use meshd_types::NodeId;
use std::borrow::Cow;

/// Fields and orders of `GET /v1/containers`.
pub(crate) const CONTAINERS: ListSpec = ListSpec {
    fields: &[
        "name",
        "desired_state",
        "running",
        "image",
        "digest",
        "argv",
        "env",
        "working_dir",
        "uid",
        "gid",
        "cpu_millis",
        "memory_mib",
        "scratch_mib",
        "ports",
        "mounts",
        "restart",
        "health",
        "stop_seconds",
        "owner",
        "created_at",
        "replicas",
    ],
    sorts: &["name", "image", "created_at"],
};

/// Filter of a container list.
#[derive(Clone, Debug, Default)]
pub(crate) struct ContainerFilter {
    /// States of which at least one replica has one.
    states: Option<Vec<&'static str>>,
    image: Option<String>,
    /// Node that has a replica.
    pub(crate) node: Option<NodeId>,
    text: Option<Needle>,
}

impl ContainerFilter {
    /// Reads all filters except the node, because only the central node can resolve its name.
    pub(crate) fn read(parameters: &Parameters) -> Result<Self, ParameterError> {
        let states = parameters.words("state", &ReplicaPhase::ALL.map(ReplicaPhase::as_str))?;
        let image = parameters.get("image").map(str::to_owned);
        Ok(ContainerFilter { states, image, node: None, text: parameters.needle()? })
    }

    pub(crate) fn takes(&self, container: &ContainerView) -> bool {
        let is_image = |image: &String| {
            *image == container.image.to_string() || *image == container.digest.to_string()
        };
        let any = |has: &dyn Fn(&ReplicaView) -> bool| container.replicas.iter().any(has);
        self.image.as_ref().is_none_or(is_image)
            && self
                .states
                .as_ref()
                .is_none_or(|states| any(&|replica| states.contains(&replica.phase.as_str())))
            && self.node.is_none_or(|node| any(&|replica| replica.node == Some(node)))
            && self
                .text
                .as_ref()
                .is_none_or(|text| container_texts(container).any(|(_, found)| text.is_in(&found)))
    }
}

/// Returns the searchable texts of a container: the name of the field, and its text. The values of
/// its variables are not among them.
pub(crate) fn container_texts(
    container: &ContainerView,
) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
    let names = [
        ("name", Cow::Borrowed(container.name.as_str())),
        ("image", Cow::Owned(container.image.to_string())),
    ];
    names
        .into_iter()
        .chain(container.argv.iter().map(|word| ("argv", Cow::Borrowed(word.as_str()))))
}

/// Returns the sort key of a container in an order of [`CONTAINERS`].
pub(crate) fn container_key(container: &ContainerView, sort: &str) -> OrderKey {
    let key = match sort {
        "image" => container.image.to_string(),
        "created_at" => time_key(container.created_at),
        _ => String::new(),
    };
    (key, container.name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_api::routes::LIST_CONTAINERS;
    use serde_json::json;

    fn takes(pairs: &[(&str, &str)], container: &ContainerView) -> Result<bool, ParameterError> {
        let pairs =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let parameters = Parameters::read(pairs, LIST_CONTAINERS.spec().query)?;
        Ok(ContainerFilter::read(&parameters)?.takes(container))
    }

    #[test]
    fn container_is_found_by_state_image_and_argument_and_not_by_a_variable() {
        let digest = "1".repeat(64);
        let container = serde_json::from_value(json!({
            "name": "web", "desired_state": "run", "running": 1, "image": "nginx", "digest": digest,
            "argv": ["/bin/server", "--quiet"], "env": ["SECRET"], "working_dir": "/", "uid": 0,
            "gid": 0, "cpu_millis": 1000, "memory_mib": 256, "scratch_mib": 64, "ports": [],
            "restart": { "when": "always" }, "stop_seconds": 10, "owner": "uid:0",
            "created_at": "2026-01-01T00:00:00Z",
            "replicas": [
                { "id": "web.0", "phase": "running", "run": 1, "restarts": 0 },
                { "id": "web.1", "phase": "unplaced", "run": 1, "restarts": 0 },
            ],
        }));
        let container = container.expect("a container");
        for (name, value, expected) in [
            ("state", "unplaced", true),
            ("state", "failed,running", true),
            ("state", "failed", false),
            ("image", "nginx", true),
            ("image", digest.as_str(), true),
            ("image", "ngin", false),
            ("q", "quiet", true),
            ("q", "SECRET", false),
        ] {
            assert_eq!(takes(&[(name, value)], &container), Ok(expected), "{name}={value}");
        }
        assert!(takes(&[("state", "asleep")], &container).is_err());
    }
}
