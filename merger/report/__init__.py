"""Do models fit together?  Answered from headers, configs and small files; no weights, no torch."""

from merger.report.facts import ModelFacts
from merger.report.report import Report, build_report

__all__ = ["ModelFacts", "Report", "build_report"]
