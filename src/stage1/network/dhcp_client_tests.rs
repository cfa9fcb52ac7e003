//! Conversations of the client with servers.

use super::*;
use dhcproto::v4::Decodable as _;
use proptest::prelude::*;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);
const XID: u32 = 0x1234_5678;
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 50);

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn client() -> DhcpClient {
    DhcpClient::new(MAC, XID, seconds(0))
}

fn reply(kind: MessageType) -> Message {
    let none = Ipv4Addr::UNSPECIFIED;
    let mut message = Message::new_with_id(XID, none, ADDRESS, none, none, &MAC.0);
    message.set_opcode(Opcode::BootReply);
    let options = message.opts_mut();
    options.insert(DhcpOption::MessageType(kind));
    options.insert(DhcpOption::ServerIdentifier(SERVER));
    options.insert(DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)));
    options.insert(DhcpOption::AddressLeaseTime(3600));
    options.insert(DhcpOption::Router(vec![SERVER]));
    options.insert(DhcpOption::DomainNameServer(vec![SERVER; 6]));
    options.insert(DhcpOption::DomainName("rack.example".into()));
    options.insert(DhcpOption::InterfaceMtu(9000));
    message
}

fn bytes(message: &Message) -> Vec<u8> {
    message.to_vec().expect("encoded")
}

/// The message of a packet that the client sends at a time.
fn sent(client: &mut DhcpClient, now: Duration) -> Option<Message> {
    match client.step(now) {
        DhcpStep::Send(packet, _) => Some(Message::from_bytes(&packet).expect("decoded")),
        _ => None,
    }
}

fn kind(message: Option<Message>) -> Option<MessageType> {
    message?.opts().msg_type()
}

#[test]
fn offer_is_requested_and_acknowledged() {
    let mut client = client();
    let discover = sent(&mut client, seconds(0)).expect("sent");
    assert_eq!(discover.opts().msg_type(), Some(MessageType::Discover));
    assert!(discover.flags().broadcast());
    client.receive(&bytes(&reply(MessageType::Offer)), seconds(0));
    let request = sent(&mut client, seconds(0)).expect("sent at once");
    let requested = request.opts().get(OptionCode::RequestedIpAddress);
    assert_eq!(requested, Some(&DhcpOption::RequestedIpAddress(ADDRESS)));
    client.receive(&bytes(&reply(MessageType::Ack)), seconds(0));
    let lease = Lease {
        address: ADDRESS,
        prefix: 24,
        server: SERVER,
        router: Some(SERVER),
        dns: vec![SERVER; 4],
        domain: Some("rack.example".into()),
        mtu: Some(9000),
        lease_s: 3600,
    };
    assert_eq!(client.step(seconds(1)), DhcpStep::Bound(lease));
}

#[test]
fn packets_are_repeated_with_doubled_delays() {
    let mut client = client();
    let mut now = seconds(0);
    let mut delays = Vec::new();
    for _ in 0..7 {
        let DhcpStep::Send(_, next) = client.step(now) else { panic!("due") };
        assert_eq!(client.step(now), DhcpStep::Wait(next));
        delays.push((next - now).as_secs());
        now = next;
    }
    assert_eq!(delays, [1, 2, 4, 8, 16, 16, 16]);
}

#[test]
fn refused_or_unanswered_request_begins_again() {
    let mut refused = client();
    sent(&mut refused, seconds(0));
    refused.receive(&bytes(&reply(MessageType::Offer)), seconds(0));
    sent(&mut refused, seconds(0));
    refused.receive(&bytes(&reply(MessageType::Nak)), seconds(0));
    assert_eq!(refused.step(seconds(0)), DhcpStep::Wait(seconds(1)));
    assert_eq!(kind(sent(&mut refused, seconds(1))), Some(MessageType::Discover));

    let mut unanswered = client();
    sent(&mut unanswered, seconds(0));
    unanswered.receive(&bytes(&reply(MessageType::Offer)), seconds(0));
    for now in [0, 10, 20, 30] {
        assert_eq!(kind(sent(&mut unanswered, seconds(now))), Some(MessageType::Request));
    }
    assert_eq!(kind(sent(&mut unanswered, seconds(60))), Some(MessageType::Discover));
}

#[test]
fn answer_of_another_exchange_or_without_netmask_is_ignored() {
    let change = |change: &dyn Fn(&mut Message)| {
        let mut message = reply(MessageType::Offer);
        change(&mut message);
        let mut client = client();
        sent(&mut client, seconds(0));
        client.receive(&bytes(&message), seconds(0));
        client.step(seconds(0))
    };
    let ignored = DhcpStep::Wait(seconds(1));
    assert_ne!(change(&|_| ()), ignored, "as it is, it is accepted");
    assert_eq!(
        change(&|it| {
            it.set_xid(1);
        }),
        ignored
    );
    assert_eq!(
        change(&|it| {
            it.set_chaddr(&[2, 0, 0, 0, 0, 8]);
        }),
        ignored
    );
    assert_eq!(
        change(&|it| {
            it.set_opcode(Opcode::BootRequest);
        }),
        ignored
    );
    assert_eq!(
        change(&|it| {
            it.set_yiaddr(Ipv4Addr::UNSPECIFIED);
        }),
        ignored
    );
    let without = |code: OptionCode| change(&move |it| drop(it.opts_mut().remove(code)));
    assert_eq!(without(OptionCode::SubnetMask), ignored);
    assert_eq!(without(OptionCode::ServerIdentifier), ignored);
    assert_eq!(without(OptionCode::AddressLeaseTime), ignored);
}

#[test]
fn acknowledgement_of_another_address_or_server_is_ignored() {
    let change = |change: &dyn Fn(&mut Message)| {
        let mut client = client();
        sent(&mut client, seconds(0));
        client.receive(&bytes(&reply(MessageType::Offer)), seconds(0));
        sent(&mut client, seconds(0));
        let mut message = reply(MessageType::Ack);
        change(&mut message);
        client.receive(&bytes(&message), seconds(0));
        matches!(client.step(seconds(0)), DhcpStep::Bound(_))
    };
    assert!(change(&|_| ()), "as it is, it is accepted");
    assert!(!change(&|it| {
        it.set_yiaddr(Ipv4Addr::new(10, 77, 0, 51));
    }));
    let other = DhcpOption::ServerIdentifier(Ipv4Addr::new(10, 77, 0, 2));
    assert!(!change(&move |it| drop(it.opts_mut().insert(other.clone()))));
}

proptest! {
    #[test]
    fn any_packet_never_panics(
        junk in proptest::collection::vec(any::<u8>(), 0..400),
        at in 0usize..300,
    ) {
        let mut client = client();
        sent(&mut client, seconds(0));
        client.receive(&junk, seconds(0));
        let mut offer = bytes(&reply(MessageType::Offer));
        let at = at.min(offer.len());
        offer.splice(at.., junk);
        client.receive(&offer, seconds(0));
        let _ = client.step(seconds(0));
    }
}
