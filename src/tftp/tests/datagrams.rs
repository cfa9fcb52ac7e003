//! Windows that the kernel segments, over loopback.

use crate::{
    client::Client,
    driver::batch_socket::{BatchSocket, Message, Sent, enlarge, headers_of, messages_of},
    effect::{Payload, Transmission},
    packet,
};
use bytes::Bytes;
use std::{
    net::{SocketAddr, SocketAddrV4, UdpSocket},
    time::Duration,
};

fn socket() -> (UdpSocket, SocketAddrV4) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    enlarge(&socket);
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
    let SocketAddr::V4(address) = socket.local_addr().expect("bound") else { panic!("IPv4") };
    (socket, address)
}

/// Three clients: windows of two sizes, single blocks and packets longer than both, the end of a
/// file in a window.
fn sends(to: SocketAddrV4) -> Vec<Transmission> {
    let file = Bytes::from_iter((0..100_000u32).map(|at| (at % 253) as u8));
    let blocks = |block, first, count| Transmission {
        to: Client::unobserved(to),
        payload: Payload::Blocks { file: file.clone(), block, first, count, resent: false },
    };
    vec![
        blocks(512, 1, 16),
        Transmission {
            to: Client::unobserved(to),
            payload: Payload::Packet(packet::error(packet::Code::NotFound, &"long ".repeat(150))),
        },
        blocks(8, 1, 64),
        blocks(1468, 4, 64),
        blocks(1468, 68, 1),
        blocks(1024, 90, 8),
    ]
}

/// The expected datagrams, computed without segmentation.
fn expected(sends: &[Transmission]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for send in sends {
        match &send.payload {
            Payload::Packet(bytes) => all.push(bytes.to_vec()),
            Payload::Blocks { file, block, first, count, .. } => {
                for number in *first..first + u64::from(*count) {
                    let data = file
                        .chunks(usize::from(*block))
                        .nth(number as usize - 1)
                        .unwrap_or_default();
                    all.push([&[0, 3, 0, number as u8], data].concat());
                }
            }
        }
    }
    all
}

fn check_arrival(unsegmented: bool) {
    let (client, to) = socket();
    let sends = sends(to);
    let headers = headers_of(&sends);
    let mut shared = BatchSocket::new(socket().0);
    assert!(shared.segments_for(*to.ip()), "this kernel knows UDP_SEGMENT");
    let mut messages = messages_of(&sends, &headers, |_| true);
    assert!(messages.len() < 20, "windows are few messages: {}", messages.len());
    if unsegmented {
        messages = messages.into_iter().flat_map(Message::into_single).collect();
    }
    let sent = shared.send(&messages);
    assert!(matches!(sent, Sent::All), "{sent:?}");
    let mut buffer = [0; 65_536];
    let mut expected = expected(&sends);
    let mut receive = |_: &Vec<u8>| {
        // A child of another test that ends interrupts the read.
        let length = loop {
            match client.recv(&mut buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                received => break received.expect("a datagram"),
            }
        };
        buffer[..length].to_vec()
    };
    let mut received: Vec<Vec<u8>> = expected.iter().map(&mut receive).collect();
    // Windows of one segment size are sent together; each window keeps its order.
    expected.sort_by_key(Vec::len);
    received.sort_by_key(Vec::len);
    for (at, (received, expected)) in received.iter().zip(&expected).enumerate() {
        assert!(received == expected, "datagram {at}, unsegmented: {unsegmented}");
    }
}

#[test]
fn windows_arrive_as_single_datagrams_with_and_without_segmentation() {
    check_arrival(false);
    check_arrival(true);
}

#[test]
fn datagrams_are_received_in_batches() {
    let (client, _) = socket();
    let (server, to) = socket();
    let mut shared = BatchSocket::new(server);
    for number in 0..100u16 {
        client
            .send_to(&[&[0, 4][..], &number.to_be_bytes(), &[0; 200]].concat(), to)
            .expect("loopback takes it");
    }
    let mut numbers = Vec::new();
    while numbers.len() < 100 {
        let read = shared.receive(|_, bytes| numbers.push(u16::from(bytes[3])));
        assert!(read.expect("they are there") > 0);
    }
    assert_eq!(numbers, (0..100).collect::<Vec<_>>());
}
