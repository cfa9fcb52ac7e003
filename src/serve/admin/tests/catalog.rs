//! Tests of activities, overlay files, origins of profile values, and boot settings of several
//! nodes.

use super::*;
use meshd_api::{ActivitiesView, OverlayDetail, OverlaySourceView, SettingView};
use meshd_model::{
    activities::{ActivityKind, ActivityState, ObjectKind},
    fleet::{AuditContext, Phase, Principal, Verb},
    operations::{DrainPolicy, NodeOperation, NodeOrder, Operation, OperationStage},
};
use meshd_types::{CorrelationId, OperationId};
use serde_json::{Value, json};

#[tokio::test]
async fn activities_list_running_boots_and_drains() {
    let fixture = Fixture::start().await;
    let (_, found) = fixture.get::<ActivitiesView>("GET", "/v1/activities", "").await;
    assert_eq!(
        found,
        ActivitiesView { activities: Vec::new(), rest: 0 },
        "the boot of 1970 is over"
    );
    let now = fixture.central.now();
    let mac = MacAddr([2, 0, 0, 0, 0, 8]);
    let node = fixture.node;
    let stored = fixture.central.store().commit(|tx| {
        tx.put_session(BootSession::open(BootSessionId([8; 12]), mac, Stage::Dhcp, now));
        tx.edit_node(node, |node| node.phase = Phase::Draining);
        let id = OperationId([1; 4]);
        let order = NodeOrder::Drain { workloads: DrainPolicy::Wait, grace_s: None };
        let by = AuditContext::new(Principal::Operator(0), Verb::Drain, CorrelationId([0; 8]));
        tx.put_operation(Operation {
            id,
            order,
            by,
            accepted_at: at(4_000),
            targets: 1,
            stage: OperationStage::Accepted,
        });
        let mut record = NodeOperation::pending(id, node, String::new());
        assert!(record.start(at(5_000)));
        tx.put_node_operation(record);
        Ok::<_, StoreError>(())
    });
    stored.await.expect("stored");
    let (_, ActivitiesView { activities, rest }) = fixture.get("GET", "/v1/activities", "").await;
    let of = |kind| {
        activities
            .iter()
            .find(|activity| activity.kind == kind)
            .unwrap_or_else(|| panic!("{activities:?}"))
    };
    let drain = of(ActivityKind::Drain);
    let boot = of(ActivityKind::Boot);
    assert_eq!((activities.len(), rest), (2, 0), "{activities:?}");
    assert_eq!(
        (drain.id.as_str(), drain.since, drain.state),
        (&*node.to_string(), Some(at(5_000)), ActivityState::Accepted)
    );
    assert!(drain.reason.as_ref().is_some_and(|reason| reason.contains("no link")), "{drain:?}");
    assert_eq!(
        (boot.object, boot.id.as_str(), boot.since),
        (ObjectKind::Machine, "02:00:00:00:00:08", Some(now))
    );
}

