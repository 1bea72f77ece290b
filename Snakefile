"""FlexRound, reproduced: the workflow is workflow/Snakefile."""


include: "workflow/Snakefile"


workflow.default_target = "all"  # a file that is included can't say so
