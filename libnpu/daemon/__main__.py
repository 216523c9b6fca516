"""`npud --socket PATH`: serve one simulated device to the processes of this machine. docs/daemon.md."""

from __future__ import annotations

import argparse
import os
import sys

import msgspec
from npu_driver.error import KernelError
from npu_driver.platform import start
from npu_model.memory import MemoryUnsupported
from npu_model.profile import ProfileError, load_profile

from libnpu.daemon import wire
from libnpu.daemon.server import Server, stop_on_signals

DEFAULT_MODE = 0o660


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns 2 for what cannot be."""
    parser = argparse.ArgumentParser(
        prog="npud", description="Serve one simulated NPU to the processes of this machine."
    )
    parser.add_argument(
        "--socket", required=True, metavar="PATH", help="where to listen; programs find it by NPU_DEVICE=unix:PATH"
    )
    parser.add_argument(
        "--mode", type=_mode, default=DEFAULT_MODE, metavar="OCTAL", help="permissions of the socket (default 0660)"
    )
    parser.add_argument("--profile", default="npu-37xx", help="hardware profile, or a .json file (default npu-37xx)")
    parser.add_argument("--numerics", choices=("exact", "fast"), default="exact")
    parser.add_argument(
        "--fidelity", choices=("fast", "full"), default="fast", help="of the memory path (docs/memory.md)"
    )
    parser.add_argument("--no-compute", action="store_true", help="times alone: memory holds no values")
    parser.add_argument("--trace", action="store_true", help="record what the device does")
    parser.add_argument(
        "--module-params", default="", metavar="TEXT", help="parameters of the kernel module: name=value ..."
    )
    options = parser.parse_args(arguments)
    try:
        profile = load_profile(options.profile)
        compute = not options.no_compute
        kernel = start(
            profile,
            compute=compute,
            numerics=options.numerics,
            fidelity=options.fidelity,
            trace=options.trace,
            module_params=options.module_params,
        )
        kernel.exports.key = os.urandom(16)
        greeting = wire.Greeting(
            profile=msgspec.Raw(msgspec.json.encode(profile)), compute=compute, numerics=options.numerics,
            fidelity=options.fidelity, trace=options.trace, now_ps=0,
        )  # fmt: skip
        server = Server(kernel, greeting, options.socket, options.mode, _log, os.getuid())
    except (OSError, ProfileError, KernelError, MemoryUnsupported) as error:
        print(f"npud: {error}", file=sys.stderr)
        return 2
    stop_on_signals(server)
    print(f"npud: {profile.name} at {options.socket}", flush=True)
    server.run()
    return 0


def _mode(text: str) -> int:
    mode = int(text, 8)
    if not 0 <= mode <= 0o777:
        raise ValueError
    return mode


def _log(line: str) -> None:
    print(f"npud: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
