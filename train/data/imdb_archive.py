"""Readers of the Large Movie Review Dataset as released: the aclImdb folder, or its archive.

    aclImdb/train/pos/ID_RATING.txt     one review; also train/neg, train/unsup, test/pos, test/neg
    aclImdb/train/urls_pos.txt          line ID (from 0) is the address of the review's movie

The archive is read as a stream and not trusted: nothing is written to disk, members with other
names are skipped, links and devices are never followed, and members that claim to be larger than
any review or list are not read. A few kilobytes can unpack to terabytes, so the total of unpacked
bytes is limited too."""

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from train.data.dataset import DataError, Split, Tables, readable
from transformer_jax.runtime.errors import one_line
from transformer_jax.runtime.texts import decode, lines_of

MEMBER_BYTES = 10_000_000  # the longest review has 14 thousand, the longest list 3 million
REVIEW_BYTES = 250_000_000  # of all reviews and lists; the release has 140 million
ARCHIVE_BYTES = 1_000_000_000  # of everything unpacked; the release has 300 million
ARCHIVE_HEADERS = 210_000  # the release has 100 thousand files, and some tars write two for each
HEADER_BYTES = 1_000_000  # of a long name or a list of attributes
MEMBER = re.compile(
    r"(?:\./)?(?:[^/]+/)?(train|test)/(?:(pos|neg|(?<=train/)unsup)/([0-9]{1,9})_[0-9]+|urls_(pos|neg|unsup))\.txt"
)
OTHER = re.compile(r"(?:\./)?(?:[^/]+/)?(train|test)/(?:pos|neg|unsup)/.+", re.DOTALL)
OTHER_NAMES = "files that are no reviews of the release"
EXTENSIONS = {
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
}  # fmt: skip
MOVIE = re.compile(r"/title/(tt\d+)")


Ignored = dict[str, list[str]]  # the names of files that are not read, by kind


def read_folder(path: Path) -> Tables:
    """Read the release from its unpacked folder; other files among the reviews are noted."""
    ignored: Ignored = {}
    return _read_reviews(path.resolve().name, _folder_members(path, ignored), ignored)


def read_archive(path: Path) -> Tables:
    """Read the release from its .tar.gz; links, devices and other files in it are noted."""
    ignored: Ignored = {}
    try:
        return _read_reviews(path.name, _archive_members(path, ignored), ignored)
    except DataError:
        raise
    # Invalid headers raise ValueError, too many nested ones RecursionError.
    except (
        tarfile.TarError,
        gzip.BadGzipFile,
        EOFError,
        zlib.error,
        ValueError,
        RecursionError,
    ) as error:
        raise DataError(
            f"{path.name}: not a whole .tar.gz ({one_line(error)}); download it again"
        ) from None


def _archive_members(path: Path, ignored: Ignored) -> Iterator[tuple[re.Match[str], bytes]]:
    """Yield the members that have names of the release, as a stream."""
    total = 0
    # Python's gzip module verifies the checksum at the end; tarfile's "r|gz" does not.
    with (
        gzip.open(path) as unpacked,
        tarfile.open(
            fileobj=(stream := _Counted(unpacked, path.name)),
            mode="r|",
            tarinfo=_bounded_headers(path.name),
        ) as archive,
    ):
        while member := archive.next():
            archive.members = []  # tarfile would keep every member in memory
            match = MEMBER.fullmatch(member.name)
            if match is None:
                if (other := OTHER.fullmatch(member.name)) and member.isreg():
                    ignored.setdefault(OTHER_NAMES, []).append(_short(other))
                continue
            if not member.isreg() or member.issparse():
                ignored.setdefault("links or devices", []).append(_short(match))
                continue
            total += _bounded(member.size, f"{path.name}: {_short(match)}")
            if total > REVIEW_BYTES:
                raise DataError(
                    f"{path.name}: more than {REVIEW_BYTES:,} bytes of reviews; "
                    "the release has half of that"
                )
            file = archive.extractfile(member)
            yield match, file.read() if file else b""
        while stream.read(1 << 20):  # read to the end, so that the checksum is verified
            pass


class _Counted:
    """A stream limited to ARCHIVE_BYTES, because 10 GB of zeros are only 10 MB of gzip."""

    def __init__(self, stream: gzip.GzipFile, name: str):
        self.stream, self.name, self.count = stream, name, 0

    def read(self, size: int) -> bytes:
        content = self.stream.read(size)
        self.count += len(content)
        if self.count > ARCHIVE_BYTES:
            raise DataError(
                f"{self.name}: unpacks to more than {ARCHIVE_BYTES:,} bytes, "
                "three times the release; pass the release, or its unpacked folder"
            )
        return content


