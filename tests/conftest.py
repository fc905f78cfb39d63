"""What all tests share.

No test may fail because the machine is busy, so Hypothesis has no deadline here. The ordinary dose draws the same
examples every time; `PENSTOCK_DOSE=nightly` draws new ones.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("ordinary", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("nightly", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nightly" if os.environ.get("PENSTOCK_DOSE") == "nightly" else "ordinary")
