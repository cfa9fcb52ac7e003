//! Proxy mode: another server leases addresses, and this one adds the boot file (PXE specification
//! 2.1, 2.2.3).

use super::{request_handling::RequestContext, segment_state::SegmentState};
use crate::{
    boot_file::BootFile,
    effect::{Effect, OtherServer},
    packet::{ClientKind, ClientMessageType, PROXY_PORT, ReplyContent, SERVER_PORT},
};

impl RequestContext<'_> {
    /// Handles a request in proxy mode. Firmware and iPXE get a boot file; the other server's offer
    /// contains the address.
    pub(super) fn handle_proxy(&self, segment: &mut SegmentState) -> Vec<Effect> {
        let request = self.request;
        let boots = request.client != ClientKind::Other;
        let nothing = matches!(self.boot, BootFile::None | BootFile::Missing(_));
        if request.kind == ClientMessageType::Discover {
            segment.started_exchanges.record(self.now, request.mac, request.xid);
        }
        match (request.kind, self.origin.local_port) {
            (ClientMessageType::Request, SERVER_PORT) => {
                self.observe_request_to_other_server(segment)
            }
            (ClientMessageType::Discover | ClientMessageType::Request, _) if boots && nothing => {
                self.no_loader_warning().into_iter().collect()
            }
            (ClientMessageType::Discover, SERVER_PORT) if boots => {
                vec![
                    self.reply(None, ReplyContent::ProxyOffer),
                    self.observed_exchange(None, None, true),
                ]
            }
            // Behind a relay it comes by unicast, past the relay: the sender is not proven.
            (ClientMessageType::Request, PROXY_PORT) if boots && self.is_unproven() => {
                vec![self.reply(None, ReplyContent::ProxyAck)]
            }
            (ClientMessageType::Request, PROXY_PORT) if boots => {
                vec![
                    self.observed_exchange(None, None, true),
                    self.reply(None, ReplyContent::ProxyAck),
                ]
            }
            _ => Vec::new(),
        }
    }

    /// Handles a REQUEST to another server. It needs no reply, but contains the address of the
    /// client, which the user binds capabilities to. The operating system may get another address
    /// than the firmware had.
    fn observe_request_to_other_server(&self, segment: &mut SegmentState) -> Vec<Effect> {
        let request = self.request;
        let other = request.server.filter(|server| !self.is_ours(*server));
        let in_use = Some(request.ciaddr).filter(|address| !address.is_unspecified());
        let warning = other.and_then(|server| {
            segment.record_other_server(OtherServer {
                address: server,
                proxy: false,
                last: self.now,
            })
        });
        let discovered = segment.started_exchanges.contains(self.now, request.mac, request.xid);
        let address = request.requested.or(in_use).filter(|_| !self.routed);
        let exchange =
            address.map(|address| self.observed_exchange(Some(address), None, discovered));
        warning.map(Effect::Warn).into_iter().chain(exchange).collect()
    }

    /// Returns true if the Ethernet sender is not the client.
    fn is_unproven(&self) -> bool {
        self.origin.ethernet_source.is_some_and(|sender| sender != self.request.mac)
    }
}
