//! VM templates: defaults from `[vms.templates.NAME]` of the site. Values in vm.toml take
//! precedence.

use super::{
    request::{MAX_GRACE_S, OnNodeLoss},
    restart_policy,
};
use crate::reader::Table;
use meshd_proto::vm::{
    ByteSize, CpuModel, Firmware, MachineType, RestartPolicy, SpecFault, VmSpec,
};
use meshd_types::{SystemUuid, TemplateName, VmName};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

/// Template of a vm.toml without `template`, if it exists.
pub const DEFAULT_TEMPLATE: &str = "default";

/// Placeholders of values that a template or the central node defines, so that the rest can be
/// checked.
pub(super) const PLACEHOLDER_UUID: SystemUuid = SystemUuid([
    0x2f, 0x7c, 0x1d, 0x5e, 0x8a, 0x34, 0x4f, 0x0b, 0x9c, 0x51, 0x6d, 0x0f, 0x5b, 0xe7, 0xa1, 0xc2,
]);
pub(super) const PLACEHOLDER_MEMORY: ByteSize = ByteSize::from_mib(1024);

/// All templates of a site.
pub type VmTemplates = BTreeMap<TemplateName, VmTemplate>;

/// Default values of keys in vm.toml.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VmTemplate {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuModel>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<Firmware>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secure_boot: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vtpm: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugepages: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_tcg: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_node_loss: Option<OnNodeLoss>,
    /// Value of `grace` in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_s: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart: Option<RestartPolicy>,
}

impl VmTemplate {
    /// Reads all keys except `[restart]`.
    pub(super) fn read(table: &Table<'_>) -> Self {
        // `VmSpec::faults` checks the limits.
        let vcpus = table.integer("vcpus", 0..=u32::MAX);
        let flag = |key: &str| table.bool(key).map(|flag| flag.value);
        let machines = [("q35", MachineType::Q35), ("pc", MachineType::Pc)];
        let firmwares = [("bios", Firmware::Bios), ("uefi", Firmware::Uefi)];
        let policies = [("wait", OnNodeLoss::Wait), ("restart", OnNodeLoss::Restart)];
        let grace =
            table.duration("grace", Duration::ZERO..=Duration::from_secs(MAX_GRACE_S.into()));
        VmTemplate {
            vcpus: vcpus.map(|vcpus| vcpus.value),
            memory: table.parsed("memory").map(|memory| memory.value),
            machine: table.choice("machine", &machines).map(|machine| machine.value),
            cpu: table.parsed("cpu").map(|cpu| cpu.value),
            firmware: table.choice("firmware", &firmwares).map(|firmware| firmware.value),
            secure_boot: flag("secure_boot"),
            vtpm: flag("vtpm"),
            hugepages: flag("hugepages"),
            allow_tcg: flag("allow_tcg"),
            on_node_loss: table.choice("on_node_loss", &policies).map(|policy| policy.value),
            grace_s: grace.map(|grace| u32::try_from(grace.as_secs()).unwrap_or(MAX_GRACE_S)),
            restart: None,
        }
    }

    /// Fills absent values from `other`.
    pub(super) fn or(self, other: &VmTemplate) -> Self {
        VmTemplate {
            vcpus: self.vcpus.or(other.vcpus),
            memory: self.memory.or(other.memory),
            machine: self.machine.or(other.machine),
            cpu: self.cpu.or_else(|| other.cpu.clone()),
            firmware: self.firmware.or(other.firmware),
            secure_boot: self.secure_boot.or(other.secure_boot),
            vtpm: self.vtpm.or(other.vtpm),
            hugepages: self.hugepages.or(other.hugepages),
            allow_tcg: self.allow_tcg.or(other.allow_tcg),
            on_node_loss: self.on_node_loss.or(other.on_node_loss),
            grace_s: self.grace_s.or(other.grace_s),
            restart: self.restart.or(other.restart),
        }
    }

    /// Makes a specification; `vcpus` and `memory` have placeholders if the template has none.
    pub(super) fn spec(&self, name: VmName, uuid: SystemUuid) -> VmSpec {
        VmSpec {
            vcpus: self.vcpus.unwrap_or(1),
            memory: self.memory.unwrap_or(PLACEHOLDER_MEMORY),
            machine: self.machine.unwrap_or_default(),
            cpu: self.cpu.clone().unwrap_or_default(),
            firmware: self.firmware.unwrap_or_default(),
            secure_boot: self.secure_boot.unwrap_or_default(),
            vtpm: self.vtpm.unwrap_or_default(),
            hugepages: self.hugepages.unwrap_or_default(),
            allow_tcg: self.allow_tcg.unwrap_or_default(),
            restart: self.restart.unwrap_or_default(),
            ..VmSpec::unknown(name, uuid)
        }
    }
}

/// Reads one template of a site. It must be consistent without a VM file.
pub(crate) fn template(table: &Table<'_>) -> VmTemplate {
    let mut template = VmTemplate::read(table);
    let restart = table.table("restart");
    template.restart = restart.as_ref().map(restart_policy);
    for SpecFault { key, message, hint } in
        template.spec(super::placeholder(), PLACEHOLDER_UUID).faults()
    {
        match (key.strip_prefix("restart."), &restart) {
            (Some(key), Some(restart)) => restart.fault(key, message, hint),
            _ => table.fault(&key, message, hint),
        }
    }
    template
}
