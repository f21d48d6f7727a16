"""Generated translation pairs: a number or a date in words, and in digits. No network is needed.

    forty-two thousand and seventeen                   42017
    the twenty-third of March, nineteen eighty-four    1984-03-23

The words of a number have the order of its digits, but a zero has no word, so the digits also
depend on which words are absent. No number or date is in more than one part.
"""

import calendar
import random

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth",
    "nine": "ninth", "twelve": "twelfth",
}  # fmt: skip
YEARS = (1800, 2099)
SIZES = 10_000, 500, 1_000  # train, validation, test


def sample_pairs(seed: int) -> list[tuple[list[str], list[str]]]:
    """Generate source and target texts of train, validation and test: half numbers, half dates."""
    rng = random.Random(f"pairs {seed}")
    seen, parts = set(), []
    for size in SIZES:
        pairs = []
        while len(pairs) < size:
            pair = _number(rng) if len(pairs) % 2 else _date(rng)
            if pair[1] not in seen:
                seen.add(pair[1])
                pairs.append(pair)
        parts.append((([one for one, _ in pairs]), [other for _, other in pairs]))
    return parts


def spelled(number: int) -> str:
    """Return a number from 0 to 999,999 in English words.

    >>> spelled(402017)
    'four hundred and two thousand and seventeen'
    """
    if number < 20:
        return ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS[tens - 2] + (f"-{ONES[ones]}" if ones else "")
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{ONES[hundreds]} hundred" + (f" and {spelled(rest)}" if rest else "")
    thousands, rest = divmod(number, 1000)
    between = " and " if 0 < rest < 100 else " "
    return f"{spelled(thousands)} thousand" + (between + spelled(rest) if rest else "")


def ordinal(number: int) -> str:
    """Return the ordinal of a number from 1 to 99.

    >>> ordinal(23)
    'twenty-third'
    """
    head, _, last = spelled(number).rpartition("-")
    last = ORDINALS.get(last, f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")
    return f"{head}-{last}" if head else last


def spelled_year(year: int) -> str:
    """Return a year in English words, as it is spoken.

    >>> spelled_year(1984), spelled_year(1905), spelled_year(2000)
    ('nineteen eighty-four', 'nineteen oh five', 'two thousand')
    """
    century, rest = divmod(year, 100)
    if century == 20 and rest < 10:
        return spelled(year)
    if not rest:
        return f"{spelled(century)} hundred"
    return f"{spelled(century)} {spelled(rest) if rest > 9 else f'oh {spelled(rest)}'}"


def _number(rng):
    number = rng.randrange(10 ** rng.randint(3, 5))
    return spelled(number), str(number)


def _date(rng):
    year, month = rng.randint(*YEARS), rng.randint(1, 12)
    day = rng.randint(1, calendar.monthrange(year, month)[1])
    name = calendar.month_name[month]
    words = rng.choice(
        [
            f"the {ordinal(day)} of {name}, {spelled_year(year)}",
            f"{name} the {ordinal(day)}, {spelled_year(year)}",
            f"{day} {name} {year}",
            f"{name} {day}, {year}",
        ]
    )
    return words, f"{year}-{month:02}-{day:02}"
