"""Logs of a server, as lines for people or as JSON. What is logged holds no prompts, no answers and no keys."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Literal

LogFormat = Literal["text", "json"]


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the fields of access lines."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            line |= fields
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logging(log_format: LogFormat, level: int = logging.INFO) -> None:
    """Everything to stderr, in one form."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # A line for each request is written by the gate already.
    logging.getLogger("uvicorn.access").disabled = True
    for noisy in ("uvicorn.error", "asyncio", "httpx"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))
