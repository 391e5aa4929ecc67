"""Runs the gateway under uvicorn: one process, one port, one clear line for what keeps it from starting."""

import asyncio
import gc
import logging
import math
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final

import uvicorn

from app.api.protocol import CorkedProtocol
from app.main import check_app, create_app
from app.measuring.canaries import CanaryError
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


class _Server(uvicorn.Server):
    """Goes away in steps, so that nobody who asks for readiness first is turned away.

    On SIGTERM readiness turns off at once, and for ``delay`` seconds everything else goes on, new requests too: the
    time that a load balancer needs to notice. Then the listener closes, answers under way have their grace, and what is
    left is ended with an error event. Ctrl-C, or a second signal, skips the delay.
    """

    def __init__(self, config: uvicorn.Config, *, retire: Callable[[], None], delay: float) -> None:
        super().__init__(config)
        self._retire = retire
        self._delay = delay
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Remember the loop, for the signal handler."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """What uvicorn calls on a signal, between two steps of the interpreter."""
        if sig != signal.SIGTERM or self._leaving or self._loop is None or not self._delay:
            super().handle_exit(sig, frame)
            return
        self._leaving = True
        self._loop.call_soon_threadsafe(self._leave, sig, frame)

    def _leave(self, sig: int, frame: FrameType | None) -> None:
        self._retire()
        logging.getLogger(__name__).info("not ready any more; the listener closes in %g s", self._delay)
        assert self._loop is not None  # noqa: S101 - set before any signal comes here
        self._loop.call_later(self._delay, super().handle_exit, sig, frame)


def check(settings: Settings) -> int:
    """Say whether a gateway could be made of the settings, and make none; returns the exit status."""
    try:
        check_app(settings)
    except (OSError, CanaryError) as exc:
        sys.stderr.write(f"reprise serve: {exc}\n")
        return 1
    sys.stdout.write("The settings can be used.\n")
    return 0


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or Ctrl-C; returns the exit status.

    Once it has ended, the signal is raised again: SIGTERM ends the process, Ctrl-C is a KeyboardInterrupt.
    """
    try:
        app = create_app(settings)
    except (OSError, CanaryError) as exc:
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
        timeout_graceful_shutdown=math.ceil(settings.shutdown_grace),
    )
    logging.getLogger(__name__).info("listening on http://%s:%d", *listener.getsockname()[:2])
    server = _Server(config, retire=app.retire, delay=settings.shutdown_delay)
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
