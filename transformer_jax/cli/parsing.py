"""The parser of a command: positionals may be placed before, between and behind the options."""

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn


class CommandParser(argparse.ArgumentParser):
    """A parser that accepts positionals and options in any order; after -- all are positionals."""

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments of a command."""
        end = arguments.index("--") if "--" in arguments else len(arguments)
        # Some Pythons lose a -- in parse_intermixed_args, so what follows it is replaced by names
        # that look like positionals. No argument of a process can hold a NUL.
        self.hidden = {f"\0{i}": text for i, text in enumerate(arguments[end + 1 :])}
        options = self.parse_intermixed_args([*arguments[:end], *self.hidden])
        for name, value in vars(options).items():
            setattr(options, name, self._shown(value))
        return options

    def _shown(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._shown(each) for each in value]
        return self.hidden.get(value, value) if isinstance(value, str) else value

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and exit with code 2."""
        unrecognized = message.partition("unrecognized arguments:")[2]
        dash = "\0" in unrecognized or re.search(r" -(?!-[a-z][a-z-]*(=|$))", unrecognized)
        for name, text in self.hidden.items():
            message = message.replace(name, text)
        if dash or "ignored explicit argument" in message:
            message += "; put -- before a text that begins with a dash"
        super().error(message)
