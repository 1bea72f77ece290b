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
        mem_mb=PLAN.resources("reconstruct").mem_mb,
        runtime=PLAN.resources("reconstruct").runtime,
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
        heldout=lambda w: get_candidates(w, layout.heldout_dir, "metrics.json"),
        networks=lambda w: get_candidates(w, layout.quantized_dir, "manifest.json"),
        code=PLAN.code("select"),
    output:
        manifest=layout.quantized_dir(ANY) + "/manifest.json",
    log:
        "logs/{scale}/quantized/{task}/{checkpoint}/{recipe}/seed{seed}.log",
    benchmark:
        "benchmarks/{scale}/quantized/{task}/{checkpoint}/{recipe}/seed{seed}.jsonl"
    wildcard_constraints:
        recipe=PLAN.pattern(PLAN.params.recipes.made("select")),
    resources:
        mem_mb=PLAN.resources("calibrate").mem_mb,
        runtime=PLAN.resources("calibrate").runtime,
    params:
        scale=SCALE_FILE,
    shell:
        "python -m flexround.stages.select --scale {params.scale} --task {wildcards.task}"
        " --checkpoint {wildcards.checkpoint} --recipe {wildcards.recipe} --seed {wildcards.seed}"
        " --heldout {input.heldout} --networks {input.networks}"
        " --out $(dirname {output.manifest}) > {log} 2>&1"
