"""Run ``flwr`` commands one after another, each in a fork of this process.

:class:`vfl_flower.app.deployment.processes.Processes` starts this file as a program,
with a socket as its standard input. Importing Flower takes most of the time of a short
command, so this program imports Flower only once, and imports no other module of this
package.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import socket
import sys
from contextlib import suppress
from importlib.metadata import EntryPoint, distribution


def serve(channel: socket.socket, program: EntryPoint) -> None:
    """Run commands until the other end of the channel is closed.

    A request consists of one byte, which carries the descriptors for standard output
    and error, and a line of JSON with the working directory and the arguments. The
    answer is a line with the exit code, which is negative if a signal ended the
    command.
    """
    lines = channel.makefile("r", encoding="utf-8")
    forks = multiprocessing.get_context("fork")
    while streams := socket.recv_fds(channel, 1, 2)[1]:
        folder, arguments = json.loads(lines.readline())
        given = channel, program, streams, folder, arguments
        command = forks.Process(target=run, args=given)
        command.start()
        for stream in streams:
            os.close(stream)
        command.join()
        channel.sendall(f"{command.exitcode}\n".encode())


def run(
    channel: socket.socket,
    program: EntryPoint,
    streams: list[int],
    folder: str,
    arguments: list[str],
) -> None:
    """Run one command in this process."""
    channel.close()
    for stream, copy in zip(streams, (1, 2), strict=True):
        os.dup2(stream, copy)
        os.close(stream)
    os.chdir(folder)
    sys.argv = [program.name, *arguments]
    sys.exit(program.load()())


if __name__ == "__main__":
    (flwr,) = distribution("flwr").entry_points.select(
        group="console_scripts", name="flwr"
    )
    with suppress(Exception):  # each command reports the failure
        flwr.load()
    gc.freeze()  # so that forks share the memory of imported modules
    with socket.socket(fileno=os.dup(0)) as socket_of_requests:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        serve(socket_of_requests, flwr)
