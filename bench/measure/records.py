"""The record of a benchmark: one entry per measurement, without its single rounds."""

from dataclasses import dataclass, field, fields

from transformer_jax.runtime.errors import InputError


@dataclass(frozen=True)
class Record:
    """The measurement of one implementation of one subject at one length: a time or a time ratio.

    A ratio comes from interleaved calls of the implementation and of `reference`; its `seconds` are
    those of both calls together.
    """

    subject: str
    implementation: str
    length: int
    seconds: float
    rounds: int
    how: str | None = None
    flops: int | None = None
    bytes_moved: int | None = None
    peak_bytes: int | None = None
    resident_bytes: int | None = None
    compile_seconds: float | None = None
    first_call_seconds: float | None = None
    path_length: int | None = None
    reference: str | None = None
    ratio: float | None = None
    ratio_quartiles: tuple[float, float] | None = None
    load_average: float | None = None

    @classmethod
    def of(cls, extra_info: dict, seconds: float, rounds: int) -> "Record | None":
        """Build a record from a benchmark's `extra_info`; return None if it names no subject."""
        if "subject" not in extra_info:
            return None
        names = {each.name for each in fields(cls)} & set(extra_info)
        return cls(seconds=seconds, rounds=rounds, **{name: extra_info[name] for name in names})


@dataclass(frozen=True)
class Run:
    """All records of one run, and the machine it ran on."""

    records: list[Record]
    summaries: list[str]
    machine: dict
    date: str
    command: str
    failed: tuple[str, ...] = ()  # names of benchmarks without a record
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)  # of the other axes, by subject


def read(data: dict) -> Run:
    """Read a run from the contents of a pytest-benchmark JSON file.

    Raises ValueError if the contents are something else.
    """
    try:
        failed = tuple(data.get("failed", ()))
        benchmarks = [
            (bench["extra_info"], bench["stats"]["median"], bench["stats"]["rounds"])
            for bench in data["benchmarks"]
            if bench.get("fullname") not in failed
        ]
        machine, date = data["machine_info"], data["datetime"]
        command = machine.pop("command")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"not a file that pytest --benchmark-json wrote here: no {error}"
        ) from None
    records = [record for bench in benchmarks if (record := Record.of(*bench))]
    summaries = [extra["summary"] for extra, *_ in benchmarks if "summary" in extra]
    sizes = {extra["subject"]: extra["sizes"] for extra, *_ in benchmarks if "sizes" in extra}
    return Run(records, summaries, machine, date, command, failed, sizes)


def kept(data: dict) -> Run:
    """Read a run from the contents of docs/results/bench.json.

    Raises InputError if the contents are something else.
    """
    try:
        records = [Record(**record) for record in data["records"]]
        rest = [data[name] for name in ("summaries", "machine", "date", "command")]
        return Run(records, *rest, tuple(data.get("failed", ())), data["sizes"])
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"not a file that python -m bench.report wrote: {error}") from None


def rounded(value):
    """Return the value with all floats rounded to six digits; infinities become None.

    Further digits are noise and make two runs hard to compare.
    """
    if isinstance(value, float):
        # JSON has no infinity, which bounds the confidence interval of a fit to two points.
        return float(f"{value:.6g}") if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value
