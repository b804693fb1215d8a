"""``python -m dlkern`` is the ``dlkern`` command."""

import sys

from dlkern.cli import main

if __name__ == "__main__":
    sys.exit(main())
