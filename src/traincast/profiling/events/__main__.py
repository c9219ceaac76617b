"""One process that measures events: ``python -m traincast.profiling.events ASK FOLDER``, with the ask as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from traincast.profiling.events.ask import EventsAsk
from traincast.profiling.events.measure import take_part

if __name__ == "__main__":
    take_part(EventsAsk.from_dict(json.loads(sys.argv[1])), Path(sys.argv[2]), say=lambda text: None)
