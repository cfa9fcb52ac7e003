//! Sessions of one power-on, and the status of a boot.

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

fn session() -> BootSession {
    BootSession::open(BootSessionId([7; 12]), MacAddr([2, 0, 0, 0, 0, 1]), Stage::Dhcp, at(0))
}

#[test]
fn firmware_loader_and_ipxe_of_one_power_on_share_a_session() {
    let mut session = session();
    assert!(session.continues(DhcpClient::Firmware, at(4)));
    assert!(!session.continues(DhcpClient::Os, at(4)), "that is somebody's disk");
    session.mark(Stage::Loader, at(4));
    assert!(session.continues(DhcpClient::Ipxe, at(4)));
}

#[test]
fn firmware_dhcp_after_complete_boot_starts_new_session() {
    let mut session = session();
    for stage in [Stage::Kernel, Stage::Overlay] {
        session.mark(stage, at(90));
    }
    assert!(!session.continues(DhcpClient::Firmware, at(90)));
    assert!(!session.continues(DhcpClient::Ipxe, at(90)));
    assert!(session.continues(DhcpClient::Os, at(90)));
}

#[test]
fn ipxe_retry_after_failed_file_continues_session() {
    let mut session = session();
    session.mark(Stage::Script, at(3));
    session.mark(Stage::Kernel, at(4));
    session.refreshed_at = at(4);
    assert!(session.continues(DhcpClient::Ipxe, at(10)), "the initramfs failed");
    assert!(!session.continues(DhcpClient::Firmware, at(10)), "it was reset");
}

#[test]
fn firmware_dhcp_after_loader_starts_new_session() {
    let mut session = session();
    session.mark(Stage::Loader, at(1));
    assert!(!session.continues(DhcpClient::Firmware, at(2)));
}

#[test]
fn session_is_stale_five_minutes_after_its_last_exchange() {
    let session = session();
    assert!(session.is_fresh(Timestamp::from_millis(300_000)));
    assert!(!session.is_fresh(Timestamp::from_millis(300_001)));
}

#[test]
fn repeated_stage_keeps_first_time_and_is_counted() {
    let mut session = session();
    assert!(session.mark(Stage::Script, at(5)));
    assert!(!session.mark(Stage::Script, at(9)));
    let mark = session.stages[1];
    assert_eq!((mark.at, mark.last, mark.count), (at(5), at(9), 2));
}

#[test]
fn wait_outcome_ends_with_next_stage() {
    let mut session = session();
    assert!(session.record_wait("image_missing", at(3)));
    assert!(!session.record_wait("image_missing", at(23)));
    assert_eq!(session.outcome(), Outcome::Waiting);
    assert!(
        !session.is_new_wait("image_missing", at(82))
            && session.is_new_wait("image_missing", at(83))
    );
    session.mark(Stage::Script, at(43));
    assert_eq!(session.outcome(), Outcome::Stopped(Stage::Script));
    session.mark(Stage::Online, at(99));
    assert_eq!(session.outcome(), Outcome::Online);
}

#[test]
fn wait_reasons_are_bounded() {
    let mut session = session();
    for reason in 0..100 {
        session.record_wait(&format!("reason {reason}"), at(reason));
    }
    assert_eq!(session.waits.len(), MAX_WAITS);
}

#[test]
fn session_of_earlier_release_without_optional_fields_is_read() {
    let mut session = session();
    session.mark(Stage::Online, at(60));
    let text = serde_json::to_string(&session).expect("plain data");
    for newer in ["waits", "stalls", "reboot_ordered", "agent_stopped", "looping"] {
        assert!(!text.contains(newer), "{newer} is not written for nothing: {text}");
    }
    assert_eq!(serde_json::from_str::<BootSession>(&text).expect("it is read"), session);
}
