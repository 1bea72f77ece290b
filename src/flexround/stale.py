"""A repair of Snakemake 9: a job with an ``ancient`` input is judged by its other inputs whatever happens to that one.

Snakemake doesn't look at the jobs downstream of a stale one, because they will run after it. A job behind an
``ancient`` file does not, and is then taken for up to date even if its code or settings have changed too. Here every
network lies behind such a file, its gate: after an edit of code that quantizes *and* evaluates, tables would be made
of new evaluations of old networks. ``tests/test_stale.py`` fails when Snakemake no longer needs this.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

from snakemake.dag import DAG


def look_behind_ancient_files() -> None:
    """Make Snakemake look at the jobs that are behind ``ancient`` files only; a second call changes nothing."""
    original = DAG.update_needrun
    if getattr(original, "repaired", False):
        return

    async def update_needrun(self: DAG, *arguments: Any, **options: Any) -> None:
        self.bfs = _certain_to_run  # of the downstream jobs, to which it gives no second look
        try:
            await original(self, *arguments, **options)
        finally:
            del self.bfs

    update_needrun.repaired = True  # type: ignore[attr-defined]
    DAG.update_needrun = update_needrun


def _certain_to_run(depending: dict[Any, dict[Any, set[Any]]], job: Any) -> Iterator[Any]:
    """Yield a job and those that run because it does.

    Args:
        depending: job -> jobs that need its files -> these files.
        job: to begin with.
    """
    queue, seen = deque([job]), {job}
    while queue:
        job = queue.popleft()
        yield job
        for next_job, files in depending[job].items():
            if next_job not in seen and not all(file.is_ancient for file in files):
                seen.add(next_job)
                queue.append(next_job)
