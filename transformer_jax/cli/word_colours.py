"""The colours of words by their attribution, the same in a terminal and on a page.

Blue supports the class and orange is against it, as readers with any colour vision can tell.
"""

# Colours of a 256-colour terminal, from pale to full. The text on them is black, so that it is
# readable on light and on dark terminals.
BLUES, ORANGES = (189, 153, 117, 75, 33), (230, 223, 222, 215, 208)
LEVELS = 0, 95, 135, 175, 215, 255  # of red, green and blue in the colours from 16 on


def colour_of(value: float | None, largest: float) -> int | None:
    """Return the terminal colour of a word, or None if its value is missing or small.

    `largest` is the largest absolute value of the text.

    >>> colour_of(1.0, 1.0), colour_of(-0.2, 1.0), colour_of(0.05, 1.0)
    (33, 230, None)
    """
    level = round(5 * abs(value) / largest) if value and largest else 0
    return (BLUES if value > 0 else ORANGES)[level - 1] if value and level else None


def rgb(colour: int) -> tuple[int, int, int]:
    """Return red, green and blue of a terminal colour of the 6 x 6 x 6 cube, from 16 to 231.

    >>> rgb(33)
    (0, 135, 255)
    """
    if not 16 <= colour <= 231:
        raise ValueError(f"colour must be 16 to 231; got {colour}")
    red, rest = divmod(colour - 16, 36)
    green, blue = divmod(rest, 6)
    return LEVELS[red], LEVELS[green], LEVELS[blue]
