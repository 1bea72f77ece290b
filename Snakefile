"""FlexRound, reproduced: the workflow is workflow/Snakefile."""


include: "workflow/Snakefile"


workflow.default_target = "all"  # an included file can't set it
