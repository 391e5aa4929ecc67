"""``reprise engine``: print or become a vLLM with the guard and an engine profile. Standard library only."""

import argparse
import os
import sys
from typing import Final

from app.engine.launch import LaunchError, command, detect_target
from app.engine.options import GuardOptions
from app.engine.profile import PROFILES, Target

_AUTO: Final = "auto"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = "Run a vLLM with the guard and an engine profile. Arguments after -- go to vLLM as they are."
    parser.add_argument("--profile", choices=sorted(PROFILES), default="deterministic", help="default deterministic")
    parser.add_argument("--model", required=True, metavar="DIR|ID", help="a model folder, or a name that vLLM resolves")
    parser.add_argument("--served-model-name", metavar="NAME", help="the name that requests use (default: the model's)")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8001, help="the port to listen on (default 8001)")
    parser.add_argument(
        "--target",
        choices=[_AUTO, *(target.value for target in Target)],
        default=_AUTO,
        help="what the engine runs on (default: cuda where an NVIDIA GPU answers, else cpu)",
    )
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has vLLM (default: this one)")
    parser.add_argument("--print", action="store_true", help="show the command and its environment, and run nothing")
    parser.add_argument("vllm_arguments", nargs="*", metavar="-- ARGUMENT", help="more arguments for vLLM")


def run(arguments: argparse.Namespace) -> int:
    """Print the command and return 0, or become the engine; 1 with one line where that cannot be done."""
    try:
        # The guard would refuse them too, but from deep inside vLLM's start.
        GuardOptions.read(os.environ)
    except ValueError as exc:
        sys.stderr.write(f"reprise engine: {exc}\n")
        return 1
    launch = command(
        PROFILES[arguments.profile],
        target=detect_target() if arguments.target == _AUTO else Target(arguments.target),
        model=arguments.model,
        host=arguments.host,
        port=arguments.port,
        served_model_name=arguments.served_model_name,
        extra=arguments.vllm_arguments,
        python=arguments.python,
    )
    if arguments.print:
        sys.stdout.write(f"{launch.shell()}\n")
        return 0
    try:
        launch.run()
    except LaunchError as exc:
        sys.stderr.write(f"reprise engine: {exc}\n")
        return 1
