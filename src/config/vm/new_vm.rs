//! A new VM as its user describes it. A template of the site completes it to a [`VmRequest`].

use super::{
    request::{DEFAULT_GRACE_S, UnitsRequest, VmRequest},
    template::{DEFAULT_TEMPLATE, PLACEHOLDER_MEMORY, PLACEHOLDER_UUID, VmTemplate, VmTemplates},
};
use crate::{MacPrefix, suggest, vm::derived_mac};
use meshd_proto::{
    InterfaceName,
    vm::{CloudInit, Firmware, Nic, ReadyCheck, SpecFault, VmSpec, Volume},
};
use meshd_types::{MacAddr, SystemUuid, TemplateName, VmName};
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;

/// A new VM. Settings that are absent come from its template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewVm {
    pub name: VmName,
    /// UUID of the VM; a random one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<SystemUuid>,
    /// Name of a template of the site; the template `default` if absent, and if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<TemplateName>,
    /// Settings that take precedence over those of the template.
    #[serde(default)]
    pub settings: VmTemplate,
    /// NUMA node to which CPUs and memory are restricted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Do not bind the VM to the NUMA node of its units.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub numa_anywhere: bool,
    #[serde(default)]
    pub units: UnitsRequest,
    /// Disks in boot order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NewNic>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_init: Option<CloudInit>,
    /// When the guest is ready; its node asks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReadyCheck>,
}

/// A NIC of a new VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewNic {
    /// MAC address; the central node assigns one if it is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<Ipv4Addr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<InterfaceName>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub slot: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub peers: bool,
}

impl NewVm {
    /// Completes the VM with a template of the site. `fresh` is its UUID if it has none.
    ///
    /// # Errors
    /// All faults: an unknown template, missing settings, and those of [`VmRequest::faults`].
    pub fn complete(
        self,
        templates: &VmTemplates,
        fresh: SystemUuid,
    ) -> Result<VmRequest, Vec<SpecFault>> {
        let mut faults = Vec::new();
        let mut add_fault = |key: &str, message: String, hint: String| {
            faults.push(SpecFault { key: key.to_owned(), message, hint });
        };
        let wanted = self.template.as_ref().map_or(DEFAULT_TEMPLATE, TemplateName::as_str);
        let template = templates
            .iter()
            .find(|(name, _)| name.as_str() == wanted)
            .map(|(_, template)| template);
        if let Some(name) = self.template.as_ref().filter(|_| template.is_none()) {
            let hint = suggest(name.as_str(), templates.keys().map(TemplateName::as_str));
            add_fault("template", format!("the site has no template `{name}`"), hint);
        }
        let settings = template
            .map_or_else(|| self.settings.clone(), |template| self.settings.clone().or(template));
        let names = templates.keys().map(TemplateName::as_str).collect::<Vec<_>>().join(", ");
        let or_template =
            if names.is_empty() { names } else { format!(", or name a template: {names}") };
        if settings.vcpus.is_none() {
            add_fault(
                "vcpus",
                "is required".to_owned(),
                format!("set the number of CPUs, such as 8{or_template}"),
            );
        }
        if settings.memory.is_none() {
            add_fault(
                "memory",
                "is required".to_owned(),
                format!("set a size, such as \"64G\"{or_template}"),
            );
        }
        let used = self.template.clone().filter(|_| template.is_some());
        let request = self.request(&settings, fresh);
        faults.extend(request.faults().into_iter().map(|fault| match &used {
            Some(name) => SpecFault {
                message: format!("{} (with template `{name}`)", fault.message),
                ..fault
            },
            None => fault,
        }));
        if faults.is_empty() { Ok(request) } else { Err(faults) }
    }

    /// Returns the faults that no template can repair.
    pub(super) fn faults(&self) -> Vec<SpecFault> {
        // Without these settings of a template, a valid VM would have faults.
        let lenient = VmTemplate {
            vcpus: Some(1),
            memory: Some(PLACEHOLDER_MEMORY),
            firmware: Some(Firmware::Uefi),
            ..VmTemplate::default()
        };
        let settings = self.settings.clone().or(&lenient);
        self.clone().request(&settings, PLACEHOLDER_UUID).faults()
    }

    fn request(self, settings: &VmTemplate, fresh: SystemUuid) -> VmRequest {
        let uuid = self.uuid.unwrap_or(fresh);
        let nic = |(index, nic): (usize, NewNic)| Nic {
            // `reserve` of the central node assigns another one if the site has a prefix, or if the
            // address is taken. A slot has both addresses.
            mac: nic
                .mac
                .filter(|_| !nic.slot)
                .unwrap_or_else(|| derived_mac(&MacPrefix::default(), uuid, index, 0)),
            address: nic.address.filter(|_| !nic.slot),
            bridge: nic.bridge,
            slot: nic.slot,
            peers: nic.peers,
        };
        let spec = VmSpec {
            numa_node: self.numa_node,
            volumes: self.volumes,
            nics: self.nics.into_iter().enumerate().map(nic).collect(),
            cloud_init: self.cloud_init,
            ready: self.ready,
            units: self.units.addresses(),
            ..settings.spec(self.name, uuid)
        };
        VmRequest {
            spec,
            units: self.units,
            on_node_loss: settings.on_node_loss.unwrap_or_default(),
            grace_s: settings.grace_s.unwrap_or(DEFAULT_GRACE_S),
            numa_anywhere: self.numa_anywhere,
        }
    }
}
