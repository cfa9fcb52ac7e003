//! Machines with UEFI, with Secure Boot and a TPM: this machine's OVMF and swtpm.

use super::guest::{Guest, Node, reaches, says};
use meshd_proto::vm::ReportedVmState;
use serde_json::json;

/// What OVMF writes to the serial console when it looks for something to boot.
const FIRMWARE: &str = "BdsDxe";
/// What it says of a program that nobody signed: the shell that it brings itself.
const REFUSED: &str = "Security Violation";

#[tokio::test]
async fn uefi_writes_to_console_and_tpm_ends_with_its_vm() {
    let node = Node::new();
    let spec =
        node.spec(Guest::Deaf, json!({ "firmware": "uefi", "vtpm": true, "memory": "256M" }));
    let mut vms = node.agent();
    vms.start(&spec, 1).unwrap();
    reaches(&mut vms.watch(spec.uuid).unwrap(), ReportedVmState::Running).await;
    assert_eq!(node.processes().len(), 2, "QEMU and the TPM");
    says(&vms, spec.uuid, FIRMWARE).await;
    assert!(node.files(spec.uuid).join("tpm/tpm2-00.permall").exists(), "its state is kept");
    assert!(node.files(spec.uuid).join("vars.fd").exists());
    vms.release(spec.uuid).await.unwrap();
    assert_eq!(node.processes(), [0; 0]);
}

#[tokio::test]
async fn secure_boot_firmware_refuses_an_unsigned_guest() {
    let node = Node::new();
    let spec = node
        .spec(Guest::Deaf, json!({ "firmware": "uefi", "secure_boot": true, "memory": "256M" }));
    let mut vms = node.agent();
    vms.start(&spec, 1).unwrap();
    says(&vms, spec.uuid, REFUSED).await;
    vms.release(spec.uuid).await.unwrap();
}
