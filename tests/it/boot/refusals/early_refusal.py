"""Sends a request that the server refuses before its end, and goes on sending after the answer has arrived, as a slow upload does.

Arguments: address, port, `tls` or `plain`, `body` or `head`, path, header. Prints the status.
"""

import select
import socket
import ssl
import sys

address, port, transport, part, path, header = sys.argv[1:]
# The first piece alone is more than the head of a request may have.
PIECE, PIECES = b"x" * 32768, 32
connection = socket.create_connection((address, int(port)), timeout=20)
if transport == "tls":
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = context.wrap_socket(connection)
head = f"POST {path} HTTP/1.1\r\nhost: x\r\n{header}\r\n"
if part == "body":
    head += f"content-length: {len(PIECE) * PIECES}\r\n\r\n"
else:
    head += "long: "
connection.sendall(head.encode() + PIECE)
connection.settimeout(0)
answer = b""
while not answer:
    try:
        answer = connection.recv(12)
        assert answer, "closed without an answer"
    except (BlockingIOError, ssl.SSLWantReadError):
        assert select.select([connection], [], [], 20)[0], "no answer in 20 seconds"
connection.settimeout(20)
for _ in range(PIECES - 1):
    connection.sendall(PIECE)
while piece := connection.recv(65536):
    answer += piece
head, body = answer.split(b"\r\n\r\n", 1)
length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: ")]
assert len(body) == int(length[0].split()[1]), answer
print(answer.split(b" ")[1].decode())
