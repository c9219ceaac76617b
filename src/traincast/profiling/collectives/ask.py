"""What ``profile import`` is asked: logs, and what they do not say."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from traincast.ask import Count, Files, JsonRecord, Option
from traincast.profiling.ask import INTERCONNECT, SOURCE


@dataclass(frozen=True, slots=True)
class LogImport(JsonRecord):
    """Logs, and what a user states about them; empty texts and ``None`` leave it to the logs."""

    logs: Annotated[Files, Option("Logs of nccl-tests or rccl-tests, or folders of logs.", "LOG…")]
    _: KW_ONLY
    system: Annotated[str, Option("Value of the table's system column. Default: the first host.", "NAME")] = ""
    device: Annotated[str, Option("Device of all logs, such as h100-sxm5-80gb.", "NAME")] = ""
    ranks: Annotated[Count | None, Option("Number of ranks. For logs that do not say it.", "N")] = None
    nodes: Annotated[Count | None, Option("Nodes of all logs.", "N")] = None
    interconnect: Annotated[str, INTERCONNECT] = ""
    source: Annotated[str, SOURCE] = ""
