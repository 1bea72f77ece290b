"""Quantize a run block by block; an interrupted job continues from .state/ at its next block."""


rule reconstruct:
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
        recipe=PLAN.pattern(PLAN.params.recipes.made("setting")),
    threads: PLAN.resources("reconstruct").threads
    resources:
        gpu=PLAN.resources("reconstruct").gpu,
        mem_mb=lambda w: PLAN.resources("reconstruct", w.checkpoint).mem_mb,
        runtime=lambda w: PLAN.resources("reconstruct", w.checkpoint).runtime,
    params:
        settings=lambda w: PLAN.settings(get_run(w)),
        scale=SCALE_FILE,
    shell:
        "python -m flexround.stages.reconstruct --scale {params.scale} --task {wildcards.task}"
        " --checkpoint {wildcards.checkpoint} --recipe {wildcards.recipe} --seed {wildcards.seed}"
        " --threads {threads} --weights $(dirname {input.weights}) --samples $(dirname {input.samples})"
        " --gate {input.gate} --out $(dirname {output.manifest}) > {log} 2>&1"


rule select:
    input:
        networks=get_candidates,
        data=layout.data_dir("{scale}", "{task}") + "/manifest.json",
        code=lambda w: PLAN.code("select", *PLAN.model_targets(w.task, w.checkpoint)),
    output:
        manifest=layout.quantized_dir(ANY) + "/manifest.json",
    log:
        "logs/{scale}/quantized/{task}/{checkpoint}/{recipe}/seed{seed}.log",
    benchmark:
        "benchmarks/{scale}/quantized/{task}/{checkpoint}/{recipe}/seed{seed}.jsonl"
    wildcard_constraints:
        recipe=PLAN.pattern(PLAN.params.recipes.made("select")),
    threads: PLAN.resources("evaluate").threads
    resources:
        gpu=PLAN.resources("evaluate").gpu,
        mem_mb=lambda w: PLAN.resources("evaluate", w.checkpoint).mem_mb,
        runtime=lambda w: PLAN.resources("evaluate", w.checkpoint).runtime,
    params:
        scale=SCALE_FILE,
    shell:
        "python -m flexround.stages.select --scale {params.scale} --task {wildcards.task}"
        " --checkpoint {wildcards.checkpoint} --recipe {wildcards.recipe} --seed {wildcards.seed}"
        " --threads {threads} --networks {input.networks} --data $(dirname {input.data})"
        " --out $(dirname {output.manifest}) > {log} 2>&1"
