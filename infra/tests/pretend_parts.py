"""Stands in for infra.device_parts where there is no GPU: passes, fails, dies or hangs, by name."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

name, folder, _ = sys.argv[1:]
if name == "hangs":
    time.sleep(60)
if name == "dies":
    sys.exit("killed by the driver")
(Path(folder) / f"{name}.json").write_text(json.dumps({"passed": name == "passes", "lines": [f"{name}: 3 of 3"]}))
