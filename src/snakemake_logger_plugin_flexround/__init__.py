"""What a run says on the terminal: a line for each job, the reason of a failure, what to do next.

A plugin of Snakemake's (``logger: [flexround]`` in a profile). Dry runs look as ever; Snakemake's log file has
everything in any case.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from snakemake.logging import DefaultFilter, DefaultFormatter, get_event
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

NAMED = ("task", "checkpoint", "recipe", "table", "figure", "source")  # wildcards that say what a job is about
LONGEST = 12  # lines of a message
FEW = 3  # jobs after which the time left is worth a guess
TOLD = re.compile(r"CalledProcessError|At least one job did not complete")  # by the line of the job that failed
AROUND = re.compile(  # what Snakemake puts around a message
    r"^(?:WorkflowError(?: in file .*)?|MissingRuleException):\n| \(if you use input functions .*\)"
    r'|\n  File ".*/Snakefile", .*',
    re.MULTILINE,
)
ENDED = "the same command goes on where this run stopped"


class LogHandler(LogHandlerBase):
    """Writes to stderr."""

    def __post_init__(self) -> None:
        """Start with nothing known."""
        shown = self.common_settings
        self.jobs: dict[int, dict[str, Any]] = {}
        self.started: dict[int, float] = {}
        self.finished: list[int] = []
        self.failed: list[str] = []
        self.stopped = False
        self.begin = time.monotonic()
        self.plain = bool(shown.dryrun or shown.verbose or shown.debug_dag or shown.printshellcmds)
        self.usual = DefaultFilter(shown.quiet, shown.debug_dag, shown.verbose, shown.dryrun, shown.printshellcmds)
        self.setFormatter(DefaultFormatter(shown.quiet, shown.show_failed_logs))

    @property
    def writes_to_stream(self) -> bool:
        """It is what the terminal shows."""
        return True

    @property
    def writes_to_file(self) -> bool:
        """Snakemake writes its log file itself."""
        return False

    @property
    def has_filter(self) -> bool:
        """It needs to see records that a profile's ``quiet`` would hide."""
        return True

    @property
    def has_formatter(self) -> bool:
        """It has Snakemake's."""
        return True

    @property
    def needs_rulegraph(self) -> bool:
        """It draws nothing."""
        return False

    def emit(self, record: logging.LogRecord) -> None:
        """Write what a record says, if it says something."""
        try:
            if text := self._plain(record) if self.plain else self._told(record):
                print(text, file=sys.stdout if self.common_settings.stdout else sys.stderr, flush=True)
        except Exception:  # a terminal that went away must not end a run of hours
            self.handleError(record)

    def _plain(self, record: logging.LogRecord) -> str:
        """Return what Snakemake would show."""
        return self.format(record) if self.usual.filter(record) else ""

    def _told(self, record: logging.LogRecord) -> str:
        """Return what is shown of a record of a run."""
        facts = vars(record)
        match get_event(record):
            case LogEvent.RUN_INFO:
                return self._plan(facts["stats"])
            case LogEvent.JOB_INFO:
                self.jobs[facts["jobid"]] = facts
                self.started[facts["jobid"]] = time.monotonic()
                return ""
            case LogEvent.JOB_FINISHED:
                self.finished.append(facts["job_id"])
                return ""
            case LogEvent.PROGRESS:
                return self._progress(facts["done"], facts["total"])
            case LogEvent.JOB_ERROR:
                return self._failure(facts["rule_name"], facts)
            case LogEvent.GROUP_ERROR:
                return "\n".join(self._failure(job["rule_name"], job) for job in facts["job_error_info"])
            case LogEvent.ERROR:
                text = str(record.msg)
                return "" if TOLD.search(text) else AROUND.sub("", text) + _hint(text)
            case None if record.levelno >= logging.INFO:
                return self._own_words(str(record.msg or ""), record.levelno)
        return ""

    def _plan(self, stats: dict[str, int]) -> str:
        """Return how many jobs of which rules there will be."""
        counts = {rule: count for rule, count in stats.items() if rule not in ("total", "all")}
        largest = sorted(counts, key=lambda rule: -counts[rule])[:4]
        rest = sum(counts.values()) - sum(counts[rule] for rule in largest)
        listed = ", ".join(f"{counts[rule]} {rule}" for rule in largest)
        return f"{stats.get('total', 0)} jobs: {listed}{f' and {rest} more' if rest else ''}; logs/ has a log of each"

    def _progress(self, done: int, total: int) -> str:
        """Return a line for each job that has finished since the last one."""
        left = ""
        seconds = time.monotonic() - self.begin
        if done >= FEW and done < total:
            left = f", about {_duration(seconds / done * (total - done))} left"
        lines = []
        for number in self.finished:
            name = described(self.jobs.get(number, {"rule_name": "job", "wildcards": {}}))
            took = _duration(time.monotonic() - self.started.get(number, time.monotonic()))
            found = metrics(self.jobs[number]["output"]) if number in self.jobs else ""
            lines.append(f"[{done}/{total}{left}] {name} ({took}){found}")
        self.finished.clear()
        return "\n".join([*lines, *([self._end(seconds)] if done == total else [])])

    def _end(self, seconds: float) -> str:
        """Return how long it took, and where what was asked for lies."""
        shown = [job for job in self.jobs.values() if job["rule_name"].startswith("publish_")]
        files = [str(path).partition(" ")[0] for job in shown for path in job["output"]]
        listed = f"; open {', '.join(files[:LONGEST])}{' ...' if len(files) > LONGEST else ''}" if files else ""
        return f"done in {_duration(seconds)}{listed}"

    def _failure(self, rule: str, facts: dict[str, Any]) -> str:
        """Return which job failed, why, and where its log is."""
        if self.stopped:  # every job that ran fails of it
            return ""
        known = self.jobs.get(facts["jobid"], {"rule_name": rule, "wildcards": {}})
        logs = [str(path).partition(" ")[0] for path in facts["log"] if not str(path).endswith(".json")]
        reason = next((text for path in logs if (text := message(Path(path)))), "")
        self.failed.append(described(known))
        lines = [f"FAILED: {described(known)}", *(f"  {line}" for line in reason.splitlines())]
        return "\n".join([*lines, *(f"  log: {path}" for path in logs)])

    def _own_words(self, text: str, level: int) -> str:
        """Return a line of Snakemake's own, or what it means here."""
        if text.startswith("Terminating processes on user request"):
            self.stopped = True
            return f"stopped; {ENDED}"
        if text.startswith("Exiting because a job execution failed") or text.startswith("At least one job did not"):
            return f"{len(self.failed)} jobs failed: {'; '.join(self.failed)}. Mend the reason above; {ENDED}"
        return text if level >= logging.WARNING or "Nothing to be done" in text else ""


