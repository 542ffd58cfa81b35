"""`python -m softswitch`."""

from __future__ import annotations

import sys

from softswitch.main import main

sys.exit(main())
