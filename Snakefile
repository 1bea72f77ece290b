"""FlexRound, reproduced: the workflow is workflow/Snakefile."""


include: "workflow/Snakefile"
