"""Runs the gateway under uvicorn: one process, one port, one clear line for what keeps it from starting."""

import gc
import logging
import socket
import sys
from typing import Final

import uvicorn

from app.api.protocol import CorkedProtocol
from app.main import create_app
from app.settings import Settings

_GC_THRESHOLD: Final = 10_000
"""Net new container objects between two collections of the youngest generation; CPython's default is 700."""

_BACKLOG: Final = 2048

_LOGGING: Final = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"level": "INFO", "handlers": ["stderr"]},
    "filters": {"unfinished": {"()": "app.serve.Unfinished"}},
    "loggers": {"uvicorn.error": {"level": "WARNING", "filters": ["unfinished"]}, "httpx": {"level": "WARNING"}},
}


class Unfinished(logging.Filter):
    """Drops uvicorn's complaint about an answer that is left unfinished: that is how ours tell that they were cut."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record stays."""
        return "returned without completing response" not in record.getMessage()


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or Ctrl-C; returns the exit status."""
    try:
        app = create_app(settings)
    except OSError as exc:
        sys.stderr.write(f"reprise serve: {exc}\n")
        return 1
    try:
        listener = _listen(settings.host, settings.port)
    except OSError as exc:
        sys.stderr.write(f"reprise serve: cannot listen on {settings.host}:{settings.port}: {exc.strerror or exc}\n")
        return 1
    # What exists now stays: the collector need not walk it again, and it need not run for every few requests.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    config = uvicorn.Config(
        app,
        http=CorkedProtocol,
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=_LOGGING,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=30,
    )
    logging.getLogger(__name__).info("listening on http://%s:%d", *listener.getsockname()[:2])
    server = uvicorn.Server(config)
    server.run(sockets=[listener])
    return 0 if server.started else 1


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
