r"""An encoder learns the masked words of the reviews (train.mlm), then becomes their classifier (train.imdb --pretrained).

    python -m train.best                    IMDb, or the built-in sample without a network
    python -m train.best --data PATH        what train.imdb reads

The two runs stand in runs/imdb-best, as encoder/ and classifier/. Stopped, it goes on where it was when it is called
again; what is finished stays as it is. Both have the sizes and schedules that they have alone: for others, call the two.
"""

if __name__ == "__main__":  # before NumPy and JAX have threads
    from transformer_jax.memory import keep_freed_memory

    keep_freed_memory()

import argparse
import json
import shlex
import sys
from pathlib import Path

from train import imdb, mlm
from train.run import OPTIONS
from train.signals import stoppable

PROGRAM = "train.best"
SHARED = ("data", "text_column", "label_column", "classes", "seed")


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    options = make_parser(__doc__).parse_args(arguments)
    try:
        with stoppable():
            code = train(options)
    except KeyboardInterrupt as stop:  # between the two
        code = 128 + getattr(stop, "number", 2)
    if code > 128:
        both = shlex.join(["python", "-m", PROGRAM, *arguments])
        print(f"with what comes after it\n    {both}", file=sys.stderr)
    return code


def make_parser(description: str = "") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", metavar="WHAT", help="as of train.imdb: auto (default), imdb, sample, or a path")
    add("--text-column", metavar="NAME", help="of a file (default: text)")
    add("--label-column", metavar="NAME", help="of a file (default: label)")
    add("--classes", type=int, metavar="N", help="how many labels (default: 2)")
    add("--seed", type=int, metavar="S", help="of everything random (default: 0)")
    add("--out", default="runs/imdb-best", metavar="DIR", help="default: runs/imdb-best")
    return parser


def train(options: argparse.Namespace) -> int:
    """One after the other, each anew or from where it was; the exit code of the first that does not end well."""
    encoder, classifier = (Path(options.out) / name for name in ("encoder", "classifier"))
    given = {name: getattr(options, name) for name in SHARED}
    if is_begun(encoder):
        # A finished run does not look at data again, and would pass for one of these.
        data = given.pop("data")
        if data not in (None, "auto", began := began_with(encoder).get("data")):
            print(
                f"{PROGRAM}: error: {options.out} began with --data {began}; "
                f"pass that, or with --data {data} another --out",
                file=sys.stderr,
            )
            return 2
        code = mlm.main(["--resume", str(encoder), *words(given)])
    else:
        code = mlm.main(["--out", str(encoder), *words(given)])
    if code:
        return code
    if is_begun(classifier):
        return imdb.main(["--resume", str(classifier), "--pretrained", str(encoder)])
    # All as the encoder had it, a seed that was not given again too: with another it would validate on what was read.
    same = {name: began_with(encoder)[name] for name in SHARED}
    return imdb.main(["--out", str(classifier), "--pretrained", str(encoder), *words(same)])


def is_begun(run: Path) -> bool:
    return (run / OPTIONS).exists()


def began_with(run: Path) -> dict[str, object]:
    """The options of a run; none where they cannot be read, of which its program tells."""
    try:
        return dict(json.loads((run / OPTIONS).read_text(encoding="utf-8"))["options"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}


def words(options: dict[str, object]) -> list[str]:
    """As they stand on a command line; those without a value are left out."""
    pairs = ((f"--{k.replace('_', '-')}", str(v)) for k, v in options.items() if v is not None)
    return [word for pair in pairs for word in pair]


if __name__ == "__main__":
    sys.exit(main())
