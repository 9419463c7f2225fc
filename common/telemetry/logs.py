"""How log lines look: plain for people, JSON for machines; both say which request they concern.

Knows one record -> one line. Does not know what is logged. Whoever logs within a call need not
name the request: its ids come from the call's own context.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal

from opentelemetry import trace

from common.telemetry import request_id

Format = Literal["plain", "json"]

FIELDS = "fields"  # log.info(..., extra={FIELDS: {...}}): JSON members of their own


def configure(level: str, form: Format) -> None:
    """Log to standard error, everything from `level` up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else PlainLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _ids() -> dict[str, str]:
    """Of the request that is being served here; empty if none is."""
    found = {}
    if request := request_id.current.get():
        found["request_id"] = request
    span = trace.get_current_span().get_span_context()
    if span.is_valid:
        found["trace_id"] = trace.format_trace_id(span.trace_id)
        found["span_id"] = trace.format_span_id(span.span_id)
    return found


class PlainLines(logging.Formatter):
    """2026-11-29 12:00:00,123 INFO drafter.service: the message [request_id=…]"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s%(ids)s")

    def format(self, record: logging.LogRecord) -> str:
        ids = " ".join(f"{key}={value}" for key, value in _ids().items() if key != "span_id")
        record.ids = f" [{ids}]" if ids else ""
        return super().format(record)


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, message, the request's ids, and an exception."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_ids(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)  # in ASCII, whatever the encoding of standard error
