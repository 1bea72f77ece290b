"""One metrics.json per run, per-example scores beside it."""


rule evaluate:
    input:
        network=get_network,
        data=layout.data_dir("{scale}", "{task}") + "/manifest.json",
        files=lambda w: PLAN.task_files(w.task),
        code=lambda w: PLAN.code("evaluate", *PLAN.model_targets(w.task, w.checkpoint)),
    output:
        metrics=layout.evaluated_dir(ANY) + "/metrics.json",
    log:
        "logs/{scale}/evaluated/{task}/{checkpoint}/{recipe}/seed{seed}.log",
    benchmark:
        "benchmarks/{scale}/evaluated/{task}/{checkpoint}/{recipe}/seed{seed}.jsonl"
    threads: PLAN.resources("evaluate").threads
    resources:
        gpu=PLAN.resources("evaluate").gpu,
        mem_mb=lambda w: PLAN.resources("evaluate", w.checkpoint).mem_mb,
        runtime=lambda w: PLAN.resources("evaluate", w.checkpoint).runtime,
    params:
        settings=lambda w: PLAN.evaluation(get_run(w)),
        scale=SCALE_FILE,
        option=lambda w: (
            "--quantized" if PLAN.params.recipe(w.recipe).quantized else "--weights"
        ),
    shell:
        "python -m flexround.stages.evaluate --scale {params.scale} --task {wildcards.task}"
        " --checkpoint {wildcards.checkpoint} --recipe {wildcards.recipe} --seed {wildcards.seed}"
        " --threads {threads} {params.option} $(dirname {input.network}) --data $(dirname {input.data})"
        " --out $(dirname {output.metrics}) > {log} 2>&1"
