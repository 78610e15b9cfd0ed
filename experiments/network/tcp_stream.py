"""What a link carries: two hosts send each other bytes at the same time, and each prints the bits/s it received.

    python tcp_stream.py PEER SKIPPED COUNTED     # on both; the standard library alone, so that it starts at once

The first SKIPPED bytes are not timed: they pass a token bucket that is still full, and TCP finds its speed.
"""

import argparse
import socket
import threading
import time

PORT = 5001
_PATIENCE_S = 10


def main(peer: str, skipped: int, counted: int) -> None:
    """Send to ``peer`` and time what it sends."""
    server = socket.create_server(("", PORT))
    sender = threading.Thread(target=_send, args=(peer, skipped + counted), daemon=True)
    sender.start()
    server.settimeout(_PATIENCE_S)
    source, received, start = server.accept()[0], 0, 0.0
    buffer = bytearray(1 << 18)
    while received < skipped + counted and (size := source.recv_into(buffer)):
        received += size
        if not start and received >= skipped:
            start, before = time.perf_counter(), received
    print(8 * (received - before) / (time.perf_counter() - start))
    sender.join()


def _send(peer: str, size: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((peer, PORT)) as connection:
                part = bytes(1 << 16)
                for start in range(0, size, len(part)):
                    connection.sendall(part[: size - start])
                return
        except ConnectionRefusedError:  # not there yet
            time.sleep(0.01)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m experiments.network.tcp_stream", description=__doc__)
    parser.add_argument("peer", help="the other host's address")
    parser.add_argument("skipped", type=int, help="bytes")
    parser.add_argument("counted", type=int, help="bytes")
    main(**vars(parser.parse_args()))
