"""What the machine offers: GPUs and free ports."""

import shutil
import socket
import subprocess

from launcher.failure import LaunchError


def has_nvidia_gpu() -> bool:
    """Whether NVIDIA's driver names a GPU."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    try:
        listing = subprocess.run([tool, "-L"], capture_output=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listing.returncode == 0 and b"GPU " in listing.stdout


def resolve(device: str) -> str:
    """``cpu`` or ``cuda``: what was asked for or, for ``auto``, what is here."""
    if device != "auto":
        return device
    return "cuda" if has_nvidia_gpu() else "cpu"


def require_free(host: str, port: int, *, flag: str) -> None:
    """Raise LaunchError unless a server could listen on the address. ``flag`` is what would choose another port."""
    try:
        family, kind, protocol, _name, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as exc:
        raise LaunchError(f"cannot listen on {host!r}: {exc.strerror}") from exc
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port in TIME_WAIT is free
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as exc:
            raise LaunchError(
                f"port {port} on {host} cannot be used ({exc.strerror}); choose another with {flag}"
            ) from exc
