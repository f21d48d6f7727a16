"""The command line of the programs that make what the tests read: no options, and packages that
tests lack.
"""

import argparse
import sys
from importlib.util import find_spec


def start(program: str, description: str, *packages: str) -> None:
    """Answer --help, or exit with code 2 and one line where a package is missing, before anything
    is written.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()
    if missing := [name for name in packages if find_spec(name) is None]:
        print(
            f"error: {program} needs {', '.join(packages)}: pip install {' '.join(missing)}",
            file=sys.stderr,
        )
        sys.exit(2)
