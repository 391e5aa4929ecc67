"""Asks servers whether they are ready."""

import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass

from launcher.failure import LaunchError

LIMIT = 2.0  # seconds that one question may take
OK = 200
# A proxy named in the environment is for the outside; these servers are here.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said; ``status`` 0 when it said nothing."""

    status: int
    body: bytes

    @property
    def ready(self) -> bool:
        """Whether the answer is 200."""
        return self.status == OK

    @property
    def problem(self) -> str:
        """Why a server says that it is not ready, in one line; the gateway names each replica's own reason."""
        if self.status == 0:
            return "no answer"
        try:
            replicas = json.loads(self.body)["replicas"]
            return "; ".join(f"{one['replica']}: {one['problem']}" for one in replicas)
        except (ValueError, LookupError, TypeError):
            return f"status {self.status}"


def ask(url: str) -> Answer:
    """GET ``url``. Never raises for what a server does or fails to do."""
    try:
        with _OPENER.open(url, timeout=LIMIT) as response:
            return Answer(response.status, response.read())
    except urllib.error.HTTPError as exc:
        with exc:
            return Answer(exc.code, exc.read())
    except (OSError, http.client.HTTPException):
        return Answer(0, b"")


def isolation_problem(base: str) -> str | None:
    """Why no replica of the gateway at ``base`` can isolate a request, in its own words; None where one can."""
    try:
        replicas = json.loads(ask(f"{base}/readyz").body)["replicas"]
        said = {one["replica"]: str(one["mitigations"]["batch_isolation"]) for one in replicas}
    except (ValueError, LookupError, TypeError):
        return "the gateway does not say what its replicas honour"
    if any(word.startswith("yes") for word in said.values()):
        return None
    return "; ".join(f"{name}: {word.partition(': ')[2]}" for name, word in said.items())


def first_model(base: str) -> str:
    """The id of the first model that the server at ``base`` lists. Raises LaunchError when it lists none."""
    answer = ask(f"{base}/v1/models")
    try:
        return str(json.loads(answer.body)["data"][0]["id"])
    except (ValueError, LookupError, TypeError) as exc:
        raise LaunchError(f"the gateway is up, but {base}/v1/models names no model (status {answer.status})") from exc
