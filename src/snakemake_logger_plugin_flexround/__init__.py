"""What a run says on the terminal: a line for each job, the reason of a failure, what to do next.

A plugin of Snakemake's (``logger: [flexround]`` in a profile). Dry runs look as ever; Snakemake's log file has
everything in any case.
"""

import contextlib
import json
import logging
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from snakemake.logging import DefaultFilter, DefaultFormatter, get_event
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

NAMED = ("task", "checkpoint", "recipe", "table", "figure", "source")  # wildcards that say what a job is about
LONGEST = 12  # lines of a message
MOST = 50  # times the expected seconds of the finished jobs are to come: too many to tell the time left
TOLD = re.compile(r"CalledProcessError|At least one job did not complete")  # by the line of the job that failed
AROUND = re.compile(  # what Snakemake puts around a message
    r"^(?:WorkflowError(?: in file .*)?|MissingRuleException):\n| \(if you use input functions .*\)"
    r'|\n  File ".*/Snakefile", .*',
    re.MULTILINE,
)
ENDED = "run the same command again; it resumes where this run stopped"


class LogHandler(LogHandlerBase):
    """The terminal's output; it needs to see the records that a profile's ``quiet`` would hide."""

    writes_to_stream = has_filter = has_formatter = True
    writes_to_file = needs_rulegraph = False

    def __post_init__(self) -> None:
        """Start with nothing known."""
        shown = self.common_settings
        self.jobs: dict[int, dict[str, Any]] = {}
        self.finished: list[int] = []
        self.counts: Counter[str] = Counter()
        self.planned = 0  # jobs; an event of progress has too many with --until
        self.done: list[dict[str, Any]] = []
        self.failed: list[str] = []
        self.stopped = False
        self.begin = time.time()
        self.plain = bool(shown.dryrun or shown.verbose or shown.debug_dag or shown.printshellcmds)
        self.usual = DefaultFilter(shown.quiet, shown.debug_dag, shown.verbose, shown.dryrun, shown.printshellcmds)
        self.setFormatter(DefaultFormatter(shown.quiet, shown.show_failed_logs))

    def emit(self, record: logging.LogRecord) -> None:
        """Write what a record says, if it says something."""
        try:
            usual = self.plain and self.usual.filter(record)
            if text := self.format(record) if usual else "" if self.plain else self._told(record):
                print(text, file=sys.stdout if self.common_settings.stdout else sys.stderr, flush=True)
        except Exception:  # a terminal that went away must not end a run of hours
            self.handleError(record)

    def _told(self, record: logging.LogRecord) -> str:
        """Return what is shown of a record of a run."""
        facts = vars(record)
        match get_event(record):
            case LogEvent.RUN_INFO:
                return self._plan(facts["stats"])
            case LogEvent.JOB_INFO:
                self.jobs[facts["jobid"]] = facts
            case LogEvent.JOB_FINISHED:
                self.finished.append(facts["job_id"])
            case LogEvent.PROGRESS:
                return "\n".join(self._progress(facts["done"], self.planned))
            case LogEvent.JOB_ERROR:
                return self._failure(facts["rule_name"], facts)
            case LogEvent.GROUP_ERROR:
                return "\n".join(self._failure(job["rule_name"], job) for job in facts["job_error_info"])
            case LogEvent.ERROR:
                text = str(record.msg)
                from flexround.tools import target_hints  # not before the Snakefile has checked whose code it would run

                return "" if TOLD.search(text) else AROUND.sub("", text) + target_hints.hint(text)
            case None if record.levelno >= logging.INFO:
                return self._own_words(str(record.msg or ""), record.levelno)
        return ""

    def _plan(self, stats: dict[str, int]) -> str:
        """Return how many jobs of which rules there will be."""
        self.counts = Counter({rule: count for rule, count in stats.items() if rule not in ("total", "all")})
        self.planned = stats.get("total", 0)
        largest = self.counts.most_common(4)
        rest = self.counts.total() - sum(count for _, count in largest)
        listed = ", ".join(f"{count} {rule}" for rule, count in largest)
        return f"{self.planned} jobs: {listed}{f' and {rest} more' if rest else ''}; logs/ has a log of each"

    def _progress(self, done: int, total: int) -> Iterator[str]:
        """Yield a line for each job that has finished since the last one."""
        seconds = time.time() - self.begin
        new = [self.jobs[number] for number in self.finished if number in self.jobs]
        self.done += new
        share = self._share_left() if done < total else MOST
        left = f", about {_duration(seconds * share)} left" if share < MOST else ""
        for job in new:
            took = _duration(time.time() - job["created"])
            yield f"[{done}/{total}{left}] {described(job)} ({took}){metrics(_paths(job['output']))}"
        self.finished.clear()
        if done == total:
            yield self._end(seconds)

    def _share_left(self) -> float:
        """Return the expected seconds of the jobs to come, over those of the finished jobs.

        Results that are up to date are planned, too: of each rule, as many jobs are to come as Snakemake counts.
        """
        from flexround.jobs.resolve import EXPECTED

        made = {str(place) for job in self.done for path in _paths(job["output"]) for place in (path, path.parent)}
        left, ended = self.counts - Counter(job["rule_name"] for job in self.done), 0.0
        to_come: dict[str, list[float]] = {}
        for out, (rule, seconds) in EXPECTED.items():
            if out in made:
                ended += seconds
            else:
                to_come.setdefault(rule, []).append(seconds)
        expected = sum(count * statistics.mean(to_come.get(rule, [1.0])) for rule, count in left.items())
        return expected / max(ended, 1.0)

    def _end(self, seconds: float) -> str:
        """Return how long it took, and where what was asked for lies."""
        shown = [job for job in self.jobs.values() if job["rule_name"].startswith("publish_")]
        files = [str(path) for job in shown for path in _paths(job["output"])]
        listed = f"; open {', '.join(files[:LONGEST])}{' ...' if len(files) > LONGEST else ''}" if files else ""
        return f"done in {_duration(seconds)}{listed}"

    def _failure(self, rule: str, facts: dict[str, Any]) -> str:
        """Return which job failed, why, and where its log is."""
        if self.stopped:  # every job that ran fails of it
            return ""
        name = described(self.jobs.get(facts["jobid"], {"rule_name": rule, "wildcards": {}}))
        logs = [path for path in _paths(facts["log"]) if path.suffix != ".json"]
        reason = next((text for path in logs if (text := message(path))), "")
        self.failed.append(name)
        lines = (*reason.splitlines(), *(f"log: {path}" for path in logs))
        return "\n".join([f"FAILED: {name}", *(f"  {line}" for line in lines)])

    def _own_words(self, text: str, level: int) -> str:
        """Return a line of Snakemake's own, or what it means here."""
        if text.startswith("Terminating processes on user request"):
            self.stopped = True
            return f"stopped; {ENDED}"
        if text.startswith("Exiting because a job execution failed") or text.startswith("At least one job did not"):
            return f"{len(self.failed)} jobs failed: {'; '.join(self.failed)}. Fix the cause above, then {ENDED}"
        return text if level >= logging.WARNING or re.match("Nothing to be done|Report created", text) else ""


def described(job: dict[str, Any]) -> str:
    """Return rule and subject of a job."""
    wildcards = dict(job["wildcards"] or {})
    names = [str(wildcards[name]) for name in NAMED if name in wildcards]
    seed = [f"seed {wildcards['seed']}"] if "seed" in wildcards else []
    return " ".join([job["rule_name"], *names, *seed])


def _paths(texts: Sequence[str]) -> list[Path]:
    """Return the paths of what Snakemake lists, without the flags behind a path."""
    return [Path(str(text).partition(" ")[0]) for text in texts]


def metrics(outputs: Sequence[Path]) -> str:
    """Return what an evaluation found, if a job was one."""
    for path in (path for path in outputs if path.name == "metrics.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            found = json.loads(path.read_text())["metrics"]
            return ": " + ", ".join(f"{name} {value:.2f}" for name, value in list(found.items())[:3])
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
