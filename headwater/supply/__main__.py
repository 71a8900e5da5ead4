"""`python -m headwater.supply`, by its name before."""

from __future__ import annotations

import sys

from headwater.runtime.java.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
