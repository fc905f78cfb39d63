"""`python -m penstock`: the same as the command `penstock`."""

from __future__ import annotations

import sys

from penstock.cli import main

sys.exit(main())
