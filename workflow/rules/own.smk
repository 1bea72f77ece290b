"""Runs of the recipes in the user's own file (--config own=FILE): as all others, but the stages read that file too."""


ruleorder: own_reconstruct > reconstruct
ruleorder: own_evaluate > evaluate


rule own_reconstruct:
    input:
        weights=get_weights,
        samples=get_samples,
        gate=ancient(get_gate),
        code=get_reconstruction_code,
    output:
        manifest=layout.quantized_dir(ANY) + "/manifest.json",
    log:
        "logs/{scale}/quantized/{task}/{checkpoint}/{recipe}/seed{seed}.log",
    benchmark:
        "benchmarks/{scale}/quantized/{task}/{checkpoint}/{recipe}/seed{seed}.jsonl"
    wildcard_constraints:
        recipe=PLAN.pattern(OWN.recipes),
    threads: PLAN.resources("reconstruct").threads
    resources:
        gpu=PLAN.resources("reconstruct").gpu,
        mem_mb=PLAN.resources("reconstruct").mem_mb,
        runtime=PLAN.resources("reconstruct").runtime,
    params:
        settings=lambda w: PLAN.settings(get_run(w)),
        scale=SCALE_FILE,
    shell:
        'python -m flexround.own "$FLEXROUND_OWN" flexround.stages.reconstruct'
        " --scale {params.scale} --task {wildcards.task} --checkpoint {wildcards.checkpoint}"
        " --recipe {wildcards.recipe} --seed {wildcards.seed} --threads {threads} --weights $(dirname {input.weights})"
        " --samples $(dirname {input.samples}) --gate {input.gate} --out $(dirname {output.manifest}) > {log} 2>&1"


rule own_evaluate:
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
    wildcard_constraints:
        recipe=PLAN.pattern(OWN.recipes),
    threads: PLAN.resources("evaluate").threads
    resources:
        gpu=PLAN.resources("evaluate").gpu,
        mem_mb=PLAN.resources("evaluate").mem_mb,
        runtime=PLAN.resources("evaluate").runtime,
    params:
        settings=lambda w: PLAN.settings(get_run(w)),
        scale=SCALE_FILE,
    shell:
        'python -m flexround.own "$FLEXROUND_OWN" flexround.stages.evaluate'
        " --scale {params.scale} --task {wildcards.task} --checkpoint {wildcards.checkpoint}"
        " --recipe {wildcards.recipe} --seed {wildcards.seed} --threads {threads} --quantized $(dirname {input.network})"
        " --data $(dirname {input.data}) --out $(dirname {output.metrics}) > {log} 2>&1"
