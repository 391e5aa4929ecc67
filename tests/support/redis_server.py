"""A real Redis that a test starts itself: on a loopback port and a unix socket, with no configuration file."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from tests.support.tools import tool


@dataclass(slots=True)
class RedisServer:
    """A server that can be started, killed and started again. ``options`` are its command line."""

    folder: Path
    options: tuple[str, ...] = ()
    scheme: str = "redis"
    port: int = 0
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        """Its URL."""
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; returns when it listens."""
        listen = () if self.scheme == "rediss" else ("--port", str(self.port))
        command = [str(tool("redis-server")), *listen, "--bind", "127.0.0.1", "--dir", str(self.folder)]
        command += ["--save", "", "--unixsocket", str(self.folder / "s"), *self.options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        connection = redis.Redis(unix_socket_path=str(self.folder / "s"))
        while True:
            assert self.process.poll() is None, "Redis did not start"
            try:
                connection.ping()
            except redis.AuthenticationError:
                break
            except redis.ConnectionError:
                continue
            else:
                break
        connection.close()

    def kill(self) -> None:
        """End it without a word."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def empty(self) -> None:
        """Throw away all that it holds."""
        with self.admin() as admin:
            admin.flushall()

    def admin(self) -> "redis.Redis":
        """A client beside the store under test."""
        return redis.Redis(port=self.port, decode_responses=True)


def free_port() -> int:
    """A port on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def redis_server(folder: Path, *options: str, scheme: str = "redis", port: int | None = None) -> Iterator[RedisServer]:
    """A server that listens while the block runs; its files are in the folder."""
    server = RedisServer(folder, options, scheme, free_port() if port is None else port)
    try:
        server.start()
        yield server
    finally:
        server.kill()
