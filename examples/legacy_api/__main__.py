"""`python examples/legacy_api` or, from the checkout, `python -m examples.legacy_api`."""

import sys
from pathlib import Path

# Run as a folder this is no package; its parent makes it one, wherever the folder was put.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from legacy_api.server import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
