"""One process that measures events: ``python -m traincast.profiling.events ASK FOLDER``, with the ask as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from traincast.profiling.events.ask import EventsAsk
from traincast.profiling.events.worker import EventsWorker

if __name__ == "__main__":
    EventsWorker(EventsAsk.from_dict(json.loads(sys.argv[1])), Path(sys.argv[2]), say=lambda text: None).run()
