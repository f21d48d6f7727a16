"""The common part of the programs that measure something and write a page from the results."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bench.measure import machine
from bench.measure.command_line import without_paths
from bench.measure.harness import Disagreement
from bench.measure.records import rounded
from bench.pages.markdown import written
from bench.pages.plots import save
from train.data.dataset import DataError
from transformer_jax.runtime.errors import InputError, RunFolderError, one_line
from transformer_jax.runtime.files import write_text


def no_figures(results: dict) -> dict[str, Figure]:
    """Return no figures."""
    return {}


@dataclass(frozen=True)
class Program:
    """A command that stores its results as JSON below docs and makes its page from that file.

    `page` returns the lines of the page, given the results and the paths of the figures by name.
    `figures` draws them from the results. A program may have no page.
    """

    name: str  # of `python -m bench.NAME`
    description: str
    file: str  # of the results, below docs
    page_file: str = ""
    keys: Sequence[str] = ()  # that every results file must have
    page: Callable[[dict, dict[str, str]], Iterable[str]] | None = None
    figures: Callable[[dict], dict[str, Figure]] = no_figures
    has_small: bool = False  # for programs whose sizes are those of a recipe or a published model

    def parser(self) -> argparse.ArgumentParser:
        """Return a parser with --docs; with --page if there is a page, --small if `has_small`."""
        parser = argparse.ArgumentParser(
            prog=f"python -m bench.{self.name}",
            description=self.description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add = parser.add_argument
        add("--docs", type=Path, default=Path("docs"), help="folder to write to (default: docs)")
        if self.page is not None:
            add("--page", action="store_true", help="measure nothing, write the page")
        if self.has_small:
            says = "smallest sizes and one round, to check that it runs; needs --docs"
            add("--small", action="store_true", help=says)
        return parser

    def parse(
        self,
        parser: argparse.ArgumentParser,
        arguments: Sequence[str] | None,
        unnamed: Sequence[str] = (),
    ) -> argparse.Namespace:
        """Parse the options; add the given command and the start time.

        In the command the values of the options in `unnamed` are replaced by their capitalized
        names.
        """
        arguments = sys.argv[1:] if arguments is None else list(arguments)
        options = parser.parse_args(arguments)
        if self.has_small and options.small and options.docs.resolve() == Path("docs").resolve():
            parser.error("--small: its numbers mean nothing; name another folder with --docs")
        names = {getattr(options, name): name.upper() for name in unnamed}
        words = [names.get(word, word) for word in arguments]
        options.command = without_paths([*parser.prog.split(), *words])
        options.started = time.perf_counter()
        return options

    def stamp(self, options: argparse.Namespace) -> dict[str, Any]:
        """Return the command, the date, the seconds so far, and the machine."""
        return {
            "command": options.command,
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "seconds": round(time.perf_counter() - options.started),
            "machine": machine.describe(),
        }

    def run(self, options: argparse.Namespace, measure: Callable[[], dict]) -> int:
        """Measure and write everything, or only the page with --page; return the exit code."""

        def write() -> None:
            if getattr(options, "page", False):
                written = self.publish(self.read(options.docs), options.docs)
            else:
                written = self.write(measure(), options.docs)
            for path in written:
                print(path)

        return self.guard(options, write)

    def guard(self, options: argparse.Namespace, action: Callable[[], None]) -> int:
        """Run the action and return its exit code; errors and Ctrl-C become one line."""
        try:
            action()
        except (InputError, DataError, RunFolderError, OSError) as problem:
            print(f"error: {problem}", file=sys.stderr)
            return 2
        except Disagreement as problem:
            print(f"error: {problem}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            kept = self.path(options.docs)
            print(f"\nstopped; the measurements so far are in {kept}", file=sys.stderr)
            return 130
        return 0

    def path(self, docs: Path) -> Path:
        """Return the path of the results file."""
        return docs / self.file

    def read(self, docs: Path) -> dict:
        """Read the results file; raise InputError if it is missing or not a results file."""
        path = self.path(docs)
        try:
            results = json.loads(path.read_text(encoding="utf-8"))
        except OSError as problem:
            raise InputError(f"{path}: {problem.strerror}; measure first") from None
        except ValueError as problem:
            raise InputError(f"{path}: {one_line(problem)}") from None
        if not isinstance(results, dict) or set(self.keys) - set(results):
            raise InputError(f"{path} is not what python -m bench.{self.name} wrote")
        return results

    def keep(self, results: dict, docs: Path) -> dict:
        """Write the results file, with six digits per number; return its contents."""
        path, results = self.path(docs), rounded(results)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        return results

    def write(self, results: dict, docs: Path) -> list[Path]:
        """Write the results, the page and its figures; return the paths of the latter two."""
        return self.publish(self.keep(results, docs), docs)

    def publish(self, results: dict, docs: Path) -> list[Path]:
        """Write the page and its figures; return their paths."""
        if self.page is None:
            return []
        drawn = {
            name: save(figure, docs / f"figures/{name}.svg")
            for name, figure in self.figures(results).items()
        }
        shown = {name: f"../figures/{path.name}" for name, path in drawn.items()}
        page = docs / self.page_file
        page.parent.mkdir(parents=True, exist_ok=True)
        write_text(page, written(self.page(results, shown)))
        return [page, *drawn.values()]
