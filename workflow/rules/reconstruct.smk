"""Quantize a run block by block; an interrupted job continues from .state/ at its next block."""


rule reconstruct:
    input:
        weights=layout.checkpoint_dir("{scale}", "{checkpoint}") + "/manifest.json",
        samples=get_samples,
        gate=ancient(get_gate),
        code=lambda w: PLAN.code(
            "reconstruct",
            *PLAN.model_targets(w.checkpoint),
            *PLAN.rounding_targets(get_run(w)),
        ),
    output:
        manifest=layout.quantized_dir(ANY) + "/manifest.json",
    log:
        "logs/{scale}/quantized/{task}/{checkpoint}/{recipe}/seed{seed}.log",
    benchmark:
        "benchmarks/{scale}/quantized/{task}/{checkpoint}/{recipe}/seed{seed}.jsonl"
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
