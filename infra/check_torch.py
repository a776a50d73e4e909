"""Imports the installed torch and, if that fails, says how to get one that runs here (`make venv` calls this)."""

from __future__ import annotations

import sys
from importlib.metadata import version

HELP = """
torch {version} is installed but cannot be imported:
    {reason}

The likely cause: pip took the default torch wheel, which is built for CUDA and needs NVIDIA's libraries, and
infra/lock/cpu.txt leaves those out. Point pip at the CPU build of the same release and run make again:

    make clean
    PIP_EXTRA_INDEX_URL=<index of CPU wheels> make venv      # the "CPU" index named on PyTorch's install page
    PIP_FIND_LINKS=<folder> make venv                        # or a folder that holds torch-{version}+cpu-cp311-*.whl

pip prefers the build marked +cpu when it sees both. On a machine with an NVIDIA GPU use the other lock instead:

    make clean
    make venv LOCK=infra/lock/gpu.txt
"""


def main() -> int:
    """Exit 0 if torch imports, 1 after printing the help paragraph."""
    try:
        import torch  # noqa: F401, PLC0415  the import is the check
    except (ImportError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        print(HELP.format(version=version("torch").partition("+")[0], reason=reason), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
