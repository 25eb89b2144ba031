"""Where can a test break the operation off? An application of yours has no such file."""

import os
import socket


class Panic(BaseException):
    """Nobody catches it: the attempt is gone without a word."""


def break_point(booking, point):
    """Says which point the operation has come to, and waits for a word. Meanwhile the process can be killed or stopped."""
    if "BREAK_POINTS" not in os.environ:
        return
    host, port = os.environ["BREAK_POINTS"].split(":")
    with socket.create_connection((host, int(port))) as director:
        director.sendall(f"{os.getpid()} {booking} {point}\n".encode())
        word = director.makefile().readline().strip()
    if word != "go":
        raise Panic(point) if word == "panic" else RuntimeError(f"{word} at {point}")
