"""The rows of the tables of `cost`: a label, a number with its unit, and a remark."""


def row(label: str, number: str, beside: str = "") -> str:
    """Return a line of a table."""
    return f"{label:<30}{number:>18}   {beside}".rstrip()


def bytes_text(number: float) -> str:
    """Return a number of bytes in decimal units, such as 437.9 MB."""
    step = min((len(str(int(number))) - 1) // 3, 5)
    unit = ("B", "kB", "MB", "GB", "TB", "PB")[step]
    return f"{number / 1000**step:.1f} {unit}"


def seconds_text(number: float) -> str:
    """Return a time in seconds, milliseconds or microseconds, such as 12.5 ms."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number / 1e-6:.1f} us"
