"""Numbers with their nouns, for messages: 1 text, 2 texts."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1.

    >>> counted(1, "test text"), counted(1000, "test text"), counted(2, "class")
    ('1 test text', '1,000 test texts', '2 classes')
    """
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"
