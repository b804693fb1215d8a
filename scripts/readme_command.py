"""Print one of the README's set-up commands, so that what is tested is what is written there.

A command is the shell block after ``<!-- command: NAME -->``.
"""

import re
import sys
from pathlib import Path


def readme_command(name: str) -> str:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    block = re.search(rf"<!-- command: {name} -->\s*```(?:sh|bash)\n(.*?)```", text, re.DOTALL)
    if block is None:
        sys.exit(f"README.md has no command {name!r}")
    return block[1].strip()


if __name__ == "__main__":
    print(readme_command(sys.argv[1]))
