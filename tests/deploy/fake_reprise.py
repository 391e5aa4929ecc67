"""Stands for the ``reprise`` command of both environments: real processes and ports, no engine.

It notes what it was given in ``$FAKE_NOTES/<command>.json``. ``$FAKE_ENGINE`` says how the engine behaves: ``serves``,
``dies`` at once, ``leaves-worker`` (a worker that ignores SIGTERM and outlives it), or ``never-ready``.
``serve --check`` ends with the line in ``$FAKE_REFUSAL``, if there is one.
"""

import http.server
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

WORKER = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("deaf", flush=True)
signal.pause()
"""


class Answers(http.server.BaseHTTPRequestHandler):
    """Every question is answered 200, with one model and one replica, unless the engine is never to be ready.

    ``$FAKE_ISOLATION`` is what the replica says of batch isolation.
    """

    def do_GET(self) -> None:
        """Answer."""
        said = {"batch_isolation": os.environ.get("FAKE_ISOLATION", "yes")}
        replicas = [{"replica": "fake:1", "mitigations": said}]
        body = json.dumps({"data": [{"id": "fake-model"}], "replicas": replicas}).encode()
        self.send_response(503 if os.environ.get("FAKE_ENGINE") == "never-ready" else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Stay silent."""


def main() -> None:
    """Note, behave, serve."""
    command, *arguments = sys.argv[1:]
    if "--check" in arguments:
        sys.exit(os.environ.get("FAKE_REFUSAL"))
    behaviour = os.environ.get("FAKE_ENGINE", "serves")
    note = {"pid": os.getpid(), "argv": arguments, "key": os.environ.get("REPRISE_GUARD_KEY"), "cwd": str(Path.cwd())}
    if command == "engine" and behaviour == "dies":
        sys.stderr.write("RuntimeError: the fake engine cannot start\n")
        sys.exit(3)
    if command == "engine" and behaviour == "leaves-worker":
        worker = subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE)  # left behind on purpose
        assert worker.stdout is not None
        worker.stdout.readline()
        note["worker"] = worker.pid
    (Path(os.environ["FAKE_NOTES"]) / f"{command}.json").write_text(json.dumps(note))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    port = int(arguments[arguments.index("--port") + 1])
    http.server.HTTPServer(("127.0.0.1", port), Answers).serve_forever()


if __name__ == "__main__":
    main()
