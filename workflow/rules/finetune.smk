"""Full-precision checkpoints: trained here, or converted from a pinned source."""


rule finetune:
    input:
        origin=get_origin,
        code=lambda w: PLAN.code("finetune", *PLAN.model_targets(w.checkpoint)),
    output:
        manifest=layout.checkpoint_dir("{scale}", "{checkpoint}") + "/manifest.json",
    log:
        "logs/{scale}/checkpoints/{checkpoint}.log",
    benchmark:
        "benchmarks/{scale}/checkpoints/{checkpoint}.jsonl"
    threads: PLAN.resources("finetune").threads
    resources:
        gpu=PLAN.resources("finetune").gpu,
        mem_mb=PLAN.resources("finetune").mem_mb,
        runtime=PLAN.resources("finetune").runtime,
    params:
        settings=lambda w: PLAN.params.checkpoint(w.checkpoint).model_dump_json(
            exclude={"gate"}
        ),
        scale=SCALE_FILE,
    shell:
        "python -m flexround.stages.finetune --scale {params.scale} --checkpoint {wildcards.checkpoint}"
        " --data $(dirname {input.origin}) --sources results/sources --threads {threads}"
        " --out $(dirname {output.manifest}) > {log} 2>&1"
