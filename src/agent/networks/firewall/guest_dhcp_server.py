"""Test: a hostile guest that answers DHCP from source port 6767. `GUEST-MAC GUEST-IP`."""
import socket, struct, sys

sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
sock.bind(("eth", 0))
mac = bytes.fromhex(sys.argv[1].replace(":", ""))
own = socket.inet_aton(sys.argv[2])
print("ready", flush=True)


def checksum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


while True:
    frame = sock.recv(4096)
    if frame[12:14] != b"\x08\x00" or frame[23] != 17 or frame[34:38] != b"\0\x44\0\x43":
        continue
    client, bootp = frame[6:12], frame[42:]
    kind = bootp.split(b"\x63\x82\x53\x63")[1].find(b"\x35\x01")
    message = bootp.split(b"\x63\x82\x53\x63")[1][kind + 2]
    answer = {1: 2, 3: 5}.get(message)  # DISCOVER: OFFER; REQUEST: ACK
    if answer is None:
        continue
    leased = socket.inet_aton("10.77.0.99")
    reply = b"\x02" + bootp[1:16] + leased + own + bootp[24:44] + b"\0" * 192 + b"\x63\x82\x53\x63"
    reply += bytes([53, 1, answer, 54, 4]) + own + b"\x33\x04\0\0\x0e\x10\x01\x04\xff\xff\xff\0\x03\x04" + own + b"\xff"
    reply += b"\0" * (len(reply) % 2)
    udp = struct.pack("!HHHH", 6767, 68, 8 + len(reply), 0) + reply
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 7, 0, 64, 17, 0, own, leased)
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    sock.send(client + mac + b"\x08\x00" + head + udp)