def _bounded_headers(name: str) -> type[tarfile.TarInfo]:
    """Return a header class for one archive that limits the number of headers and their sizes."""
    count = 0

    class Header(tarfile.TarInfo):
        # tarfile documents that its `_proc_` methods may be overridden. This one is called for
        # every header before the content is read; `frombuf` is bypassed since Python 3.12.
        def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
            nonlocal count
            count += 1
            if count > ARCHIVE_HEADERS:
                raise DataError(
                    f"{name}: more than {ARCHIVE_HEADERS:,} files; the release has 100 thousand"
                )
            # Long names and attribute lists are read into memory whole; files are read in full.
            limit = HEADER_BYTES if self.type in EXTENSIONS else ARCHIVE_BYTES
            if not 0 <= self.size <= limit:
                raise DataError(
                    f"{name}: {self.name[-60:]!r} claims {self.size:,} bytes, "
                    f"at most {limit:,} expected; download it again"
                )
            return super()._proc_member(archive)

        # Attributes are not needed, and parsing some of them takes hours in some Pythons.
        def _proc_pax(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
            """Skip the attributes of a file; raise DataError if they give it a size."""
            if b" size=" in archive.fileobj.read(self._block(self.size)):
                raise DataError(
                    f"{name}: it lists a file of more than 8 GB; "
                    "pass the release, or its unpacked folder"
                )
            return self.fromtarfile(archive)

    return Header


def _short(match: re.Match[str]) -> str:
    """Return the name from train or test on; the part before may contain anything."""
    return match[0][match.start(1) :]


def _folder_members(path: Path, ignored: Ignored) -> Iterator[tuple[re.Match[str], bytes]]:
    for part in ("train", "test"):
        for file in sorted((path / part).glob("*.txt")) + sorted((path / part).glob("*/**/*")):
            name = file.relative_to(path).as_posix()
            if (match := MEMBER.fullmatch(name)) and file.is_file():
                _bounded(file.stat().st_size, str(file))
                yield match, file.read_bytes()
            elif OTHER.fullmatch(name) and file.is_file():
                ignored.setdefault(OTHER_NAMES, []).append(name)


def _bounded(size: int, where: str) -> int:
    if size > MEMBER_BYTES:
        raise DataError(
            f"{where}: {size:,} bytes; a review or list of at most {MEMBER_BYTES:,} expected"
        )
    return size


def _read_reviews(
    name: str, members: Iterator[tuple[re.Match[str], bytes]], ignored: Ignored
) -> Tables:
    """Return the release from its files in any order; rows are sorted by label, then by number."""
    reviews: dict[tuple[str, str], dict[tuple[int, str], str]] = {}
    movies: dict[tuple[str, str], list[str]] = {}
    for match, content in members:
        part, kind, number, listed = match.groups()
        with readable(Path(name)):
            text = decode(content, f"{name}: {_short(match)}")
        if listed:
            found = (MOVIE.search(line) for line in lines_of(text))
            movies[part, listed] = [m[1] if m else "" for m in found]
        else:
            # With the name, because two files may have one number and different ratings.
            reviews.setdefault((part, kind), {})[int(number), match[0]] = text
    splits = {part: _labelled(name, part, reviews, movies) for part in ("train", "test")}
    if splits["train"] is None:
        raise DataError(f"{name}: no train/pos/ID_RATING.txt and train/neg/ID_RATING.txt in it")
    unsupervised = [text for _, text in sorted(reviews.get(("train", "unsup"), {}).items())]
    return Tables(
        f"the aclImdb release in {name} (Maas et al., 2011)",
        splits["train"],
        splits["test"],
        unsupervised,
        notes=tuple(
            f"ignored {len(names)} {kind} in {name}, such as {names[0]}"
            for kind, names in ignored.items()
        ),
    )


def _labelled(name: str, part: str, reviews: dict, movies: dict) -> Split | None:
    """Return one split of the release, or None if it has no reviews."""
    texts: list[str] = []
    labels: list[int] = []
    groups: list[str] = []
    present = [kind for kind in ("neg", "pos") if reviews.get((part, kind))]
    if not present:
        return None
    if len(present) == 1 and part == "train":
        raise DataError(f"{name}: {part} has only {present[0]} reviews; both neg and pos expected")
    for kind in present:
        urls = movies.get((part, kind), [])
        for (number, _), text in sorted(reviews[part, kind].items()):
            texts.append(text)
            labels.append(int(kind == "pos"))
            groups.append(urls[number] if number < len(urls) else "")
    return Split(texts, np.array(labels, np.int32), groups if any(groups) else None)
