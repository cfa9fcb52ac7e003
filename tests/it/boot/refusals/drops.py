"""Sends COUNT requests of every kind that meshd drops or refuses, from the wire and without any code of meshd."""
import socket
import struct
import sys

server, own, own6, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as link:
    link.bind(("eth0", 0))
    mac = link.getsockname()[4]


def dhcp(kind, ciaddr="0.0.0.0", options=b""):
    head = struct.pack("!BBBBIHH", 1, 1, 6, 0, 0x1234, 0, 0x8000) + socket.inet_aton(ciaddr) + bytes(12)
    return head + mac.ljust(16, b"\0") + bytes(192) + b"\x63\x82\x53\x63" + bytes([53, 1, kind]) + options + b"\xff"


def broadcast(payload, port=68):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
        sender.bind(("", port))
        sender.sendto(payload, ("255.255.255.255", 67))


def tftp(payload):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(payload, (server, 69))


def http(payload):
    with socket.create_connection((server, 8080), timeout=20) as stream:
        try:
            stream.sendall(payload)
            while stream.recv(4096):
                pass
        except ConnectionError:
            pass


def solicit():
    with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as sender:
        sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        sender.bind((own6, 0))
        sender.sendto(bytes([133, 0, 0, 0, 0, 0, 0, 0]), ("ff02::2", 0, 0, socket.if_nametoindex("eth0")))


for _ in range(count):
    broadcast(b"no DHCP packet")
    broadcast(dhcp(1), port=4000)
    broadcast(dhcp(3))
    broadcast(dhcp(8, ciaddr="10.77.0.67"))
    broadcast(dhcp(7, ciaddr=own))
    tftp(b"\0\x03\0\x01data")
    tftp(b"\0\x01undionly.kpxe")
    tftp(b"\0\x02new\0octet\0")
    tftp(b"\0\x01undionly.kpxe\0mail\0")
    tftp(b"\0\x01nosuch\0octet\0")
    http(b"\x16\x03\x01\r\n\r\n")
    http(b"GET / HTTP/1.1\r\nHost: x\r\nLong: " + b"x" * 200000 + b"\r\n\r\n")
    solicit()