def _hint(text: str) -> str:
    """Return what may have been meant by a target that cannot be made."""
    from flexround.tools.target_hints import hint  # not before the Snakefile has checked whose code it would run

    return hint(text)


def described(job: dict[str, Any]) -> str:
    """Return rule and subject of a job."""
    wildcards = dict(job["wildcards"] or {})
    names = [str(wildcards[name]) for name in NAMED if name in wildcards]
    seed = [f"seed {wildcards['seed']}"] if "seed" in wildcards else []
    return " ".join([job["rule_name"], *names, *seed])


def metrics(outputs: Sequence[str]) -> str:
    """Return what an evaluation found, if a job was one."""
    for output in outputs:
        path = Path(str(output).partition(" ")[0])
        path = path if path.name == "metrics.json" else path / "metrics.json"
        try:
            found = json.loads(path.read_text())["metrics"]
            return ": " + ", ".join(f"{name} {value:.2f}" for name, value in list(found.items())[:3])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return ""


def message(path: Path) -> str:
    """Return the message at the end of a job's log: from its last ``error:`` on, or the last lines."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    marks = [number for number, line in enumerate(lines) if re.search(r"\berror: ", line)]
    return "\n".join(lines[marks[-1] :][:LONGEST] if marks else lines[-LONGEST // 2 :])


def _duration(seconds: float) -> str:
    """Return a time as one reads it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
