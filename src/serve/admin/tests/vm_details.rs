//! What only the node of a VM knows is in the list of VMs, too.

use super::*;
use meshd_api::VmView;
use meshd_config::vm::VmRequest;
use meshd_model::{
    fleet::{Certificate, Phase},
    work::Vm,
};
use meshd_proto::{
    Facts, FromAgent, Hello, NodeReport, SectionReport, VERSION,
    vm::{ReportedVmState, VmFetching, VmReport, VmSpec, VmUpdate},
};
use meshd_trust::Peer;
use meshd_types::{Digest, SystemUuid};

#[tokio::test]
async fn fetch_of_volumes_is_in_the_list_and_in_the_view_of_a_vm() {
    let fixture = Fixture::start().await;
    let central = &fixture.central;
    let node = fixture.node;
    let uuid = SystemUuid([7; 16]);
    let key = Digest([9; 32]);
    let stored = central.store().commit(|tx| {
        tx.edit_node(node, |node| {
            node.phase = Phase::Booting;
            node.certificates = vec![Certificate::new("01", key)];
        });
        let spec = VmSpec {
            ready: Some("ssh".parse().expect("a check")),
            ..VmSpec::unknown("one".parse().expect("a name"), uuid)
        };
        tx.put_vm(Vm::unknown(VmRequest::new(spec), node, at(1_000)));
        Ok::<_, StoreError>(())
    });
    stored.await.expect("stored");
    let peer = Peer { node, serial: "01".to_owned(), key, expired: false };
    let session = BootSessionId([7; 12]);
    let hello = Hello { version: VERSION, node, session, facts: Facts::default() };
    let (commands, _inbox) = tokio::sync::mpsc::channel(8);
    let address = Ipv4Addr::LOCALHOST.into();
    let (link, _) = central.agents.link_up(&peer, hello, address, commands).await.expect("a link");
    let fetching = VmFetching { bytes: 1, total: 2, ..VmFetching::default() };
    let report = VmReport {
        fetching: Some(fetching.clone()),
        ready: Some(true),
        ..VmReport::new(uuid, "one".parse().expect("a name"), ReportedVmState::Starting)
    };
    let state = SectionReport::Vms(VmUpdate::All { vms: vec![report] });
    let message = FromAgent::Report(NodeReport { observed: 0, state });
    central.agents.link_message(link, message).await.expect("taken");
    let (_, list) = fixture.get::<Vec<VmView>>("GET", "/v1/vms", "").await;
    let (_, view) = fixture.get::<VmView>("GET", "/v1/vms/one", "").await;
    assert_eq!((&list[0].fetching, &view.fetching), (&Some(fetching.clone()), &Some(fetching)));
    assert_eq!(
        (list[0].ready, view.ready, view.ready_check),
        (Some(true), Some(true), "ssh".parse().ok())
    );
}
