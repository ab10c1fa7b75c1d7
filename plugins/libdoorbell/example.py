#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The host's side from Python, by ctypes alone: two ranks in this process, memory, windows, a device communicator.

    go build -buildmode=c-shared -o libdoorbell.so ./plugins/libdoorbell
    python3 plugins/libdoorbell/example.py ./libdoorbell.so

Kernels come from elsewhere: CuPy, Numba or CUDA's driver take `dev_comm` and `window` as arguments, by value, as they are.
"""
import ctypes
import sys
import threading

WINDOW_BYTES, DEV_COMM_BYTES = 40, 336  # doorbell::window, doorbell::dev_comm
U64 = ctypes.c_uint64


class Info(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int32) for n in ("rank", "size", "lsa_rank", "lsa_size")] + [
        (n, ctypes.c_char * 32) for n in ("net", "device", "progress")
    ]


class Doorbell:
    """libdoorbell.so, whose refusals are exceptions with its own words."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.doorbell_last_error.restype = ctypes.c_char_p

    def __call__(self, name, *args):
        code = getattr(self.lib, "doorbell_" + name)(*args)
        if code != 0:
            raise RuntimeError(f"{name}: code {code}: {self.lib.doorbell_last_error().decode()}")


def rank(db, comm, said):
    info, buffer, window, devcomm = Info(), U64(), U64(), U64()
    db("get_info", comm, ctypes.byref(info))
    db("alloc_host", comm, U64(4096), ctypes.byref(buffer))
    db("write", buffer, U64(0), b"from Python", U64(11))
    in_kernel = ctypes.create_string_buffer(WINDOW_BYTES)
    db("register", comm, buffer, ctypes.byref(window), in_kernel, U64(WINDOW_BYTES))
    dev_comm = ctypes.create_string_buffer(DEV_COMM_BYTES)
    db("devcomm_create", comm, b"signals=8", ctypes.byref(devcomm), dev_comm, U64(DEV_COMM_BYTES))
    back = ctypes.create_string_buffer(11)
    db("read", buffer, U64(0), back, U64(11))
    db("barrier", comm)
    db("devcomm_close", devcomm)
    db("deregister", window)
    db("free", buffer)
    said[info.rank] = f"rank {info.rank} of {info.size}, {info.device.decode()} over {info.net.decode()}: {back.raw.decode()}"


def main():
    db = Doorbell(sys.argv[1])
    comms, said = (U64 * 2)(), [None, None]
    db("open_local", 2, b"device=soft timeout=20s", comms)
    threads = [threading.Thread(target=rank, args=(db, U64(c), said)) for c in comms]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    try:
        db("barrier", U64(12345))
    except RuntimeError as e:
        print(e)
    for c in comms:
        db("close", U64(c))
    print(*said, sep="\n")


if __name__ == "__main__":
    main()
