"""FlexRound, reproduced: data -> fine-tune -> calibrate -> reconstruct -> evaluate -> tabulate."""

import importlib.util
import sys
from pathlib import Path

FOUND = importlib.util.find_spec("flexround")  # by jobs, too
sys.path.insert(0, str(Path(workflow.basedir) / "src"))

from flexround import clone
from flexround.errors import FlexRoundError
from flexround.jobs import resolve, server
from flexround.settings import layout, upgrades, user_rows
from flexround.settings.plan import Plan
from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

try:
    clone.check(FOUND, Path(workflow.basedir))
    PARAMS = user_rows.configured(str(config.get("scale", "mini")), config.get("own"))
    user_rows.claim(PARAMS.scale.name, str(config.get("scale", "mini")))
    PLAN = Plan(PARAMS, config.get("seeds"), dict(config), config.get("checkpoints"))
except FlexRoundError as error:
    raise WorkflowError(str(error))

resolve.settled = not workflow.is_main_process  # a cluster's job
SCALE, SERIES = PLAN.scale.name, PLAN.scale.shows.tables
if workflow.is_main_process:
    for line in upgrades.told(Path("results", SCALE)):
        logger.warning(line)


report: "workflow/report/workflow.rst"


onstart:
    server.start(wanted=workflow.local_exec)


wildcard_constraints:
    scale=PLAN.pattern([SCALE]),
    task=PLAN.pattern(PLAN.scale.tasks),
    checkpoint=PLAN.pattern(PLAN.scale.checkpoints),
    recipe=PLAN.pattern(PLAN.params.recipes.recipes),
    source=PLAN.pattern(PLAN.params.sources),
    table=PLAN.pattern(PLAN.params.tables),
    figure=PLAN.pattern(PLAN.figures),
    seed=r"\d+",
    samples=r"\d+",


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/finetune.smk"
include: "workflow/rules/calibrate.smk"
include: "workflow/rules/reconstruct.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/tabulate.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/regress.smk"


rule all:
    default_target: True
    input:
        expand(f"results/{SERIES}{{table}}.csv", table=PLAN.complete_tables()),
        expand("results/figure{figure}.pdf", figure=PLAN.complete_figures()),
        "results/claims.csv",
        f"results/{SCALE}/metrics.json",
