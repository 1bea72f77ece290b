"""Judge the paper's claims by the evaluated runs of a scale, as far as they are there, and list the paper's errata."""

import argparse
import dataclasses
import io
import sys
from collections.abc import Sequence

from flexround.io.artifacts import write_text
from flexround.jobs.tables import RESULTS, ClaimsJob
from flexround.results import cells, frames, paper_numbers, sample_sizes
from flexround.results.claims import verdicts
from flexround.results.claims.verdicts import VERDICTS, JudgedClaim, Judgement
from flexround.results.paper_numbers import Erratum


def run(arguments: argparse.Namespace) -> None:
    """Write the two files and print how many comparisons of each claim hold."""
    job = ClaimsJob.read(arguments.job)
    nothing = dataclasses.replace(job.scope, selected=())  # what else lies there is no input of this job
    tables = {t.place: cells.collect(t, nothing if t.place in job.left_out else job.scope) for t in job.tables}
    mistakes = frames.lines(frames.read(io.StringIO(job.errata), Erratum), Erratum)
    usable = paper_numbers.without_copies(dict(job.numbers), mistakes)
    places = {name: verdicts.Place(of_table, usable) for name, of_table in tables.items()}
    figure = f"figure {job.sizes.spec.number}"
    of_figure = sample_sizes.collect(job.sizes, job.scale.name, RESULTS, made=figure not in job.left_out)
    places[figure] = verdicts.Place(*of_figure)
    comparisons = verdicts.compare(job.claims.claims, places, job.file)
    frame = verdicts.judged(comparisons, job.budgets, job.claims)
    judged = verdicts.by_claim(frames.lines(frame, Judgement), job.claims.claims)
    write_text(job.out, frames.text(frame))
    write_text(job.out.with_name("errata.csv"), job.errata)
    sys.stdout.write(_summary(judged))


def _summary(claims: Sequence[JudgedClaim]) -> str:
    """Return a line per claim: how many of its comparisons have each verdict."""
    width = max(len(claim.name) for claim in claims)
    lines = [f"{'':{width}}  {'  '.join(VERDICTS)}"]
    for claim in claims:
        numbers = "  ".join(f"{count:>{len(verdict)}}" for verdict, count in claim.counts.items())
        lines.append(f"{claim.name:{width}}  {numbers}")
    return "\n".join(lines) + "\n"
