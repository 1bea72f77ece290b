"""Full-precision networks of a task: imported from a pinned source, pretrained here, fine-tuned."""


rule finetune:
    input:
        unpack(get_origins),
        code=lambda w: PLAN.code("finetune", *PLAN.model_targets(w.task, w.checkpoint)),
    output:
        manifest=layout.checkpoint_dir("{scale}", "{task}", "{checkpoint}")
        + "/manifest.json",
    log:
        "logs/{scale}/checkpoints/{task}/{checkpoint}.log",
    benchmark:
        "benchmarks/{scale}/checkpoints/{task}/{checkpoint}.jsonl"
    # Most other jobs wait for a network; one trained late leaves cores idle at the end.
    priority: 1
    threads: PLAN.resources("finetune").threads
    resources:
        gpu=PLAN.resources("finetune").gpu,
        mem_mb=lambda w: PLAN.resources("finetune", w.checkpoint).mem_mb,
        runtime=lambda w: PLAN.resources("finetune", w.checkpoint).runtime,
    params:
        settings=lambda w: PLAN.training(w.task, w.checkpoint),
        scale=SCALE_FILE,
        launch=PLAN.launcher("finetune"),
        options=get_training_options,
    shell:
        "{params.launch} flexround.stages.finetune --scale {params.scale} --task {wildcards.task}"
        " --checkpoint {wildcards.checkpoint} {params.options} --sources results/sources"
        " --threads {threads} --out $(dirname {output.manifest}) > {log} 2>&1"
