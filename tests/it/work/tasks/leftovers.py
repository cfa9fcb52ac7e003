"""Leaves data wherever a program may leave some for a later one (`leave FOLDER...`), or prints what it finds (`find FOLDER...`). The folders
show message queues."""
import ctypes, os, socket, sys

NAME = "meshd-test-left"
libc = ctypes.CDLL(None, use_errno=True)
ADD_KEY, KEYCTL, SEARCH, GET_PERSISTENT, SETPERM = 248, 250, 10, 22, 5
SESSION, USER, USER_SESSION = -3, -4, -5
CREATE = 0o1000


def keyrings():
    yield "session-keyring", SESSION
    yield "user-keyring", USER
    yield "user-session-keyring", USER_SESSION
    yield "persistent-keyring", libc.syscall(KEYCTL, GET_PERSISTENT, -1, SESSION)


def leave(folders):
    def done(place, result):
        print(place, "left" if result >= 0 else os.strerror(ctypes.get_errno()))

    for place, keyring in keyrings():
        done(place, libc.syscall(ADD_KEY, b"user", NAME.encode(), b"x", 1, keyring))
    done("system-v", libc.shmget(271828, 4096, CREATE | 0o666))
    for folder in ["/tmp", "/var/tmp", "/dev/shm", "/run/lock"] + folders:
        try:
            os.close(os.open(f"{folder}/{NAME}", os.O_CREAT | os.O_WRONLY, 0o666))
            print(folder, "left")
        except OSError as error:
            print(folder, error)
    done("queue", libc.mq_open(f"/{NAME}".encode(), os.O_CREAT | os.O_RDWR, 0o666, None))
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            server = socket.socket(socket.AF_UNIX)
            server.bind(f"\0{NAME}")
            server.listen()
            libc.pause()
        os._exit(0)


def find(folders):
    for place, keyring in keyrings():
        if libc.syscall(KEYCTL, SEARCH, keyring, b"user", NAME.encode(), 0) >= 0:
            print(place)
    if libc.shmget(271828, 4096, 0) >= 0:
        print("system-v")
    for folder in ["/tmp", "/var/tmp", "/dev/shm", "/run/lock"] + folders:
        if os.path.exists(f"{folder}/{NAME}"):
            print(folder)
    if libc.mq_open(f"/{NAME}".encode(), os.O_RDWR) >= 0:
        print("queue")
    for log in ["/dev/log", "/run/systemd/journal/socket"]:
        try:
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"forged", log)
            print(log)
        except OSError:
            pass
    try:
        socket.socket(socket.AF_UNIX).connect(f"\0{NAME}")
        print("abstract-socket")
    except OSError:
        pass


if sys.argv[1] == "lock":
    # Nobody may use the user keyring any more, nor give it other permissions.
    sys.exit(libc.syscall(KEYCTL, SETPERM, USER, 0) != 0)
globals()[sys.argv[1]](sys.argv[2:])