#[tokio::test]
async fn overlay_files_hide_secrets_and_refuse_path_traversal() {
    let fixture = Fixture::start().await;
    let (_, overlays) = fixture.get::<Vec<Value>>("GET", "/v1/overlays", "").await;
    let mut secrets = 0;
    for overlay in &overlays {
        let path = format!(
            "/v1/overlays/{}",
            meshd_api::segment(overlay["name"].as_str().expect("a name"))
        );
        let (_, detail) = fixture.get::<OverlayDetail>("GET", &path, "").await;
        assert!(
            detail.declares.iter().all(|variable| !variable.secret || variable.default.is_none()),
            "{path}"
        );
        let (_, files) =
            fixture.get::<Vec<OverlaySourceView>>("GET", &format!("{path}/files"), "").await;
        assert!(files.iter().all(|file| file.text.is_none()), "{path}");
        for file in files {
            let one = format!("{path}/files?path={}", meshd_api::segment(&file.path));
            let (_, found) = fixture.get::<Vec<OverlaySourceView>>("GET", &one, "").await;
            let [found] = found.as_slice() else { panic!("{one}: {found:?}") };
            assert!(
                !found.secret
                    || (found.text.is_none() && found.hidden.as_deref() == Some("secret")),
                "{found:?}"
            );
            assert!(found.kind != "link" || found.text.is_none(), "{found:?}");
            secrets += usize::from(found.secret);
        }
    }
    assert!(secrets > 0, "the overlays that ship have secrets");
    for (path, status) in [
        ("/v1/overlays/motd/files?path=/etc/../../../site.toml", 400),
        ("/v1/overlays/motd/files?path=", 400),
        ("/v1/overlays/motd/files?path=/etc/shadow", 404),
        ("/v1/overlays/motd/files?paths=/etc", 400),
        ("/v1/overlays/..%2Fmotd/files", 404),
        ("/v1/overlays/none", 404),
        ("/v1/profiles/none/settings", 404),
    ] {
        let (found, error) = fixture.get::<ErrorView>("GET", path, "").await;
        assert_eq!(found.as_u16(), status, "{path}: {error:?}");
    }
    let (_, motd) = fixture
        .get::<Vec<OverlaySourceView>>("GET", "/v1/overlays/motd/files?path=/etc/motd", "")
        .await;
    assert!(motd[0].kind == "template" && motd[0].text.is_some(), "{motd:?}");
}

#[tokio::test]
async fn profile_settings_name_the_profile_that_set_them() {
    let fixture = Fixture::start().await;
    let (_, settings) =
        fixture.get::<Vec<SettingView>>("GET", "/v1/profiles/compute/settings", "").await;
    let by = |name: &str| settings.iter().any(|setting| setting.by.as_str() == name);
    assert!(by("discovery") && by("compute"), "{settings:?}");
}

#[tokio::test]
async fn bulk_boot_settings_are_refused_as_a_whole_or_per_node() {
    let fixture = Fixture::start().await;
    let bulk = async |verb: &str, order: Value| {
        let (_, nodes) = fixture.get::<Vec<NodeView>>("GET", "/v1/nodes", "").await;
        let nodes: Vec<_> =
            nodes.iter().map(|node| json!({ "id": node.id, "revision": node.revision })).collect();
        let body = json!({ "nodes": nodes, "order": order }).to_string();
        let (status, _, done) = fixture.order(&format!("/v1/bulk/nodes/{verb}"), &body, &[]).await;
        (status, done)
    };
    let once = || {
        fixture
            .central
            .store()
            .read(|model| model.node(fixture.node).and_then(|node| node.boot_override.clone()))
    };
    for order in
        [json!({}), json!({ "profile": "none" }), json!({ "kernel_args": ["init=/bin/sh"] })]
    {
        let (status, refused) = bulk("boot-once", order).await;
        assert!((400..500).contains(&status), "{refused}");
        assert_eq!(once(), None, "nothing was changed");
    }
    let (status, done) = bulk("boot-once", json!({ "kernel_args": ["debug"] })).await;
    assert_eq!((status, &done["failed"]), (200, &json!(0)), "{done}");
    assert_eq!(once().map(|once| once.kernel_args), Some(vec!["debug".to_owned()]));
    let (status, done) = bulk("boot-once", json!({ "clear": true })).await;
    assert_eq!((status, &done["failed"], once()), (200, &json!(0), None), "{done}");
    // The node has not said what it runs, and has no link.
    for (verb, order) in
        [("pin", Value::Null), ("pin", json!({ "off": true })), ("doctor", Value::Null)]
    {
        let (status, done) = bulk(verb, order).await;
        assert_eq!((status, &done["failed"]), (200, &json!(1)), "{verb}: {done}");
        assert!(done["results"][0]["error"]["code"].is_string(), "{verb}: {done}");
    }
    let (status, refused) = bulk("pin", json!({ "generation": "0123" })).await;
    assert_eq!((status, &refused["code"]), (400, &json!("bad_request")), "{refused}");
}
