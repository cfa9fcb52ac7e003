"""Test: sends frames as a hostile guest, or lists those that arrive. `send GUEST-MAC VICTIM-MAC GUEST-IP`, `listen GUEST-MAC`."""
import socket, struct, sys

ALL = 3
sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL))
sock.bind(("eth", 0))
mac = bytes.fromhex(sys.argv[2].replace(":", ""))


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def listen():
    sock.settimeout(60)
    print("ready", flush=True)
    while True:
        frame = sock.recv(4096)
        if frame[6:12] != mac or b"name=" not in frame:
            continue
        name = frame.split(b"name=")[1].split(b";")[0].decode()
        print(name, flush=True)
        if name == "end":
            return


def send():
    victim = bytes.fromhex(sys.argv[3].replace(":", ""))
    source, target = socket.inet_aton(sys.argv[4]), socket.inet_aton("10.77.0.3")

    def frame(kind, payload, tag=b""):
        sock.send(victim + mac + tag + struct.pack("!H", kind) + payload)

    def ipv4(protocol, payload, fragment=0, tag=b""):
        head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 7, fragment, 64, protocol, 0, source, target)
        head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
        frame(0x0800, head + payload, tag)

    def udp(from_port, to_port, name):
        data = b"name=" + name + b";" + b"x" * 20
        return struct.pack("!HHHH", from_port, to_port, 8 + len(data), 0) + data

    more = 0x2000
    ipv4(17, udp(67, 68, b"dhcp"))
    ipv4(17, udp(6767, 68, b"high-port"))
    ipv4(17, udp(6767, 68, b"priority-tag"), tag=struct.pack("!HH", 0x8100, 0))
    ipv4(17, udp(6767, 68, b"vlan"), tag=struct.pack("!HH", 0x8100, 5))
    ipv4(17, udp(6767, 68, b"service-vlan"), tag=struct.pack("!HH", 0x88A8, 5))
    ipv4(17, udp(6767, 68, b"fragment"), fragment=more)
    ipv4(17, udp(6767, 546, b"dhcpv6-port"))
    ipv4(17, udp(4011, 2070, b"proxy"))
    ipv4(17, udp(67, 67, b"relay"))
    ipv4(17, udp(69, 2070, b"tftp"))
    ipv4(1, struct.pack("!BBHI", 9, 0, 0, 0) + b"name=irdp;")
    ipv4(1, struct.pack("!BBHI", 5, 0, 0, 0) + b"name=redirect;")
    head = struct.pack("!IHBB", 0x60000000, 30, 58, 255) + bytes.fromhex("fe80" + "0" * 26 + "51")
    frame(0x86DD, head + bytes.fromhex("ff02" + "0" * 27 + "1") + struct.pack("!BBH", 134, 0, 0) + b"\0" * 12 + b"name=ra;......")
    frame(0x86DD, struct.pack("!IHBB", 0x60000000, 40, 17, 64) + bytes.fromhex("fe80" + "0" * 26 + "51")
          + bytes.fromhex("ff02" + "0" * 27 + "1") + udp(547, 546, b"dhcpv6"))
    # What a client may send.
    ipv4(17, udp(5000, 5001, b"udp"))
    ipv4(1, struct.pack("!BBHI", 8, 0, 0, 0) + b"name=ping;")
    # The name is in the second fragment, at 16 bytes.
    large = struct.pack("!HHHH", 5000, 5001, 32, 0) + b"." * 8 + b"name=fragmented;"
    ipv4(17, large[:16], fragment=more)
    ipv4(17, large[16:], fragment=2)
    ipv4(17, udp(5000, 5001, b"end"))


{"listen": listen, "send": send}[sys.argv[1]]()
